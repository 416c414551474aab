// The rule engine: runs CRUSH rules for up to CONTEXTS inputs at once.
//
// **Events.** A context works on one mapping and waits for one thing at a time: a draw's answer, a
// hash, or only its next pass through the rule engine. When that thing has come, an event of the
// context goes through the rule engine once, in six stages. At the end the context waits again. One
// event enters per cycle. A context is never in two stages, so the stages need no forwarding
// between each other:
//
//   0  choose an event; read the memories: state, vectors, step of the rule, reweight of the device
//   1  select the vector that the event concerns
//   2  compare the item with all of the vector at once; sums and comparisons of the search
//   3  the decision: what the rule engine does about the event
//   4  the next state (crush_transition)
//   5  write state and items; queue the context's next request
//
// **Memories.** The state of a context (context_t), three vectors in three memories (so that a
// stage can read them before their roles are known), and the result. The rule engine writes an item
// to its place before it decides whether to take the item; masks say which items are valid.
//
// **Queues** have a place for every context, so nothing in the rule engine waits for space.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_rule_engine
  import crush_pkg::*;
  import crush_pe_pkg::*;
#(
  parameter int unsigned CONTEXTS = 32
) (
  input  logic               clk_i,
  input  logic               rst_ni,

  input  settings_t          settings_i,
  input  job_t [JOBS-1:0]    jobs_i,
  input  logic [JOBS-1:0]    stopped_i,  // mappings of these jobs end with their next event

  // Mappings to do. The mapping's context must be free.
  input  logic               start_valid_i,
  output logic               start_ready_o,
  input  tag_t               start_index_i,
  input  mapping_t           start_mapping_i,

  // Finished mappings. The context is free after its result has been read.
  output logic               done_valid_o,
  input  logic               done_ready_i,
  output tag_t               done_index_o,
  output mapping_t           done_mapping_o,
  output logic [3:0]         done_count_o,  // items, with the holes
  output mask_t              done_mask_o,   // positions that hold an item
  input  logic               result_read_i,
  input  tag_t               result_index_i,
  output row_t               result_row_o,  // one cycle after result_read_i

  // A mapping failed: the map is not sound, or a kernel is missing. The mapping still ends like
  // others.
  output logic               bad_valid_o,
  output job_index_t         bad_job_o,
  output logic               bad_draw_o,    // the draw engine reported it

  // Draws.
  output logic               choose_valid_o,
  input  logic               choose_ready_i,
  output choose_t            choose_o,
  input  logic               chosen_valid_i,
  output logic               chosen_ready_o,
  input  chosen_t            chosen_i,

  // Memories of the image. Data comes one cycle after the address.
  output logic               step_read_o,
  output logic [15:0]        step_index_o,
  input  step_t              step_i,
  output logic               reweight_read_o,
  output logic [15:0]        reweight_index_o,  // index of the device
  input  logic [31:0]        reweight_i
);
  localparam int unsigned INDEX_BITS = $clog2(CONTEXTS);

  if (CONTEXTS < 2 || CONTEXTS > 2 ** TAG_BITS) begin : gen_contexts_check
    $error("CONTEXTS must be 2 to 256");
  end

  // ---- Stage 0: an event ----

  logic tested_valid, tested_is_out;
  tag_t tested_index;

  typedef struct packed {
    tag_t         index;
    logic         is_block;
    logic [15:0]  step;
  } pass_t;
  logic pass_valid, pass_ready;
  pass_t pass;

  logic event_valid;
  event_t event_d;

  assign pass_ready = !tested_valid;
  assign chosen_ready_o = !tested_valid && !pass_valid;
  assign start_ready_o = chosen_ready_o && !chosen_valid_i;
  assign event_valid = tested_valid || pass_valid || chosen_valid_i || start_valid_i;

  always_comb begin
    event_d = '0;
    event_d.chosen = chosen_i;
    if (tested_valid) begin
      event_d.kind = EVENT_TESTED;
      event_d.index = tested_index;
      event_d.is_out = tested_is_out;
    end else if (pass_valid) begin
      event_d.kind = pass.is_block ? EVENT_BLOCK : EVENT_STEP;
      event_d.index = pass.index;
      event_d.step = pass.step;
    end else if (chosen_valid_i) begin
      event_d.kind = EVENT_CHOSEN;
      event_d.index = chosen_i.tag;
    end else begin
      event_d.kind = EVENT_NEW;
      event_d.index = start_index_i;
      event_d.step = jobs_i[start_mapping_i.job].first_step;
    end
  end

  logic [INDEX_BITS-1:0] read_index;
  assign read_index = event_d.index[INDEX_BITS-1:0];

  assign step_read_o = event_valid && (event_d.kind == EVENT_NEW || event_d.kind == EVENT_STEP);
  assign step_index_o = event_d.step;
  assign reweight_read_o = event_valid && event_d.kind == EVENT_CHOSEN && !chosen_i.item[31];
  assign reweight_index_o = chosen_i.item[15:0];

  logic [5:1] valid_q;
  event_t event_q1, event_q2, event_q3;
  always_ff @(posedge clk_i) begin
    valid_q <= rst_ni ? {valid_q[4:1], event_valid} : '0;
    if (event_valid) event_q1 <= event_d;
    if (valid_q[1]) event_q2 <= event_q1;
    if (valid_q[2]) event_q3 <= event_q2;
  end

  // ---- Memories ----

  context_t contexts_q [CONTEXTS];
  mapping_t mappings_q [CONTEXTS];
  context_t context_q1, context_q5;
  mapping_t mapping_q1;
  tag_t index_q4, index_q5;
  always_ff @(posedge clk_i) begin
    if (valid_q[5]) contexts_q[index_q5[INDEX_BITS-1:0]] <= context_q5;
    if (start_valid_i && start_ready_o) begin
      mappings_q[start_index_i[INDEX_BITS-1:0]] <= start_mapping_i;
    end
    if (event_valid) begin
      context_q1 <= contexts_q[read_index];
      mapping_q1 <= event_d.kind == EVENT_NEW ? start_mapping_i : mappings_q[read_index];
    end
  end

  row_t [2:0] rows_q1;
  mask_t [2:0] row_write_q5;
  row_t row_data_q5;
  for (genvar m = 0; m < 3; m++) begin : gen_rows
    crush_rows #(
      .DEPTH(CONTEXTS)
    ) i_rows (
      .clk_i,
      .read_i        (event_valid),
      .read_index_i  (read_index),
      .read_row_o    (rows_q1[m]),
      .write_i       (row_write_q5[m]),
      .write_index_i (index_q5[INDEX_BITS-1:0]),
      .write_row_i   (row_data_q5)
    );
  end

  mask_t result_write_q5;
  row_t result_data_q5;
  crush_rows #(
    .DEPTH(CONTEXTS)
  ) i_results (
    .clk_i,
    .read_i        (result_read_i),
    .read_index_i  (result_index_i[INDEX_BITS-1:0]),
    .read_row_o    (result_row_o),
    .write_i       (result_write_q5),
    .write_index_i (index_q5[INDEX_BITS-1:0]),
    .write_row_i   (result_data_q5)
  );

  // ---- Stage 1: select the vector ----

  context_t context_d2;
  always_comb begin
    context_d2 = context_q1;
    if (event_q1.kind == EVENT_NEW) begin
      context_d2 = '0;
      context_d2.step = jobs_i[mapping_q1.job].first_step;
      context_d2.steps_left = jobs_i[mapping_q1.job].steps;
      context_d2.choose_tries = settings_i.choose_tries;
      context_d2.vary_r = settings_i.vary_r != '0;
      context_d2.vary_shift = settings_i.vary_r[4:0] - 5'd1;
      context_d2.stable = settings_i.stable;
      context_d2.o_row = 2'd1;
      context_d2.c_row = 2'd2;
    end
  end

  logic is_emit_q1, wants_row_q1;
  logic [1:0] row_select_q1;
  assign is_emit_q1 = event_q1.kind == EVENT_STEP && step_i.op == STEP_EMIT;
  assign wants_row_q1 = event_q1.kind == EVENT_CHOSEN || event_q1.kind == EVENT_BLOCK || is_emit_q1;
  always_comb begin
    row_select_q1 = context_q1.w_row;
    if (event_q1.kind == EVENT_CHOSEN) begin
      row_select_q1 = context_q1.in_leaf ? context_q1.c_row : context_q1.o_row;
    end
  end

  row_t row_q2;
  context_t context_q2;
  mapping_t mapping_q2;
  step_t step_q2;
  logic is_emit_q2;
  logic is_in_q2, is_out_q2;
  logic [15:0] reweight_q2;
  always_ff @(posedge clk_i) begin
    if (valid_q[1]) begin
      context_q2 <= context_d2;
      mapping_q2 <= mapping_q1;
      is_emit_q2 <= is_emit_q1;
      if (wants_row_q1) row_q2 <= rows_q1[row_select_q1];
      if (event_q1.kind == EVENT_NEW || event_q1.kind == EVENT_STEP) step_q2 <= step_i;
      is_out_q2 <= event_q1.chosen.item >= settings_i.devices || reweight_i == '0;
      is_in_q2 <= reweight_i[31:16] != '0;
      reweight_q2 <= reweight_i[15:0];
    end
  end

  // ---- Stages 2 and 3: the decision ----

  evaluation_t evaluation_q4;
  logic is_new_item_q4;
  logic [31:0] w_item_q4;
  row_t emit_row_q4;
  crush_evaluate i_evaluate (
    .clk_i,
    .valid_i       (valid_q[2]),
    .event_i       (event_q2),
    .context_i     (context_q2),
    .width_i       (mapping_q2.width),
    .is_stopped_i  (stopped_i[mapping_q2.job]),
    .step_i        (step_q2),
    .is_emit_i     (is_emit_q2),
    .row_i         (row_q2),
    .is_in_i       (is_in_q2),
    .is_out_i      (is_out_q2),
    .evaluation_o  (evaluation_q4),
    .is_new_item_o (is_new_item_q4),
    .w_item_o      (w_item_q4),
    .emit_row_o    (emit_row_q4)
  );

  context_t context_q3, context_q4;
  mapping_t mapping_q3, mapping_q4, mapping_q5;
  step_t step_q3, step_q4;
  logic is_emit_q3, is_emit_q4;
  logic [15:0] reweight_q3, reweight_q4, reweight_q5;
  logic [31:0] item_q4;
  logic is_bad_draw_q4;
  always_ff @(posedge clk_i) begin
    if (valid_q[2]) begin
      context_q3 <= context_q2;
      mapping_q3 <= mapping_q2;
      step_q3 <= step_q2;
      is_emit_q3 <= is_emit_q2;
      reweight_q3 <= reweight_q2;
    end
    if (valid_q[3]) begin
      index_q4 <= event_q3.index;
      item_q4 <= event_q3.chosen.item;
      is_bad_draw_q4 <= event_q3.kind == EVENT_CHOSEN && event_q3.chosen.is_bad;
      context_q4 <= context_q3;
      mapping_q4 <= mapping_q3;
      step_q4 <= step_q3;
      is_emit_q4 <= is_emit_q3;
      reweight_q4 <= reweight_q3;
    end
  end

  // ---- Stage 4: the next state ----

  context_t context_d5;
  action_e action_d5;
  crush_transition i_transition (
    .context_i      (context_q4),
    .evaluation_i   (evaluation_q4),
    .width_i        (mapping_q4.width),
    .step_i         (step_q4),
    .descend_once_i (settings_i.descend_once),
    .w_item_i       (w_item_q4),
    .context_o      (context_d5),
    .action_o       (action_d5)
  );

  // A found item goes to o, or, if it is a leaf, to c. A device that is its own leaf goes to both.
  logic is_take, to_o, to_c;
  mask_t [2:0] row_write_d5;
  assign is_take = evaluation_q4.decision == DECISION_STEP && step_q4.op == STEP_TAKE;
  assign to_o = is_new_item_q4 && !context_q4.in_leaf;
  assign to_c = is_new_item_q4 && (context_q4.in_leaf || evaluation_q4.leaf_is_item);
  always_comb begin
    for (int unsigned m = 0; m < 3; m++) begin
      row_write_d5[m] = '0;
      if (to_o && context_q4.o_row == 2'(m) || to_c && context_q4.c_row == 2'(m)) begin
        row_write_d5[m] = only(context_q4.pos);
      end
      if (is_take && context_q4.w_row == 2'(m)) row_write_d5[m] = only('0);
    end
  end

  action_e action_q5;
  logic [31:0] item_q5;
  logic is_bad_q5, is_bad_draw_q5;
  always_ff @(posedge clk_i) begin
    row_write_q5 <= '0;
    result_write_q5 <= '0;
    if (valid_q[4]) begin
      index_q5 <= index_q4;
      context_q5 <= context_d5;
      mapping_q5 <= mapping_q4;
      action_q5 <= action_d5;
      reweight_q5 <= reweight_q4;
      item_q5 <= is_take ? step_q4.argument : item_q4;
      is_bad_q5 <= evaluation_q4.decision == DECISION_BAD;
      is_bad_draw_q5 <= is_bad_draw_q4;
      row_write_q5 <= row_write_d5;
      if (is_emit_q4 && evaluation_q4.decision == DECISION_STEP) begin
        result_write_q5 <= context_d5.result_mask & ~context_q4.result_mask;
        result_data_q5 <= emit_row_q4;
      end
    end
    if (!rst_ni) is_bad_q5 <= 1'b0;
  end
  assign row_data_q5 = {ROW_ITEMS{item_q5}};

  // ---- Stage 5: the context's next request ----

  choose_t choose;
  always_comb begin
    choose = '0;
    choose.tag = index_q5;
    choose.x = mapping_q5.x;
    choose.is_indep = context_q5.is_indep;
    choose.numrep = context_q5.numrep;
    if (!context_q5.is_indep || context_q5.in_leaf) begin
      choose.position = 8'(context_q5.pos - context_q5.base);
    end
    choose.r_base = context_q5.in_leaf ? 32'(context_q5.leaf_r) : 32'(context_q5.rep);
    choose.ftotal = context_q5.in_leaf ? context_q5.leaf_ftotal : context_q5.ftotal;
    choose.bucket = context_q5.in_leaf ? context_q5.leaf_bucket : context_q5.bucket;
    if (action_q5 == ACTION_DRAW_CHILD) choose.bucket = ~item_q5[15:0];
  end

  // The request goes to one of four queues, which always have room.
  logic [3:0] wants, has_room;
  assign wants[0] = valid_q[5] && (action_q5 == ACTION_DRAW || action_q5 == ACTION_DRAW_CHILD);
  assign wants[1] = valid_q[5] && (action_q5 == ACTION_BLOCK || action_q5 == ACTION_STEP);
  assign wants[2] = valid_q[5] && action_q5 == ACTION_FINISH;
  assign wants[3] = valid_q[5] && action_q5 == ACTION_TEST;

  fs_fifo #(
    .WIDTH($bits(choose_t)),
    .DEPTH(CONTEXTS)
  ) i_draws (
    .clk_i,
    .rst_ni,
    .in_valid_i  (wants[0]),
    .in_ready_o  (has_room[0]),
    .in_data_i   (choose),
    .out_valid_o (choose_valid_o),
    .out_ready_i (choose_ready_i),
    .out_data_o  (choose_o),
    .level_o     ()
  );

  pass_t pass_d;
  assign pass_d = '{index: index_q5, is_block: action_q5 == ACTION_BLOCK, step: context_q5.step};
  fs_fifo #(
    .WIDTH($bits(pass_t)),
    .DEPTH(CONTEXTS)
  ) i_passes (
    .clk_i,
    .rst_ni,
    .in_valid_i  (wants[1]),
    .in_ready_o  (has_room[1]),
    .in_data_i   (pass_d),
    .out_valid_o (pass_valid),
    .out_ready_i (pass_ready),
    .out_data_o  (pass),
    .level_o     ()
  );

  fs_fifo #(
    .WIDTH(TAG_BITS + $bits(mapping_t) + 4 + ROW_ITEMS),
    .DEPTH(CONTEXTS)
  ) i_done (
    .clk_i,
    .rst_ni,
    .in_valid_i  (wants[2]),
    .in_ready_o  (has_room[2]),
    .in_data_i   ({index_q5, mapping_q5, context_q5.result_count, context_q5.result_mask}),
    .out_valid_o (done_valid_o),
    .out_ready_i (done_ready_i),
    .out_data_o  ({done_index_o, done_mapping_o, done_count_o, done_mask_o}),
    .level_o     ()
  );

  crush_is_out #(
    .CONTEXTS(CONTEXTS)
  ) i_is_out (
    .clk_i,
    .rst_ni,
    .valid_i    (wants[3]),
    .ready_o    (has_room[3]),
    .index_i    (index_q5),
    .x_i        (mapping_q5.x),
    .device_i   (item_q5),
    .reweight_i (reweight_q5),
    .valid_o    (tested_valid),
    .index_o    (tested_index),
    .is_out_o   (tested_is_out)
  );

  assign bad_valid_o = valid_q[5] && is_bad_q5;
  assign bad_job_o = mapping_q5.job;
  assign bad_draw_o = is_bad_draw_q5;

  assert property (@(posedge clk_i) disable iff (!rst_ni) (wants & ~has_room) == '0)
  else $error("a context waits for two things");
endmodule
