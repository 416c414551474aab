// Stages 2 and 3 of the rule engine: evaluate an event for its context.
//
// Stage 2 makes all comparisons and sums, also those that the event does not need. Stage 3 gives
// the decision. The vector `row_i` is the one that the event concerns: for draws, the vector whose
// items the new item may collide with, else w.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_evaluate
  import crush_pkg::*;
  import crush_pe_pkg::*;
(
  input  logic         clk_i,

  // Stage 2
  input  logic         valid_i,
  input  event_t       event_i,
  input  context_t     context_i,
  input  logic [3:0]   width_i,
  input  logic         is_stopped_i,  // the event's job is stopped
  input  step_t        step_i,
  input  logic         is_emit_i,
  input  row_t         row_i,
  input  logic         is_in_i,       // the device's reweight is at least 1.0
  input  logic         is_out_i,      // the reweight is 0, or the device is past the table

  // Stage 4
  output evaluation_t  evaluation_o,
  output logic         is_new_item_o, // an item of the wanted type that is not in the vector yet
  output logic [31:0]  w_item_o,      // BLOCK: the first bucket of w
  output row_t         emit_row_o     // EMIT: w, shifted to its place in the result
);
  // ---- Stage 2 ----

  evaluation_t evaluation_d3;
  logic is_draw, is_device, is_found, is_descent;
  logic [7:0] wanted;
  assign wanted = context_i.in_leaf ? '0 : context_i.kind;
  assign is_draw = event_i.kind == EVENT_CHOSEN && !event_i.chosen.is_bad && !event_i.chosen.is_empty;
  assign is_device = !event_i.chosen.item[31];
  assign is_found = is_draw && (is_device ? wanted == '0 && event_i.chosen.item != ITEM_NONE
                                          : wanted == event_i.chosen.kind);
  assign is_descent = is_draw && !is_device && !is_found;

  // In indep, the leaf of a position cannot collide.
  mask_t collides_with;
  always_comb begin
    collides_with = (context_i.in_leaf ? context_i.c_mask : context_i.o_mask)
                    & ~below(context_i.base);
    if (context_i.in_leaf && context_i.is_indep) collides_with = '0;
  end

  logic signed [31:0] numrep;
  logic [21:0] outer_r;
  always_comb begin
    numrep = step_i.argument;
    if (step_i.argument <= 0) numrep = step_i.argument + signed'(32'(width_i));
    outer_r = 22'(context_i.rep) + 22'(context_i.ftotal);
    if (context_i.is_indep) begin
      outer_r = 22'(context_i.rep) + 22'(context_i.round_r)
                + (event_i.chosen.is_stretched ? 22'(context_i.ftotal) : '0);
    end
  end

  mask_t later_open, other_open;
  logic [5:0] block_end;
  assign other_open = context_i.open & ~only(context_i.pos);
  assign later_open = other_open & ~below(context_i.pos);
  assign block_end = 6'(context_i.base) + 6'(context_i.numrep);
  always_comb begin
    evaluation_d3 = '0;
    evaluation_d3.is_last_level = context_i.level == 6'(MAX_LEVELS - 1);
    evaluation_d3.has_more_tries = 17'(context_i.ftotal) + 17'd1 < 17'(context_i.choose_tries);
    evaluation_d3.has_more_leaf_tries =
        17'(context_i.leaf_ftotal) + 17'd1 < 17'(context_i.leaf_limit);
    evaluation_d3.is_last_rep = context_i.rep + 5'd1 == context_i.numrep;
    evaluation_d3.is_last_pos = context_i.pos + 4'd1 == width_i;
    evaluation_d3.has_later_open = later_open != '0;
    evaluation_d3.later_open = first_of(later_open);
    evaluation_d3.first_open = first_of(context_i.open);
    evaluation_d3.has_other_open = other_open != '0;
    evaluation_d3.first_other_open = first_of(other_open);
    evaluation_d3.item = ~event_i.chosen.item[15:0];
    evaluation_d3.w_first = first_of(context_i.w_buckets);
    evaluation_d3.block_end = block_end > 6'(width_i) ? width_i : block_end[3:0];
    evaluation_d3.emitted = 5'(context_i.w_count) + 5'(context_i.result_count);
  end

  // ---- Stage 3 ----

  logic valid_q3;
  evaluation_t evaluation_q3;
  event_e kind_q3;
  logic is_stopped_q3, is_bad_q3, is_out_hash_q3;
  logic is_found_q3, is_descent_q3, is_nowhere_q3, is_device_q3, is_in_q3, is_out_q3;
  logic has_steps_q3, has_block_q3, is_choose_q3;
  logic is_leaf_q3, in_leaf_q3, is_indep_q3, varies_q3;
  logic [3:0] leaf_rep_q3, result_count_q3;
  logic [4:0] rep_q3, vary_shift_q3;
  logic [21:0] outer_r_q3;
  logic signed [31:0] numrep_q3;
  mask_t equal_q3, collides_with_q3;
  row_t row_q3;
  always_ff @(posedge clk_i) begin
    valid_q3 <= valid_i;
    if (valid_i) begin
      evaluation_q3 <= evaluation_d3;
      kind_q3 <= event_i.kind;
      is_stopped_q3 <= is_stopped_i;
      is_bad_q3 <= event_i.chosen.is_bad;
      is_out_hash_q3 <= event_i.is_out;
      is_found_q3 <= is_found;
      is_descent_q3 <= is_descent;
      is_nowhere_q3 <= is_draw && !is_found && !is_descent;
      is_device_q3 <= is_device;
      is_in_q3 <= is_in_i;
      is_out_q3 <= is_out_i;
      has_steps_q3 <= context_i.steps_left != '0;
      has_block_q3 <= context_i.w_buckets != '0 && context_i.base != width_i;
      is_choose_q3 <= is_choose(step_i.op);
      is_leaf_q3 <= context_i.is_leaf;
      in_leaf_q3 <= context_i.in_leaf;
      is_indep_q3 <= context_i.is_indep;
      varies_q3 <= context_i.vary_r;
      vary_shift_q3 <= context_i.vary_shift;
      leaf_rep_q3 <= context_i.stable ? '0 : context_i.pos - context_i.base;
      rep_q3 <= context_i.rep;
      outer_r_q3 <= outer_r;
      numrep_q3 <= numrep;
      result_count_q3 <= context_i.result_count;
      if (event_i.kind == EVENT_CHOSEN) begin
        for (int unsigned i = 0; i < ROW_ITEMS; i++) equal_q3[i] <= row_i[i] == event_i.chosen.item;
        collides_with_q3 <= collides_with;
      end
      if (event_i.kind == EVENT_BLOCK) row_q3 <= row_i;
      if (is_emit_i) row_q3 <= moved(row_i, {2'd0, context_i.result_count[1:0]});
    end
  end

  // The row with its items moved up by `by` positions.
  function automatic row_t moved(input row_t row, input logic [3:0] by);
    for (int unsigned i = 0; i < ROW_ITEMS; i++) moved[i] = 4'(i) >= by ? row[4'(i)-by] : '0;
  endfunction

  evaluation_t evaluation_d4;
  logic is_new_item;
  assign is_new_item = is_found_q3 && (equal_q3 & collides_with_q3) == '0;

  always_comb begin
    evaluation_d4 = evaluation_q3;
    evaluation_d4.leaf_is_item = kind_q3 == EVENT_CHOSEN && is_new_item && is_device_q3
                            && is_leaf_q3 && !in_leaf_q3;
    evaluation_d4.is_nothing = numrep_q3 <= 0;
    evaluation_d4.numrep = numrep_q3[4:0];
    evaluation_d4.leaf_r = (varies_q3 ? 23'(outer_r_q3 >> vary_shift_q3) : '0) + 23'(leaf_rep_q3);
    if (is_indep_q3) evaluation_d4.leaf_r = 23'(outer_r_q3) + 23'(rep_q3);

    unique case (kind_q3)
      EVENT_NEW, EVENT_STEP: begin
        if (!has_steps_q3) evaluation_d4.decision = DECISION_END;
        else if (is_choose_q3 && numrep_q3 > 31) evaluation_d4.decision = DECISION_BAD;
        else evaluation_d4.decision = DECISION_STEP;
      end
      EVENT_BLOCK: evaluation_d4.decision = has_block_q3 ? DECISION_BLOCK : DECISION_CHOSEN;
      EVENT_TESTED: evaluation_d4.decision = is_out_hash_q3 ? DECISION_FAIL : DECISION_TAKE;
      default: begin
        if (is_bad_q3) evaluation_d4.decision = DECISION_BAD;
        else if (is_descent_q3) begin
          evaluation_d4.decision = evaluation_q3.is_last_level ? DECISION_BAD : DECISION_DESCEND;
        end
        else if (is_nowhere_q3) evaluation_d4.decision = DECISION_NOWHERE;
        else if (!is_new_item) evaluation_d4.decision = DECISION_FAIL;
        else if (!is_device_q3) evaluation_d4.decision = is_leaf_q3 ? DECISION_LEAF : DECISION_TAKE;
        else if (is_out_q3) evaluation_d4.decision = DECISION_FAIL;
        else if (is_in_q3) evaluation_d4.decision = DECISION_TAKE;
        else evaluation_d4.decision = DECISION_TEST;
      end
    endcase
    if (is_stopped_q3) evaluation_d4.decision = DECISION_STOPPED;
  end

  always_ff @(posedge clk_i) begin
    if (valid_q3) begin
      evaluation_o <= evaluation_d4;
      is_new_item_o <= is_new_item && kind_q3 == EVENT_CHOSEN;
      if (kind_q3 == EVENT_BLOCK) w_item_o <= row_q3[evaluation_q3.w_first];
      if (kind_q3 == EVENT_STEP) emit_row_o <= moved(row_q3, {result_count_q3[3:2], 2'd0});
    end
  end
endmodule
