// The fabric of the reconfigurable partition, as simulation sees it. All three modules are
// instances, and the configured one is connected to the ports. On a card, each module is a separate
// design that is placed in the same region, and this module is the region's black box in the static
// design.
//
// While no module is configured, a real region's outputs are undefined. Here they are noise, so
// that a test finds a decoupler that leaks.

module dfx_region
  import crush_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned LANES = 16
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  reconfigurable_module_e  module_i,  // the configured module

  input  logic                    valid_i,
  input  kernel_beat_t            beat_i,
  input  logic [LANES-1:0]        mask_i,
  input  slot_t [LANES-1:0]       slots_i,
  output logic                    valid_o,
  output drawn_t                  drawn_o
);
  logic is_uniform, is_list, is_tree;
  assign is_uniform = module_i == RECONFIGURABLE_MODULE_UNIFORM;
  assign is_list = module_i == RECONFIGURABLE_MODULE_LIST;
  assign is_tree = module_i == RECONFIGURABLE_MODULE_TREE;

  logic uniform_valid, list_valid, tree_valid;
  drawn_t uniform_drawn, list_drawn, tree_drawn;

  crush_uniform #(.LANES(LANES)) i_uniform (
    .clk_i, .rst_ni, .valid_i(valid_i && is_uniform), .beat_i, .mask_i, .slots_i,
    .valid_o(uniform_valid), .drawn_o(uniform_drawn)
  );
  crush_list #(.LANES(LANES)) i_list (
    .clk_i, .rst_ni, .valid_i(valid_i && is_list), .beat_i, .mask_i, .slots_i,
    .valid_o(list_valid), .drawn_o(list_drawn)
  );
  crush_tree #(.LANES(LANES)) i_tree (
    .clk_i, .rst_ni, .valid_i(valid_i && is_tree), .beat_i, .mask_i, .slots_i,
    .valid_o(tree_valid), .drawn_o(tree_drawn)
  );

  // An LFSR for x^63 + x^62 + 1. It runs only while the region is not configured, from any power-up
  // state.
  logic [62:0] noise_q;
  always_ff @(posedge clk_i) begin
    if (module_i == RECONFIGURABLE_MODULE_NONE) begin
      noise_q <= {noise_q[61:0], ~(noise_q[62] ^ noise_q[61])};
    end
  end

  always_comb begin
    unique case (module_i)
      RECONFIGURABLE_MODULE_UNIFORM: {valid_o, drawn_o} = {uniform_valid, uniform_drawn};
      RECONFIGURABLE_MODULE_LIST:    {valid_o, drawn_o} = {list_valid, list_drawn};
      RECONFIGURABLE_MODULE_TREE:    {valid_o, drawn_o} = {tree_valid, tree_drawn};
      default:                       {valid_o, drawn_o} = {noise_q[0], noise_q[62 -: $bits(drawn_t)]};
    endcase
  end
endmodule
