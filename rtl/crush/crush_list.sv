// Kernel of list buckets. Items come newest first. The first item with ((hash & 0xffff) * sum) >>
// 16 < weight wins. If there is none, the last item, which is the oldest, wins.
//
// Stages: hash, multiply, compare, pick.

module crush_list #(
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

  localparam int unsigned LANE_BITS = (LANES > 1) ? $clog2(LANES) : 1;
  localparam int unsigned HASHED = hash_stages(4, 3);
  localparam int unsigned MULTIPLIED = HASHED + multiplier_stages(32, 16);
  localparam int unsigned STAGES = MULTIPLIED + 2;

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

  pair_slot_t [LANES-1:0] pairs;
  assign pairs = slots_i;
  logic [LANES-1:0][31:0] sums_in, sums, weights_in, weights;
  logic [LANES-1:0] exists;
  logic [15:0] row, row_q;
  crush_sideband_fifo #(.WIDTH(LANES * 32), .STAGES(HASHED)) i_sums (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(sums_in), .out_i(valid[HASHED]), .data_o(sums)
  );
  crush_sideband_fifo #(.WIDTH(LANES * 33 + 16), .STAGES(MULTIPLIED)) i_weights (
    .clk_i,
    .rst_ni,
    .in_i(valid_i),
    .data_i({weights_in, mask_i, beat_i.row}),
    .out_i(valid[MULTIPLIED]),
    .data_o({weights, exists, row})
  );

  // verilator lint_off UNUSEDSIGNAL
  logic hash_valid;  // valid[HASHED]
  // verilator lint_on UNUSEDSIGNAL
  logic [31:0] args [4][LANES];
  logic [31:0] hash [LANES];
  logic [31:0] sum [LANES], weight [LANES];
  logic [15:0] u [LANES];
  logic [47:0] product [LANES];
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    assign args[0][lane] = beat_i.x;
    assign args[1][lane] = pairs[lane].hash_id;
    assign args[2][lane] = beat_i.r;
    assign args[3][lane] = beat_i.bucket;
    assign sums_in[lane] = pairs[lane].first;
    assign weights_in[lane] = pairs[lane].second;
    assign sum[lane] = sums[lane];
    assign weight[lane] = weights[lane];
    assign u[lane] = hash[lane][15:0];
  end

  crush_hash_lanes #(.LANES(LANES), .ARGS(4)) i_hash (
    .clk_i, .rst_ni, .valid_i, .args_i(args), .valid_o(hash_valid), .hash_o(hash)
  );
  crush_multiplier #(.LANES(LANES), .A_BITS(32), .B_BITS(16)) i_product (
    .clk_i, .valid_i(valid[MULTIPLIED-1:HASHED]), .a_i(sum), .b_i(u), .product_o(product)
  );

  logic [LANES-1:0] takes_q;
  always_ff @(posedge clk_i) begin
    if (valid[MULTIPLIED]) begin
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        takes_q[lane] <= exists[lane] && product[lane][47:16] < weight[lane];
      end
    end
  end

  // The first lane whose item wins, else the last lane with an item.
  logic [LANE_BITS-1:0] taker, last_lane_d, last_lane_q;
  always_comb begin
    taker = last_lane_q;
    for (int unsigned lane = LANES; lane > 0; lane--) begin
      if (takes_q[lane-1]) taker = LANE_BITS'(lane - 1);
    end
    last_lane_d = '0;
    for (int unsigned lane = 0; lane < LANES; lane++) begin
      if (exists[lane]) last_lane_d = LANE_BITS'(lane);
    end
  end

  logic is_taken_q;  // an item of an earlier beat has won
  logic [15:0] position_q;
  always_ff @(posedge clk_i) begin
    if (valid[MULTIPLIED]) begin
      row_q <= row;
      last_lane_q <= last_lane_d;
    end
    if (valid[MULTIPLIED+1]) begin
      is_taken_q <= |takes_q || (is_taken_q && !first[MULTIPLIED+1]);
      if (first[MULTIPLIED+1] || !is_taken_q) begin
        position_q <= 16'(row_q * 16'(LANES)) + ((LANES > 1) ? 16'(taker) : '0);
      end
    end
  end

  assign drawn_o = '{tag: tag, position: position_q};
endmodule
