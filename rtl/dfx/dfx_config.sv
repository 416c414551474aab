// The configuration port of the reconfigurable partition: the engine of RECONFIGURE.
//
// On a card, this engine feeds the vendor's configuration port (MCAP, ICAP). Here the frames of a
// bitstream only stand for the module that they name, and take as long to load: one beat per
// FRAME_CYCLES (16 cycles of 4 bytes, the width of an ICAP). A reconfiguration has these steps:
//
//   head      reads the first beat: magic, version, module, length, and its own checksum
//   verify    reads all frames from card memory and compares them with the head's checksum. Until
//             then nothing has changed: a bad bitstream is refused, and the loaded module works on
//   drain     crush_commands refuses new mappings that need the partition; those in flight end
//   load      the partition is decoupled and held in reset; the frames go in
//   check     compares the checksum of the loaded frames, because the bytes may have changed since
//             `verify`. If they have, the partition's state is unknown: it stays decoupled (FAILED)
//             until a good bitstream comes
//
// The static region sees two signals of a reconfiguration: partition_ready_o (new mappings may use
// the module) and module_o (the loaded module; NONE while the partition is decoupled).

/* verilator lint_off UNUSEDSIGNAL */  // this module does not use all fields of its layouts

module dfx_config
  import fs_pkg::*;
  import fs_pkg::BEAT_BYTES;  // the register map has one, too
  import fs_regs_pkg::*;
#(
  parameter int unsigned FRAME_CYCLES = 16,
  parameter reconfigurable_module_e INITIAL_MODULE = RECONFIGURABLE_MODULE_NONE
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  logic                    command_valid_i,
  output logic                    command_ready_o,
  input  engine_command_t         command_i,
  output logic                    answer_valid_o,
  input  logic                    answer_ready_i,
  output engine_answer_t          answer_o,

  output logic                    read_valid_o,
  input  logic                    read_ready_i,
  output card_read_t              read_o,
  input  logic                    data_valid_i,
  output logic                    data_ready_o,
  input  card_data_t              data_i,

  output reconfigurable_module_e  module_o,
  output logic                    partition_ready_o,
  output logic                    decouple_o,
  output logic                    partition_rst_no,
  input  logic                    partition_busy_i,  // a mapping in flight may use the partition

  output partition_state_e        state_o,
  output logic [31:0]             swaps_o
);
  localparam int unsigned BURST_BEATS = 64;
  localparam int unsigned BEATS_BITS = $clog2(MAX_COPY_BYTES / BEAT_BYTES + 1);
  localparam int unsigned HEAD_CRC_BYTES = 60;
  localparam int unsigned PAUSE_BITS = $clog2(FRAME_CYCLES + 1);

  if (FRAME_CYCLES == 0) begin : gen_frame_check
    $error("FRAME_CYCLES must be at least 1");
  end

  typedef enum logic [3:0] {
    IDLE, HEAD, HEAD_SUM, VERIFY, VERIFY_SUM, DRAIN, LOAD, LOAD_SUM, ANSWER
  } step_e;

  step_e step_q;
  logic [15:0] tag_q;
  function_t owner_q;
  card_beat_t source_q;                    // the first frame's beat
  logic [BEATS_BITS-1:0] beats_q;          // beats of all frames
  logic [BEATS_BITS-1:0] asked_q, taken_q; // beats of this pass over the frames
  logic [PAUSE_BITS-1:0] pause_q;          // cycles until the next frame
  bitstream_t head_q;
  logic card_error_q;                      // a beat of this pass came with an error
  status_e status_q;
  logic [63:0] detail_q;
  reconfigurable_module_e module_q;
  partition_state_e state_q;
  logic [31:0] swaps_q;

  // -------------------------------------------------------------------------------------- checksum

  logic sum_valid;
  logic [31:0] sum;
  logic is_frame_pass, data_moves, is_last_beat;

  assign is_frame_pass = step_q inside {VERIFY, LOAD};
  assign data_ready_o = 1'b1;  // the engine takes requested data at once
  assign data_moves = data_valid_i && data_ready_o;
  assign is_last_beat = taken_q + 1'b1 == beats_q;

  crc32c i_crc (
    .clk_i, .rst_ni,
    .in_valid_i  (data_moves),
    .in_data_i   (data_i.data),
    .in_last_i   (!is_frame_pass || is_last_beat),
    .in_bytes_i  (is_frame_pass ? 7'(BEAT_BYTES) : 7'(HEAD_CRC_BYTES)),
    .out_valid_o (sum_valid),
    .out_sum_o   (sum)
  );

  // ----------------------------------------------------------------------------------------- reads

  logic [BEATS_BITS-1:0] left, burst;

  assign left = beats_q - asked_q;
  assign burst = (step_q == LOAD) ? BEATS_BITS'(1)
               : (left > BEATS_BITS'(BURST_BEATS)) ? BEATS_BITS'(BURST_BEATS) : left;

  always_comb begin
    read_o = '{owner: owner_q, address: source_q + CARD_BEAT_BITS'(asked_q), beats_minus_1: 6'(burst - 1'b1)};
    read_valid_o = is_frame_pass && left != '0 && (step_q != LOAD || pause_q == '0);
    if (step_q == HEAD) begin
      read_o.address = source_q - 1'b1;
      read_o.beats_minus_1 = '0;
      read_valid_o = asked_q == '0;
    end
  end

  // ---------------------------------------------------------------------------------------- checks

  descriptor_t descriptor;
  status_e command_status, head_status;
  logic [63:0] command_detail, head_detail;

  assign descriptor = command_i.descriptor;

  always_comb begin
    command_status = STATUS_OK;
    command_detail = '0;
    if (command_i.owner != '0) begin
      command_status = STATUS_NOT_PERMITTED;
      command_detail = 64'(command_i.owner);
    end else if (descriptor.source[5:0] != '0) begin
      command_status = STATUS_BAD_ALIGNMENT;
      command_detail = descriptor.source;
    end else if (descriptor.source[63:CARD_BEAT_BITS+6] != '0) begin
      command_status = STATUS_CARD_FAULT;
      command_detail = descriptor.source;
    end else if (descriptor.length[5:0] != '0 || descriptor.length < 64'(2 * BEAT_BYTES)
                 || descriptor.length > 64'(MAX_COPY_BYTES)) begin
      command_status = STATUS_BAD_LENGTH;
      command_detail = descriptor.length;
    end
  end

  // The detail is the offset of the wrong field.
  always_comb begin
    head_status = STATUS_BAD_BITSTREAM;
    head_detail = '0;
    if (card_error_q) begin
      head_status = STATUS_CARD_FAULT;
      head_detail = {24'd0, source_q - 1'b1, 6'd0};
    end else if (head_q.header_crc != sum) begin
      head_detail = 64'd60;
    end else if (head_q.magic != BITSTREAM_MAGIC) begin
      head_detail = 64'd0;
    end else if (head_q.version != VERSION) begin
      head_detail = 64'd16;
    end else if (!(head_q.module_id inside {32'(RECONFIGURABLE_MODULE_UNIFORM), 32'(RECONFIGURABLE_MODULE_LIST),
                                            32'(RECONFIGURABLE_MODULE_TREE)})) begin
      head_detail = 64'd4;
    end else if (head_q.frames_bytes != 32'(beats_q) * BEAT_BYTES) begin
      head_detail = 64'd8;
    end else begin
      head_status = STATUS_OK;
    end
  end

  // ----------------------------------------------------------------------------------------- steps

  logic frames_good;
  assign frames_good = !card_error_q && sum == head_q.frames_crc;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      step_q <= IDLE;
      module_q <= INITIAL_MODULE;
      state_q <= PARTITION_STATE_RUNNING;
      swaps_q <= '0;
      asked_q <= '0;
      taken_q <= '0;
      pause_q <= '0;
      card_error_q <= 1'b0;
    end else begin
      if (read_valid_o && read_ready_i) begin
        asked_q <= (step_q == HEAD) ? BEATS_BITS'(1) : asked_q + burst;
        pause_q <= PAUSE_BITS'(FRAME_CYCLES - 1);
      end else if (pause_q != '0) begin
        pause_q <= pause_q - 1'b1;
      end
      if (data_moves) begin
        taken_q <= taken_q + 1'b1;
        if (data_i.error) card_error_q <= 1'b1;
      end

      unique case (step_q)
        IDLE: if (command_valid_i) begin
          tag_q <= command_i.tag;
          owner_q <= command_i.owner;
          source_q <= descriptor.source[CARD_BEAT_BITS+5:6] + 1'b1;
          beats_q <= BEATS_BITS'(descriptor.length[31:6] - 1'b1);
          status_q <= command_status;
          detail_q <= command_detail;
          asked_q <= '0;
          taken_q <= '0;
          card_error_q <= 1'b0;
          step_q <= (command_status == STATUS_OK) ? HEAD : ANSWER;
        end

        HEAD: if (data_moves) begin
          head_q <= data_i.data;
          step_q <= HEAD_SUM;
        end

        HEAD_SUM: if (sum_valid) begin
          status_q <= head_status;
          detail_q <= head_detail;
          asked_q <= '0;
          taken_q <= '0;
          step_q <= (head_status == STATUS_OK) ? VERIFY : ANSWER;
        end

        VERIFY: if (data_moves && is_last_beat) step_q <= VERIFY_SUM;

        VERIFY_SUM: if (sum_valid) begin
          asked_q <= '0;
          taken_q <= '0;
          if (frames_good) begin
            state_q <= PARTITION_STATE_DRAINING;
            step_q <= DRAIN;
          end else begin
            status_q <= card_error_q ? STATUS_CARD_FAULT : STATUS_BAD_BITSTREAM;
            detail_q <= 64'd12;
            step_q <= ANSWER;
          end
        end

        DRAIN: if (!partition_busy_i) begin
          state_q <= PARTITION_STATE_LOADING;
          module_q <= RECONFIGURABLE_MODULE_NONE;
          step_q <= LOAD;
        end

        LOAD: if (data_moves && is_last_beat) step_q <= LOAD_SUM;

        LOAD_SUM: if (sum_valid) begin
          step_q <= ANSWER;
          if (frames_good) begin
            state_q <= PARTITION_STATE_RUNNING;
            module_q <= reconfigurable_module_e'(head_q.module_id[7:0]);
            swaps_q <= swaps_q + 1'b1;
          end else begin
            state_q <= PARTITION_STATE_FAILED;
            status_q <= card_error_q ? STATUS_CARD_FAULT : STATUS_BAD_BITSTREAM;
            detail_q <= 64'd12;
          end
        end

        ANSWER: if (answer_ready_i) step_q <= IDLE;

        default: step_q <= IDLE;
      endcase
    end
  end

  assign command_ready_o = step_q == IDLE;
  assign answer_valid_o = step_q == ANSWER;
  assign answer_o = '{tag: tag_q, status: status_q, result: 64'(module_q), detail: detail_q};

  assign state_o = state_q;
  assign swaps_o = swaps_q;
  assign module_o = module_q;
  assign partition_ready_o = state_q == PARTITION_STATE_RUNNING && module_q != RECONFIGURABLE_MODULE_NONE;
  assign decouple_o = module_q == RECONFIGURABLE_MODULE_NONE;
  assign partition_rst_no = rst_ni && !decouple_o;

  assert property (@(posedge clk_i) disable iff (!rst_ni) state_q == PARTITION_STATE_LOADING |-> decouple_o)
  else $error("frames go into a partition that is not decoupled");
endmodule
