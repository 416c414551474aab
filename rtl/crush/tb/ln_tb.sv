// One lane of the logarithm, with plain ports.

module ln_tb (
  input  logic         clk_i,
  input  logic [crush_pkg::LN_STAGES-1:0] valid_i,
  input  logic [15:0]  u_i,
  output logic [48:0]  n_o
);
  logic [48:0] n [1];
  crush_ln #(.LANES(1)) i_ln (.clk_i, .valid_i, .u_i('{u_i}), .n_o(n));
  assign n_o = n[0];
endmodule
