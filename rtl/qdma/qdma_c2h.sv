// Copies from card memory to host memory. The unit reads card memory in bursts. The beats of the
// bursts come in order, wait in a buffer of 32 KiB, and go on to host memory. The unit requests a
// burst only when the buffer has space for the whole burst, so a slow host does not hold up card
// memory. If card memory answers a beat with an error, the unit writes the beat with no byte
// selected, and the copy fails.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_c2h
  import qdma_pkg::*;
(
  input  logic                clk_i,
  input  logic                rst_ni,

  input  logic                load_valid_i,
  input  slot_t               load_slot_i,
  input  copy_t               load_i,
  input  logic                start_valid_i,
  output logic                start_ready_o,
  input  slot_t               start_slot_i,

  output logic                read_valid_o,
  input  logic                read_ready_i,
  output fs_pkg::card_read_t  read_o,
  input  logic                data_valid_i,  // no back-pressure: always taken
  input  fs_pkg::card_data_t  data_i,

  output logic                write_valid_o,
  input  logic                write_ready_i,
  output noted_write_t        write_o,
  input  logic                done_valid_i,  // a write of this unit
  input  logic                done_error_i,
  input  write_note_t         done_note_i,

  output logic                ending_valid_o,
  input  logic                ending_ready_i,
  output ending_t             ending_o
);
  localparam int unsigned BURSTS = 16;  // in flight, if the bursts are short
  localparam int unsigned BUFFER_BEATS = 512;

  logic [SLOTS-1:0] host_failed_q, card_failed_q;

  // ---- Bursts ---------------------------------------------------------------------------------

  logic next_valid, burst_room, space, ask;
  burst_t next_burst, burst;
  slot_t failed_slot;
  qdma_round_robin i_round_robin (
    .clk_i, .rst_ni, .load_valid_i, .load_slot_i, .load_i,
    .start_valid_i, .start_ready_o, .start_slot_i,
    .failed_slot_o(failed_slot),
    .failed_i(host_failed_q[failed_slot] || card_failed_q[failed_slot]),
    .burst_valid_o(next_valid), .burst_ready_i(read_ready_i && burst_room && space),
    .burst_o(next_burst)
  );
  assign read_valid_o = next_valid && burst_room && space;
  assign ask = read_valid_o && read_ready_i;
  assign read_o = '{
    owner: next_burst.slot.owner, address: next_burst.card, beats_minus_1: next_burst.beats_minus_1
  };

  logic burst_valid, burst_taken;
  fs_fifo #(.WIDTH($bits(burst_t)), .DEPTH(BURSTS)) i_bursts (
    .clk_i, .rst_ni,
    .in_valid_i(ask), .in_ready_o(burst_room), .in_data_i(next_burst),
    .out_valid_o(burst_valid), .out_ready_i(burst_taken), .out_data_o(burst), .level_o()
  );

  logic beat_valid, beat_ready;
  fs_pkg::card_data_t data;
  qdma_buffer #(
    .WIDTH($bits(fs_pkg::card_data_t)), .DEPTH(BUFFER_BEATS), .RESERVE(QUANTUM_BEATS)
  ) i_buffer (
    .clk_i, .rst_ni,
    .reserve_ready_o(space), .reserve_valid_i(ask),
    .reserve_beats_i(7'(next_burst.beats_minus_1) + 1'b1),
    .in_valid_i(data_valid_i), .in_data_i(data_i),
    .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_data_o(data)
  );

  // ---- Beats ----------------------------------------------------------------------------------

  logic [5:0] beat_q;  // index within the burst
  logic write_valid_q, beat, burst_ends, copy_ends;
  assign beat_ready = burst_valid && (!write_valid_q || write_ready_i);
  assign beat = beat_valid && beat_ready;
  assign burst_ends = beat_q == burst.beats_minus_1;
  assign copy_ends = burst_ends && burst.last;
  assign burst_taken = beat && burst_ends;

  always_ff @(posedge clk_i) begin
    if (beat) begin
      write_o.note <= '{completion: 1'b0, notice: copy_ends, number: burst.slot};
      write_o.write <= '{
        owner: burst.slot.owner,
        address: burst.host + 58'(beat_q),
        strobe: data.error ? '0 : beat_strobe(copy_ends, burst.tail_bytes),
        data: data.data
      };
    end
    if (!rst_ni) begin
      beat_q <= '0;
      write_valid_q <= 1'b0;
    end else begin
      if (beat) beat_q <= burst_ends ? '0 : beat_q + 1'b1;
      if (beat) write_valid_q <= 1'b1;
      else if (write_ready_i) write_valid_q <= 1'b0;
    end
  end
  assign write_valid_o = write_valid_q;

  assert property (@(posedge clk_i) disable iff (!rst_ni) !beat || data.last == burst_ends)
  else $error("a burst of another length");

  // ---- Endings --------------------------------------------------------------------------------

  logic done_q, done_error_q, ended_valid, ended_room;
  write_note_t done_note_q;
  logic [7:0] status, ended_status;
  slot_t done_slot, ended_slot;
  assign done_slot = done_note_q.number;
  assign ended_valid = done_q && done_note_q.notice;
  always_comb begin
    status = fs_regs_pkg::STATUS_OK;
    if (host_failed_q[done_slot] || done_error_q) status = fs_regs_pkg::STATUS_HOST_ERROR;
    if (card_failed_q[done_slot]) status = fs_regs_pkg::STATUS_CARD_FAULT;
  end

  always_ff @(posedge clk_i) begin
    {done_error_q, done_note_q} <= {done_error_i, done_note_i};
    if (!rst_ni) begin
      done_q <= 1'b0;
      host_failed_q <= '0;
      card_failed_q <= '0;
    end else begin
      done_q <= done_valid_i;
      if (beat && data.error) card_failed_q[burst.slot] <= 1'b1;
      if (done_q && done_error_q) host_failed_q[done_slot] <= 1'b1;
      if (ended_valid) begin
        host_failed_q[done_slot] <= 1'b0;
        card_failed_q[done_slot] <= 1'b0;
      end
    end
  end

  fs_fifo #(.WIDTH($bits(slot_t) + 8), .DEPTH(SLOTS)) i_endings (
    .clk_i, .rst_ni,
    .in_valid_i(ended_valid), .in_ready_o(ended_room), .in_data_i({done_slot, status}),
    .out_valid_o(ending_valid_o), .out_ready_i(ending_ready_i), .out_data_o({ended_slot, ended_status}),
    .level_o()
  );
  assign ending_o = '{slot: ended_slot, status: ended_status, result: '0, detail: '0};

  assert property (@(posedge clk_i) disable iff (!rst_ni) !ended_valid || ended_room)
  else $error("more endings than slots");
endmodule
