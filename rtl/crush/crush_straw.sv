// Kernel of straw buckets: the greatest (hash & 0xffff) * straw wins; among equal lengths the
// first.
//
// Stages: hash, multiply, comparator tree.

module crush_straw #(
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

  localparam int unsigned LENGTH_BITS = 48;
  localparam int unsigned HASHED = hash_stages(3, 3);
  localparam int unsigned MULTIPLIED = HASHED + multiplier_stages(32, 16);
  localparam int unsigned STAGES = MULTIPLIED + $clog2(LANES) + 1;

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

  logic [LANES-1:0][31:0] straws_in, straws;
  logic [LANES-1:0] exists;
  crush_sideband_fifo #(.WIDTH(LANES * 32), .STAGES(HASHED)) i_straws (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(straws_in), .out_i(valid[HASHED]), .data_o(straws)
  );
  crush_sideband_fifo #(.WIDTH(LANES), .STAGES(MULTIPLIED)) i_mask (
    .clk_i, .rst_ni, .in_i(valid_i), .data_i(mask_i), .out_i(valid[MULTIPLIED]), .data_o(exists)
  );

  // verilator lint_off UNUSEDSIGNAL
  logic hash_valid;  // valid[HASHED]
  // verilator lint_on UNUSEDSIGNAL
  logic [31:0] args [3][LANES];
  logic [31:0] hash [LANES];
  logic [31:0] straw [LANES];
  logic [15:0] u [LANES];
  logic [LENGTH_BITS-1:0] lengths [LANES], keys [LANES];
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    assign args[0][lane] = beat_i.x;
    assign args[1][lane] = slots_i[lane].hash_id;
    assign args[2][lane] = beat_i.r;
    assign straws_in[lane] = slots_i[lane].payload[31:0];
    assign straw[lane] = straws[lane];
    assign u[lane] = hash[lane][15:0];
    // The longest straw has the smallest key. A lane without an item has length 0.
    assign keys[lane] = exists[lane] ? ~lengths[lane] : '1;
  end

  crush_hash_lanes #(.LANES(LANES), .ARGS(3)) i_hash (
    .clk_i, .rst_ni, .valid_i, .args_i(args), .valid_o(hash_valid), .hash_o(hash)
  );

  crush_multiplier #(.LANES(LANES), .A_BITS(32), .B_BITS(16)) i_length (
    .clk_i,
    .valid_i(valid[MULTIPLIED-1:HASHED]),
    .a_i(straw),
    .b_i(u),
    .product_o(lengths)
  );

  crush_argmin #(.LANES(LANES), .KEY_BITS(LENGTH_BITS)) i_argmin (
    .clk_i,
    .valid_i(valid[STAGES-1:MULTIPLIED]),
    .first_i(first[STAGES-1]),
    .keys_i(keys),
    .position_o(drawn_o.position)
  );
  assign drawn_o.tag = tag;
endmodule
