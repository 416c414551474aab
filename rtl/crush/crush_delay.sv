// A word that waits beside a pipeline of STAGES stages.
//
// valid_i[s] says that a beat stands before stage s, as in the pipeline itself, so nothing moves
// while nothing is to do.

module crush_delay #(
  parameter int unsigned WIDTH = 32,
  parameter int unsigned STAGES = 3
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,
  input  logic [WIDTH-1:0]   data_i,
  output logic [WIDTH-1:0]   data_o
);
  if (WIDTH == 0 || STAGES == 0) begin : gen_check
    $error("WIDTH and STAGES must be at least 1");
  end

  logic [WIDTH-1:0] data_q [STAGES];

  always_ff @(posedge clk_i) begin
    if (valid_i[0]) data_q[0] <= data_i;
    for (int unsigned stage = 1; stage < STAGES; stage++) begin
      if (valid_i[stage]) data_q[stage] <= data_q[stage-1];
    end
  end

  assign data_o = data_q[STAGES-1];
endmodule
