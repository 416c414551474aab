// Flags of a queue set, computed from its counters: whether its rings may fetch, whether the device
// holds any of its descriptors or reads its context, and the position of the event's slot and
// descriptor in their ring. Combinational; qdma_context registers the result.
//
// A ring may fetch under four conditions. Its set is enabled. A place of the completion ring is
// free. There is a descriptor: the linked one alone, or the next entries, up to FETCH_AHEAD at
// once, and up to WAIT_AHEAD while the first of them waits. The ring does not wait, or what it
// waits for has come, or its first fetch is kept behind a fence.
//
// A kept descriptor wakes when its wait is over, and also when its set is not enabled any longer. A
// kept descriptor that waits for a count wakes, too, when no place of the completion ring is free:
// the H2C ring may need its place to reach the count.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_flags
  import qdma_pkg::*;
  import fs_regs_pkg::*;
(
  input  queue_set_t    set_i,
  input  ring_t         ring_i,          // the event's ring
  input  event_t        event_i,
  input  check_result_t check_result_i,  // for EVENT_ARRIVED and EVENT_ENDED: of the slot
  input  outcome_t      outcome_i,       // for EVENT_ENDED
  output flags_t        flags_o
);
  logic [31:0] beyond;
  assign beyond = set_i.rings[0].completed - set_i.after;

  logic after_reached;
  assign after_reached = !beyond[31];

  logic enabled;
  assign enabled = set_i.state == QUEUE_STATE_ENABLED;

  logic [1:0] may_fetch, wakes, busy;
  for (genvar r = 0; r < 2; r++) begin : gen_rings
    ring_t ring;
    logic wait_over, work;
    assign ring = set_i.rings[r];
    always_comb begin
      unique case (ring.waits)
        WAIT_FENCE: wait_over = ring.jobs == '0;
        WAIT_AFTER: wait_over = after_reached;
        default: wait_over = 1'b1;
      endcase
    end
    assign work = (ring.chain != '0) ? ring.fetches == '0
                                     : ring.posted > index_t'(ring.fetches);
    assign may_fetch[r] = enabled && set_i.cq_free != '0
        && !ring.flushing && work
        && ring.fetches < (ring.kept ? 4'(WAIT_AHEAD) : 4'(FETCH_AHEAD))
        && (wait_over || (ring.kept && ring.waits == WAIT_FENCE));
    assign wakes[r] = ring.kept
        && (wait_over || !enabled || (ring.waits == WAIT_AFTER && set_i.cq_free == '0));
    assign busy[r] = ring.jobs != '0 || ring.fetches != '0;
  end

  // The difference of two counts wraps around, as the counts do.
  logic [31:0] missing;
  assign missing = set_i.rings[0].completed - check_result_i.after;

  logic chain_ends;
  assign chain_ends = check_result_i.next == '0;

  assign flags_o = '{
    may_fetch: may_fetch,
    wakes: wakes,
    idle: busy == '0 && !set_i.loading,
    first_fetch: ring_i.fetch_head == event_i.slot.number,
    only_fetch: ring_i.fetches == 4'd1,
    first_job: ring_i.job_head == event_i.slot.number,
    only_job: ring_i.jobs == 5'd1,
    linked: ring_i.chain != '0,
    fence_waits: check_result_i.flags[DESCRIPTOR_FLAG_FENCE_BIT] && ring_i.jobs != '0,
    after_waits: event_i.which[0] && missing[31],
    chain_ends: chain_ends,
    bad_chain: !chain_ends && ring_i.chained == 6'(MAX_CHAIN),
    good: check_result_i.status == STATUS_OK,
    failed: outcome_i.status != STATUS_OK
  };
endmodule
