// Merges many streams into one, round robin, at low throughput. The module picks a stream in one
// cycle, takes the beat in the next, and offers the beat in the third. So a large number of streams
// makes no long combinational path. For one beat per cycle, use qdma_merge.

module qdma_merge_slow #(
  parameter int unsigned STREAMS = 2,
  parameter int unsigned WIDTH = 32
) (
  input  logic                            clk_i,
  input  logic                            rst_ni,

  input  logic [STREAMS-1:0]              in_valid_i,
  output logic [STREAMS-1:0]              in_ready_o,
  input  logic [STREAMS-1:0][WIDTH-1:0]   in_data_i,

  output logic                            out_valid_o,
  input  logic                            out_ready_i,
  output logic [WIDTH-1:0]                out_data_o
);
  if (STREAMS < 2) begin : gen_streams_check
    $error("merging takes at least two streams");
  end

  logic [STREAMS-1:0] grant_q;  // one-hot, or zero
  logic free, valid_q, chosen;
  logic [$clog2(STREAMS)-1:0] index;
  logic [WIDTH-1:0] data, data_q;
  assign free = grant_q == '0 && !valid_q;
  assign in_ready_o = grant_q;
  assign out_valid_o = valid_q;
  assign out_data_o = data_q;

  fs_arbiter #(.COUNT(STREAMS)) i_arbiter (
    .clk_i, .rst_ni, .request_i(in_valid_i), .valid_o(chosen), .index_o(index),
    .served_i(grant_q != '0)
  );

  always_comb begin
    data = '0;
    for (int unsigned s = 0; s < STREAMS; s++) data |= in_data_i[s] & {WIDTH{grant_q[s]}};
  end

  always_ff @(posedge clk_i) begin
    if (grant_q != '0) data_q <= data;
    if (!rst_ni) begin
      grant_q <= '0;
      valid_q <= 1'b0;
    end else begin
      grant_q <= (free && chosen) ? STREAMS'(1) << index : '0;
      if (grant_q != '0) valid_q <= 1'b1;
      else if (out_ready_i) valid_q <= 1'b0;
    end
  end
endmodule
