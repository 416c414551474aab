// Decodes a doorbell's number: how far the index has moved. The number may not take back entries of
// an earlier doorbell, and it may not go past the ring's size, or past the completions that are
// posted. The result is valid two cycles after the queue set has come from its memory.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_doorbell
  import qdma_pkg::*;
(
  input  logic       clk_i,
  input  queue_set_t set_i,
  input  event_t     event_i,
  output doorbell_t  doorbell_o
);
  // ---- The current index, and the bounds of the step --------------------------------------------

  logic [3:0] log2;
  index_t origin, min_moved, max_moved;
  always_comb begin
    log2 = set_i.rings[event_i.which[0]].log2;
    origin = set_i.rings[event_i.which[0]].started;
    min_moved = set_i.rings[event_i.which[0]].posted;
    max_moved = index_t'(1) << log2;
    if (event_i.which[1]) begin
      log2 = set_i.cq_log2;
      origin = set_i.cq_consumer;
      min_moved = '0;
      max_moved = set_i.cq_posted;
    end
  end

  index_t distance_q, mask_q, min_moved_q, max_moved_q;
  always_ff @(posedge clk_i) begin
    distance_q <= event_i.value[12:0] - origin;
    mask_q <= ~({13{1'b1}} << 1 << log2);
    min_moved_q <= min_moved;
    max_moved_q <= max_moved;
  end

  // ---- The step ---------------------------------------------------------------------------------

  index_t moved;
  assign moved = distance_q & mask_q;

  always_ff @(posedge clk_i) begin
    doorbell_o <= '{
      moved: moved,
      well: (event_i.value & ~64'(mask_q)) == '0 && moved >= min_moved_q && moved <= max_moved_q
    };
  end
endmodule
