// Time-slices the copies of one direction. Functions take turns, and within a function its copies
// do (qdma_lines). A copy moves one burst of up to QUANTUM_BEATS beats. Then the rest of the copy
// goes to the end of its function's line, so a long copy does not delay short ones, and the copies
// of a function, however many, delay those of another by one burst. A copy that has failed gets one
// more beat, marked as its last, so the copy ends in the usual way.

/* verilator lint_off PINCONNECTEMPTY */  // no line is cleared here

module qdma_round_robin
  import qdma_pkg::*;
(
  input  logic    clk_i,
  input  logic    rst_ni,

  // The parameters of a copy are loaded first; the copy starts later.
  input  logic    load_valid_i,
  input  slot_t   load_slot_i,
  input  copy_t   load_i,
  input  logic    start_valid_i,
  output logic    start_ready_o,
  input  slot_t   start_slot_i,

  output slot_t   failed_slot_o,
  input  logic    failed_i,  // copy failed_slot_o has failed

  output logic    burst_valid_o,
  input  logic    burst_ready_i,
  output burst_t  burst_o
);
  typedef enum logic [2:0] { WAIT, READ, CUT, OFFER, STORE } state_e;
  state_e state_q;

  copy_t copies_q [SLOTS];
  copy_t read_q, rest_q;
  slot_t slot_q;
  logic failed_q;

  // A copy that returns to its line goes before new ones.
  logic line_valid, back;
  slot_t line_slot;
  assign start_ready_o = !back;
  qdma_lines i_lines (
    .clk_i, .rst_ni,
    .put_valid_i(back || start_valid_i), .put_slot_i(back ? slot_q : start_slot_i),
    .barred_i('0), .clear_i('0), .waiting_o(),
    .next_valid_o(line_valid), .next_slot_o(line_slot), .next_cleared_o(),
    .take_i(line_valid && state_q == WAIT)
  );

  logic fits;  // the rest fits into one burst
  assign fits = read_q.beats <= 19'(QUANTUM_BEATS);

  // The memory has one write port.
  logic store;
  assign store = state_q == STORE && !load_valid_i;
  assign back = store && !burst_o.last;

  assign failed_slot_o = slot_q;
  assign burst_valid_o = state_q == OFFER;

  always_ff @(posedge clk_i) begin
    if (load_valid_i || back) copies_q[load_valid_i ? load_slot_i : slot_q] <= load_valid_i ? load_i : rest_q;
    if (state_q == READ) {read_q, failed_q} <= {copies_q[slot_q], failed_i};
    if (state_q == CUT) begin
      burst_o.slot <= slot_q;
      burst_o.host <= read_q.host;
      burst_o.card <= read_q.card;
      burst_o.tail_bytes <= read_q.tail_bytes;
      burst_o.last <= failed_q || fits;
      burst_o.beats_minus_1 <= failed_q ? '0
          : fits ? 6'(read_q.beats - 1'b1) : 6'(QUANTUM_BEATS - 1);
      rest_q <= '{
        host: read_q.host + 58'(QUANTUM_BEATS),
        card: read_q.card + 34'(QUANTUM_BEATS),
        beats: read_q.beats - 19'(QUANTUM_BEATS),
        tail_bytes: read_q.tail_bytes
      };
    end
    if (!rst_ni) begin
      state_q <= WAIT;
    end else begin
      unique case (state_q)
        WAIT: begin
          slot_q <= line_slot;
          if (line_valid) state_q <= READ;
        end
        READ: state_q <= CUT;
        CUT: state_q <= OFFER;
        OFFER: if (burst_ready_i) state_q <= STORE;
        STORE: if (store) state_q <= WAIT;
        default: state_q <= WAIT;
      endcase
    end
  end
endmodule
