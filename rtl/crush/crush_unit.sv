// The CRUSH unit: the rule engine, the draw engine with the kernels of the static region, and the
// memories of the loaded map. Outside are the queues of commands, card memory, and the
// reconfigurable partition, which holds one of the other kernels.
//
//   commands, answers ---- crush_pe ---- card memory
//                          |     |
//                 crush_choose - crush_map_memory
//                          |
//               reconfigurable partition
//
// **Swaps.** While rp_ready_i is 0, no new placement uses the partition. Placements in flight draw
// from it as before, until rp_busy_o falls. Only then may dfx_config decouple the partition and set
// rp_module_i to NONE.

module crush_unit
  import crush_pkg::*;
#(
  parameter int unsigned LANES = 16,        // items that a kernel hashes in one cycle
  parameter int unsigned CONTEXTS = 32,     // mappings in flight
  parameter int unsigned SLOT_ROWS = 2048,  // rows of 16 slots
  parameter int unsigned BUCKETS = 4096,
  parameter int unsigned DEVICES = 16384,
  parameter int unsigned RULES = 64,
  parameter int unsigned STEPS = 1024,
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

  // The partition.
  input  logic [7:0]               rp_module_i,  // reconfigurable_module; NONE if decoupled
  input  logic                     rp_ready_i,   // new placements may use it
  output logic                     rp_busy_o,    // placements in flight may use it
  output logic                     rp_valid_o,   // to its kernel
  output kernel_beat_t             rp_beat_o,
  output logic [LANES-1:0]         rp_mask_o,
  output slot_t [LANES-1:0]        rp_slots_o,
  input  logic                     rp_valid_i,   // from its kernel
  input  drawn_t                   rp_drawn_i,

  output logic [31:0]              draws_o,        // counted since reset
  output logic [15:0]              draw_cycles_o,  // of the last draw
  output logic                     idle_o
);
  localparam int unsigned SLOT_BITS = $clog2(SLOT_ROWS * ROW_SLOTS);
  localparam int unsigned ROW_BITS = SLOT_BITS - $clog2(LANES);

  logic load_valid, load_ready, load_last, load_done, load_ok;
  fs_pkg::beat_t load_beat;
  settings_t settings;
  logic [16:0] buckets;

  logic rule_read, step_read, reweight_read, bucket_read, row_read, slot_read;
  logic [15:0] rule_index, step_index, reweight_index, bucket_index;
  logic [ROW_BITS-1:0] row_index;
  logic [SLOT_BITS-1:0] slot_index;
  rule_t rule;
  step_t step;
  logic [31:0] reweight;
  /* verilator lint_off UNUSEDSIGNAL */  // crush_choose uses only one read port
  bucket_t [1:0] bucket;
  /* verilator lint_on UNUSEDSIGNAL */
  slot_t [LANES-1:0] row;
  slot_t slot;

  logic choose_valid, choose_ready, chosen_valid, chosen_ready;
  choose_t choose;
  chosen_t chosen;

  crush_pe #(
    .CONTEXTS(CONTEXTS),
    .MAX_CYCLES(MAX_CYCLES)
  ) i_pe (
    .clk_i,
    .rst_ni,
    .command_valid_i,
    .command_ready_o,
    .command_i,
    .answer_valid_o,
    .answer_ready_i,
    .answer_o,
    .read_valid_o,
    .read_ready_i,
    .read_o,
    .data_valid_i,
    .data_ready_o,
    .data_i,
    .write_valid_o,
    .write_ready_i,
    .write_o,
    .done_i,
    .load_valid_o     (load_valid),
    .load_ready_i     (load_ready),
    .load_beat_o      (load_beat),
    .load_last_o      (load_last),
    .load_done_i      (load_done),
    .load_ok_i        (load_ok),
    .settings_i       (settings),
    .rule_read_o      (rule_read),
    .rule_index_o     (rule_index),
    .rule_i           (rule),
    .step_read_o      (step_read),
    .step_index_o     (step_index),
    .step_i           (step),
    .reweight_read_o  (reweight_read),
    .reweight_index_o (reweight_index),
    .reweight_i       (reweight),
    .choose_valid_o   (choose_valid),
    .choose_ready_i   (choose_ready),
    .choose_o         (choose),
    .chosen_valid_i   (chosen_valid),
    .chosen_ready_o   (chosen_ready),
    .chosen_i         (chosen),
    .rp_module_i,
    .rp_ready_i,
    .rp_busy_o,
    .idle_o
  );

  crush_map_memory #(
    .LANES(LANES),
    .SLOT_ROWS(SLOT_ROWS),
    .BUCKETS(BUCKETS),
    .DEVICES(DEVICES),
    .RULES(RULES),
    .STEPS(STEPS)
  ) i_map_memory (
    .clk_i,
    .rst_ni,
    .load_valid_i     (load_valid),
    .load_ready_o     (load_ready),
    .load_beat_i      (load_beat),
    .load_last_i      (load_last),
    .load_done_o      (load_done),
    .load_ok_o        (load_ok),
    .settings_o       (settings),
    .buckets_o        (buckets),
    .bucket_read_i    ({1'b0, bucket_read}),
    .bucket_index_i   ({16'd0, bucket_index}),
    .bucket_o         (bucket),
    .row_read_i       (row_read),
    .row_index_i      (row_index),
    .row_o            (row),
    .slot_read_i      (slot_read),
    .slot_index_i     (slot_index),
    .slot_o           (slot),
    .reweight_read_i  (reweight_read),
    .reweight_index_i (reweight_index),
    .reweight_o       (reweight),
    .rule_read_i      (rule_read),
    .rule_index_i     (rule_index),
    .rule_o           (rule),
    .step_read_i      (step_read),
    .step_index_i     (step_index),
    .step_o           (step)
  );

  // Placements in flight may draw during a swap, so only the module in the partition matters here.
  crush_choose #(
    .LANES(LANES),
    .SLOT_ROWS(SLOT_ROWS),
    .IN_FLIGHT(CONTEXTS)
  ) i_choose (
    .clk_i,
    .rst_ni,
    .choose_valid_i (choose_valid),
    .choose_ready_o (choose_ready),
    .choose_i       (choose),
    .chosen_valid_o (chosen_valid),
    .chosen_ready_i (chosen_ready),
    .chosen_o       (chosen),
    .buckets_i      (buckets),
    .algorithms_i   (settings.algorithms),
    .bucket_read_o  (bucket_read),
    .bucket_index_o (bucket_index),
    .bucket_i       (bucket[0]),
    .row_read_o     (row_read),
    .row_index_o    (row_index),
    .row_i          (row),
    .slot_read_o    (slot_read),
    .slot_index_o   (slot_index),
    .slot_i         (slot),
    .rp_module_i,
    .rp_ready_i     (1'b1),
    .rp_valid_o,
    .rp_beat_o,
    .rp_mask_o,
    .rp_slots_o,
    .rp_valid_i,
    .rp_drawn_i
  );

  crush_latency_counter i_latency_counter (
    .clk_i,
    .rst_ni,
    .begins_i      (choose_valid && choose_ready),
    .begins_tag_i  (choose.tag),
    .ends_i        (chosen_valid && chosen_ready),
    .ends_tag_i    (chosen.tag),
    .draws_o,
    .last_cycles_o (draw_cycles_o)
  );
endmodule
