// The hash of CRUSH, one per cycle (crush_hash_lanes).

module crush_hash #(
  parameter int unsigned ARGS = 3,
  parameter int unsigned LINES_PER_STAGE = 3
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  valid_i,
  input  logic [ARGS-1:0][31:0] args_i,  // args_i[0] is the first word

  output logic                  valid_o,
  output logic [31:0]           hash_o
);
  logic [31:0] args [ARGS][1];
  logic [31:0] hash [1];
  for (genvar arg = 0; arg < ARGS; arg++) begin : gen_arg
    assign args[arg][0] = args_i[arg];
  end
  assign hash_o = hash[0];

  crush_hash_lanes #(.LANES(1), .ARGS(ARGS), .LINES_PER_STAGE(LINES_PER_STAGE)) i_lane (
    .clk_i,
    .rst_ni,
    .valid_i,
    .args_i(args),
    .valid_o,
    .hash_o(hash)
  );
endmodule
