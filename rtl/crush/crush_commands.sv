// Checks commands, one after the other, and starts them.
//
//   PLACE     is checked against the loaded map, takes a place among the jobs, and goes to the
//             reader (crush_inputs). Then it runs by itself; the module takes the next command.
//   LOAD_MAP  waits until no job is left, has the reader read the image, and waits for the loader's
//             answer. From its start on no map is loaded, until the loader accepts the new one.
//
// This module answers a command that fails a check. Every other placement is answered by its job.
//
// **The partition.** A placement needs the partition if the map has buckets of an algorithm that is
// not in the static region. Then the partition must hold that module and be ready when the job
// begins. uses_partition_o is set while such a job is in flight.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_commands
  import crush_pkg::*;
  import crush_pe_pkg::*;
  import fs_regs_pkg::*;
(
  input  logic                     clk_i,
  input  logic                     rst_ni,

  input  logic                     command_valid_i,
  output logic                     command_ready_o,
  input  fs_pkg::engine_command_t  command_i,
  output logic                     answer_valid_o,
  input  logic                     answer_ready_i,
  output fs_pkg::engine_answer_t   answer_o,

  // The loaded map.
  input  settings_t                settings_i,
  output logic                     rule_read_o,
  output logic [15:0]              rule_index_o,
  input  rule_t                    rule_i,          // one cycle after rule_read_o
  input  logic                     load_done_i,     // the loader has taken the last beat; load_ok_i
  input  logic                     load_ok_i,       // says whether the image is good

  // The partition.
  input  logic [7:0]               rp_module_i,
  input  logic                     rp_ready_i,
  output logic                     uses_partition_o,

  // Jobs.
  output logic                     add_o,
  input  logic                     has_room_i,
  input  job_index_t               add_index_i,
  output job_t                     add_job_o,
  output logic [15:0]              add_tag_o,
  output fs_pkg::card_beat_t       add_source_o,
  output fs_pkg::card_beat_t       add_destination_o,
  output logic [29:0]              add_inputs_o,
  input  logic                     jobs_are_empty_i,

  // The reader.
  output logic                     transfer_valid_o,
  input  logic                     transfer_ready_i,
  output transfer_t                transfer_o,
  input  logic                     fault_i,         // while the reader reads an image

  output logic                     is_idle_o
);
  typedef enum logic [2:0] {
    IDLE,     // a command may come
    CHECK,    // the rule is being read; the module computes sums
    RULE,     // the rule has been read
    PLACE,    // waits for a place among the jobs, and for the reader
    DRAIN,    // waits for the end of all jobs
    LOAD,     // the reader reads the image
    ANSWER
  } state_e;

  state_e state_q, state_d;

  place_descriptor_t descriptor_q;  // a LOAD_MAP has its fields at the same offsets
  logic [15:0] tag_q;
  fs_pkg::function_t owner_q;
  logic is_load;
  assign is_load = descriptor_q.op == H2C_OP_LOAD_MAP;

  logic is_loaded_q, load_fault_q;
  logic [31:0] epoch_q;

  assign command_ready_o = state_q == IDLE;
  always_ff @(posedge clk_i) begin
    if (command_valid_i && command_ready_o) begin
      descriptor_q <= place_descriptor_t'(command_i.descriptor);
      tag_q <= command_i.tag;
      owner_q <= command_i.owner;
    end
  end

  // ---- Errors of the command alone (CHECK) ----

  localparam int unsigned CARD_BITS = fs_pkg::CARD_BEAT_BITS + 6;  // of a byte address
  localparam int unsigned END_BITS = fs_pkg::CARD_BEAT_BITS + 1;

  logic [26:0] beats;
  logic [29:0] inputs;
  logic [END_BITS-1:0] source_end, destination_end;
  assign inputs = descriptor_q.length[31:2];
  assign beats = 27'(descriptor_q.length[31:6]) + 27'(descriptor_q.length[5:0] != '0);
  assign source_end = END_BITS'(descriptor_q.source[CARD_BITS-1:6]) + END_BITS'(beats);
  assign destination_end = END_BITS'(descriptor_q.destination[CARD_BITS-1:6]) + END_BITS'(inputs);

  function automatic logic is_past(input logic [END_BITS-1:0] end_beat);  // past the last address
    return end_beat[END_BITS-1] && end_beat[END_BITS-2:0] != '0;
  endfunction

  status_e check;
  logic [63:0] check_detail;
  always_comb begin
    check = STATUS_OK;
    check_detail = '0;
    if (!(descriptor_q.op inside {H2C_OP_PLACE, H2C_OP_LOAD_MAP})) begin
      check = STATUS_BAD_OP;
      check_detail = 64'(descriptor_q.op);
    end else if (descriptor_q.source[5:0] != '0) begin
      check = STATUS_BAD_ALIGNMENT;
      check_detail = descriptor_q.source;
    end else if (!is_load && descriptor_q.destination[5:0] != '0) begin
      check = STATUS_BAD_ALIGNMENT;
      check_detail = descriptor_q.destination;
    end else if (descriptor_q.length == '0 || descriptor_q.length[63:32] != '0
                 || (is_load ? descriptor_q.length[5:0] != '0 : descriptor_q.length[1:0] != '0)) begin
      check = STATUS_BAD_LENGTH;
      check_detail = descriptor_q.length;
    end else if (descriptor_q.source[63:CARD_BITS] != '0 || is_past(source_end)) begin
      check = STATUS_CARD_FAULT;
      check_detail = descriptor_q.source;
    end else if (!is_load
                 && (descriptor_q.destination[63:CARD_BITS] != '0 || is_past(destination_end))) begin
      check = STATUS_CARD_FAULT;
      check_detail = descriptor_q.destination;
    end else if (!is_load && (!is_loaded_q || descriptor_q.epoch != epoch_q)) begin
      check = STATUS_STALE_EPOCH;
      check_detail = is_loaded_q ? 64'(epoch_q) : '0;
    end else if (!is_load && (descriptor_q.width == '0 || descriptor_q.width > 16'(ROW_ITEMS))) begin
      check = STATUS_BAD_PARAMETER;
      check_detail = 64'(descriptor_q.width);
    end else if (!is_load && descriptor_q.rule >= settings_i.rules) begin
      check = STATUS_BAD_PARAMETER;
      check_detail = 64'(descriptor_q.rule);
    end
  end

  status_e status_q;
  logic [63:0] detail_q;
  rule_t rule_q;

  assign rule_read_o = state_q == CHECK;
  assign rule_index_o = descriptor_q.rule;

  // ---- The partition ----

  logic [7:0] needs, has;
  logic needs_partition;
  assign needs = settings_i.algorithms
                 & (8'd1 << ALG_UNIFORM | 8'd1 << ALG_LIST | 8'd1 << ALG_TREE);
  assign needs_partition = needs != '0;
  always_comb begin
    has = '0;
    if (rp_ready_i) begin
      unique case (rp_module_i)
        RECONFIGURABLE_MODULE_UNIFORM: has[ALG_UNIFORM] = 1'b1;
        RECONFIGURABLE_MODULE_LIST: has[ALG_LIST] = 1'b1;
        RECONFIGURABLE_MODULE_TREE: has[ALG_TREE] = 1'b1;
        default: ;
      endcase
    end
  end
  logic is_missing;
  assign is_missing = (needs & ~has) != '0;
  assign uses_partition_o = needs_partition && !jobs_are_empty_i;

  // ---- The states ----

  logic begins;  // a placement begins
  assign begins = state_q == PLACE && has_room_i && transfer_ready_i && !is_missing;

  always_comb begin
    state_d = state_q;
    unique case (state_q)
      IDLE: if (command_valid_i) state_d = CHECK;
      CHECK: begin
        state_d = RULE;
        if (check != STATUS_OK) state_d = ANSWER;
        else if (is_load) state_d = DRAIN;
      end
      RULE: state_d = rule_i.exists ? PLACE : ANSWER;
      PLACE: begin
        if (is_missing) state_d = ANSWER;
        else if (begins) state_d = IDLE;
      end
      DRAIN: if (jobs_are_empty_i && transfer_ready_i) state_d = LOAD;
      LOAD: if (load_done_i) state_d = ANSWER;
      ANSWER: if (answer_ready_i) state_d = IDLE;
      default: state_d = IDLE;
    endcase
  end

  always_ff @(posedge clk_i) begin
    unique case (state_q)
      CHECK: begin
        status_q <= check;
        detail_q <= check_detail;
      end
      RULE: begin
        rule_q <= rule_i;
        if (!rule_i.exists) begin
          status_q <= STATUS_BAD_PARAMETER;
          detail_q <= 64'(descriptor_q.rule);
        end
      end
      PLACE: begin
        if (is_missing) begin
          status_q <= STATUS_NOT_LOADED;
          detail_q <= 64'(rp_module_i);
        end
      end
      LOAD: begin
        if (load_done_i) begin
          if (load_fault_q || fault_i) begin
            status_q <= STATUS_CARD_FAULT;
            detail_q <= descriptor_q.source;
          end else if (!load_ok_i) begin
            status_q <= STATUS_BAD_IMAGE;
          end
        end
      end
      default: ;
    endcase

    if (state_q == LOAD && load_done_i) epoch_q <= descriptor_q.epoch;
    if (!rst_ni) begin
      state_q <= IDLE;
      is_loaded_q <= 1'b0;
      load_fault_q <= 1'b0;
    end else begin
      state_q <= state_d;
      if (state_q == DRAIN) is_loaded_q <= 1'b0;
      if (state_q == LOAD && load_done_i) is_loaded_q <= load_ok_i && !load_fault_q && !fault_i;
      if (state_q != LOAD) load_fault_q <= 1'b0;
      else if (fault_i) load_fault_q <= 1'b1;
    end
  end

  assign add_o = begins;
  assign add_job_o = '{
    owner: owner_q,
    width: descriptor_q.width[3:0],
    first_step: rule_q.first,
    steps: rule_q.steps
  };
  assign add_tag_o = tag_q;
  assign add_source_o = transfer_o.source;
  assign add_destination_o = transfer_o.row;
  assign add_inputs_o = inputs;

  assign transfer_valid_o = begins || state_q == DRAIN && jobs_are_empty_i;
  assign transfer_o = '{
    is_image: is_load,
    owner: owner_q,
    source: descriptor_q.source[CARD_BITS-1:6],
    beats: beats,
    job: add_index_i,
    width: descriptor_q.width[3:0],
    row: descriptor_q.destination[CARD_BITS-1:6],
    inputs: inputs
  };

  assign answer_valid_o = state_q == ANSWER;
  assign answer_o.tag = tag_q;
  assign answer_o.status = status_q;
  assign answer_o.result = '0;
  assign answer_o.detail = detail_q;

  assign is_idle_o = state_q == IDLE && jobs_are_empty_i;
endmodule
