// Kernel of tree buckets. The slots are the inner nodes in heap order: slot 1 is the root, slots 2
// s and 2 s + 1 are the children of slot s, and slots from `size` (the number of leaves) on are
// leaves. A draw goes left at a node if (hash * weight) >> 32 is less than the weight of the node's
// left child.
//
// A node's hash does not depend on the path to it, so the kernel decides all nodes of a beat at
// once, and then the walk follows the decisions. The first row holds the upper log2(LANES) levels;
// the walk takes one step per stage in it. A later row holds a part of one level, so in that row
// the walk takes one step or none, in the last stage.
//
// Stages: hash, multiply, compare, steps in the first row, step in a later row.

module crush_tree #(
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

  localparam int unsigned STEPS = $clog2(LANES);
  localparam int unsigned LANE_BITS = (LANES > 1) ? STEPS : 1;
  localparam int unsigned HASHED = hash_stages(4, 3);
  localparam int unsigned MULTIPLIED = HASHED + multiplier_stages(32, 32);
  localparam int unsigned DECIDED = MULTIPLIED + 1;
  localparam int unsigned STAGES = DECIDED + STEPS + 1;

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
  logic [LANES-1:0][31:0] weights_in, weights, lefts_in, lefts;
  logic [15:0] size, row;
  crush_sideband_fifo #(.WIDTH(LANES * 32), .STAGES(HASHED)) i_weights (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(weights_in), .out_i(valid[HASHED]), .data_o(weights)
  );
  crush_sideband_fifo #(.WIDTH(LANES * 32), .STAGES(MULTIPLIED)) i_lefts (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(lefts_in), .out_i(valid[MULTIPLIED]), .data_o(lefts)
  );
  crush_sideband_fifo #(.WIDTH(32), .STAGES(DECIDED)) i_size (
    .clk_i,
    .rst_ni,
    .in_i(valid_i),
    .data_i({beat_i.size, beat_i.row}),
    .out_i(valid[DECIDED]),
    .data_o({size, row})
  );

  // verilator lint_off UNUSEDSIGNAL
  logic hash_valid;  // valid[HASHED]
  // verilator lint_on UNUSEDSIGNAL
  logic [31:0] args [4][LANES];
  logic [31:0] hash [LANES], weight [LANES], left [LANES];
  logic [63:0] product [LANES];
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    assign args[0][lane] = beat_i.x;
    assign args[1][lane] = pairs[lane].hash_id;
    assign args[2][lane] = beat_i.r;
    assign args[3][lane] = beat_i.bucket;
    assign weights_in[lane] = pairs[lane].second;
    assign lefts_in[lane] = pairs[lane].first;
    assign weight[lane] = weights[lane];
    assign left[lane] = lefts[lane];
  end

  crush_hash_lanes #(.LANES(LANES), .ARGS(4)) i_hash (
    .clk_i, .rst_ni, .valid_i, .args_i(args), .valid_o(hash_valid), .hash_o(hash)
  );
  crush_multiplier #(.LANES(LANES), .A_BITS(32), .B_BITS(32)) i_product (
    .clk_i, .valid_i(valid[MULTIPLIED-1:HASHED]), .a_i(weight), .b_i(hash), .product_o(product)
  );

  logic [LANES-1:0] goes_right_q;
  always_ff @(posedge clk_i) begin
    if (valid[MULTIPLIED]) begin
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        goes_right_q[lane] <= product[lane][63:32] >= left[lane];
      end
    end
  end

  // The walk: its slot after the steps of the first row, and the decisions of the beat.
  typedef struct packed {
    logic [LANES-1:0]  goes_right;
    logic [15:0]       size;
    logic [15:0]       row;
    logic [16:0]       slot;
  } walk_t;

  for (genvar step = 0; step <= STEPS; step++) begin : gen_step
    walk_t walk;
    if (step == 0) begin : gen_start
      assign walk = '{goes_right: goes_right_q, size: size, row: row, slot: 17'd1};
    end else begin : gen_walk
      walk_t from, walk_q;
      logic is_inner;
      assign from = gen_step[step-1].walk;
      assign is_inner = from.row == '0 && from.slot < 17'(from.size);
      always_ff @(posedge clk_i) begin
        if (valid[DECIDED+step-1]) begin
          walk_q <= from;
          if (is_inner) walk_q.slot <= {from.slot[15:0], from.goes_right[LANE_BITS'(from.slot)]};
        end
      end
      assign walk = walk_q;
    end
  end

  walk_t here;
  logic [16:0] slot, slot_q;
  logic [15:0] size_q;
  logic is_here, turns_right;
  assign here = gen_step[STEPS].walk;
  assign slot = first[STAGES-1] ? here.slot : slot_q;
  assign is_here = here.row != '0 && slot < 17'(here.size) && slot >> STEPS == 17'(here.row);
  assign turns_right = (LANES > 1) ? here.goes_right[LANE_BITS'(slot)] : here.goes_right[0];
  always_ff @(posedge clk_i) begin
    if (valid[STAGES-1]) begin
      slot_q <= is_here ? {slot[15:0], turns_right} : slot;
      size_q <= here.size;
    end
  end

  assign drawn_o = '{tag: tag, position: 16'(slot_q - 17'(size_q))};
endmodule
