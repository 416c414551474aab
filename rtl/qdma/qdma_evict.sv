// Takes slots back from descriptors that wait, for rings of the same function that have no slot to
// fetch into.
//
// A function is starved while it has a ring that may fetch, and no free slot. A descriptor that
// waits for a count may wait forever, and the ring that is to reach the count may be the starved
// one. So the unit evicts such a descriptor at once. A fence ends by itself when the jobs before it
// have ended, so a descriptor behind a fence is evicted only when its function has been starved for
// PATIENCE_CYCLES. Then the jobs take so long that to fetch the descriptor again costs little.
//
// The unit looks at one function per cycle. An eviction frees a slot before the unit looks at the
// same function again. An eviction gives up what was fetched of one ring.

module qdma_evict
  import qdma_pkg::*;
(
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic [FUNCTIONS-1:0] starved_i,
  input  logic [1:0][FUNCTIONS-1:0][FUNCTION_JOBS-1:0] kept_i,  // for a fence, for a count

  output logic                 evict_valid_o,
  input  logic                 evict_ready_i,
  output slot_t                evict_slot_o
);
  localparam int unsigned PATIENCE_BITS = $clog2(PATIENCE_CYCLES);

  if (PATIENCE_CYCLES != (1 << PATIENCE_BITS)) begin : gen_patience_check
    $error("PATIENCE_CYCLES must be a power of two");
  end

  // ---- Patience -------------------------------------------------------------------------------

  // The periods are those of one counter, so patience ends after one to two of them.
  logic [PATIENCE_BITS-1:0] count_q;
  logic [FUNCTIONS-1:0] whole_q;  // starved since the period began
  logic [FUNCTIONS-1:0] impatient_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      count_q <= '0;
      whole_q <= '0;
      impatient_q <= '0;
    end else begin
      count_q <= count_q + 1'b1;
      whole_q <= (count_q == '0) ? starved_i : whole_q & starved_i;
      impatient_q <= (impatient_q | ((count_q == '0) ? whole_q : '0)) & starved_i;
    end
  end

  // ---- The choice -----------------------------------------------------------------------------

  fs_pkg::function_t number_q, owner_q;
  logic [FUNCTION_JOBS-1:0] kept, kept_q;
  slot_number_t first;
  logic valid_q;
  always_comb begin
    kept = kept_i[1][number_q];
    if (kept == '0 && impatient_q[number_q]) kept = kept_i[0][number_q];
    if (!starved_i[number_q]) kept = '0;
    first = '0;
    for (int i = FUNCTION_JOBS - 1; i >= 0; i--) begin
      if (kept_q[i]) first = slot_number_t'(i);
    end
  end

  always_ff @(posedge clk_i) begin
    if (!valid_q) begin
      owner_q <= number_q;
      evict_slot_o <= '{owner: owner_q, number: first};
    end
    if (!rst_ni) begin
      number_q <= '0;
      kept_q <= '0;
      valid_q <= 1'b0;
    end else begin
      if (kept_q == '0 && !valid_q) number_q <= number_q + 1'b1;
      kept_q <= (kept_q == '0 && !valid_q) ? kept : '0;
      if (kept_q != '0) valid_q <= 1'b1;
      else if (evict_ready_i) valid_q <= 1'b0;
    end
  end
  assign evict_valid_o = valid_q;
endmodule
