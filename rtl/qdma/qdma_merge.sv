// Many streams into one, each in its turn. The output comes from a register.

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
  if (STREAMS < 2) begin : gen_streams_check
    $error("merging takes at least two streams");
  end

  logic valid_q, room, chosen;
  logic [WIDTH-1:0] data_q;
  logic [$clog2(STREAMS)-1:0] index;
  assign room = !valid_q || out_ready_i;
  assign in_ready_o = (room && chosen) ? STREAMS'(1) << index : '0;
  assign out_valid_o = valid_q;
  assign out_data_o = data_q;

  fs_arbiter #(.COUNT(STREAMS)) i_arbiter (
    .clk_i, .rst_ni, .request_i(in_valid_i), .valid_o(chosen), .index_o(index), .served_i(room)
  );

  always_ff @(posedge clk_i) begin
    if (room && chosen) data_q <= in_data_i[index];
    if (!rst_ni) valid_q <= 1'b0;
    else if (room) valid_q <= chosen;
  end
endmodule
