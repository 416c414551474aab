// The processing element for CRUSH: whole rules, for many inputs at once.
//
// **Life of a placement.** crush_commands takes a PLACE command, checks it and adds it to
// crush_inflight_table as a job. crush_inputs reads the inputs of the job from card memory and
// hands each input to a free context of crush_rule_engine. crush_rule_engine runs the rule and asks
// the draw engine for one item of one bucket at a time. crush_results writes the finished row to
// card memory and frees the context. When a row has landed, crush_inflight_table counts it. When
// all rows have landed, crush_inflight_table answers the command. Rows finish in any order. The
// inputs of a command follow those of the command before without a pause.
//
// **Errors.** A fault of card memory, a missing kernel, or an unsound image ends a job only after
// all of its mappings have ended, so no part of the job is left behind. Usually crush_commands
// finds a missing kernel before the start.
//
// **Time.** A placement may take MAX_CYCLES, counted while it is the oldest in flight
// (crush_inflight_table). Then crush_inputs uses no more of its inputs, and crush_rule_engine ends
// each of its mappings with the mapping's next event: even one mapping may need more tries than the
// limit allows.

module crush_pe
  import crush_pkg::*;
  import crush_pe_pkg::*;
#(
  parameter int unsigned CONTEXTS = 32,  // mappings in flight
  parameter int unsigned MAX_CYCLES = fs_regs_pkg::MAX_OPERATION_CYCLES  // limit of a placement
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  // Commands and answers.
  input  logic                     command_valid_i,
  output logic                     command_ready_o,
  input  fs_pkg::engine_command_t  command_i,
  output logic                     answer_valid_o,
  input  logic                     answer_ready_i,
  output fs_pkg::engine_answer_t   answer_o,

  // Card memory.
  output logic                     read_valid_o,
  input  logic                     read_ready_i,
  output fs_pkg::card_read_t       read_o,
  input  logic                     data_valid_i,
  output logic                     data_ready_o,
  input  fs_pkg::card_data_t       data_i,
  output logic                     write_valid_o,
  input  logic                     write_ready_i,
  output fs_pkg::card_write_t      write_o,
  input  fs_pkg::card_done_t       done_i,

  // The image: its loader, and its memories. Data comes one cycle after the address.
  output logic                     load_valid_o,
  input  logic                     load_ready_i,
  output fs_pkg::beat_t            load_beat_o,
  output logic                     load_last_o,
  input  logic                     load_done_i,  // a pulse, after the last beat
  input  logic                     load_ok_i,
  input  settings_t                settings_i,
  output logic                     rule_read_o,
  output logic [15:0]              rule_index_o,
  input  rule_t                    rule_i,
  output logic                     step_read_o,
  output logic [15:0]              step_index_o,
  input  step_t                    step_i,
  output logic                     reweight_read_o,
  output logic [15:0]              reweight_index_o,
  input  logic [31:0]              reweight_i,

  // The draw engine.
  output logic                     choose_valid_o,
  input  logic                     choose_ready_i,
  output choose_t                  choose_o,
  input  logic                     chosen_valid_i,
  output logic                     chosen_ready_o,
  input  chosen_t                  chosen_i,

  // The reconfigurable partition.
  input  logic [7:0]               rp_module_i,  // the module in the partition
  input  logic                     rp_ready_i,   // new jobs may use it
  output logic                     rp_busy_o,    // a mapping in flight may use it

  output logic                     idle_o
);
  job_t [JOBS-1:0] jobs;
  logic [JOBS-1:0] stopped;

  logic add, has_room, jobs_are_empty;
  job_index_t add_index;
  job_t add_job;
  logic [15:0] add_tag;
  fs_pkg::card_beat_t add_source, add_destination;
  logic [29:0] add_inputs;

  logic transfer_valid, transfer_ready;
  transfer_t transfer;

  logic refusal_valid, refusal_ready, result_valid, result_ready;
  fs_pkg::engine_answer_t refusal, result;

  logic started, fault, inputs_end;
  job_index_t used_job;

  crush_commands i_commands (
    .clk_i,
    .rst_ni,
    .command_valid_i,
    .command_ready_o,
    .command_i,
    .answer_valid_o    (refusal_valid),
    .answer_ready_i    (refusal_ready),
    .answer_o          (refusal),
    .settings_i,
    .rule_read_o,
    .rule_index_o,
    .rule_i,
    .load_done_i,
    .load_ok_i,
    .rp_module_i,
    .rp_ready_i,
    .uses_partition_o  (rp_busy_o),
    .add_o             (add),
    .has_room_i        (has_room),
    .add_index_i       (add_index),
    .add_job_o         (add_job),
    .add_tag_o         (add_tag),
    .add_source_o      (add_source),
    .add_destination_o (add_destination),
    .add_inputs_o      (add_inputs),
    .jobs_are_empty_i  (jobs_are_empty),
    .transfer_valid_o  (transfer_valid),
    .transfer_ready_i  (transfer_ready),
    .transfer_o        (transfer),
    .fault_i           (fault),
    .is_idle_o         (idle_o)
  );

  logic start_valid, start_ready;
  tag_t start_index;
  mapping_t start_mapping;
  logic free_valid;
  tag_t free_index;

  crush_inputs #(
    .CONTEXTS(CONTEXTS)
  ) i_inputs (
    .clk_i,
    .rst_ni,
    .transfer_valid_i (transfer_valid),
    .transfer_ready_o (transfer_ready),
    .transfer_i       (transfer),
    .read_valid_o,
    .read_ready_i,
    .read_o,
    .data_valid_i,
    .data_ready_o,
    .data_i,
    .start_valid_o    (start_valid),
    .start_ready_i    (start_ready),
    .start_index_o    (start_index),
    .start_mapping_o  (start_mapping),
    .free_valid_i     (free_valid),
    .free_index_i     (free_index),
    .stopped_i        (stopped),
    .load_valid_o,
    .load_ready_i,
    .load_beat_o,
    .load_last_o,
    .started_o        (started),
    .fault_o          (fault),
    .end_o            (inputs_end),
    .used_job_o       (used_job)
  );

  logic done_valid, done_ready;
  tag_t done_index;
  mapping_t done_mapping;
  logic [3:0] done_count;
  mask_t done_mask;
  logic result_read;
  tag_t result_index;
  row_t result_row;
  logic bad_valid, bad_draw;
  job_index_t bad_job;

  crush_rule_engine #(
    .CONTEXTS(CONTEXTS)
  ) i_rule_engine (
    .clk_i,
    .rst_ni,
    .settings_i,
    .jobs_i            (jobs),
    .stopped_i         (stopped),
    .start_valid_i     (start_valid),
    .start_ready_o     (start_ready),
    .start_index_i     (start_index),
    .start_mapping_i   (start_mapping),
    .done_valid_o      (done_valid),
    .done_ready_i      (done_ready),
    .done_index_o      (done_index),
    .done_mapping_o    (done_mapping),
    .done_count_o      (done_count),
    .done_mask_o       (done_mask),
    .result_read_i     (result_read),
    .result_index_i    (result_index),
    .result_row_o      (result_row),
    .bad_valid_o       (bad_valid),
    .bad_job_o         (bad_job),
    .bad_draw_o        (bad_draw),
    .choose_valid_o,
    .choose_ready_i,
    .choose_o,
    .chosen_valid_i,
    .chosen_ready_o,
    .chosen_i,
    .step_read_o,
    .step_index_o,
    .step_i,
    .reweight_read_o,
    .reweight_index_o,
    .reweight_i
  );

  logic landed, landed_error;
  job_index_t landed_job;

  crush_results i_results (
    .clk_i,
    .rst_ni,
    .jobs_i         (jobs),
    .done_valid_i   (done_valid),
    .done_ready_o   (done_ready),
    .done_index_i   (done_index),
    .done_mapping_i (done_mapping),
    .done_count_i   (done_count),
    .done_mask_i    (done_mask),
    .result_read_o  (result_read),
    .result_index_o (result_index),
    .result_row_i   (result_row),
    .free_valid_o   (free_valid),
    .free_index_o   (free_index),
    .write_valid_o,
    .write_ready_i,
    .write_o,
    .done_i,
    .landed_o       (landed),
    .landed_error_o (landed_error),
    .landed_job_o   (landed_job)
  );

  crush_inflight_table #(
    .ROWS(CONTEXTS + 32),
    .MAX_CYCLES(MAX_CYCLES)
  ) i_inflight_table (
    .clk_i,
    .rst_ni,
    .add_i             (add),
    .has_room_o        (has_room),
    .add_index_o       (add_index),
    .add_job_i         (add_job),
    .add_tag_i         (add_tag),
    .add_source_i      (add_source),
    .add_destination_i (add_destination),
    .add_inputs_i      (add_inputs),
    .jobs_o            (jobs),
    .stopped_o         (stopped),
    .is_empty_o        (jobs_are_empty),
    .started_i         (started),
    .started_job_i     (used_job),
    .end_i             (inputs_end),
    .fault_i           (fault),
    .used_job_i        (used_job),
    .landed_i          (landed),
    .landed_error_i    (landed_error),
    .landed_job_i      (landed_job),
    .bad_i             (bad_valid),
    .bad_draw_i        (bad_draw),
    .bad_job_i         (bad_job),
    .answer_valid_o    (result_valid),
    .answer_ready_i    (result_ready),
    .answer_o          (result)
  );

  // Both kinds of answers, those of jobs first. An offered answer stays.
  assign result_ready = !answer_valid_o || answer_ready_i;
  assign refusal_ready = result_ready && !result_valid;
  always_ff @(posedge clk_i) begin
    if (result_ready && (result_valid || refusal_valid)) answer_o <= result_valid ? result : refusal;
    if (!rst_ni) answer_valid_o <= 1'b0;
    else if (result_ready) answer_valid_o <= result_valid || refusal_valid;
  end
endmodule
