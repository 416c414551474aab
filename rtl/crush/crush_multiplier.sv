// Unsigned products, one per lane and cycle. Partial products have at most 26 by 17 bits, as the
// multipliers of FPGAs do; the module adds them three at a time.

module crush_multiplier #(
  parameter int unsigned LANES = 16,
  parameter int unsigned A_BITS = 32,
  parameter int unsigned B_BITS = 32,
  localparam int unsigned STAGES = crush_pkg::multiplier_stages(A_BITS, B_BITS),
  localparam int unsigned BITS = A_BITS + B_BITS
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,  // a beat is before this stage
  input  logic [A_BITS-1:0]  a_i [LANES],
  input  logic [B_BITS-1:0]  b_i [LANES],
  output logic [BITS-1:0]    product_o [LANES]
);
  if (A_BITS == 0 || B_BITS == 0) begin : gen_check
    $error("A_BITS and B_BITS must be at least 1");
  end

  // Tiles of equal size, so that all partial products have about the same width.
  localparam int unsigned A_TILES = (A_BITS + 25) / 26;
  localparam int unsigned B_TILES = (B_BITS + 16) / 17;
  localparam int unsigned A_TILE = (A_BITS + A_TILES - 1) / A_TILES;
  localparam int unsigned B_TILE = (B_BITS + B_TILES - 1) / B_TILES;
  localparam int unsigned TILES = A_TILES * B_TILES;

  typedef logic [BITS-1:0] terms_t [LANES];

  // No line coverage for functions that run at elaboration.
  // verilator coverage_off
  // Number of terms after a stage.
  function automatic int unsigned terms(input int unsigned stage);
    terms = TILES;
    for (int unsigned s = 0; s < stage; s++) terms = (terms + 2) / 3;
  endfunction
  // verilator coverage_on

  for (genvar stage = 0; stage < STAGES; stage++) begin : gen_stage
    for (genvar term = 0; term < terms(stage); term++) begin : gen_term
      terms_t term_q;
      if (stage == 0) begin : gen_product
        localparam int unsigned A_LOW = (term / B_TILES) * A_TILE;
        localparam int unsigned B_LOW = (term % B_TILES) * B_TILE;
        always_ff @(posedge clk_i) begin
          if (valid_i[0]) begin
            automatic terms_t products;
            // verilator unroll_disable
            for (int unsigned lane = 0; lane < LANES; lane++) begin
              products[lane] = BITS'((A_TILE + B_TILE)'(A_TILE'(a_i[lane] >> A_LOW))
                                   * (A_TILE + B_TILE)'(B_TILE'(b_i[lane] >> B_LOW))) << (A_LOW + B_LOW);
            end
            term_q <= products;
          end
        end
      end else begin : gen_sum
        localparam int unsigned FIRST = 3 * term;
        localparam int unsigned LEFT = terms(stage - 1) - FIRST;
        localparam int unsigned SECOND = (LEFT >= 2) ? FIRST + 1 : FIRST;
        localparam int unsigned THIRD = (LEFT >= 3) ? FIRST + 2 : FIRST;
        always_ff @(posedge clk_i) begin
          if (valid_i[stage]) begin
            automatic terms_t sums;
            // verilator unroll_disable
            for (int unsigned lane = 0; lane < LANES; lane++) begin
              sums[lane] = gen_stage[stage-1].gen_term[FIRST].term_q[lane];
              if (LEFT >= 2) sums[lane] += gen_stage[stage-1].gen_term[SECOND].term_q[lane];
              if (LEFT >= 3) sums[lane] += gen_stage[stage-1].gen_term[THIRD].term_q[lane];
            end
            term_q <= sums;
          end
        end
      end
    end
  end

  assign product_o = gen_stage[STAGES-1].gen_term[0].term_q;
endmodule
