// The register file, with one page per function. A function sees its own queue sets, by its own
// numbers, and its own registers. Function 0 also sees the device and the function table, which
// says what every function owns. The unit does one access at a time, in order. A wrong access
// changes nothing, reads as zero, and sets a bit in the FUNCTION_ERRORS of the page where it was
// made.
//
// An access takes three steps: LOCATE finds the rows of the tables, DECODE computes the effect on
// them, and ACCESS does or refuses the access. An access to a queue set is then an event of
// qdma_context, which takes some tens of cycles at most. Nothing here waits for the host: PCIe lets
// no answer from host memory pass a register write, so a register file that took no write until such
// an answer would wait for ever.
//
// A queue set whose completions have not all left the device reads as RESETTING instead of DISABLED,
// because its driver may use the memory of a disabled set again.
//
// A function has its queue sets while it uses one: QUEUES may then give it more of them behind those
// that it has, and another vector. Else a queue set at work would leave the page of its function, and
// no reset of the function would find it.
//
// A function that is being reset has no errors, and writes to its page have no effect. The reset of
// function 0 is that of all functions. When it is done, the function table is empty, as after the
// device's reset.
//
// A write has all eight bytes of a register, or the low four bytes of a doorbell. A write without a
// byte has no effect. A read returns all eight bytes; the host takes those that it asked for.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_regs
  import qdma_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic              clk_i,
  input  logic              rst_ni,

  input  logic              mmio_valid_i,
  output logic              mmio_ready_o,
  input  mmio_request_t     mmio_i,
  output logic              answer_valid_o,  // for reads only
  input  logic              answer_ready_i,
  output logic [63:0]       answer_data_o,

  // Address of the context, for an event that asks for it.
  output host_beat_t        context_address_o,

  // Doorbells and CONTROL.
  output logic              event_valid_o,
  input  logic              event_ready_i,
  output event_t            event_o,
  input  logic              event_done_i,
  input  logic              event_bad_i,
  input  logic [63:0]       event_data_i,
  input  logic              unsent_i,  // the event's queue set has completions in the device
  input  logic [FUNCTIONS-1:0] in_use_i,  // functions with queue sets that are not DISABLED

  // Function-level reset: functions that are being reset, and those whose reset has ended.
  input  logic [FUNCTIONS-1:0] reset_i,
  input  logic [FUNCTIONS-1:0] reset_ended_i,

  output windows_t [FUNCTIONS-1:0] windows_o,
  output function_table_queues_t [FUNCTIONS-1:0] queues_o,
  output logic [7:0]        vectors_o [FUNCTIONS],
  output logic [31:0]       cycles_o,
  input  logic [1:0]        refused_i,  // one bit each from the guards of host reads and writes
  input  device_status_t    device_i,
  output logic              idle_o
);
  typedef enum logic [2:0] { IDLE, LOCATE, DECODE, ACCESS, EVENT, LISTEN, ANSWER } state_e;
  state_e state_q;
  mmio_request_t request_q;
  logic [63:0] data_q;

  logic [63:0] cycles_q;
  logic [31:0] faults_q;
  reg_function_errors_t [FUNCTIONS-1:0] errors_q;
  windows_t [FUNCTIONS-1:0] windows_q;
  function_table_queues_t [FUNCTIONS-1:0] queues_q;

  assign cycles_o = cycles_q[31:0];
  assign windows_o = windows_q;
  assign queues_o = queues_q;
  for (genvar f = 0; f < FUNCTIONS; f++) begin : gen_functions
    assign vectors_o[f] = queues_q[f].vector;
  end

  // ---- Address decoding -----------------------------------------------------------------------

  logic is_queue, is_queue_q, is_table, is_table_q, aligned;
  assign aligned = request_q.offset[2:0] == '0;
  assign is_queue = request_q.offset >= QUEUE_BASE
      && request_q.offset < QUEUE_BASE + 17'(QUEUE_COUNT * QUEUE_STRIDE);
  assign is_table = request_q.offset >= FUNCTION_TABLE_BASE
      && request_q.offset < FUNCTION_TABLE_BASE + 17'(FUNCTION_TABLE_COUNT * FUNCTION_TABLE_STRIDE);

  // The queue set's number in the page, and in the device.
  logic [16:0] queue_offset, set_q;
  logic [11:0] queue_number;
  logic in_page_q, has_queue;
  assign queue_offset = request_q.offset - QUEUE_BASE;
  assign queue_number = queue_offset[16:5];
  assign has_queue = in_page_q && set_q < 17'(QUEUE_SETS);

  logic [1:0] queue_register;
  assign queue_register = request_q.offset[4:3];
  logic is_control;
  assign is_control = queue_register == QUEUE_REG_CONTROL[4:3];
  logic [7:0] command;
  assign command = request_q.data[7:0];

  // ---- Read data ------------------------------------------------------------------------------

  fs_pkg::function_t entry;
  assign entry = request_q.offset[9:6];
  windows_t entry_windows_q;
  function_table_queues_t entry_queues_q, page_queues_q;
  reg_function_errors_t page_errors_q;
  logic known, writable, device_only, keeps;
  logic [63:0] value;
  assign keeps = request_q.data[15:0] == entry_queues_q.first
      && request_q.data[31:16] >= entry_queues_q.count;
  always_comb begin
    known = aligned;
    writable = 1'b0;
    device_only = 1'b0;
    value = '0;
    if (is_table_q) begin
      device_only = 1'b1;
      writable = 1'b1;
      unique case (request_q.offset[5:0])
        FUNCTION_TABLE_REG_HOST_BASE: begin
          value = {entry_windows_q.host.base, 6'd0};
          writable = request_q.data[5:0] == '0;  // a window begins at a beat's first byte
        end
        FUNCTION_TABLE_REG_HOST_END: value = {entry_windows_q.host.limit, 6'd0};
        FUNCTION_TABLE_REG_CARD_BASE: begin
          value = 64'({entry_windows_q.card.base, 6'd0});
          writable = request_q.data[5:0] == '0;
        end
        FUNCTION_TABLE_REG_CARD_END: value = 64'({entry_windows_q.card.limit, 6'd0});
        FUNCTION_TABLE_REG_QUEUES: begin
          value = entry_queues_q;
          writable = !in_use_i[entry] || keeps;
        end
        default: known = 1'b0;
      endcase
    end else begin
      unique case (request_q.offset)
        REG_ID: value = 64'(IDENTIFICATION);
        REG_VERSION: value = 64'(VERSION);
        REG_FUNCTION: begin
          value[7:0] = 8'(request_q.page);
          value[31:16] = page_queues_q.count;
        end
        REG_FUNCTION_ERRORS: begin
          value = page_errors_q;
          writable = 1'b1;
        end
        REG_CYCLES: value = cycles_q;
        REG_BUILD: value = device_i.build;
        REG_RM_STATE: {device_only, value} = {1'b1, device_i.rm_state};
        REG_FAULTS: {device_only, value} = {1'b1, device_i.card_faults, faults_q};
        REG_CARD_READS: {device_only, value} = {1'b1, device_i.card_reads};
        REG_CARD_WRITES: {device_only, value} = {1'b1, device_i.card_writes};
        REG_CODE_BUSY: {device_only, value} = {1'b1, device_i.code_busy};
        REG_DRAWS: {device_only, value} = {1'b1, device_i.draws};
        default: known = 1'b0;
      endcase
    end
  end

  logic whole, half, nothing, permitted, permitted_q;
  assign whole = !request_q.write || request_q.strobe == 8'hff;
  assign half = request_q.strobe == 8'h0f;
  assign nothing = request_q.write && (request_q.strobe == '0 || reset_i[request_q.page]);
  assign permitted = known && whole && (writable || !request_q.write)
      && (!device_only || request_q.page == '0);

  // ---- Queue sets -----------------------------------------------------------------------------

  assign context_address_o = 58'(request_q.data[63:8]);
  assign event_valid_o = state_q == EVENT;
  always_comb begin
    event_o = '0;
    event_o.set = set_q[10:0];
    event_o.which = queue_register;
    event_o.page = request_q.page;
    event_o.value = request_q.data;
    if (!is_control) event_o.kind = EVENT_DOORBELL;
    else if (!request_q.write) event_o.kind = EVENT_READ;
    else if (command == QUEUE_COMMAND_ENABLE) event_o.kind = EVENT_ENABLE;
    else event_o.kind = EVENT_RESET;
    if (is_control) event_o.which = '0;
  end

  // ---- The state machine, one access at a time ------------------------------------------------

  // Card addresses have 40 bits. A larger address stands for the last beat.
  fs_pkg::card_beat_t card_beat;
  assign card_beat = (request_q.data[63:40] != '0) ? '1 : request_q.data[39:6];

  always_ff @(posedge clk_i) begin
    cycles_q <= cycles_q + 1'b1;
    faults_q <= faults_q + 32'(refused_i[0]) + 32'(refused_i[1]);
    if (!rst_ni) begin
      state_q <= IDLE;
      cycles_q <= '0;
      faults_q <= '0;
      errors_q <= '0;
      windows_q <= '0;
      queues_q <= '0;
    end else begin
      unique case (state_q)
        IDLE: begin
          if (mmio_valid_i) begin
            request_q <= mmio_i;
            if (!mmio_i.strobe[7]) request_q.data[63:32] <= '0;
            state_q <= LOCATE;
          end
        end

        LOCATE: begin
          {is_queue_q, is_table_q} <= {is_queue, is_table};
          entry_windows_q <= windows_q[entry];
          entry_queues_q <= queues_q[entry];
          page_queues_q <= queues_q[request_q.page];
          page_errors_q <= errors_q[request_q.page];
          state_q <= DECODE;
        end

        DECODE: begin
          set_q <= 17'(page_queues_q.first) + 17'(queue_number);
          in_page_q <= 16'(queue_number) < page_queues_q.count;
          permitted_q <= permitted;
          data_q <= value;
          state_q <= ACCESS;
        end

        ACCESS: begin
          if (is_queue_q || !permitted_q) data_q <= '0;
          state_q <= request_q.write ? IDLE : ANSWER;
          if (nothing) begin
            // No byte is written.
          end else if (is_queue_q && aligned) begin
            if (!has_queue) begin
              errors_q[request_q.page].doorbell_range <= 1'b1;
              if (is_control) data_q <= 64'(QUEUE_STATE_ABSENT);
            end else if (!whole && (is_control || !half)) begin
              errors_q[request_q.page].register_access <= 1'b1;
            end else if (is_control && request_q.write) begin
              if (command inside {QUEUE_COMMAND_ENABLE, QUEUE_COMMAND_RESET}) state_q <= EVENT;
              else errors_q[request_q.page].register_access <= 1'b1;
            end else if (is_control || request_q.write) begin
              state_q <= EVENT;
            end
          end else if (!permitted_q) begin
            errors_q[request_q.page].register_access <= 1'b1;
          end else if (!request_q.write) begin
            // The value is valid now.
          end else if (is_table_q) begin
            unique case (request_q.offset[5:0])
              FUNCTION_TABLE_REG_HOST_BASE: windows_q[entry].host.base <= request_q.data[63:6];
              FUNCTION_TABLE_REG_HOST_END: windows_q[entry].host.limit <= request_q.data[63:6];
              FUNCTION_TABLE_REG_CARD_BASE: windows_q[entry].card.base <= card_beat;
              FUNCTION_TABLE_REG_CARD_END: windows_q[entry].card.limit <= card_beat;
              default: queues_q[entry] <= request_q.data & 64'h0000_00ff_ffff_ffff;
            endcase
          end else begin
            errors_q[request_q.page] <= errors_q[request_q.page] & ~request_q.data;
          end
        end

        EVENT: if (event_ready_i) state_q <= LISTEN;

        LISTEN: begin
          if (event_done_i) begin
            data_q <= event_data_i;
            if (event_data_i[3:0] == QUEUE_STATE_DISABLED && unsent_i) begin
              data_q[3:0] <= QUEUE_STATE_RESETTING;
            end
            if (event_bad_i) errors_q[request_q.page].doorbell_state <= 1'b1;
            state_q <= request_q.write ? IDLE : ANSWER;
          end
        end

        ANSWER: if (answer_ready_i) state_q <= IDLE;

        default: state_q <= IDLE;
      endcase
      for (int unsigned f = 0; f < FUNCTIONS; f++) begin
        if (reset_i[f]) errors_q[f] <= '0;
      end
      if (reset_i[0] && reset_ended_i == '1) begin
        windows_q <= '0;
        queues_q <= '0;
      end
    end
  end

  assign idle_o = state_q == IDLE;
  assign mmio_ready_o = idle_o;
  assign answer_valid_o = state_q == ANSWER;
  assign answer_data_o = data_q;
endmodule
