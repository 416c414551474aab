// Copies from host memory to card memory. The unit requests up to 128 bytes at a time, and no
// request crosses a multiple of 128. There are as many requests in flight as the reorder buffer has
// places. Data leaves the buffer in order, one beat per cycle, to card memory. If host memory
// answers a beat with an error, the unit writes the beat with no byte selected. So the count of
// writes stays right, and the copy fails.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module qdma_h2c
  import qdma_pkg::*;
(
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 load_valid_i,
  input  slot_t                load_slot_i,
  input  copy_t                load_i,
  input  logic                 start_valid_i,
  output logic                 start_ready_o,
  input  slot_t                start_slot_i,

  output logic                 read_valid_o,
  input  logic                 read_ready_i,
  output host_read_t           read_o,
  input  logic                 data_valid_i,  // no back-pressure: always taken
  input  host_data_t           data_i,

  output logic                 write_valid_o,
  input  logic                 write_ready_i,
  output fs_pkg::card_write_t  write_o,
  input  fs_pkg::card_done_t   done_i,

  output logic                 ending_valid_o,
  input  logic                 ending_ready_i,
  output ending_t              ending_o
);
  localparam int unsigned WRITES = 256;  // in flight

  logic [SLOTS-1:0] host_failed_q, card_failed_q;

  // ---- Requests -------------------------------------------------------------------------------

  logic burst_valid, burst_ready;
  burst_t burst, burst_q;
  slot_t failed_slot;
  qdma_round_robin i_round_robin (
    .clk_i, .rst_ni, .load_valid_i, .load_slot_i, .load_i,
    .start_valid_i, .start_ready_o, .start_slot_i,
    .failed_slot_o(failed_slot),
    .failed_i(host_failed_q[failed_slot] || card_failed_q[failed_slot]),
    .burst_valid_o(burst_valid), .burst_ready_i(burst_ready), .burst_o(burst)
  );

  // The reorder buffer's note for a request.
  typedef struct packed {
    slot_t slot;
    fs_pkg::card_beat_t card;
    logic last;  // the copy's last request
    logic [5:0] tail_bytes;
  } note_t;

  logic busy_q, two, final_request, place_ready, read_room, request, read_valid_q;
  logic [7:0] place;
  note_t note;
  assign two = !burst_q.host[0] && burst_q.beats_minus_1 != '0;
  assign final_request = burst_q.beats_minus_1 == 6'(two);
  assign note = '{
    slot: burst_q.slot, card: burst_q.card, last: burst_q.last && final_request,
    tail_bytes: burst_q.tail_bytes
  };
  assign read_room = !read_valid_q || read_ready_i;
  assign request = busy_q && place_ready && read_room;
  assign burst_ready = !busy_q || (request && final_request);

  always_ff @(posedge clk_i) begin
    if (burst_valid && burst_ready) begin
      burst_q <= burst;
    end else if (request) begin
      // A request of one beat is at an odd address, or is the last one.
      burst_q.host <= {burst_q.host[57:1] + 1'b1, 1'b0};
      burst_q.card <= burst_q.card + (two ? 34'd2 : 34'd1);
      burst_q.beats_minus_1 <= burst_q.beats_minus_1 - (two ? 6'd2 : 6'd1);
    end
    if (request) begin
      read_o <= '{
        owner: burst_q.slot.owner,
        tag: '{kind: READ_COPY, number: place},
        address: burst_q.host,
        two: two
      };
    end
    if (!rst_ni) begin
      busy_q <= 1'b0;
      read_valid_q <= 1'b0;
    end else begin
      if (burst_ready) busy_q <= burst_valid;
      if (read_room) read_valid_q <= request;
    end
  end
  assign read_valid_o = read_valid_q;

  // ---- Data, in order again -------------------------------------------------------------------

  logic beat_valid, beat_ready, beat_second, beat_last, beat_error;
  fs_pkg::beat_t beat;
  note_t beat_note;
  qdma_reorder #(.NOTE_BITS($bits(note_t))) i_reorder (
    .clk_i, .rst_ni,
    .take_valid_i(busy_q && read_room), .take_ready_o(place_ready), .take_two_i(two),
    .take_note_i(note), .take_number_o(place),
    .fill_valid_i(data_valid_i && data_i.tag.kind == READ_COPY), .fill_number_i(data_i.tag.number),
    .fill_last_i(data_i.last), .fill_error_i(data_i.error), .fill_data_i(data_i.data),
    .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_note_o(beat_note),
    .out_second_o(beat_second), .out_last_o(beat_last), .out_error_o(beat_error), .out_data_o(beat)
  );

  // ---- Writes ---------------------------------------------------------------------------------

  logic write_valid_q, pending_room, ends;
  assign beat_ready = (!write_valid_q || write_ready_i) && pending_room;
  assign ends = beat_note.last && beat_last;

  always_ff @(posedge clk_i) begin
    if (beat_valid && beat_ready) begin
      write_o <= '{
        owner: beat_note.slot.owner,
        address: beat_note.card + 34'(beat_second),
        strobe: beat_error ? '0 : beat_strobe(ends, beat_note.tail_bytes),
        data: beat
      };
    end
    if (!rst_ni) write_valid_q <= 1'b0;
    else if (beat_valid && beat_ready) write_valid_q <= 1'b1;
    else if (write_ready_i) write_valid_q <= 1'b0;
  end
  assign write_valid_o = write_valid_q;

  // ---- Endings --------------------------------------------------------------------------------

  logic pending_valid, pending_ends;
  slot_t pending_slot;
  fs_fifo #(.WIDTH(1 + $bits(slot_t)), .DEPTH(WRITES)) i_pending (
    .clk_i, .rst_ni,
    .in_valid_i(beat_valid && (!write_valid_q || write_ready_i)), .in_ready_o(pending_room),
    .in_data_i({ends, beat_note.slot}),
    .out_valid_o(pending_valid), .out_ready_i(done_i.valid), .out_data_o({pending_ends, pending_slot}),
    .level_o()
  );

  fs_pkg::card_done_t done_q;
  logic done_ends_q, ended_valid, ended_room;
  logic [7:0] status, ended_status;
  slot_t done_slot_q, ended_slot;
  assign ended_valid = done_q.valid && done_ends_q;
  always_comb begin
    status = fs_regs_pkg::STATUS_OK;
    if (card_failed_q[done_slot_q] || done_q.error) status = fs_regs_pkg::STATUS_CARD_FAULT;
    if (host_failed_q[done_slot_q]) status = fs_regs_pkg::STATUS_HOST_ERROR;
  end

  always_ff @(posedge clk_i) begin
    {done_ends_q, done_slot_q} <= {pending_ends, pending_slot};
    if (!rst_ni) begin
      done_q <= '0;
      host_failed_q <= '0;
      card_failed_q <= '0;
    end else begin
      done_q <= done_i;
      if (beat_valid && beat_ready && beat_error) host_failed_q[beat_note.slot] <= 1'b1;
      if (done_q.valid && done_q.error) card_failed_q[done_slot_q] <= 1'b1;
      if (ended_valid) begin
        host_failed_q[done_slot_q] <= 1'b0;
        card_failed_q[done_slot_q] <= 1'b0;
      end
    end
  end

  fs_fifo #(.WIDTH($bits(slot_t) + 8), .DEPTH(SLOTS)) i_endings (
    .clk_i, .rst_ni,
    .in_valid_i(ended_valid), .in_ready_o(ended_room), .in_data_i({done_slot_q, status}),
    .out_valid_o(ending_valid_o), .out_ready_i(ending_ready_i), .out_data_o({ended_slot, ended_status}),
    .level_o()
  );
  assign ending_o = '{slot: ended_slot, status: ended_status, result: '0, detail: '0};

  assert property (@(posedge clk_i) disable iff (!rst_ni) !done_i.valid || pending_valid)
  else $error("card memory answered a write that was not made");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !ended_valid || ended_room)
  else $error("more endings than slots");
endmodule
