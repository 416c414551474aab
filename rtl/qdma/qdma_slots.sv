// The slots of descriptors in the device. The unit keeps which slots are free, the function and the
// queue of each slot, whether its descriptor waits there, and its records: the result of its check,
// the time of its start, and its job's outcome. The events of qdma_context write all of this one
// after the other, except check results and outcomes. A check result or outcome is written before
// its event.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_slots
  import qdma_pkg::*;
(
  input  logic          clk_i,
  input  logic          rst_ni,
  input  logic [31:0]   cycles_i,

  output logic          idle_o,  // no slot's descriptor is on its way or at work
  output logic [FUNCTIONS-1:0] has_free_o,  // one cycle old
  input  fs_pkg::function_t    owner_i,
  output slot_number_t         free_number_o,  // a free slot of owner_i

  // Slots whose descriptors wait as the first of their fetches: for a fence, for a count.
  output logic [1:0][FUNCTIONS-1:0][FUNCTION_JOBS-1:0] kept_o,

  // A descriptor has been checked, or a job has ended.
  input  logic          check_valid_i,
  input  slot_t         check_slot_i,
  input  check_result_t check_result_i,
  input  logic          ending_valid_i,
  input  ending_t       ending_i,

  // The rings of these slots, for the choice of the next event.
  input  slot_t         arrived_slot_i,
  output ring_number_t  arrived_ring_o,
  input  slot_t         ended_slot_i,
  output ring_number_t  ended_ring_o,
  input  slot_t         evict_slot_i,
  output ring_number_t  evict_ring_o,

  // The records of the event's slot, two cycles after slot_i.
  input  slot_t         slot_i,
  output check_result_t check_result_o,
  output outcome_t      outcome_o,
  output links_t        links_o,

  // The event's actions.
  input  logic          act_valid_i,
  input  slot_t         act_slot_i,
  input  ring_number_t  act_ring_i,
  input  actions_t      act_i
);
  logic [FUNCTIONS-1:0][FUNCTION_JOBS-1:0] free_q;
  logic [SLOTS-1:0] held_q;  // arrived or ended out of order
  logic [1:0][SLOTS-1:0] kept_q;

  check_result_t check_results_q [SLOTS];
  outcome_t outcomes_q [SLOTS];
  logic [31:0] started_at_q [SLOTS];
  ring_number_t rings_q [SLOTS];
  slot_number_t fetch_next_q [SLOTS];
  slot_number_t job_next_q [SLOTS];

  // ---- Free slots -----------------------------------------------------------------------------

  always_ff @(posedge clk_i) begin
    for (int unsigned f = 0; f < FUNCTIONS; f++) has_free_o[f] <= free_q[f] != '0;
  end
  // Behind a kept descriptor, those that have arrived are held.
  assign idle_o = (free_q | held_q | kept_q[0] | kept_q[1]) == '1;
  assign kept_o = kept_q;

  always_comb begin
    free_number_o = '0;
    for (int i = FUNCTION_JOBS - 1; i >= 0; i--) begin
      if (free_q[owner_i][i]) free_number_o = slot_number_t'(i);
    end
  end

  slot_t taken;
  assign taken = act_i.what.slot;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      free_q <= '1;
      held_q <= '0;
      kept_q <= '0;
    end else if (act_valid_i) begin
      if (act_i.take) free_q[taken.owner][taken.number] <= 1'b0;
      if (act_i.give_back) free_q[act_slot_i.owner][act_slot_i.number] <= 1'b1;
      if (act_i.hold) held_q[act_slot_i] <= 1'b1;
      if (act_i.follow) held_q[act_i.follow_slot] <= 1'b0;
      for (int unsigned w = 0; w < 2; w++) begin
        if (act_i.keep[w]) kept_q[w][act_slot_i] <= 1'b1;
        else if (act_i.unkeep) kept_q[w][act_slot_i] <= 1'b0;
      end
    end
  end

  // ---- Records --------------------------------------------------------------------------------

  always_ff @(posedge clk_i) begin
    if (act_valid_i && act_i.take) rings_q[taken] <= act_ring_i;
    if (act_valid_i && act_i.link_fetch) fetch_next_q[act_i.link_from] <= taken.number;
    if (act_valid_i && act_i.link_job) job_next_q[act_i.link_from] <= act_slot_i.number;
    if (act_valid_i && act_i.start) started_at_q[act_slot_i] <= cycles_i;
    if (check_valid_i) check_results_q[check_slot_i] <= check_result_i;
    if (ending_valid_i) begin
      outcomes_q[ending_i.slot] <= '{
        status: ending_i.status,
        cycles: cycles_i - started_at_q[ending_i.slot],
        result: ending_i.result,
        detail: ending_i.detail
      };
    end
  end

  assign arrived_ring_o = rings_q[arrived_slot_i];
  assign ended_ring_o = rings_q[ended_slot_i];
  assign evict_ring_o = rings_q[evict_slot_i];

  slot_number_t fetch_next_read_q, job_next_read_q;
  fs_pkg::function_t owner_read_q;
  always_ff @(posedge clk_i) begin
    check_result_o <= check_results_q[slot_i];
    outcome_o <= outcomes_q[slot_i];
    owner_read_q <= slot_i.owner;
    fetch_next_read_q <= fetch_next_q[slot_i];
    job_next_read_q <= job_next_q[slot_i];
    links_o <= '{
      fetch_next: fetch_next_read_q,
      job_next: job_next_read_q,
      fetch_next_held: held_q[{owner_read_q, fetch_next_read_q}],
      job_next_held: held_q[{owner_read_q, job_next_read_q}]
    };
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !(act_valid_i && act_i.take) || free_q[taken.owner][taken.number])
  else $error("a slot was taken twice");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !(act_valid_i && act_i.give_back) || !free_q[act_slot_i.owner][act_slot_i.number])
  else $error("a slot was given back twice");
endmodule
