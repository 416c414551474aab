// An unsigned product, one per cycle: partial products of at most 26 by 17 bits, as the multipliers of
// FPGAs take them, added three at a time.

module crush_multiplier #(
  parameter int unsigned A_BITS = 32,
  parameter int unsigned B_BITS = 32,
  localparam int unsigned STAGES = crush_pkg::multiplier_stages(A_BITS, B_BITS),
  localparam int unsigned BITS = A_BITS + B_BITS
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,  // a beat stands before this stage
  input  logic [A_BITS-1:0]  a_i,
  input  logic [B_BITS-1:0]  b_i,
  output logic [BITS-1:0]    product_o
);
  if (A_BITS == 0 || B_BITS == 0) begin : gen_check
    $error("A_BITS and B_BITS must be at least 1");
  end

  // Equal tiles, so that all partial products are about as wide.
  localparam int unsigned A_TILES = (A_BITS + 25) / 26;
  localparam int unsigned B_TILES = (B_BITS + 16) / 17;
  localparam int unsigned A_TILE = (A_BITS + A_TILES - 1) / A_TILES;
  localparam int unsigned B_TILE = (B_BITS + B_TILES - 1) / B_TILES;
  localparam int unsigned TILES = A_TILES * B_TILES;

  // How many terms there are after a stage.
  function automatic int unsigned terms(input int unsigned stage);
    terms = TILES;
    for (int unsigned s = 0; s < stage; s++) terms = (terms + 2) / 3;
  endfunction

  logic [A_TILE*A_TILES-1:0] a;
  logic [B_TILE*B_TILES-1:0] b;
  assign a = (A_TILE*A_TILES)'(a_i);
  assign b = (B_TILE*B_TILES)'(b_i);

  for (genvar stage = 0; stage < STAGES; stage++) begin : gen_stage
    logic [BITS-1:0] term_q [terms(stage)];
    if (stage == 0) begin : gen_products
      for (genvar tile = 0; tile < TILES; tile++) begin : gen_tile
        localparam int unsigned A_LOW = (tile / B_TILES) * A_TILE;
        localparam int unsigned B_LOW = (tile % B_TILES) * B_TILE;
        logic [A_TILE+B_TILE-1:0] product;
        assign product = (A_TILE+B_TILE)'(a[A_LOW +: A_TILE]) * (A_TILE+B_TILE)'(b[B_LOW +: B_TILE]);
        always_ff @(posedge clk_i) begin
          if (valid_i[0]) term_q[tile] <= BITS'(product) << (A_LOW + B_LOW);
        end
      end
    end else begin : gen_sums
      for (genvar sum = 0; sum < terms(stage); sum++) begin : gen_sum
        localparam int unsigned FIRST = 3 * sum;
        localparam int unsigned LEFT = terms(stage - 1) - FIRST;
        logic [BITS-1:0] total;
        if (LEFT >= 3) begin : gen_three
          assign total = gen_stage[stage-1].term_q[FIRST] + gen_stage[stage-1].term_q[FIRST+1]
                       + gen_stage[stage-1].term_q[FIRST+2];
        end else if (LEFT == 2) begin : gen_two
          assign total = gen_stage[stage-1].term_q[FIRST] + gen_stage[stage-1].term_q[FIRST+1];
        end else begin : gen_one
          assign total = gen_stage[stage-1].term_q[FIRST];
        end
        always_ff @(posedge clk_i) if (valid_i[stage]) term_q[sum] <= total;
      end
    end
  end

  assign product_o = gen_stage[STAGES-1].term_q[0];
endmodule
