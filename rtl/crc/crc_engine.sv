// Engine for CHECKSUM descriptors: CRC32C of every block of a range of card memory, here called the
// run.
//
// The engine reads the run in bursts of up to 64 beats. Each beat goes directly into crc32c. The
// engine packs the sums, 16 per beat, and writes them. Neither crc32c nor the memory's data can
// wait, so the engine requests a beat only when there is room for the sum that the beat may end.
// `room_q` counts the free places for sums. A beat that does not end a block gives its place back
// when it comes. A sum gives its place back when its write has left for memory.
//
//   IDLE    waits for a command
//   CHECK   checks the descriptor's numbers
//   RUN     reads, computes, writes
//   DRAIN   after an error of memory, or a job that takes too long: waits for all answers
//   ANSWER  answers with the last sum, or the error
//
// A run may be as long as the memory, and other jobs wait for the engine. So a job may take
// MAX_CYCLES from its command on. Then the engine makes no more requests, even in the middle of a
// block.

module crc_engine
  import fs_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned MAX_CYCLES = MAX_OPERATION_CYCLES  // limit of a job
) (
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
  output logic            data_ready_o,  // always 1: the engine makes room before it requests
  /* verilator lint_off UNUSEDSIGNAL */  // the end of a burst does not matter
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
  localparam int unsigned ADDRESS_BITS = CARD_BEAT_BITS + 6;  // bits of a byte address
  localparam int unsigned CYCLES_BITS = $clog2(MAX_CYCLES + 1);

  if (MAX_CYCLES == 0) begin : gen_max_cycles_check
    $error("MAX_CYCLES must be at least 1");
  end

  typedef logic [CARD_BEAT_BITS:0] beats_t;   // of a run
  typedef logic [26:0] block_beats_t;         // of a block of up to 2^32 - 1 bytes

  typedef struct packed {
    logic [SUMS_PER_BEAT-1:0][31:0]  sums;
    logic [3:0]                      count_minus_1;  // the other places of the beat are not written
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
  /* verilator lint_off UNUSEDSIGNAL */  // reserved words, and fields that the queue engine uses
  checksum_descriptor_t job;
  /* verilator lint_on UNUSEDSIGNAL */
  assign job = command_q.descriptor;

  // The descriptor's numbers: first sums and small comparisons, then the findings.
  localparam int unsigned FINDINGS = 7;
  localparam int unsigned CHECK_CYCLES = 4;  // sums, findings, their selection, decision

  beats_t run_beats_q;
  block_beats_t block_beats_q;
  logic run_has_tail_q, block_has_tail_q, one_beat_q, block_is_beat_q, one_block_q;
  logic [6:0] tail_bytes_q;      // of the run's last beat
  logic [ADDRESS_BITS:0] end_q;  // first byte after the run

  always_ff @(posedge clk_i) begin
    run_has_tail_q <= unaligned(job.length);
    block_has_tail_q <= unaligned(64'(job.block_bytes));
    run_beats_q <= beats_t'(job.length[ADDRESS_BITS-1:6]) + beats_t'(run_has_tail_q);
    block_beats_q <= block_beats_t'(job.block_bytes[31:6]) + block_beats_t'(block_has_tail_q);
    tail_bytes_q <= run_has_tail_q ? {1'b0, job.length[5:0]} : 7'd64;
    one_block_q <= job.length >> 32 == '0 && job.block_bytes >= job.length[31:0];
    end_q <= {1'b0, job.source[ADDRESS_BITS-1:0]} + {1'b0, job.length[ADDRESS_BITS-1:0]};
    one_beat_q <= run_beats_q == beats_t'(1);
    block_is_beat_q <= block_beats_q == block_beats_t'(1);
  end

  finding_t findings [FINDINGS];
  logic [1:0] check_q;
  logic checked, found, start;
  logic [7:0] wrong;
  logic [63:0] wrong_detail;

  assign findings = '{
    '{job.op != H2C_OP_CHECKSUM, STATUS_BAD_OP, 64'(job.op)},
    '{unaligned(job.source), STATUS_BAD_ALIGNMENT, job.source},
    '{unaligned(job.destination), STATUS_BAD_ALIGNMENT, job.destination},
    '{job.length == '0 || too_far(job.length), STATUS_BAD_LENGTH, job.length},
    '{job.block_bytes == '0 || (block_has_tail_q && !one_block_q),
      STATUS_BAD_PARAMETER, 64'(job.block_bytes)},
    '{too_far(job.source) || (end_q[ADDRESS_BITS] && end_q[ADDRESS_BITS-1:0] != '0),
      STATUS_CARD_FAULT, job.source},
    '{too_far(job.destination), STATUS_CARD_FAULT, job.destination}
  };

  fs_priority_select #(
    .COUNT(FINDINGS)
  ) i_first_finding (
    .clk_i,
    .findings_i(findings),
    .found_o   (found),
    .status_o  (wrong),
    .detail_o  (wrong_detail)
  );

  assign checked = state_q == CHECK && check_q == 2'(CHECK_CYCLES - 1);
  assign start = checked && !found;

  // The data path is in reset outside RUN, so a job that ends early leaves no state behind.
  logic run_rst_n;
  assign run_rst_n = rst_ni && state_q == RUN;

  logic [ROOM_BITS-1:0] room_q;  // free places for sums

  // Requests. A request at the output has its room already, or reserves it in its first cycle.
  logic asking_q, new_q;
  card_beat_t ask_at_q;
  beats_t ask_left_q;
  logic [6:0] ask_beats_q;
  logic ask, asked;
  assign read_valid_o = asking_q;
  assign read_o = '{owner: command_q.owner, address: ask_at_q, beats_minus_1: 6'(ask_beats_q - 7'd1)};
  assign ask = state_q == RUN && !asking_q && ask_left_q != '0 && room_q >= ROOM_BITS'(MAX_BURST);
  assign asked = read_valid_o && read_ready_i;

  always_ff @(posedge clk_i) begin
    if (ask) ask_beats_q <= (ask_left_q >> 6 != '0) ? 7'(MAX_BURST) : ask_left_q[6:0];
    if (!rst_ni) begin
      asking_q <= 1'b0;
      new_q <= 1'b0;
    end else begin
      if (ask) asking_q <= 1'b1;
      if (asked) asking_q <= 1'b0;
      new_q <= ask;
    end
    if (start) begin
      ask_at_q <= job.source[6 +: CARD_BEAT_BITS];
      ask_left_q <= run_beats_q;
    end else if (asked) begin
      ask_at_q <= ask_at_q + card_beat_t'(ask_beats_q);
      ask_left_q <= ask_left_q - beats_t'(ask_beats_q);
    end
  end

  // Data.
  beats_t left_q;                  // of the run
  block_beats_t block_left_q;      // of the block
  logic ends_run_q, ends_block_q;  // the next beat is the last one of the run, of the block
  logic [8:0] owed_q;              // beats that were requested and have not come
  logic ends_block;
  assign ends_block = ends_run_q || ends_block_q;
  assign data_ready_o = 1'b1;

  logic beat_valid_q, beat_ends_block_q, beat_ends_run_q;
  beat_t beat_q;
  logic [6:0] beat_bytes_q;

  always_ff @(posedge clk_i) begin
    if (start) begin
      left_q <= run_beats_q;
      ends_run_q <= one_beat_q;
    end else if (data_valid_i) begin
      left_q <= left_q - 1'b1;
      ends_run_q <= left_q == beats_t'(2);
    end
    if (start || (data_valid_i && ends_block)) begin
      block_left_q <= block_beats_q;
      ends_block_q <= block_is_beat_q;
    end else if (data_valid_i) begin
      block_left_q <= block_left_q - 1'b1;
      ends_block_q <= block_left_q == block_beats_t'(2);
    end
    if (data_valid_i) begin
      beat_q <= data_i.data;
      beat_ends_block_q <= ends_block;
      beat_ends_run_q <= ends_run_q;
      beat_bytes_q <= ends_run_q ? tail_bytes_q : 7'd64;
    end
    beat_valid_q <= run_rst_n && data_valid_i;
    if (!rst_ni) owed_q <= '0;
    else owed_q <= owed_q + (asked ? 9'(ask_beats_q) : 9'd0) - 9'(data_valid_i);
  end

  // Sums. A delay line parallel to crc32c carries the mark for the end of the run.
  logic sum_valid;
  logic [31:0] sum;
  logic [crc32c_pkg::LATENCY-1:0] ends_q;

  crc32c i_sum (
    .clk_i,
    .rst_ni     (run_rst_n),
    .in_valid_i (beat_valid_q),
    .in_data_i  (beat_q),
    .in_last_i  (beat_ends_block_q),
    .in_bytes_i (beat_bytes_q),
    .out_valid_o(sum_valid),
    .out_sum_o  (sum)
  );

  always_ff @(posedge clk_i) begin
    ends_q <= run_rst_n ? {ends_q[crc32c_pkg::LATENCY-2:0], beat_valid_q && beat_ends_run_q} : '0;
  end

  // Packing.
  packed_t packed_q;
  logic packed_valid_q, all_packed_q;
  logic [3:0] next_q;  // index of the next sum
  logic ends_all;
  assign ends_all = ends_q[crc32c_pkg::LATENCY-1];

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
  logic [7:0] writes_q;  // in flight

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

  // Room. It comes back one cycle late. The next request reads the count after this request was
  // subtracted.
  logic [ROOM_BITS-1:0] given_back, given_back_q;
  always_comb begin
    given_back = '0;
    if (data_valid_i && !ends_block) given_back += ROOM_BITS'(1);
    if (write) given_back += ROOM_BITS'(head.count_minus_1) + ROOM_BITS'(1);
  end

  always_ff @(posedge clk_i) begin
    given_back_q <= start ? '0 : given_back;
    if (start) room_q <= ROOM_BITS'(ROOM);
    else room_q <= room_q + given_back_q - (new_q ? ROOM_BITS'(ask_beats_q) : '0);
  end

  // The job.
  logic [7:0] status_q;
  logic [63:0] detail_q;
  logic [31:0] last_sum_q;
  logic read_error, write_error, quiet;
  assign read_error = data_valid_i && data_i.error;
  assign write_error = done_i.valid && done_i.error;

  // The cycles that the job may still take.
  logic [CYCLES_BITS-1:0] cycles_left_q;
  logic too_long_q;
  always_ff @(posedge clk_i) begin
    if (state_q == IDLE) cycles_left_q <= CYCLES_BITS'(MAX_CYCLES);
    else if (cycles_left_q != '0) cycles_left_q <= cycles_left_q - 1'b1;
    too_long_q <= state_q != IDLE && cycles_left_q == '0;
  end

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
    check_q <= (state_q == CHECK) ? check_q + 1'b1 : '0;
    if (!rst_ni) begin
      state_q <= IDLE;
    end else begin
      unique case (state_q)
        IDLE: if (command_valid_i) state_q <= CHECK;
        CHECK: if (checked) begin
          status_q <= wrong;
          detail_q <= wrong_detail;
          state_q <= found ? ANSWER : RUN;
        end
        RUN: begin
          if (read_error || write_error) begin
            state_q <= DRAIN;
            status_q <= STATUS_CARD_FAULT;
            detail_q <= read_error ? job.source : job.destination;
          end else if (all_packed_q && quiet) begin
            state_q <= ANSWER;
          end else if (too_long_q) begin
            state_q <= DRAIN;
            status_q <= STATUS_TOO_LONG;
            detail_q <= '0;
          end
        end
        DRAIN: if (quiet) state_q <= ANSWER;
        ANSWER: if (answer_ready_i) state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end
endmodule
