// Types of the interfaces between units. The types of the host's interface are in rtl/regs.
//
// Streams are valid, ready and data: a beat moves on a rising edge with both set. valid does not
// wait for ready. Once valid, a beat does not change until it is taken.
//
// **Card memory.** Beats of 64 bytes, addressed by beat. A client has a stream of read requests
// (bursts of 1 to 64 beats), and gets the data of all its bursts in the order of the requests. It
// also has a stream of single-beat writes. Each write is answered (write_done) in order, after it
// has landed. Every request names the function for which the client makes it. The guard in front of
// the memory answers a request outside that function's window with an error: a read gets zeros, and
// a write changes nothing.
//
// **Engines** (crush, codes, crc, configuration) take commands of one descriptor each. They answer
// every command once, in any order.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package fs_pkg;
  localparam int unsigned BEAT_BYTES = 64;
  localparam int unsigned BEAT_BITS = 8 * BEAT_BYTES;
  localparam int unsigned CARD_BEAT_BITS = 34;  // beat addresses: 1 TiB

  typedef logic [BEAT_BITS-1:0] beat_t;
  typedef logic [CARD_BEAT_BITS-1:0] card_beat_t;
  typedef logic [3:0] function_t;

  typedef struct packed {
    function_t   owner;
    card_beat_t  address;
    logic [5:0]  beats_minus_1;
  } card_read_t;

  typedef struct packed {
    logic   error;
    logic   last;  // the burst's last beat
    beat_t  data;
  } card_data_t;

  typedef struct packed {
    function_t              owner;
    card_beat_t             address;
    logic [BEAT_BYTES-1:0]  strobe;  // which bytes to write
    beat_t                  data;
  } card_write_t;

  typedef struct packed {
    logic  valid;  // one write has landed, or was refused
    logic  error;
  } card_done_t;

  // A descriptor for an engine, as it came from the host.
  typedef struct packed {
    logic [15:0]    tag;  // comes back with the answer
    function_t      owner;
    logic [1023:0]  descriptor;
  } engine_command_t;

  typedef struct packed {
    logic [15:0]  tag;
    logic [7:0]   status;  // fs_regs_pkg::STATUS_*
    logic [63:0]  result;
    logic [63:0]  detail;
  } engine_answer_t;

  // A possible error of a descriptor, and the answer to it.
  typedef struct packed {
    logic         is_wrong;
    logic [7:0]   status;  // fs_regs_pkg::STATUS_*
    logic [63:0]  detail;
  } finding_t;

  // Checks of addresses and lengths in card memory, as descriptors give them.
  function automatic logic unaligned(input logic [63:0] bytes);
    return bytes % 64'(BEAT_BYTES) != '0;
  endfunction

  function automatic logic too_far(input logic [63:0] bytes);
    return bytes >> (CARD_BEAT_BITS + $clog2(BEAT_BYTES)) != '0;
  endfunction
endpackage
