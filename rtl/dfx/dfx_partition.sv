// The reconfigurable partition behind its decoupler. While it is decoupled, no valid beat passes
// the boundary in either direction, whatever the region's outputs are.

module dfx_partition
  import crush_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned LANES = 16
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,     // the region's reset: dfx_config's partition_rst_no

  input  reconfigurable_module_e  module_i,
  input  logic                    decouple_i,

  input  logic                    valid_i,
  input  kernel_beat_t            beat_i,
  input  logic [LANES-1:0]        mask_i,
  input  slot_t [LANES-1:0]       slots_i,
  output logic                    valid_o,
  output drawn_t                  drawn_o
);
  logic region_valid;
  drawn_t region_drawn;

  dfx_region #(.LANES(LANES)) i_region (
    .clk_i, .rst_ni, .module_i,
    .valid_i (valid_i && !decouple_i),
    .beat_i, .mask_i, .slots_i,
    .valid_o (region_valid),
    .drawn_o (region_drawn)
  );

  assign valid_o = region_valid && !decouple_i;
  assign drawn_o = region_drawn;

  assert property (@(posedge clk_i) !decouple_i || !valid_i)
  else $error("a draw for a partition that is decoupled");
endmodule
