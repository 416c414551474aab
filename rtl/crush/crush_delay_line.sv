// Delays words of LANES lanes by STAGES stages, in step with a pipeline. A stage moves only when a
// beat is before the stage.

module crush_delay_line #(
  parameter int unsigned LANES = 16,
  parameter int unsigned WIDTH = 32,
  parameter int unsigned STAGES = 3
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,  // a beat is before this stage
  input  logic [WIDTH-1:0]   data_i [LANES],
  output logic [WIDTH-1:0]   data_o [LANES]
);
  for (genvar stage = 0; stage < STAGES; stage++) begin : gen_stage
    logic [WIDTH-1:0] data_q [LANES];
    if (stage == 0) begin : gen_input
      always_ff @(posedge clk_i) if (valid_i[stage]) data_q <= data_i;
    end else begin : gen_before
      always_ff @(posedge clk_i) if (valid_i[stage]) data_q <= gen_stage[stage-1].data_q;
    end
  end

  assign data_o = gen_stage[STAGES-1].data_q;
endmodule
