// A FIFO for side-band data of a pipeline of STAGES stages that never stalls: the data of a beat
// goes in when the beat enters the pipeline, and comes out when the beat leaves. The module is a
// ring buffer, so the data does not move.

module crush_sideband_fifo #(
  parameter int unsigned WIDTH = 32,
  parameter int unsigned STAGES = 16  // most beats between in_i and out_i
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic              in_i,
  input  logic [WIDTH-1:0]  data_i,
  input  logic              out_i,
  output logic [WIDTH-1:0]  data_o  // the oldest
);
  localparam int unsigned POINTER_BITS = (STAGES > 1) ? $clog2(STAGES) : 1;

  if (WIDTH == 0 || STAGES == 0) begin : gen_check
    $error("WIDTH and STAGES must be at least 1");
  end

  logic [WIDTH-1:0] ring_q [STAGES];
  logic [POINTER_BITS-1:0] write_q, read_q;

  function automatic logic [POINTER_BITS-1:0] next(input logic [POINTER_BITS-1:0] pointer);
    return (pointer == POINTER_BITS'(STAGES - 1)) ? '0 : pointer + 1'b1;
  endfunction

  always_ff @(posedge clk_i) begin
    if (in_i) ring_q[write_q] <= data_i;
    if (!rst_ni) begin
      write_q <= '0;
      read_q <= '0;
    end else begin
      if (in_i) write_q <= next(write_q);
      if (out_i) read_q <= next(read_q);
    end
  end

  assign data_o = ring_q[read_q];
endmodule
