// The draw engine with its memories. All three kernels that the reconfigurable partition may hold
// are instances; rp_module_i selects one.

module draw_tb
  import crush_pkg::*;
#(
  parameter int unsigned LANES = 16,
  parameter int unsigned IN_FLIGHT = 64
) (
  input  logic           clk_i,
  input  logic           rst_ni,

  input  logic           load_valid_i,
  output logic           load_ready_o,
  input  fs_pkg::beat_t  load_beat_i,
  input  logic           load_last_i,
  output logic           load_done_o,
  output logic           load_ok_o,
  output settings_t      settings_o,

  input  logic           choose_valid_i,
  output logic           choose_ready_o,
  input  choose_t        choose_i,
  output logic           chosen_valid_o,
  input  logic           chosen_ready_i,
  output chosen_t        chosen_o,

  // Ports of the memories that the draw engine does not use.
  input  logic           read_i,
  input  logic [15:0]    index_i,
  output bucket_t        bucket_o,
  output logic [31:0]    reweight_o,
  output rule_t          rule_o,
  output step_t          step_o,

  input  logic [7:0]     rp_module_i,
  input  logic           rp_ready_i
);
  localparam int unsigned SLOT_ROWS = 2048;
  localparam int unsigned SLOT_BITS = $clog2(SLOT_ROWS * ROW_SLOTS);
  localparam int unsigned ROW_BITS = SLOT_BITS - $clog2(LANES);

  logic [16:0] buckets;
  logic bucket_read, row_read, slot_read;
  logic [15:0] bucket_index;
  bucket_t bucket;
  logic [ROW_BITS-1:0] row_index;
  slot_t [LANES-1:0] row;
  logic [SLOT_BITS-1:0] slot_index;
  slot_t slot;

  crush_map_memory #(.LANES(LANES), .SLOT_ROWS(SLOT_ROWS)) i_map_memory (
    .clk_i,
    .rst_ni,
    .load_valid_i,
    .load_ready_o,
    .load_beat_i,
    .load_last_i,
    .load_done_o,
    .load_ok_o,
    .settings_o,
    .buckets_o(buckets),
    .bucket_read_i({read_i, bucket_read}),
    .bucket_index_i({index_i, bucket_index}),
    .bucket_o({bucket_o, bucket}),
    .row_read_i(row_read),
    .row_index_i(row_index),
    .row_o(row),
    .slot_read_i(slot_read),
    .slot_index_i(slot_index),
    .slot_o(slot),
    .reweight_read_i(read_i),
    .reweight_index_i(index_i),
    .reweight_o,
    .rule_read_i(read_i),
    .rule_index_i(index_i),
    .rule_o,
    .step_read_i(read_i),
    .step_index_i(index_i),
    .step_o
  );

  logic rp_in_valid, rp_out_valid;
  kernel_beat_t rp_beat;
  logic [LANES-1:0] rp_mask;
  slot_t [LANES-1:0] rp_slots;
  drawn_t rp_drawn;

  crush_choose #(.LANES(LANES), .SLOT_ROWS(SLOT_ROWS), .IN_FLIGHT(IN_FLIGHT)) i_choose (
    .clk_i,
    .rst_ni,
    .choose_valid_i,
    .choose_ready_o,
    .choose_i,
    .chosen_valid_o,
    .chosen_ready_i,
    .chosen_o,
    .buckets_i(buckets),
    .algorithms_i(settings_o.algorithms),
    .bucket_read_o(bucket_read),
    .bucket_index_o(bucket_index),
    .bucket_i(bucket),
    .row_read_o(row_read),
    .row_index_o(row_index),
    .row_i(row),
    .slot_read_o(slot_read),
    .slot_index_o(slot_index),
    .slot_i(slot),
    .rp_module_i,
    .rp_ready_i,
    .rp_valid_o(rp_in_valid),
    .rp_beat_o(rp_beat),
    .rp_mask_o(rp_mask),
    .rp_slots_o(rp_slots),
    .rp_valid_i(rp_out_valid),
    .rp_drawn_i(rp_drawn)
  );

  logic [3:1] valid, drawn_valid;
  drawn_t [3:1] drawn;
  for (genvar kernel = 1; kernel <= 3; kernel++) begin : gen_valid
    assign valid[kernel] = rp_in_valid && rp_module_i == 8'(kernel);
  end
  crush_uniform #(.LANES(LANES)) i_uniform (
    .clk_i, .rst_ni, .valid_i(valid[1]), .beat_i(rp_beat), .mask_i(rp_mask), .slots_i(rp_slots),
    .valid_o(drawn_valid[1]), .drawn_o(drawn[1])
  );
  crush_list #(.LANES(LANES)) i_list (
    .clk_i, .rst_ni, .valid_i(valid[2]), .beat_i(rp_beat), .mask_i(rp_mask), .slots_i(rp_slots),
    .valid_o(drawn_valid[2]), .drawn_o(drawn[2])
  );
  crush_tree #(.LANES(LANES)) i_tree (
    .clk_i, .rst_ni, .valid_i(valid[3]), .beat_i(rp_beat), .mask_i(rp_mask), .slots_i(rp_slots),
    .valid_o(drawn_valid[3]), .drawn_o(drawn[3])
  );
  always_comb begin
    rp_out_valid = 1'b0;
    rp_drawn = '0;
    for (int unsigned kernel = 1; kernel <= 3; kernel++) begin
      if (rp_module_i == 8'(kernel)) begin
        rp_out_valid = drawn_valid[kernel];
        rp_drawn = drawn[kernel];
      end
    end
  end
endmodule
