// Engine for CODE descriptors: executes linear maps over GF(2^8) on shards in card memory.
//
// After the FPGA engine for MSR codes: one machine encodes and rebuilds any code, with other
// tables. The engine cuts a job into passes (one slice of all elements of one stripe), and UNITS
// units execute the passes:
//
//   card memory -> codes_fill -> banks of the lanes -> gf_tree -> queue -> card memory
//                                   ^ operations: codes_issue ^
//
// The engine reads every element once per job, however many operations use it.
//
//   IDLE     waits for a command
//   CHECK    checks the descriptor's numbers
//   LOAD     codes_loader loads the program, unless the tables hold it already. The engine wipes
//            the lanes before the first job, and before a function's first job after its reset
//   RUN      the units work
//   DRAIN    after an error: the units forget the job; the engine waits for the memory's answers
//   ANSWER   the result is the number of bytes written
//
// A descriptor may ask for more work than other jobs can wait for (a batch of 2^32 - 1 stripes). So
// a job may take MAX_CYCLES from its command on. Then the engine ends it as if memory had answered
// with an error, even in the middle of a pass. The engine always loads a program to its end,
// because a program is short.
//
// No job computes on another function's data: the lanes know the owner of every beat (codes_lane).
//
// For the error of a write, the answer gives the address of the outputs: memory does not say which
// write failed.

module codes_engine
  import fs_pkg::*;
  import fs_regs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned LANES = 8,          // operands of the tree, at most 12
  parameter int unsigned LANE_BEATS = 1024,  // beats of a bank
  parameter int unsigned OPERATIONS = 1024,  // operations in the table, and as many fills; a
                                             // multiple of 8
  parameter int unsigned UNITS = 1,
  parameter int unsigned MAX_CYCLES = MAX_OPERATION_CYCLES  // limit of a job
) (
  input  logic            clk_i,
  input  logic            rst_ni,

  // Functions that are being reset: what their jobs left is not for who owns them next.
  input  logic [MAX_FUNCTIONS-1:0] function_reset_i,

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
  output logic            data_ready_o,  // always 1: the units make room before they request
  input  card_data_t      data_i,

  output logic            write_valid_o,
  input  logic            write_ready_i,
  output card_write_t     write_o,
  input  card_done_t      done_i,

  // Counted since reset.
  output logic [63:0]     read_beats_o,   // including programs
  output logic [63:0]     write_beats_o,
  output logic [63:0]     busy_cycles_o   // from a command to its answer
);
  localparam int unsigned OFFSET_BITS = $clog2(LANE_BEATS);
  localparam int unsigned ADDRESS_BITS = CARD_BEAT_BITS + 6;  // bits of a byte address
  localparam int unsigned MAX_PROGRAM_BEATS = 1 + OPERATIONS / FILLS_PER_BEAT + OPERATIONS;
  localparam int unsigned CYCLES_BITS = $clog2(MAX_CYCLES + 1);

  if (UNITS == 0) begin : gen_units_check
    $error("UNITS must be at least 1");
  end
  if (MAX_CYCLES == 0) begin : gen_max_cycles_check
    $error("MAX_CYCLES must be at least 1");
  end

  typedef enum logic [2:0] {
    IDLE,
    CHECK,
    LOAD,
    RUN,
    DRAIN,
    ANSWER
  } state_e;
  state_e state_q;

  engine_command_t command_q;
  /* verilator lint_off UNUSEDSIGNAL */  // reserved words, and fields that the queue engine uses
  code_descriptor_t job;
  /* verilator lint_on UNUSEDSIGNAL */
  assign job = command_q.descriptor;

  // The descriptor's numbers: first the program's end, then the findings.
  localparam int unsigned FINDINGS = 14;
  localparam int unsigned CHECK_CYCLES = 4;  // end, findings, their selection, decision

  logic [ADDRESS_BITS:0] end_q;  // first byte after the program
  always_ff @(posedge clk_i) begin
    end_q <= {1'b0, job.source[ADDRESS_BITS-1:0]} + {1'b0, job.length[ADDRESS_BITS-1:0]};
  end

  finding_t findings [FINDINGS];
  logic [1:0] check_q;
  logic checked, found;
  logic [7:0] wrong;
  logic [63:0] wrong_detail;

  assign findings = '{
    '{job.op != H2C_OP_CODE, STATUS_BAD_OP, 64'(job.op)},
    '{unaligned(job.source), STATUS_BAD_ALIGNMENT, job.source},
    '{unaligned(job.input_base), STATUS_BAD_ALIGNMENT, job.input_base},
    '{unaligned(job.output_base), STATUS_BAD_ALIGNMENT, job.output_base},
    '{unaligned(job.length) || job.length == '0 || job.length >> 22 != '0
      || job.length[21:6] > 16'(MAX_PROGRAM_BEATS), STATUS_BAD_LENGTH, job.length},
    '{unaligned(64'(job.element_bytes)) || job.element_bytes == '0,
      STATUS_BAD_LENGTH, 64'(job.element_bytes)},
    '{job.batch == '0, STATUS_BAD_PARAMETER, '0},
    '{unaligned(job.input_stride) || too_far(job.input_stride), STATUS_BAD_PARAMETER, job.input_stride},
    '{unaligned(job.output_stride) || too_far(job.output_stride), STATUS_BAD_PARAMETER, job.output_stride},
    '{unaligned(job.input_batch) || too_far(job.input_batch), STATUS_BAD_PARAMETER, job.input_batch},
    '{unaligned(job.output_batch) || too_far(job.output_batch), STATUS_BAD_PARAMETER, job.output_batch},
    '{too_far(job.source) || (end_q[ADDRESS_BITS] && end_q[ADDRESS_BITS-1:0] != '0),
      STATUS_CARD_FAULT, job.source},
    '{too_far(job.input_base), STATUS_CARD_FAULT, job.input_base},
    '{too_far(job.output_base), STATUS_CARD_FAULT, job.output_base}
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

  strides_t source_strides, target_strides;
  assign source_strides = '{element: job.element_bytes[31:6], shard: job.input_stride[6 +: CARD_BEAT_BITS]};
  assign target_strides = '{element: job.element_bytes[31:6], shard: job.output_stride[6 +: CARD_BEAT_BITS]};

  // Wiping.
  logic wiping_q;
  logic [MAX_FUNCTIONS-1:0] stale_q;  // functions that may find data of others in the lanes
  logic [OFFSET_BITS-1:0] wipe_q;

  // Loading.
  logic load, loaded_q, loader_done, loader_bad, loader_fault;
  table_write_t table_write;
  sizes_t sizes;

  // Units are in reset unless the engine is in RUN.
  logic running_q, stopped_q, unit_rst_n;
  assign unit_rst_n = rst_ni && running_q;
  logic [UNITS-1:0] unit_idle, unit_fault, unit_pass_ready, unit_takes;
  logic pass_valid, passes_done;
  slice_t pass_source, pass_target;

  // Ports. The loader is the last client.
  logic [UNITS:0] read_valid, read_ready, data_valid;
  card_beat_t read_address [UNITS+1];
  logic [5:0] read_beats_minus_1 [UNITS+1];
  logic [UNITS-1:0] unit_write_valid, unit_write_ready;
  card_beat_t unit_write_address [UNITS];
  beat_t unit_write_data [UNITS];
  logic ports_idle, read_error, write_error, read_beat, write_beat;
  card_beat_t read_error_at;

  codes_loader #(
    .LANES     (LANES),
    .LANE_BEATS(LANE_BEATS),
    .OPERATIONS(OPERATIONS)
  ) i_loader (
    .clk_i,
    .rst_ni,
    .start_i             (load),
    .owner_i             (command_q.owner),
    .address_i           (job.source[6 +: CARD_BEAT_BITS]),
    .beats_i             (job.length[21:6]),
    .read_valid_o        (read_valid[UNITS]),
    .read_ready_i        (read_ready[UNITS]),
    .read_address_o      (read_address[UNITS]),
    .read_beats_minus_1_o(read_beats_minus_1[UNITS]),
    .data_valid_i        (data_valid[UNITS]),
    .data_error_i        (data_i.error),
    .data_last_i         (data_i.last),
    .data_i              (data_i.data),
    .table_o             (table_write),
    .sizes_o             (sizes),
    .done_o              (loader_done),
    .bad_o               (loader_bad),
    .fault_o             (loader_fault)
  );

  codes_pass_generator i_pass_generator (
    .clk_i,
    .rst_ni         (unit_rst_n),
    .input_i        (job.input_base[6 +: CARD_BEAT_BITS]),
    .output_i       (job.output_base[6 +: CARD_BEAT_BITS]),
    .input_batch_i  (job.input_batch[6 +: CARD_BEAT_BITS]),
    .output_batch_i (job.output_batch[6 +: CARD_BEAT_BITS]),
    .element_beats_i(job.element_bytes[31:6]),
    .batch_i        (job.batch),
    .slice_beats_i  (sizes.slice_beats),
    .pass_valid_o   (pass_valid),
    .pass_ready_i   (unit_pass_ready != '0),
    .source_o       (pass_source),
    .target_o       (pass_target),
    .done_o         (passes_done)
  );

  // The lowest unit that can take a pass gets it.
  assign unit_takes = unit_pass_ready & (~unit_pass_ready + 1'b1);

  for (genvar u = 0; u < int'(UNITS); u++) begin : gen_unit
    codes_unit #(
      .LANES     (LANES),
      .LANE_BEATS(LANE_BEATS),
      .OPERATIONS(OPERATIONS)
    ) i_unit (
      .clk_i,
      .rst_ni              (unit_rst_n),
      .table_i             (table_write),
      .fills_i             (sizes.fills),
      .operations_i        (sizes.operations),
      .source_strides_i    (source_strides),
      .target_strides_i    (target_strides),
      .owner_i             (command_q.owner),
      .wipe_valid_i        (wiping_q),
      .wipe_address_i      (wipe_q),
      .pass_valid_i        (pass_valid && unit_takes[u]),
      .pass_ready_o        (unit_pass_ready[u]),
      .pass_source_i       (pass_source),
      .pass_target_i       (pass_target),
      .read_valid_o        (read_valid[u]),
      .read_ready_i        (read_ready[u]),
      .read_address_o      (read_address[u]),
      .read_beats_minus_1_o(read_beats_minus_1[u]),
      .data_valid_i        (data_valid[u]),
      .data_last_i         (data_i.last),
      .data_i              (data_i.data),
      .write_valid_o       (unit_write_valid[u]),
      .write_ready_i       (unit_write_ready[u]),
      .write_address_o     (unit_write_address[u]),
      .write_data_o        (unit_write_data[u]),
      .idle_o              (unit_idle[u]),
      .fault_o             (unit_fault[u])
    );
  end

  codes_ports #(
    .UNITS(UNITS)
  ) i_ports (
    .clk_i,
    .rst_ni,
    .owner_i             (command_q.owner),
    .read_valid_i        (read_valid),
    .read_ready_o        (read_ready),
    .read_address_i      (read_address),
    .read_beats_minus_1_i(read_beats_minus_1),
    .data_valid_o        (data_valid),
    .write_valid_i       (unit_write_valid),
    .write_ready_o       (unit_write_ready),
    .write_address_i     (unit_write_address),
    .write_data_i        (unit_write_data),
    .idle_o              (ports_idle),
    .read_error_o        (read_error),
    .read_error_at_o     (read_error_at),
    .write_error_o       (write_error),
    .read_beat_o         (read_beat),
    .write_beat_o        (write_beat),
    .card_read_valid_o   (read_valid_o),
    .card_read_ready_i   (read_ready_i),
    .card_read_o         (read_o),
    .card_data_valid_i   (data_valid_i),
    .card_data_i         (data_i),
    .card_write_valid_o  (write_valid_o),
    .card_write_ready_i  (write_ready_i),
    .card_write_o        (write_o),
    .card_done_i         (done_i)
  );
  assign data_ready_o = 1'b1;

  // The job.
  logic [7:0] status_q;
  logic [63:0] detail_q;
  logic [63:0] written_q;  // in beats
  logic fault;

  // The cycles that the job may still take.
  logic [CYCLES_BITS-1:0] cycles_left_q;
  logic too_long_q;
  always_ff @(posedge clk_i) begin
    if (state_q == IDLE) cycles_left_q <= CYCLES_BITS'(MAX_CYCLES);
    else if (cycles_left_q != '0) cycles_left_q <= cycles_left_q - 1'b1;
    too_long_q <= state_q != IDLE && cycles_left_q == '0;
  end

  assign fault = read_error || write_error || unit_fault != '0;
  assign load = checked && !found;
  assign command_ready_o = state_q == IDLE;
  assign answer_valid_o = state_q == ANSWER;
  assign answer_o = '{
    tag: command_q.tag,
    status: status_q,
    result: {written_q[57:0], 6'd0},
    detail: detail_q
  };

  always_ff @(posedge clk_i) begin
    if (command_valid_i && command_ready_o) command_q <= command_i;
    check_q <= (state_q == CHECK) ? check_q + 1'b1 : '0;
    if (!rst_ni) begin
      state_q <= IDLE;
      running_q <= 1'b0;
      loaded_q <= 1'b0;
      wiping_q <= 1'b0;
      stale_q <= '1;
    end else begin
      stale_q <= stale_q | function_reset_i;
      running_q <= state_q == RUN && !fault && !too_long_q;
      stopped_q <= !running_q;
      if (wiping_q) begin
        wipe_q <= wipe_q + 1'b1;
        wiping_q <= wipe_q != OFFSET_BITS'(LANE_BEATS - 1);
      end
      if (write_beat) written_q <= written_q + 1'b1;

      unique case (state_q)
        IDLE: if (command_valid_i) begin
          state_q <= CHECK;
          written_q <= '0;
        end

        CHECK: if (checked) begin
          status_q <= wrong;
          detail_q <= wrong_detail;
          loaded_q <= 1'b0;
          if (found) begin
            state_q <= ANSWER;
          end else begin
            state_q <= LOAD;
            if (stale_q[command_q.owner]) begin
              wiping_q <= 1'b1;
              wipe_q <= '0;
              stale_q <= function_reset_i;  // the wipe leaves nobody's data
            end
          end
        end

        LOAD: begin
          if (loader_done) begin
            loaded_q <= 1'b1;
            if (loader_fault || loader_bad) begin
              status_q <= loader_fault ? STATUS_CARD_FAULT : STATUS_BAD_PROGRAM;
              detail_q <= job.source;
            end
          end
          if (loaded_q && !wiping_q) state_q <= (status_q == STATUS_OK) ? RUN : ANSWER;
        end

        RUN: begin
          if (fault) begin
            state_q <= DRAIN;
            status_q <= STATUS_CARD_FAULT;
            detail_q <= read_error ? {24'd0, read_error_at, 6'd0}
                      : write_error ? job.output_base : job.input_base;
          end else if (running_q && passes_done && unit_idle == '1 && ports_idle) begin
            state_q <= ANSWER;
          end else if (too_long_q) begin
            state_q <= DRAIN;
            status_q <= STATUS_TOO_LONG;
            detail_q <= '0;
          end
        end

        DRAIN: if (stopped_q && ports_idle) state_q <= ANSWER;
        ANSWER: if (answer_ready_i) state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end

  // Counters.
  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      read_beats_o <= '0;
      write_beats_o <= '0;
      busy_cycles_o <= '0;
    end else begin
      if (read_beat) read_beats_o <= read_beats_o + 1'b1;
      if (write_beat) write_beats_o <= write_beats_o + 1'b1;
      if (state_q != IDLE) busy_cycles_o <= busy_cycles_o + 1'b1;
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) state_q == IDLE |-> ports_idle)
  else $error("a memory access of an earlier job is still in flight");
endmodule
