// Kernel of straw2 buckets: the least floor(N / weight) wins, the first among equals, with N = 2^48 -
// crush_ln(hash & 0xffff); items of weight 0 only if there are no others, and then the first.
//
// The quotient comes from the reciprocal in the slot. Its multiplier is 2^48 + m, so
//
//   floor(N / weight) = (N + N * m / 2^48) >> shift
//
// Stages: hash, logarithm, multiply by m, add, shift, tournament.

module crush_straw2 #(
  parameter int unsigned LANES = 16
) (
  input  logic                           clk_i,
  input  logic                           rst_ni,

  // verilator lint_off UNUSEDSIGNAL
  // The ports are those of all kernels; each uses a part of them.
  input  logic                           valid_i,
  input  crush_pkg::kernel_beat_t        beat_i,
  input  logic [LANES-1:0]               mask_i,
  input  crush_pkg::slot_t [LANES-1:0]   slots_i,
  // verilator lint_on UNUSEDSIGNAL

  output logic                           valid_o,
  output crush_pkg::drawn_t              drawn_o
);
  import crush_pkg::*;

  if (LANES == 0 || LANES > ROW_SLOTS || (LANES & (LANES - 1)) != 0) begin : gen_check
    $error("LANES must be a power of two, up to a row of slots");
  end

  localparam int unsigned HASHED = hash_stages(3, 3);
  localparam int unsigned LOGGED = HASHED + LN_STAGES;
  localparam int unsigned MULTIPLIED = LOGGED + multiplier_stages(49, 48);
  localparam int unsigned DIVIDED = MULTIPLIED + 2;
  localparam int unsigned STAGES = DIVIDED + $clog2(LANES) + 1;
  localparam int unsigned KEY_BITS = 50;

  // verilator lint_off UNUSEDSIGNAL
  logic [STAGES:0] valid, first, last;  // not every stage looks at all of them
  // verilator lint_on UNUSEDSIGNAL
  draw_tag_t tag;
  crush_flow #(.STAGES(STAGES)) i_flow (
    .clk_i,
    .rst_ni,
    .valid_i,
    .first_i(beat_i.first),
    .last_i(beat_i.last),
    .tag_i(beat_i.tag),
    .valid_o(valid),
    .first_o(first),
    .last_o(last),
    .drawn_o(valid_o),
    .tag_o(tag)
  );

  reciprocal_t [LANES-1:0] reciprocals_in, reciprocals;
  crush_beside #(.WIDTH(LANES * $bits(reciprocal_t)), .STAGES(LOGGED)) i_reciprocals (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(reciprocals_in), .out_i(valid[LOGGED]), .data_o(reciprocals)
  );
  // Lanes without a slot are as items without weight.
  logic [LANES-1:0] loses_in, loses;
  crush_beside #(.WIDTH(LANES), .STAGES(DIVIDED)) i_loses (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(loses_in), .out_i(valid[DIVIDED]), .data_o(loses)
  );

  logic [KEY_BITS-1:0] keys [LANES];
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    assign reciprocals_in[lane] = slots_i[lane].payload;
    assign loses_in[lane] = !mask_i[lane] || reciprocals_in[lane].is_zero;

    // verilator lint_off UNUSEDSIGNAL
    logic hash_valid;    // valid[HASHED], in lanes with a slot
    logic [31:0] hash;   // the lower half counts
    // verilator lint_on UNUSEDSIGNAL
    crush_hash #(.ARGS(3)) i_hash (
      .clk_i,
      .rst_ni,
      .valid_i(valid_i && mask_i[lane]),
      .args_i({beat_i.r, slots_i[lane].hash_id, beat_i.x}),
      .valid_o(hash_valid),
      .hash_o(hash)
    );

    logic [48:0] n;
    crush_ln i_ln (
      .clk_i,
      .valid_i(valid[LOGGED-1:HASHED]),
      .u_i(hash[15:0]),
      .n_o(n)
    );

    // verilator lint_off UNUSEDSIGNAL
    logic [96:0] product;  // rounded down to multiples of 2^48
    // verilator lint_on UNUSEDSIGNAL
    crush_multiplier #(.A_BITS(49), .B_BITS(48)) i_product (
      .clk_i,
      .valid_i(valid[MULTIPLIED-1:LOGGED]),
      .a_i(n),
      .b_i(reciprocals[lane].multiplier[47:0]),
      .product_o(product)
    );

    logic [48:0] n_beside;
    logic [5:0] shift, shift_q;
    crush_delay #(.WIDTH(49 + 6), .STAGES(MULTIPLIED - LOGGED)) i_beside (
      .clk_i,
      .valid_i(valid[MULTIPLIED-1:LOGGED]),
      .data_i({reciprocals[lane].shift, n}),
      .data_o({shift, n_beside})
    );

    logic [49:0] sum_q;
    logic [48:0] quotient_q;
    always_ff @(posedge clk_i) begin
      if (valid[MULTIPLIED]) begin
        sum_q <= 50'(n_beside) + 50'(product[96:48]);
        shift_q <= shift;
      end
      if (valid[MULTIPLIED+1]) quotient_q <= 49'(sum_q >> shift_q);
    end
    assign keys[lane] = {loses[lane], loses[lane] ? '0 : quotient_q};
  end

  crush_least #(.LANES(LANES), .KEY_BITS(KEY_BITS)) i_least (
    .clk_i,
    .valid_i(valid[STAGES-1:DIVIDED]),
    .first_i(first[STAGES-1]),
    .keys_i(keys),
    .position_o(drawn_o.position)
  );
  assign drawn_o.tag = tag;
endmodule
