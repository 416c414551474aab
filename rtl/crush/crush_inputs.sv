// Reads card memory for commands: the inputs of placements, which become mappings, and the images
// of maps, which go to the loader.
//
// The module does one transfer after the other. It reads ahead, across the ends of transfers, as
// far as it has space for beats. So crush_rule_engine does not run dry between commands. A beat
// with an error starts no mappings.
//
// A stopped job (crush_inflight_table) requests no more beats, and the module drops the beats that
// were requested. Then its transfer is *cut*: it ends when no requested beat is left, and the
// module starts to read the next transfer only then. A job is stopped only while it is the oldest,
// so its transfer is the current one.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_inputs
  import crush_pkg::*;
  import crush_pe_pkg::*;
#(
  parameter int unsigned CONTEXTS = 32,
  parameter int unsigned BEATS = 32,       // beats read ahead
  parameter int unsigned BURST_BEATS = 16
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 transfer_valid_i,
  output logic                 transfer_ready_o,
  input  transfer_t            transfer_i,

  output logic                 read_valid_o,
  input  logic                 read_ready_i,
  output fs_pkg::card_read_t   read_o,
  input  logic                 data_valid_i,
  output logic                 data_ready_o,
  input  fs_pkg::card_data_t   data_i,

  // Mappings.
  output logic                 start_valid_o,
  input  logic                 start_ready_i,
  output tag_t                 start_index_o,
  output mapping_t             start_mapping_o,
  input  logic                 free_valid_i,   // a context has ended
  input  tag_t                 free_index_i,
  input  logic [JOBS-1:0]      stopped_i,      // jobs that start no more mappings

  // Images.
  output logic                 load_valid_o,
  input  logic                 load_ready_i,
  output fs_pkg::beat_t        load_beat_o,
  output logic                 load_last_o,

  // Events for the table of jobs. At the end of an image only fault_o and end_o matter.
  output logic                 started_o,      // a mapping of start_mapping_o.job has started
  output logic                 fault_o,        // a beat of the transfer came with an error
  output logic                 end_o,          // the whole transfer has been used
  output job_index_t           used_job_o      // the job of fault_o and end_o
);
  localparam int unsigned ROOM_BITS = $clog2(BEATS + 1);

  if (BURST_BEATS > 64 || BURST_BEATS > BEATS) begin : gen_burst_check
    $error("BURST_BEATS must be at most 64, and at most BEATS");
  end

  // ---- Requests ----

  // The module prepares a request in one cycle, and offers it from the next on.
  logic queue_ready, reads;
  logic reading_q, prepared_q, is_last_q;
  transfer_t reading_transfer_q;
  logic [ROOM_BITS-1:0] room_q;    // places for beats that no request has reserved
  logic [ROOM_BITS-1:0] burst_q;
  logic asks, takes_beat;
  logic gives_up, cut_q, cut_ends;  // the job was stopped before it requested all of its beats

  assign transfer_ready_o = !reading_q && !cut_q && queue_ready;
  assign reads = transfer_valid_i && transfer_ready_o;

  assign read_valid_o = prepared_q && room_q >= burst_q;
  assign read_o.owner = reading_transfer_q.owner;
  assign read_o.address = reading_transfer_q.source;
  assign read_o.beats_minus_1 = 6'(burst_q - 1'b1);
  assign asks = read_valid_o && read_ready_i;

  // An offered request stays until it is taken.
  assign gives_up = reading_q && !reading_transfer_q.is_image && stopped_i[reading_transfer_q.job]
                    && (asks || !read_valid_o);
  assign cut_ends = cut_q && room_q == ROOM_BITS'(BEATS);

  always_ff @(posedge clk_i) begin
    if (reads) begin
      reading_transfer_q <= transfer_i;
    end else if (asks) begin
      reading_transfer_q.source <= reading_transfer_q.source + fs_pkg::card_beat_t'(burst_q);
      reading_transfer_q.beats <= reading_transfer_q.beats - 27'(burst_q);
    end
    if (!prepared_q) begin
      is_last_q <= reading_transfer_q.beats <= 27'(BURST_BEATS);
      burst_q <= ROOM_BITS'(BURST_BEATS);
      if (reading_transfer_q.beats < 27'(BURST_BEATS)) burst_q <= ROOM_BITS'(reading_transfer_q.beats);
    end
    if (!rst_ni) begin
      reading_q <= 1'b0;
      prepared_q <= 1'b0;
      cut_q <= 1'b0;
      room_q <= ROOM_BITS'(BEATS);
    end else begin
      if (reads) reading_q <= 1'b1;
      else if (asks && is_last_q || gives_up) reading_q <= 1'b0;
      prepared_q <= reading_q && !asks && !gives_up;
      if (gives_up && !(asks && is_last_q)) cut_q <= 1'b1;
      else if (cut_ends) cut_q <= 1'b0;
      room_q <= room_q - (asks ? burst_q : '0) + ROOM_BITS'(takes_beat);
    end
  end

  // ---- Arrived beats, and their transfers ----

  logic beat_valid, beat_error;
  logic [15:0][31:0] beat;
  fs_fifo #(
    .WIDTH(1 + fs_pkg::BEAT_BITS),
    .DEPTH(BEATS)
  ) i_beats (
    .clk_i,
    .rst_ni,
    .in_valid_i  (data_valid_i),
    .in_ready_o  (data_ready_o),
    .in_data_i   ({data_i.error, data_i.data}),
    .out_valid_o (beat_valid),
    .out_ready_i (takes_beat),
    .out_data_o  ({beat_error, beat}),
    .level_o     ()
  );

  logic transfer_valid;
  transfer_t transfer;
  fs_fifo #(
    .WIDTH($bits(transfer_t)),
    .DEPTH(JOBS)
  ) i_transfers (
    .clk_i,
    .rst_ni,
    .in_valid_i  (transfer_valid_i && transfer_ready_o),
    .in_ready_o  (queue_ready),
    .in_data_i   (transfer_i),
    .out_valid_o (transfer_valid),
    .out_ready_i (end_o),
    .out_data_o  (transfer),
    .level_o     ()
  );

  // ---- Free contexts: first those that were never used ----

  logic [$clog2(CONTEXTS+1)-1:0] unused_q;  // contexts 0 to unused_q - 1 have been used
  logic freed_valid, free_valid, take_free, has_room;
  tag_t freed_index, free_index;
  fs_fifo #(
    .WIDTH(TAG_BITS),
    .DEPTH(CONTEXTS)
  ) i_free (
    .clk_i,
    .rst_ni,
    .in_valid_i  (free_valid_i),
    .in_ready_o  (has_room),
    .in_data_i   (free_index_i),
    .out_valid_o (freed_valid),
    .out_ready_i (take_free),
    .out_data_o  (freed_index),
    .level_o     ()
  );
  assign free_valid = freed_valid || 32'(unused_q) != CONTEXTS;
  assign free_index = freed_valid ? freed_index : tag_t'(unused_q);
  always_ff @(posedge clk_i) begin
    if (!rst_ni) unused_q <= '0;
    else if (take_free && !freed_valid) unused_q <= unused_q + 1'b1;
  end

  // ---- Use ----

  logic [29:0] used_q;       // inputs, or beats of an image, of this transfer
  logic [29:0] number_q;     // number of the next input or beat, starting at 1
  logic is_place, is_stopped_q, is_dropped, uses_input, is_last_input, is_last_beat, slot_is_free;
  assign is_place = beat_valid && transfer_valid && !transfer.is_image;
  assign slot_is_free = !start_valid_o;  // the lost cycle does not matter, because mappings take
                                         // longer
  // One cycle late: one more mapping does no harm.
  always_ff @(posedge clk_i) is_stopped_q <= transfer_valid && stopped_i[transfer.job] && !end_o;
  assign is_dropped = beat_error || is_stopped_q;
  assign uses_input = is_place && (is_dropped || (free_valid && slot_is_free));
  assign take_free = uses_input && !is_dropped;
  assign is_last_input = number_q == transfer.inputs;

  assign load_valid_o = beat_valid && transfer_valid && transfer.is_image;
  assign load_beat_o = beat;
  assign is_last_beat = number_q == 30'(transfer.beats);
  assign load_last_o = is_last_beat;

  assign takes_beat = uses_input && (used_q[3:0] == '1 || is_last_input)
                      || load_valid_o && load_ready_i;
  assign end_o = uses_input && is_last_input || load_valid_o && load_ready_i && is_last_beat || cut_ends;
  assign fault_o = takes_beat && beat_error;
  assign used_job_o = transfer.job;
  assign started_o = take_free;

  always_ff @(posedge clk_i) begin
    if (take_free) begin
      start_index_o <= free_index;
      start_mapping_o.job <= transfer.job;
      start_mapping_o.width <= transfer.width;
      start_mapping_o.row <= transfer.row + fs_pkg::card_beat_t'(used_q);
      start_mapping_o.x <= beat[used_q[3:0]];
    end
    if (!rst_ni) begin
      start_valid_o <= 1'b0;
      used_q <= '0;
      number_q <= 30'd1;
    end else begin
      if (take_free) start_valid_o <= 1'b1;
      else if (start_ready_i) start_valid_o <= 1'b0;
      if (end_o) begin
        used_q <= '0;
        number_q <= 30'd1;
      end else if (uses_input || (load_valid_o && load_ready_i)) begin
        used_q <= number_q;
        number_q <= number_q + 30'd1;
      end
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) !data_valid_i || data_ready_o)
  else $error("a beat without room: more came than were asked for");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !free_valid_i || has_room)
  else $error("a context was freed twice");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   cut_q |-> transfer_valid && !transfer.is_image && stopped_i[transfer.job])
  else $error("a transfer was cut that is not the one in use");
endmodule
