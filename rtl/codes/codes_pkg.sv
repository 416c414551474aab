// Types and layouts of the codes engine.
//
// **Lanes.** A lane is an operand of the multiply-add tree with a buffer of its own, of two banks: while
// one is computed on, the other is filled. A bank holds one slice (up to 64 beats) of each element that was
// dealt to the lane, at the offset that the program names, and scratch elements likewise.
//
// **Pass.** One slice of all elements of one stripe: fill a bank, then run all operations.
//
// **Program**, in card memory, little-endian; the packed structures below are its bytes read as
// one number, so that the last member is in the lowest bits:
//
//   header (64 B) | fills (8 B each, padded with zeros to 64) | operations (64 B each)
//
// A *fill* says where an element of an input shard goes: a lane, and an offset in its banks. An
// *operation* adds up to one product per lane: the beats of a slice at an offset, times a coefficient. The
// operations of a row follow each other; the one with `last` ends the row, and its target takes the sum:
// an element of an output shard, or, with `scratch`, an offset in a lane. The first operation of
// a row has `fence` if the row reads scratch written since the fence before.
//
// The engine refuses what would reach outside of its tables and banks. It takes the rest as it is: which
// elements are computed on is the host's business, and so is the order of fences.

/* verilator lint_off UNUSEDPARAM */  // a package is used in parts

package codes_pkg;
  localparam logic [31:0] MAGIC = 32'h3150_4346;  // "FCP1"
  localparam int unsigned MAX_LANES = 12;         // terms of an operation's layout
  localparam int unsigned MAX_SLICE_BEATS = 64;
  localparam int unsigned FILLS_PER_BEAT = 8;

  typedef struct packed {
    logic [383:0]  unused_0;
    logic [31:0]   checksum;     // CRC32C of all that follows the header
    logic [15:0]   unused_1;
    logic [15:0]   slice_beats;  // largest slice, and the distance of elements in a bank: 1 to 64
    logic [15:0]   operations;   // at least 1
    logic [15:0]   fills;        // at least 1
    logic [31:0]   magic;
  } header_t;

  typedef struct packed {
    logic [15:0]  offset;   // beats from the start of the bank
    logic [15:0]  lane;
    logic [15:0]  element;  // of the shard
    logic [15:0]  shard;    // of the inputs
  } fill_t;

  typedef struct packed {
    logic [7:0]   unused_0;
    logic [7:0]   coefficient;
    logic [15:0]  offset;  // beats from the start of the bank
  } term_t;

  typedef struct packed {
    logic [63:0]                  unused_0;
    logic [15:0]                  element;  // output: element of the shard
    logic [15:0]                  shard;    // output: shard
    logic [15:0]                  offset;   // scratch: beats from the start of the bank
    logic [7:0]                   lane;     // scratch: whose bank
    logic [4:0]                   unused_1;
    logic                         fence;
    logic                         scratch;
    logic                         last;
    term_t [MAX_LANES-1:0]        terms;  // of lane 0 and up
  } operation_t;

  // A beat's address that notices when a sum leaves the card's address space.
  typedef struct packed {
    logic                outside;
    fs_pkg::card_beat_t  beat;
  } place_t;

  function automatic place_t add(input place_t place, input fs_pkg::card_beat_t beats);
    logic [fs_pkg::CARD_BEAT_BITS:0] sum;
    sum = {1'b0, place.beat} + {1'b0, beats};
    return '{outside: place.outside || sum[fs_pkg::CARD_BEAT_BITS], beat: sum[fs_pkg::CARD_BEAT_BITS-1:0]};
  endfunction

  typedef logic [25:0] element_beats_t;  // of a length of up to 2^32 - 1 bytes

  // A slice of all elements of the inputs, or of the outputs.
  typedef struct packed {
    place_t      place;  // in element 0 of shard 0
    logic [6:0]  beats;
  } slice_t;

  // How the shards of a job lie. In beats.
  typedef struct packed {
    element_beats_t      element;  // from one element to the next
    fs_pkg::card_beat_t  shard;    // from one shard to the next
  } strides_t;

  // One beat of the program for the tables.
  typedef struct packed {
    logic          valid;
    logic          is_operation;  // else 8 fills
    logic [15:0]   index;         // of the operation, or of the 8 fills
    logic [511:0]  data;
  } table_write_t;

  typedef struct packed {
    logic [15:0]  fills;
    logic [15:0]  operations;
    logic [6:0]   slice_beats;
  } sizes_t;
endpackage
