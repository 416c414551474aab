// What the numbers of a queue set say at a glance: whether its rings may fetch, whether anything of it
// is in the device, and how the event's slot and its descriptor stand in their ring. Combinational;
// qdma_context registers it.
//
// A ring may fetch when its set is enabled, a place of the completion ring is free for it, what it
// waits for has come, and there is a descriptor: the linked one, alone, or the next entries, up to
// FETCH_AHEAD at once.

/* verilator lint_off UNUSEDSIGNAL */  // structures are used in parts

module qdma_look
  import qdma_pkg::*;
  import fs_regs_pkg::*;
(
  input  queue_set_t set_i,
  input  ring_t      ring_i,     // of the event
  input  event_t     event_i,
  input  verdict_t   verdict_i,  // arrived, ended: of the slot
  input  outcome_t   outcome_i,  // ended
  output look_t      look_o
);
  logic [31:0] beyond;
  assign beyond = set_i.rings[0].completed - set_i.after;

  logic after_reached;
  assign after_reached = !beyond[31];

  logic [1:0] may_fetch, busy;
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
    assign may_fetch[r] = set_i.state == QUEUE_STATE_ENABLED && set_i.cq_free != '0
        && !ring.flushing && ring.fetches != 4'(FETCH_AHEAD) && wait_over && work;
    assign busy[r] = ring.jobs != '0 || ring.fetches != '0;
  end

  // As counts do, this one wraps around.
  logic [31:0] missing;
  assign missing = set_i.rings[0].completed - verdict_i.after;

  logic chain_ends;
  assign chain_ends = verdict_i.next == '0;

  assign look_o = '{
    may_fetch: may_fetch,
    idle: busy == '0,
    first_fetch: ring_i.fetch_head == event_i.slot.number,
    only_fetch: ring_i.fetches == 4'd1,
    first_job: ring_i.job_head == event_i.slot.number,
    only_job: ring_i.jobs == 5'd1,
    linked: ring_i.chain != '0,
    fence_waits: verdict_i.flags[DESCRIPTOR_FLAG_FENCE_BIT] && ring_i.jobs != '0,
    after_waits: event_i.which[0] && missing[31],
    chain_ends: chain_ends,
    bad_chain: !chain_ends && ring_i.chained == 6'(MAX_CHAIN),
    good: verdict_i.status == STATUS_OK,
    failed: outcome_i.status != STATUS_OK
  };
endmodule
