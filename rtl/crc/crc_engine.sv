// Engine for CHECKSUM descriptors: CRC32C of every block of a run of card memory.
//
// The run is read in bursts of up to 64 beats, each beat goes straight into crc32c, and the sums are
// packed, 16 to a beat, and written. Neither crc32c nor the memory's data can wait, so a beat is asked
// for only when there is room for the sum that it may end: `room_q` counts places for sums that are not
// spoken for. A beat that ends no block gives its place back when it comes; a sum does when it has left
// for memory.
//
//   IDLE    waits for a command
//   CHECK   the descriptor's numbers
//   RUN     reads, sums, writes
//   DRAIN   memory refused: what is under way is awaited
//   ANSWER  the last sum, or what was wrong

module crc_engine
  import fs_pkg::*;
  import fs_regs_pkg::*;
(
  input  logic            clk_i,
  input  logic            rst_ni,

  input  logic            command_valid_i,
  output logic            command_ready_o,
  input  engine_command_t command_i,

  output logic            answer_valid_o,
  input  logic            answer_ready_i,
  output engine_answer_t  answer_o,

  output logic            read_valid_o,
  input  logic            read_ready_i,
  output card_read_t      read_o,
  input  logic            data_valid_i,
  output logic            data_ready_o,  // always: room was made before the request
  /* verilator lint_off UNUSEDSIGNAL */  // bursts are not told apart
  input  card_data_t      data_i,
  /* verilator lint_on UNUSEDSIGNAL */

  output logic            write_valid_o,
  input  logic            write_ready_i,
  output card_write_t     write_o,
  input  card_done_t      done_i
);
  localparam int unsigned SUMS_PER_BEAT = 16;
  localparam int unsigned SUM_BEATS = 16;  // packed sums that wait to be written
  localparam int unsigned ROOM = SUMS_PER_BEAT * SUM_BEATS;
  localparam int unsigned ROOM_BITS = $clog2(ROOM + 1);
  localparam int unsigned MAX_BURST = 64;

  typedef logic [CARD_BEAT_BITS:0] beats_t;   // of a run
  typedef logic [26:0] block_beats_t;         // of a block of up to 2^32 - 1 bytes

  typedef struct packed {
    logic [SUMS_PER_BEAT-1:0][31:0]  sums;
    logic [3:0]                      count_minus_1;  // the others are not to be written
  } packed_t;

  typedef enum logic [2:0] {
    IDLE,
    CHECK,
    RUN,
    DRAIN,
    ANSWER
  } state_e;
  state_e state_q;

  engine_command_t command_q;
  /* verilator lint_off UNUSEDSIGNAL */  // reserved words, and what the queue engine has done with
  checksum_descriptor_t job;
  /* verilator lint_on UNUSEDSIGNAL */
  assign job = command_q.descriptor;

  // The descriptor's numbers: the first thing that is wrong.
  logic [7:0] wrong;
  logic [63:0] wrong_detail;

  function automatic logic unaligned(input logic [63:0] bytes);
    return bytes % 64'(fs_pkg::BEAT_BYTES) != '0;
  endfunction

  function automatic logic too_far(input logic [63:0] bytes);
    return bytes >> (CARD_BEAT_BITS + 6) != '0;
  endfunction

  logic one_block;
  assign one_block = 64'(job.block_bytes) >= job.length;

  always_comb begin
    wrong = STATUS_OK;
    wrong_detail = '0;
    if (job.op != H2C_OP_CHECKSUM) begin
      wrong = STATUS_BAD_OP;
      wrong_detail = 64'(job.op);
    end else if (unaligned(job.source)) begin
      wrong = STATUS_BAD_ALIGNMENT;
      wrong_detail = job.source;
    end else if (unaligned(job.destination)) begin
      wrong = STATUS_BAD_ALIGNMENT;
      wrong_detail = job.destination;
    end else if (job.length == '0 || too_far(job.length)) begin
      wrong = STATUS_BAD_LENGTH;
      wrong_detail = job.length;
    end else if (job.block_bytes == '0 || (unaligned(64'(job.block_bytes)) && !one_block)) begin
      wrong = STATUS_BAD_PARAMETER;
      wrong_detail = 64'(job.block_bytes);
    end else if (too_far(job.source) || too_far(job.source + job.length - 64'd1)) begin
      wrong = STATUS_CARD_FAULT;
      wrong_detail = job.source;
    end else if (too_far(job.destination)) begin
      wrong = STATUS_CARD_FAULT;
      wrong_detail = job.destination;
    end
  end

  logic start;
  assign start = state_q == CHECK && wrong == STATUS_OK;

  // What computes is in reset unless a job runs: a job that ends early leaves nothing behind.
  logic run_rst_n;
  assign run_rst_n = rst_ni && state_q == RUN;

  beats_t run_beats;
  logic [6:0] tail_bytes;  // of the run's last beat
  assign run_beats = beats_t'((job.length + 64'd63) >> 6);
  assign tail_bytes = (job.length[5:0] == '0) ? 7'd64 : {1'b0, job.length[5:0]};

  logic [ROOM_BITS-1:0] room_q;  // places for sums that are not spoken for

  // Asking. A request that stands at the output has its room already.
  logic asking_q;
  card_beat_t ask_at_q;
  beats_t ask_left_q;
  logic [6:0] ask_beats;
  logic ask, asked;
  assign ask_beats = (ask_left_q > beats_t'(MAX_BURST)) ? 7'(MAX_BURST) : ask_left_q[6:0];
  assign read_valid_o = asking_q;
  assign read_o = '{owner: command_q.owner, address: ask_at_q, beats_minus_1: 6'(ask_beats - 7'd1)};
  assign ask = state_q == RUN && !asking_q && ask_left_q != '0 && room_q >= ROOM_BITS'(MAX_BURST);
  assign asked = read_valid_o && read_ready_i;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      asking_q <= 1'b0;
    end else begin
      if (ask) asking_q <= 1'b1;
      if (asked) asking_q <= 1'b0;
    end
    if (start) begin
      ask_at_q <= job.source[6 +: CARD_BEAT_BITS];
      ask_left_q <= run_beats;
    end else if (asked) begin
      ask_at_q <= ask_at_q + card_beat_t'(ask_beats);
      ask_left_q <= ask_left_q - beats_t'(ask_beats);
    end
  end

  // Receiving.
  beats_t left_q;  // of the run
  block_beats_t block_beats, block_left_q;
  logic [8:0] owed_q;  // beats that were asked for
  logic ends_block, ends_run;
  assign block_beats = block_beats_t'((33'(job.block_bytes) + 33'd63) >> 6);
  assign ends_run = left_q == beats_t'(1);
  assign ends_block = ends_run || block_left_q == block_beats_t'(1);
  assign data_ready_o = 1'b1;

  logic beat_valid_q, beat_ends_block_q, beat_ends_run_q;
  beat_t beat_q;

  always_ff @(posedge clk_i) begin
    if (start) begin
      left_q <= run_beats;
      block_left_q <= block_beats;
    end else if (data_valid_i) begin
      left_q <= left_q - 1'b1;
      block_left_q <= ends_block ? block_beats : block_left_q - 1'b1;
    end
    if (data_valid_i) begin
      beat_q <= data_i.data;
      beat_ends_block_q <= ends_block;
      beat_ends_run_q <= ends_run;
    end
    beat_valid_q <= run_rst_n && data_valid_i;
    if (!rst_ni) owed_q <= '0;
    else owed_q <= owed_q + (asked ? 9'(ask_beats) : 9'd0) - 9'(data_valid_i);
  end

  // Sums. What ends the run goes along beside crc32c.
  logic sum_valid;
  logic [31:0] sum;
  logic [crc32c_pkg::LATENCY-1:0] ends_run_q;

  crc32c i_sum (
    .clk_i,
    .rst_ni     (run_rst_n),
    .in_valid_i (beat_valid_q),
    .in_data_i  (beat_q),
    .in_last_i  (beat_ends_block_q),
    .in_bytes_i (beat_ends_run_q ? tail_bytes : 7'd64),
    .out_valid_o(sum_valid),
    .out_sum_o  (sum)
  );

  always_ff @(posedge clk_i) begin
    ends_run_q <= run_rst_n ? {ends_run_q[crc32c_pkg::LATENCY-2:0], beat_valid_q && beat_ends_run_q} : '0;
  end

  // Packing.
  packed_t packed_q;
  logic packed_valid_q, all_packed_q;
  logic [3:0] next_q;  // where the next sum goes
  logic ends_all;
  assign ends_all = ends_run_q[crc32c_pkg::LATENCY-1];

  always_ff @(posedge clk_i) begin
    if (sum_valid) begin
      packed_q.sums[next_q] <= sum;
      packed_q.count_minus_1 <= next_q;
    end
    if (!run_rst_n) begin
      packed_valid_q <= 1'b0;
      all_packed_q <= 1'b0;
      next_q <= '0;
    end else begin
      packed_valid_q <= sum_valid && (next_q == '1 || ends_all);
      if (sum_valid) next_q <= next_q + 1'b1;
      if (sum_valid && ends_all) all_packed_q <= 1'b1;
    end
  end

  // Writing.
  packed_t head;
  logic has_room, head_valid, write;
  logic [$clog2(SUM_BEATS+1)-1:0] level;
  card_beat_t write_at_q;
  logic [7:0] writes_q;  // under way

  fs_fifo #(
    .WIDTH($bits(packed_t)),
    .DEPTH(SUM_BEATS)
  ) i_packed (
    .clk_i,
    .rst_ni,
    .in_valid_i (packed_valid_q),
    .in_ready_o (has_room),
    .in_data_i  (packed_q),
    .out_valid_o(head_valid),
    .out_ready_i(write_ready_i && writes_q != '1),
    .out_data_o (head),
    .level_o    (level)
  );

  assign write_valid_o = head_valid && writes_q != '1;
  assign write = write_valid_o && write_ready_i;
  always_comb begin
    write_o.owner = command_q.owner;
    write_o.address = write_at_q;
    write_o.data = head.sums;
    for (int unsigned i = 0; i < fs_pkg::BEAT_BYTES; i++) write_o.strobe[i] = 4'(i / 4) <= head.count_minus_1;
  end

  always_ff @(posedge clk_i) begin
    if (start) write_at_q <= job.destination[6 +: CARD_BEAT_BITS];
    else if (write) write_at_q <= write_at_q + 1'b1;
    if (!rst_ni) writes_q <= '0;
    else if (write != done_i.valid) writes_q <= write ? writes_q + 1'b1 : writes_q - 1'b1;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) packed_valid_q |-> has_room)
  else $error("no room for packed sums");

  // Room.
  logic [ROOM_BITS-1:0] given_back;
  always_comb begin
    given_back = '0;
    if (data_valid_i && !ends_block) given_back += ROOM_BITS'(1);
    if (write) given_back += ROOM_BITS'(head.count_minus_1) + ROOM_BITS'(1);
  end

  always_ff @(posedge clk_i) begin
    if (start) room_q <= ROOM_BITS'(ROOM);
    else room_q <= room_q + given_back - (ask ? ROOM_BITS'(ask_beats) : '0);
  end

  // The job.
  logic [7:0] status_q;
  logic [63:0] detail_q;
  logic [31:0] last_sum_q;
  logic read_error, write_error, quiet;
  assign read_error = data_valid_i && data_i.error;
  assign write_error = done_i.valid && done_i.error;
  assign quiet = !asking_q && owed_q == '0 && !packed_valid_q && level == '0 && writes_q == '0;

  assign command_ready_o = state_q == IDLE;
  assign answer_valid_o = state_q == ANSWER;
  assign answer_o = '{
    tag: command_q.tag,
    status: status_q,
    result: (status_q == STATUS_OK) ? 64'(last_sum_q) : '0,
    detail: detail_q
  };

  always_ff @(posedge clk_i) begin
    if (command_valid_i && command_ready_o) command_q <= command_i;
    if (sum_valid) last_sum_q <= sum;
    if (!rst_ni) begin
      state_q <= IDLE;
    end else begin
      unique case (state_q)
        IDLE: if (command_valid_i) state_q <= CHECK;
        CHECK: begin
          status_q <= wrong;
          detail_q <= wrong_detail;
          state_q <= start ? RUN : ANSWER;
        end
        RUN: begin
          if (read_error || write_error) begin
            state_q <= DRAIN;
            status_q <= STATUS_CARD_FAULT;
            detail_q <= read_error ? job.source : job.destination;
          end else if (all_packed_q && quiet) begin
            state_q <= ANSWER;
          end
        end
        DRAIN: if (quiet) state_q <= ANSWER;
        ANSWER: if (answer_ready_i) state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end
endmodule
