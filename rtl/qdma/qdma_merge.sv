// Merges many streams into one, round robin. A two-entry FIFO cuts the combinational path from
// ready to ready.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the queue's level

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

  logic room, chosen;
  logic [$clog2(STREAMS)-1:0] index;
  assign in_ready_o = (room && chosen) ? STREAMS'(1) << index : '0;

  fs_arbiter #(.COUNT(STREAMS)) i_arbiter (
    .clk_i, .rst_ni, .request_i(in_valid_i), .valid_o(chosen), .index_o(index), .served_i(room)
  );

  fs_fifo #(.WIDTH(WIDTH), .DEPTH(2)) i_chosen (
    .clk_i, .rst_ni,
    .in_valid_i(chosen), .in_ready_o(room), .in_data_i(in_data_i[index]),
    .out_valid_o, .out_ready_i, .out_data_o, .level_o()
  );
endmodule
