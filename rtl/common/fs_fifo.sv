// A first-in, first-out queue of DEPTH beats.
//
// The oldest beat is at the output (first word falls through). A beat can leave in the cycle after
// it came. A full FIFO cannot take a beat in the cycle in which one leaves: in_ready_o and
// out_valid_o come from registers, so a FIFO cuts combinational paths.

module fs_fifo #(
  parameter int unsigned WIDTH = 32,
  parameter int unsigned DEPTH = 4
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  input  logic                     in_valid_i,
  output logic                     in_ready_o,
  input  logic [WIDTH-1:0]         in_data_i,

  output logic                     out_valid_o,
  input  logic                     out_ready_i,
  output logic [WIDTH-1:0]         out_data_o,

  output logic [$clog2(DEPTH+1)-1:0] level_o  // beats inside
);
  localparam int unsigned POINTER_BITS = (DEPTH > 1) ? $clog2(DEPTH) : 1;
  localparam int unsigned LEVEL_BITS = $clog2(DEPTH + 1);

  if (WIDTH == 0) begin : gen_width_check
    $error("WIDTH must be at least 1");
  end
  if (DEPTH == 0) begin : gen_depth_check
    $error("DEPTH must be at least 1");
  end

  logic [WIDTH-1:0] beats_q [DEPTH];
  logic [POINTER_BITS-1:0] write_q, read_q;
  logic [LEVEL_BITS-1:0] level_q;
  logic filled_q, full_q;  // the level is not 0; the level is DEPTH

  logic push, pop;
  assign push = in_valid_i && in_ready_o;
  assign pop = out_valid_o && out_ready_i;

  assign in_ready_o = !full_q;
  assign out_valid_o = filled_q;
  assign out_data_o = beats_q[read_q];
  assign level_o = level_q;

  function automatic logic [POINTER_BITS-1:0] next(input logic [POINTER_BITS-1:0] pointer);
    return (pointer == POINTER_BITS'(DEPTH - 1)) ? '0 : pointer + 1'b1;
  endfunction

  always_ff @(posedge clk_i) begin
    if (push) beats_q[write_q] <= in_data_i;
    if (!rst_ni) begin
      write_q <= '0;
      read_q <= '0;
      level_q <= '0;
      filled_q <= 1'b0;
      full_q <= 1'b0;
    end else begin
      if (push) write_q <= next(write_q);
      if (pop) read_q <= next(read_q);
      if (push != pop) begin
        level_q <= push ? level_q + 1'b1 : level_q - 1'b1;
        filled_q <= push || level_q != LEVEL_BITS'(1);
        full_q <= push && level_q == LEVEL_BITS'(DEPTH - 1);
      end
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) level_q <= LEVEL_BITS'(DEPTH))
  else $error("more beats than places");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
    filled_q == (level_q != '0) && full_q == (level_q == LEVEL_BITS'(DEPTH)))
  else $error("the level says something else");
endmodule
