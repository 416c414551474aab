// The guard of host writes, the last unit on a write's way to the host. If a write is outside its
// function's window, the guard does not forward it, but answers it with an error, in the order of
// the writes. A queue keeps the note of each write (its client) until its answer comes.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module qdma_write_guard
  import qdma_pkg::*;
(
  input  logic                clk_i,
  input  logic                rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,
  output logic                refused_o,  // one more refused write
  output logic                idle_o,     // every write has been answered

  input  logic                in_valid_i,
  output logic                in_ready_o,
  input  noted_write_t        in_i,
  output logic                done_valid_o,
  output logic                done_error_o,
  output write_note_t         done_note_o,

  output logic                host_valid_o,
  input  logic                host_ready_i,
  output host_write_t         host_o,
  input  fs_pkg::card_done_t  host_done_i
);
  localparam int unsigned WRITES = 512;  // in flight

  // ---- Writes: look up the window, then compare -----------------------------------------------

  logic valid_q, compared_q, inside_q, move, leave, notes_room;
  noted_write_t write_q;
  window_t window_q;
  write_note_t note_q;
  assign move = !compared_q || leave;
  assign in_ready_o = !valid_q || move;
  assign host_valid_o = compared_q && inside_q && notes_room;
  assign leave = notes_room && (host_ready_i || !inside_q);

  always_ff @(posedge clk_i) begin
    if (in_valid_i && in_ready_o) begin
      write_q <= in_i;
      window_q <= windows_i[in_i.write.owner].host;
    end
    if (valid_q && move) begin
      host_o <= write_q.write;
      note_q <= write_q.note;
      inside_q <= write_q.write.address >= window_q.base && write_q.write.address < window_q.limit;
    end
    if (!rst_ni) begin
      valid_q <= 1'b0;
      compared_q <= 1'b0;
    end else begin
      if (in_ready_o) valid_q <= in_valid_i;
      if (move) compared_q <= valid_q;
    end
  end
  assign refused_o = compared_q && leave && !inside_q;

  // ---- Answers, in the order of the writes ----------------------------------------------------

  logic note_valid, note_inside, landed_valid, landed_error, answer, landed_room;
  write_note_t note;
  fs_fifo #(.WIDTH($bits(write_note_t) + 1), .DEPTH(WRITES)) i_notes (
    .clk_i, .rst_ni,
    .in_valid_i(compared_q && (host_ready_i || !inside_q)), .in_ready_o(notes_room),
    .in_data_i({inside_q, note_q}),
    .out_valid_o(note_valid), .out_ready_i(answer), .out_data_o({note_inside, note}), .level_o()
  );
  // The host's answers wait here while the guard answers refused writes before them.
  fs_fifo #(.WIDTH(1), .DEPTH(WRITES)) i_landed (
    .clk_i, .rst_ni,
    .in_valid_i(host_done_i.valid), .in_ready_o(landed_room), .in_data_i(host_done_i.error),
    .out_valid_o(landed_valid), .out_ready_i(note_valid && note_inside), .out_data_o(landed_error),
    .level_o()
  );
  assign answer = note_valid && (!note_inside || landed_valid);
  assign idle_o = !valid_q && !compared_q && !note_valid && !done_valid_o;

  always_ff @(posedge clk_i) begin
    if (answer) begin
      done_error_o <= !note_inside || landed_error;
      done_note_o <= note;
    end
    if (!rst_ni) done_valid_o <= 1'b0;
    else done_valid_o <= answer;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) !host_done_i.valid || landed_room)
  else $error("host memory answered a write that was not made");
endmodule
