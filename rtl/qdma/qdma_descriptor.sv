// The descriptor engine fetches descriptors from host memory, as many at once as there are slots.
// It keeps them until the engines take them, has each descriptor checked, and reports it.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_descriptor
  import qdma_pkg::*;
(
  input  logic          clk_i,
  input  logic          rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,

  // The descriptor to fetch.
  output logic          fetch_room_o,
  input  logic          fetch_valid_i,
  input  fetch_t        fetch_i,

  output logic          read_valid_o,
  input  logic          read_ready_i,
  output host_read_t    read_o,
  input  logic          data_valid_i,  // no back-pressure: always taken
  input  host_data_t    data_i,

  // A descriptor has arrived. The check result comes first, then the event.
  output slot_t         looked_slot_o,  // the slot whose ring is looked up
  input  ring_number_t  looked_ring_i,
  output logic          check_valid_o,
  output slot_t         check_slot_o,
  output check_result_t check_result_o,
  output copy_t         copy_o,
  output logic          arrived_valid_o,
  input  logic          arrived_ready_i,
  output slot_t         arrived_slot_o,

  // Beats of descriptors for the engines, one cycle later.
  input  slot_t         beat_slot_i,
  input  logic          beat_second_i,
  output fs_pkg::beat_t beat_o
);
  // ---- Fetching -------------------------------------------------------------------------------

  logic fetch_valid, fetch_taken, read_valid_q;
  fetch_t fetch;
  fs_fifo #(.WIDTH($bits(fetch_t)), .DEPTH(4)) i_fetches (
    .clk_i, .rst_ni,
    .in_valid_i(fetch_valid_i), .in_ready_o(fetch_room_o), .in_data_i(fetch_i),
    .out_valid_o(fetch_valid), .out_ready_i(fetch_taken), .out_data_o(fetch), .level_o()
  );

  assign fetch_taken = !read_valid_q || read_ready_i;
  always_ff @(posedge clk_i) begin
    if (fetch_valid && fetch_taken) begin
      read_o <= '{
        owner: fetch.slot.owner,
        tag: '{kind: READ_DESCRIPTOR, number: fetch.slot},
        address: {fetch.base + 57'(fetch.index), 1'b0},
        two: 1'b1
      };
    end
    if (!rst_ni) read_valid_q <= 1'b0;
    else if (fetch_taken) read_valid_q <= fetch_valid;
  end
  assign read_valid_o = read_valid_q;

  // ---- Arriving -------------------------------------------------------------------------------

  fs_pkg::beat_t beats_q [2 * SLOTS];
  logic errors_q [2 * SLOTS];  // the answer carried an error

  logic arrives;
  assign arrives = data_valid_i && data_i.tag.kind == READ_DESCRIPTOR;

  fs_pkg::beat_t head_q;
  logic unread_q;
  slot_t slot, slot_q;
  always_ff @(posedge clk_i) begin
    if (arrives) beats_q[{data_i.tag.number, data_i.last}] <= data_i.data;
    if (arrives) errors_q[{data_i.tag.number, data_i.last}] <= data_i.error;
    head_q <= beats_q[{slot_q, 1'b0}];
    unread_q <= errors_q[{slot_q, 1'b0}] || errors_q[{slot_q, 1'b1}];
    beat_o <= beats_q[{beat_slot_i, beat_second_i}];
  end

  logic slot_valid, slot_taken, arrivals_room;
  fs_fifo #(.WIDTH($bits(slot_t)), .DEPTH(SLOTS)) i_arrivals (
    .clk_i, .rst_ni,
    .in_valid_i(arrives && data_i.last), .in_ready_o(arrivals_room), .in_data_i(data_i.tag.number),
    .out_valid_o(slot_valid), .out_ready_i(slot_taken), .out_data_o(slot), .level_o()
  );

  // ---- Checking, one at a time ----------------------------------------------------------------

  typedef enum logic [2:0] { WAIT, READ, START, CHECK, REPORT } state_e;
  state_e state_q;
  logic c2h_q, checked;

  assign looked_slot_o = slot_q;
  qdma_check i_check (
    .clk_i, .rst_ni, .windows_i,
    .start_i(state_q == START), .owner_i(slot_q.owner), .c2h_i(c2h_q),
    .unread_i(unread_q), .head_i(head_q),
    .done_o(checked), .check_result_o, .copy_o
  );
  assign check_valid_o = checked;
  assign check_slot_o = slot_q;
  assign arrived_valid_o = state_q == REPORT;
  assign arrived_slot_o = slot_q;
  assign slot_taken = state_q == WAIT;

  always_ff @(posedge clk_i) begin
    if (state_q == WAIT) slot_q <= slot;
    c2h_q <= looked_ring_i.c2h;
    if (!rst_ni) begin
      state_q <= WAIT;
    end else begin
      unique case (state_q)
        WAIT: if (slot_valid) state_q <= READ;
        READ: state_q <= START;
        START: state_q <= CHECK;
        CHECK: if (checked) state_q <= REPORT;
        REPORT: if (arrived_ready_i) state_q <= WAIT;
        default: state_q <= WAIT;
      endcase
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) !(arrives && data_i.last) || arrivals_room)
  else $error("more descriptors than slots");
endmodule
