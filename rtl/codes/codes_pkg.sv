// Types and layouts of the codes engine.
//
// **Lanes.** A lane is an operand of the multiply-add tree with its own buffer of two banks: the
// engine fills one bank while it computes on the other. A bank holds one slice (up to 64 beats) of
// each element that belongs to the lane, at the offset that the program names. It holds scratch
// elements in the same way.
//
// **Pass.** One slice of all elements of one stripe: fill a bank, then run all operations.
//
// **Program**, in card memory, little-endian. The packed structures below are the program's bytes
// read as one number, so the last member is in the lowest bits:
//
//   header (64 B) | fills (8 B each, padded with zeros to 64) | operations (64 B each)
//
// A *fill* gives the place of an input shard's element: a lane, and an offset in the lane's banks.
// An *operation* adds up to one product per lane: the beats of a slice at an offset, times a
// coefficient. The operations of a row follow each other. The one with `last` ends the row, and its
// target takes the sum: an element of an output shard, or, with `scratch`, an offset in a lane. The
// first operation of a row has `fence` if the row reads scratch that was written since the last
// fence.
//
// The engine refuses a program that would reach outside its tables and banks. It does not check the
// choice of elements and the order of fences: that is the host's task.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package codes_pkg;
  localparam logic [31:0] MAGIC = 32'h3150_4346;  // "FCP1"
  localparam int unsigned MAX_LANES = 12;         // terms in an operation's layout
  localparam int unsigned MAX_SLICE_BEATS = 64;
  localparam int unsigned FILLS_PER_BEAT = 8;

  typedef struct packed {
    logic [383:0]  unused_0;
    logic [31:0]   checksum;     // CRC32C of the bytes after the header
    logic [15:0]   unused_1;
    logic [15:0]   slice_beats;  // beats of the largest slice, and distance of elements in a bank:
                                 // 1 to 64
    logic [15:0]   operations;   // at least 1
    logic [15:0]   fills;        // at least 1
    logic [31:0]   magic;
  } header_t;

  typedef struct packed {
    logic [15:0]  offset;   // beats from the start of the bank
    logic [15:0]  lane;
    logic [15:0]  element;  // element of the shard
    logic [15:0]  shard;    // number of the input shard
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
    logic [7:0]                   lane;     // scratch: the lane of the bank
    logic [4:0]                   unused_1;
    logic                         fence;
    logic                         scratch;
    logic                         last;
    term_t [MAX_LANES-1:0]        terms;  // one per lane, lane 0 first
  } operation_t;

  // A beat's address, with a flag for a sum that leaves the card's address space.
  typedef struct packed {
    logic                outside;
    fs_pkg::card_beat_t  beat;
  } place_t;

  function automatic place_t add(input place_t place, input fs_pkg::card_beat_t beats);
    logic [fs_pkg::CARD_BEAT_BITS:0] sum;
    sum = {1'b0, place.beat} + {1'b0, beats};
    return '{outside: place.outside || sum[fs_pkg::CARD_BEAT_BITS], beat: sum[fs_pkg::CARD_BEAT_BITS-1:0]};
  endfunction

  typedef logic [25:0] element_beats_t;  // beats of up to 2^32 - 1 bytes

  // One slice of all elements of the inputs, or of the outputs.
  typedef struct packed {
    place_t      place;  // of element 0 of shard 0
    logic [6:0]  beats;
  } slice_t;

  // The layout of a job's shards, in beats.
  typedef struct packed {
    element_beats_t      element;  // distance of two elements
    fs_pkg::card_beat_t  shard;    // distance of two shards
  } strides_t;

  // One beat of the program, for the tables.
  typedef struct packed {
    logic          valid;
    logic          is_operation;  // an operation, or 8 fills
    logic [15:0]   index;         // of the operation, or of the 8 fills
    logic [511:0]  data;
  } table_write_t;

  typedef struct packed {
    logic [15:0]  fills;
    logic [15:0]  operations;
    logic [6:0]   slice_beats;
  } sizes_t;
endpackage
