// Counts draws, and the latency of the last draw in cycles: from the cycle in which the draw engine
// took the draw to the cycle in which the answer left the output. Tags identify the draws.

module crush_latency_counter
  import crush_pkg::*;
(
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         begins_i,
  input  tag_t         begins_tag_i,
  input  logic         ends_i,
  input  tag_t         ends_tag_i,

  output logic [31:0]  draws_o,
  output logic [15:0]  last_cycles_o
);
  logic [15:0] now_q;
  logic [15:0] begun_q [2**TAG_BITS];
  logic [31:0] draws_q;
  logic [15:0] last_q;

  always_ff @(posedge clk_i) begin
    if (begins_i) begun_q[begins_tag_i] <= now_q;
    if (ends_i) last_q <= now_q - begun_q[ends_tag_i];
    if (!rst_ni) begin
      now_q <= '0;
      draws_q <= '0;
    end else begin
      now_q <= now_q + 1'b1;
      if (ends_i) draws_q <= draws_q + 1'b1;
    end
  end

  assign draws_o = draws_q;
  assign last_cycles_o = last_q;
endmodule
