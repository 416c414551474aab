// A queue of beats in block RAM. The user reserves space before it requests the beats. So the
// buffer can always take the beats when they come, even if earlier beats stay long.

module qdma_buffer #(
  parameter int unsigned WIDTH = 512,
  parameter int unsigned DEPTH = 512,
  parameter int unsigned RESERVE = 64  // beats of one reservation
) (
  input  logic                          clk_i,
  input  logic                          rst_ni,

  output logic                          reserve_ready_o,  // at least RESERVE beats are free
  input  logic                          reserve_valid_i,
  input  logic [$clog2(RESERVE+1)-1:0]  reserve_beats_i,

  input  logic                          in_valid_i,  // no back-pressure: always taken
  input  logic [WIDTH-1:0]              in_data_i,
  output logic                          out_valid_o,
  input  logic                          out_ready_i,
  output logic [WIDTH-1:0]              out_data_o
);
  localparam int unsigned POINTER_BITS = $clog2(DEPTH);

  if (DEPTH != (1 << POINTER_BITS) || DEPTH < RESERVE) begin : gen_depth_check
    $error("DEPTH must be a power of two, and at least RESERVE");
  end

  logic [WIDTH-1:0] beats_q [DEPTH];
  logic [POINTER_BITS:0] written_q, read_q, free_q;  // one bit more than an index into the memory
  logic valid_q, advance, advanced_q;
  assign advance = written_q != read_q && (!valid_q || out_ready_i);
  assign reserve_ready_o = free_q >= (POINTER_BITS+1)'(RESERVE);
  assign out_valid_o = valid_q;

  always_ff @(posedge clk_i) begin
    if (in_valid_i) beats_q[written_q[POINTER_BITS-1:0]] <= in_data_i;
    if (advance) out_data_o <= beats_q[read_q[POINTER_BITS-1:0]];
    if (!rst_ni) begin
      written_q <= '0;
      read_q <= '0;
      free_q <= (POINTER_BITS+1)'(DEPTH);
      valid_q <= 1'b0;
      advanced_q <= 1'b0;
    end else begin
      if (in_valid_i) written_q <= written_q + 1'b1;
      if (advance) read_q <= read_q + 1'b1;
      if (advance) valid_q <= 1'b1;
      else if (out_ready_i) valid_q <= 1'b0;
      free_q <= free_q - (reserve_valid_i ? (POINTER_BITS+1)'(reserve_beats_i) : '0)
          + (POINTER_BITS+1)'(advanced_q);
      advanced_q <= advance;
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !in_valid_i || (written_q ^ read_q) != (POINTER_BITS+1)'(DEPTH))
  else $error("a beat without a place");
endmodule
