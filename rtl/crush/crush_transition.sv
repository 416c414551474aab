// The next state of a context after an event, from the state before and the evaluation of the event
// (crush_evaluate). Combinational; the earlier stages make every comparison and sum (evaluation_i).
//
// **Draws.** If the context searches a leaf, an outcome first concerns the leaf: a failed leaf draw
// is repeated in the same bucket up to leaf_limit times, and then the outer item fails. The outcome
// of the draw then settles the outer search:
//
//   firstn  taken: the next position; r starts again at rep + 1. Failed: the same position with
//           the next r, until the tries are used up. After that, or if the draw led nowhere, the
//           position stays and only rep advances. The end is the last rep, or a full vector.
//   indep   taken, or nowhere: the position is no longer open. In all cases, the next open position
//           of this round comes next. After the last one, the next round begins with the first open
//           position, until the tries are used up.
//
// **Leaves that remain.** A device found by chooseleaf is its own leaf. indep keeps that leaf even
// if the device is then found to be out. This is the definition of the mapping, although it is odd.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module crush_transition
  import crush_pkg::*;
  import crush_pe_pkg::*;
(
  input  context_t    context_i,
  input  evaluation_t evaluation_i,
  input  logic [3:0]  width_i,
  input  step_t       step_i,
  input  logic        descend_once_i,
  input  logic [31:0] w_item_i,  // BLOCK: the first bucket
  output context_t    context_o,
  output action_e     action_o
);
  // The end of the search for an outer item.
  typedef enum logic [1:0] {
    OUTCOME_NONE,
    OUTCOME_TAKE,
    OUTCOME_FAIL,
    OUTCOME_NOWHERE
  } outcome_e;

  // Draws: the leaf's part.
  outcome_e outcome;
  logic leaf_again;
  always_comb begin
    outcome = OUTCOME_NONE;
    leaf_again = 1'b0;
    unique case (evaluation_i.decision)
      DECISION_TAKE: outcome = OUTCOME_TAKE;
      DECISION_FAIL: begin
        leaf_again = context_i.in_leaf && evaluation_i.has_more_leaf_tries;
        if (!leaf_again) outcome = OUTCOME_FAIL;
      end
      DECISION_NOWHERE: outcome = context_i.in_leaf ? OUTCOME_FAIL : OUTCOME_NOWHERE;
      default: ;
    endcase
  end

  // Draws: firstn.
  context_t firstn;
  action_e firstn_action;
  always_comb begin
    firstn = context_i;
    firstn.in_leaf = 1'b0;
    firstn.level = '0;
    firstn_action = ACTION_DRAW;
    if (outcome == OUTCOME_FAIL && evaluation_i.has_more_tries) begin
      firstn.ftotal = context_i.ftotal + 16'd1;
    end else begin
      firstn.ftotal = '0;
      firstn.rep = context_i.rep + 5'd1;
      if (evaluation_i.is_last_rep) firstn_action = ACTION_BLOCK;
      if (outcome == OUTCOME_TAKE) begin
        firstn.o_mask = context_i.o_mask | only(context_i.pos);
        firstn.c_mask = context_i.is_leaf ? context_i.c_mask | only(context_i.pos) : '0;
        firstn.pos = context_i.pos + 4'd1;
        if (evaluation_i.is_last_pos) firstn_action = ACTION_BLOCK;
      end
      if (firstn_action == ACTION_BLOCK) firstn.base = firstn.pos;
    end
  end

  // Draws: indep.
  context_t indep;
  action_e indep_action;
  logic has_open;
  logic [3:0] first_open;
  always_comb begin
    indep = context_i;
    indep.in_leaf = 1'b0;
    indep.level = '0;
    indep_action = ACTION_DRAW;
    if (evaluation_i.leaf_is_item) indep.c_mask = context_i.c_mask | only(context_i.pos);
    if (outcome == OUTCOME_TAKE) begin
      indep.o_mask = context_i.o_mask | only(context_i.pos);
      if (context_i.is_leaf) indep.c_mask = context_i.c_mask | only(context_i.pos);
    end
    if (outcome == OUTCOME_NOWHERE || outcome == OUTCOME_FAIL && context_i.in_leaf) begin
      indep.c_mask = context_i.c_mask & ~only(context_i.pos);
    end
    if (outcome != OUTCOME_FAIL) indep.open = context_i.open & ~only(context_i.pos);
    has_open = outcome == OUTCOME_FAIL || evaluation_i.has_other_open;
    first_open = outcome == OUTCOME_FAIL ? evaluation_i.first_open : evaluation_i.first_other_open;
    if (evaluation_i.has_later_open) begin
      indep.pos = evaluation_i.later_open;
    end else if (has_open && evaluation_i.has_more_tries) begin
      indep.pos = first_open;
      indep.ftotal = context_i.ftotal + 16'd1;
      indep.round_r = context_i.round_r + 21'(context_i.numrep);
    end else begin
      indep_action = ACTION_BLOCK;
      indep.base = context_i.limit;
    end
    indep.rep = 5'(indep.pos - context_i.base);
  end

  // Blocks: a bucket of w, or the end of the choose step.
  context_t block;
  always_comb begin
    block = context_i;
    block.level = '0;
    block.in_leaf = 1'b0;
    if (evaluation_i.decision == DECISION_BLOCK) begin
      block.w_buckets = context_i.w_buckets & ~only(evaluation_i.w_first);
      block.bucket = ~w_item_i[15:0];
      block.limit = evaluation_i.block_end;
      block.open = below(evaluation_i.block_end) & ~below(context_i.base);
      block.pos = context_i.base;
      block.rep = '0;
      block.ftotal = '0;
      block.round_r = '0;
    end else begin
      block.w_count = context_i.base;
      if (context_i.is_leaf) begin
        {block.w_row, block.c_row} = {context_i.c_row, context_i.w_row};
        block.w_mask = context_i.c_mask;
        block.w_buckets = '0;
      end else begin
        {block.w_row, block.o_row} = {context_i.o_row, context_i.w_row};
        block.w_mask = context_i.o_mask;
        block.w_buckets = context_i.kind == '0 ? '0 : context_i.o_mask;
      end
    end
  end

  // Steps.
  context_t stepped;
  action_e step_action;
  logic is_positive;
  assign is_positive = !step_i.argument[31] && step_i.argument != '0;
  always_comb begin
    stepped = context_i;
    stepped.step = context_i.step + 16'd1;
    stepped.steps_left = context_i.steps_left - 16'd1;
    step_action = ACTION_STEP;
    unique case (step_i.op)
      STEP_TAKE: begin
        stepped.w_count = 4'd1;
        stepped.w_mask = only('0);
        stepped.w_buckets = step_i.argument[31] ? only('0) : '0;
      end
      STEP_EMIT: begin
        stepped.result_count = evaluation_i.emitted > 5'(width_i) ? width_i
                                                                  : evaluation_i.emitted[3:0];
        stepped.result_mask = (context_i.result_mask | (context_i.w_mask << context_i.result_count))
                              & below(width_i);
        stepped.w_count = '0;
        stepped.w_mask = '0;
        stepped.w_buckets = '0;
      end
      STEP_CHOOSE_FIRSTN, STEP_CHOOSE_INDEP, STEP_CHOOSELEAF_FIRSTN, STEP_CHOOSELEAF_INDEP: begin
        stepped.is_indep = step_i.op == STEP_CHOOSE_INDEP || step_i.op == STEP_CHOOSELEAF_INDEP;
        stepped.is_leaf = step_i.op == STEP_CHOOSELEAF_FIRSTN || step_i.op == STEP_CHOOSELEAF_INDEP;
        stepped.kind = step_i.kind;
        stepped.numrep = evaluation_i.numrep;
        stepped.base = '0;
        stepped.o_mask = '0;
        stepped.c_mask = '0;
        if (context_i.leaf_tries != '0) stepped.leaf_limit = context_i.leaf_tries;
        else if (stepped.is_indep || descend_once_i) stepped.leaf_limit = 16'd1;
        else stepped.leaf_limit = context_i.choose_tries;
        if (evaluation_i.is_nothing) begin
          stepped.w_count = '0;
          stepped.w_mask = '0;
          stepped.w_buckets = '0;
        end else begin
          step_action = ACTION_BLOCK;
        end
      end
      STEP_SET_CHOOSE_TRIES: if (is_positive) stepped.choose_tries = step_i.argument[15:0];
      STEP_SET_CHOOSELEAF_TRIES: if (is_positive) stepped.leaf_tries = step_i.argument[15:0];
      STEP_SET_VARY_R: begin
        if (!step_i.argument[31]) begin
          stepped.vary_r = step_i.argument != '0;
          stepped.vary_shift = step_i.argument[4:0] - 5'd1;
        end
      end
      STEP_SET_STABLE: if (!step_i.argument[31]) stepped.stable = step_i.argument != '0;
      default: ;
    endcase
    if (step_action == ACTION_STEP && context_i.steps_left == 16'd1) step_action = ACTION_FINISH;
  end

  always_comb begin
    context_o = context_i;
    action_o = ACTION_FINISH;
    unique case (evaluation_i.decision)
      DECISION_STEP: begin
        context_o = stepped;
        action_o = step_action;
      end
      DECISION_BLOCK: begin
        context_o = block;
        action_o = ACTION_DRAW;
      end
      DECISION_CHOSEN: begin
        context_o = block;
        action_o = ACTION_STEP;
      end
      DECISION_DESCEND: begin
        context_o.level = context_i.level + 6'd1;
        action_o = ACTION_DRAW_CHILD;
      end
      DECISION_LEAF: begin
        context_o.in_leaf = 1'b1;
        context_o.level = '0;
        context_o.leaf_bucket = evaluation_i.item;
        context_o.leaf_ftotal = '0;
        context_o.leaf_r = evaluation_i.leaf_r;
        action_o = ACTION_DRAW_CHILD;
      end
      DECISION_TEST: begin
        if (context_i.is_indep && evaluation_i.leaf_is_item) context_o.c_mask = indep.c_mask;
        action_o = ACTION_TEST;
      end
      DECISION_TAKE, DECISION_FAIL, DECISION_NOWHERE: begin
        if (leaf_again) begin
          context_o.leaf_ftotal = context_i.leaf_ftotal + 16'd1;
          context_o.level = '0;
          action_o = ACTION_DRAW;
        end else if (context_i.is_indep) begin
          context_o = indep;
          action_o = indep_action;
        end else begin
          context_o = firstn;
          action_o = firstn_action;
        end
      end
      DECISION_BAD, DECISION_STOPPED: begin
        context_o.result_count = '0;
        context_o.result_mask = '0;
      end
      default: ;  // END: the result does not change
    endcase
  end
endmodule
