// The control of a kernel's pipeline: valid, first and last of every stage, and the tag of the draw
// whose last beat has passed all stages.

module crush_pipeline_control #(
  parameter int unsigned STAGES = 16
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   valid_i,
  input  logic                   first_i,
  input  logic                   last_i,
  input  crush_pkg::draw_tag_t   tag_i,

  output logic [STAGES:0]        valid_o,  // a beat is before this stage
  output logic [STAGES:0]        first_o,
  output logic [STAGES:0]        last_o,
  output logic                   drawn_o,
  output crush_pkg::draw_tag_t   tag_o     // valid with drawn_o
);
  logic [STAGES-1:0] valid_q, first_q, last_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else valid_q <= valid_o[STAGES-1:0];
    first_q <= first_o[STAGES-1:0];
    last_q <= last_o[STAGES-1:0];
  end

  assign valid_o = {valid_q, valid_i};
  assign first_o = {first_q, first_i};
  assign last_o = {last_q, last_i};
  assign drawn_o = valid_o[STAGES] && last_o[STAGES];

  crush_sideband_fifo #(.WIDTH($bits(crush_pkg::draw_tag_t)), .STAGES(STAGES)) i_tags (
    .clk_i,
    .rst_ni,
    .in_i(valid_i && last_i),
    .data_i(tag_i),
    .out_i(drawn_o),
    .data_o(tag_o)
  );
endmodule
