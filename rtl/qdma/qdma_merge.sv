// Many streams into one, each in its turn: after a beat of stream i the search begins at i + 1, so a
// stream waits for at most one beat of every other. The output comes from a register.

module qdma_merge #(
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
  localparam int unsigned NUMBER_BITS = $clog2(STREAMS);

  if (STREAMS < 2) begin : gen_streams_check
    $error("merging takes at least two streams");
  end

  logic valid_q;
  logic [WIDTH-1:0] data_q;
  logic [STREAMS-1:0] after_q;  // streams behind the last served one

  // The first valid stream behind the last served one, else the first of all.
  logic [STREAMS-1:0] behind, candidates, grant;
  assign behind = in_valid_i & after_q;
  assign candidates = (behind != '0) ? behind : in_valid_i;
  assign grant = candidates & (~candidates + 1'b1);

  logic room;
  assign room = !valid_q || out_ready_i;
  assign in_ready_o = room ? grant : '0;
  assign out_valid_o = valid_q;
  assign out_data_o = data_q;

  logic [NUMBER_BITS-1:0] number;
  always_comb begin
    number = '0;
    for (int unsigned i = 0; i < STREAMS; i++) begin
      if (grant[i]) number = NUMBER_BITS'(i);
    end
  end

  always_ff @(posedge clk_i) begin
    if (room && in_valid_i != '0) begin
      data_q <= in_data_i[number];
      after_q <= ~(grant | (grant - 1'b1));
    end
    if (!rst_ni) begin
      valid_q <= 1'b0;
      after_q <= '0;
    end else if (room) begin
      valid_q <= in_valid_i != '0;
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) $onehot0(in_ready_o))
  else $error("two streams at once");
endmodule
