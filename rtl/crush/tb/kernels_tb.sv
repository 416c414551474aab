// All kernels in parallel, for their bench: the kernel with algorithm number kernel_i gets the
// beat.

module kernels_tb
  import crush_pkg::*;
#(
  parameter int unsigned LANES = 16
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               valid_i,
  input  logic [2:0]         kernel_i,
  input  kernel_beat_t       beat_i,
  input  logic [LANES-1:0]   mask_i,
  input  slot_t [LANES-1:0]  slots_i,
  output logic [5:1]         valid_o,
  output drawn_t [5:1]       drawn_o
);
  logic [5:1] valid;
  for (genvar kernel = 1; kernel <= 5; kernel++) begin : gen_valid
    assign valid[kernel] = valid_i && kernel_i == 3'(kernel);
  end

  crush_uniform #(.LANES(LANES)) i_uniform (
    .clk_i, .rst_ni, .valid_i(valid[1]), .beat_i, .mask_i, .slots_i,
    .valid_o(valid_o[1]), .drawn_o(drawn_o[1])
  );
  crush_list #(.LANES(LANES)) i_list (
    .clk_i, .rst_ni, .valid_i(valid[2]), .beat_i, .mask_i, .slots_i,
    .valid_o(valid_o[2]), .drawn_o(drawn_o[2])
  );
  crush_tree #(.LANES(LANES)) i_tree (
    .clk_i, .rst_ni, .valid_i(valid[3]), .beat_i, .mask_i, .slots_i,
    .valid_o(valid_o[3]), .drawn_o(drawn_o[3])
  );
  crush_straw #(.LANES(LANES)) i_straw (
    .clk_i, .rst_ni, .valid_i(valid[4]), .beat_i, .mask_i, .slots_i,
    .valid_o(valid_o[4]), .drawn_o(drawn_o[4])
  );
  crush_straw2 #(.LANES(LANES)) i_straw2 (
    .clk_i, .rst_ni, .valid_i(valid[5]), .beat_i, .mask_i, .slots_i,
    .valid_o(valid_o[5]), .drawn_o(drawn_o[5])
  );
endmodule
