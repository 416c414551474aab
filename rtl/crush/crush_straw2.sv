// Kernel of straw2 buckets: the smallest floor(N / weight) wins; among equal ones the first. N =
// 2^48 - crush_ln(hash & 0xffff). Items of weight 0 win only if there are no others, and then the
// first wins.
//
// The quotient comes from the reciprocal in the slot. Its multiplier is 2^48 + m, so
//
//   floor(N / weight) = (N + N * m / 2^48) >> shift
//
// Stages: hash, logarithm, multiply by m, add, shift, comparator tree.

module crush_straw2 #(
  parameter int unsigned LANES = 16
) (
  input  logic                           clk_i,
  input  logic                           rst_ni,

  // verilator lint_off UNUSEDSIGNAL
  // All kernels have the same ports; each uses only some of them.
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
  logic [STAGES:0] valid, first, last;  // some stages use only some of them
  // verilator lint_on UNUSEDSIGNAL
  draw_tag_t tag;
  crush_pipeline_control #(.STAGES(STAGES)) i_control (
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
  crush_sideband_fifo #(.WIDTH(LANES * $bits(reciprocal_t)), .STAGES(LOGGED)) i_reciprocals (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(reciprocals_in),
    .out_i(valid[LOGGED]), .data_o(reciprocals)
  );
  // Lanes without a slot count as items of weight 0.
  logic [LANES-1:0] loses_in, loses;
  crush_sideband_fifo #(.WIDTH(LANES), .STAGES(DIVIDED)) i_loses (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(loses_in), .out_i(valid[DIVIDED]), .data_o(loses)
  );

  // verilator lint_off UNUSEDSIGNAL
  logic hash_valid;  // valid[HASHED]
  // verilator lint_on UNUSEDSIGNAL
  logic [31:0] args [3][LANES];
  logic [31:0] hash [LANES];
  logic [15:0] u [LANES];
  logic [48:0] n [LANES], n_delayed [LANES], quotient_q [LANES];
  logic [47:0] m [LANES];
  logic [5:0] shift_in [LANES], shift [LANES], shift_q [LANES];
  logic [96:0] product [LANES];
  logic [49:0] sum_q [LANES];
  logic [KEY_BITS-1:0] keys [LANES];
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    assign args[0][lane] = beat_i.x;
    assign args[1][lane] = slots_i[lane].hash_id;
    assign args[2][lane] = beat_i.r;
    assign reciprocals_in[lane] = slots_i[lane].payload;
    assign loses_in[lane] = !mask_i[lane] || reciprocals_in[lane].is_zero;
    assign u[lane] = hash[lane][15:0];
    assign m[lane] = reciprocals[lane].multiplier[47:0];
    assign shift_in[lane] = reciprocals[lane].shift;
    assign keys[lane] = {loses[lane], loses[lane] ? '0 : quotient_q[lane]};
  end

  crush_hash_lanes #(.LANES(LANES), .ARGS(3)) i_hash (
    .clk_i, .rst_ni, .valid_i, .args_i(args), .valid_o(hash_valid), .hash_o(hash)
  );
  crush_ln #(.LANES(LANES)) i_ln (
    .clk_i, .valid_i(valid[LOGGED-1:HASHED]), .u_i(u), .n_o(n)
  );
  crush_multiplier #(.LANES(LANES), .A_BITS(49), .B_BITS(48)) i_product (
    .clk_i, .valid_i(valid[MULTIPLIED-1:LOGGED]), .a_i(n), .b_i(m), .product_o(product)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(49), .STAGES(MULTIPLIED - LOGGED)) i_n (
    .clk_i, .valid_i(valid[MULTIPLIED-1:LOGGED]), .data_i(n), .data_o(n_delayed)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(6), .STAGES(MULTIPLIED - LOGGED)) i_shift (
    .clk_i, .valid_i(valid[MULTIPLIED-1:LOGGED]), .data_i(shift_in), .data_o(shift)
  );

  typedef logic [48:0] quotients_t [LANES];
  typedef logic [49:0] sums_t [LANES];
  always_ff @(posedge clk_i) begin
    if (valid[MULTIPLIED]) begin
      automatic sums_t sum;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        sum[lane] = 50'(n_delayed[lane]) + 50'(product[lane] >> 48);
      end
      sum_q <= sum;
      shift_q <= shift;
    end
    if (valid[MULTIPLIED+1]) begin
      automatic quotients_t quotient;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) quotient[lane] = 49'(sum_q[lane] >> shift_q[lane]);
      quotient_q <= quotient;
    end
  end

  crush_argmin #(.LANES(LANES), .KEY_BITS(KEY_BITS)) i_argmin (
    .clk_i,
    .valid_i(valid[STAGES-1:DIVIDED]),
    .first_i(first[STAGES-1]),
    .keys_i(keys),
    .position_o(drawn_o.position)
  );
  assign drawn_o.tag = tag;
endmodule
