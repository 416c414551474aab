// The guard of host writes, the last unit on a write's way to the host. If a write is outside its
// function's window, the guard does not forward it. Writes are posted: the host does not answer
// them, and a write is done when it has left, or was refused. The guard then gives the write's note
// back to the write's client, with an error if it was refused.
//
// A function that is being reset has no window. What the guard refuses for that reason is no fault
// of the function, and refused_o does not count it. The guard looks when a write enters: at most two
// writes that entered before the reset leave after it.

module qdma_write_guard
  import qdma_pkg::*;
(
  input  logic                clk_i,
  input  logic                rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,
  input  logic [FUNCTIONS-1:0] reset_i,   // functions that are being reset
  output logic                refused_o,  // one more write outside of its function's window
  output logic                idle_o,     // every write has left

  input  logic                in_valid_i,
  output logic                in_ready_o,
  input  noted_write_t        in_i,
  output logic                done_valid_o,
  output logic                done_error_o,
  output write_note_t         done_note_o,

  output logic                host_valid_o,
  input  logic                host_ready_i,
  output host_write_t         host_o
);
  logic valid_q, compared_q, cut_off_q, counts_q, inside_q, move, leave;
  noted_write_t write_q;
  window_t window_q;
  write_note_t note_q;
  assign move = !compared_q || leave;
  assign in_ready_o = !valid_q || move;
  assign host_valid_o = compared_q && inside_q;
  assign leave = host_ready_i || !inside_q;

  always_ff @(posedge clk_i) begin
    if (in_valid_i && in_ready_o) begin
      write_q <= in_i;
      window_q <= windows_i[in_i.write.owner].host;
      cut_off_q <= reset_i[in_i.write.owner];
    end
    if (valid_q && move) begin
      host_o <= write_q.write;
      note_q <= write_q.note;
      inside_q <= !cut_off_q && write_q.write.address >= window_q.base
          && write_q.write.address < window_q.limit;
      counts_q <= !cut_off_q;
    end
    if (!rst_ni) begin
      valid_q <= 1'b0;
      compared_q <= 1'b0;
    end else begin
      if (in_ready_o) valid_q <= in_valid_i;
      if (move) compared_q <= valid_q;
    end
  end
  assign refused_o = compared_q && leave && !inside_q && counts_q;

  assign idle_o = !valid_q && !compared_q && !done_valid_o;

  always_ff @(posedge clk_i) begin
    done_error_o <= !inside_q;
    done_note_o <= note_q;
    if (!rst_ni) done_valid_o <= 1'b0;
    else done_valid_o <= compared_q && leave;
  end
endmodule
