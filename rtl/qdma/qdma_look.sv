// What the numbers of a queue set say at a glance: whether its rings may fetch, whether anything of it
// is in the device, and what a doorbell's number means. Combinational; qdma_context registers it.
//
// A ring may fetch when its set is enabled, a place of the completion ring is free for it, what it
// waits for has come, and there is a descriptor: the linked one, alone, or the next entries, up to
// FETCH_AHEAD at once.

/* verilator lint_off UNUSEDSIGNAL */  // structures are used in parts

module qdma_look
  import qdma_pkg::*;
(
  input  queue_set_t set_i,
  input  event_t     event_i,
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
    assign may_fetch[r] = set_i.state == fs_regs_pkg::QUEUE_STATE_ENABLED && set_i.cq_free != '0
        && !ring.flushing && ring.fetches != 4'(FETCH_AHEAD) && wait_over && work;
    assign busy[r] = ring.jobs != '0 || ring.fetches != '0;
  end

  // A doorbell's number, less the index behind which it must lie. It may not take back what an earlier
  // one said, nor go past the ring's size, or past the completions that are there.
  logic [3:0] log2;
  index_t origin, least, most;
  always_comb begin
    log2 = set_i.rings[event_i.which[0]].log2;
    origin = set_i.rings[event_i.which[0]].started;
    least = set_i.rings[event_i.which[0]].posted;
    most = index_t'(1) << log2;
    if (event_i.which[1]) begin
      log2 = set_i.cq_log2;
      origin = set_i.cq_consumer;
      least = '0;
      most = set_i.cq_posted;
    end
  end

  index_t mask, moved;
  assign mask = ~({13{1'b1}} << 1 << log2);
  assign moved = (event_i.value[12:0] - origin) & mask;

  assign look_o = '{
    may_fetch: may_fetch,
    idle: busy == '0,
    moved: moved,
    moved_well: (event_i.value & ~64'(mask)) == '0 && moved >= least && moved <= most
  };
endmodule
