// The effects of an event on a queue set, and its other actions. Combinational: all rules of the
// queue engine in one place. qdma_context registers the inputs and outputs.
//
// The life of a descriptor is three events.
//
// A **visit** takes a slot and a place of the completion ring, and fetches the descriptor.
//
// When the descriptor has **arrived** and is the first of its ring's fetches, it starts, unless it
// must wait. A descriptor that must wait is kept, and so are those that are fetched behind it. When
// the wait is over, the descriptor's event comes again, and it starts without another fetch.
//
// A kept descriptor holds a slot and a place of the completion ring. It gives them back when others
// need them, and so do all descriptors fetched after it. Then the ring remembers what the
// descriptor waits for, and fetches it again when the wait is over. So a descriptor that waits,
// perhaps forever, keeps nothing that others need. When a ring of the function needs a slot,
// qdma_evict makes the descriptor leave: it is **evicted**. When no place is free, a descriptor
// leaves that waits for a count, because the H2C ring may need a place to reach the count. A fence
// waits for jobs, and these have their places.
//
// When a job has **ended** and is the first of its ring's jobs, its completion goes out. A
// descriptor that arrives too early, or a job that ends too early, is held. It follows after those
// before it.
//
// ENABLE asks for the context, and the set is ENABLING until the context is **loaded**. Other
// events of the set may come meanwhile: a reset waits for the context, and drops it.
//
// An error stops the queue set at once. Then no job starts, fetched descriptors give back their
// slots, and running jobs end and complete. After a reset, jobs end without completions, and the
// last one disables the set.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_event
  import qdma_pkg::*;
  import fs_regs_pkg::*;
(
  input  event_t        event_i,
  input  queue_set_t    set_i,
  input  ring_t         ring_i,          // the event's ring
  input  flags_t        flags_i,
  input  doorbell_t     doorbell_i,
  input  context_t      context_i,       // for EVENT_LOADED
  input  slot_number_t  free_number_i,   // for EVENT_VISIT: a free slot of the owner
  input  check_result_t check_result_i,  // for EVENT_ARRIVED and EVENT_ENDED: of the slot
  input  outcome_t      outcome_i,       // for EVENT_ENDED
  input  links_t        links_i,

  output queue_set_t    set_o,
  output actions_t      actions_o
);
  logic r;
  assign r = event_i.which[0];

  logic enabled, mine;
  assign enabled = set_i.state == QUEUE_STATE_ENABLED;
  assign mine = set_i.owner == event_i.page;

  // ---- Arrived: the first of the fetches ------------------------------------------------------

  logic starts_well, must_wait, evicts, is_kept, may_keep;
  logic [7:0] start_status;
  assign starts_well = flags_i.good && !flags_i.bad_chain;
  assign must_wait = starts_well && (flags_i.fence_waits || flags_i.after_waits);
  assign evicts = event_i.kind == EVENT_EVICT;
  // What is evicted may have woken meanwhile, and have left its slot.
  assign is_kept = flags_i.first_fetch && ring_i.kept && set_i.owner == event_i.slot.owner;
  assign may_keep = !evicts && (flags_i.fence_waits || set_i.cq_free != '0);
  assign start_status = (flags_i.good && flags_i.bad_chain) ? STATUS_BAD_CHAIN
                                                            : check_result_i.status;

  // ---- Ended: the completion ------------------------------------------------------------------

  logic writes_completion;
  assign writes_completion = set_i.state != QUEUE_STATE_RESETTING
      && (flags_i.failed || check_result_i.flags[DESCRIPTOR_FLAG_COMPLETE_BIT]);

  index_t cq_mask;
  assign cq_mask = ~({13{1'b1}} << set_i.cq_log2);

  completion_t entry;
  always_comb begin
    entry = '0;
    entry.status = outcome_i.status;
    entry.flags[COMPLETION_FLAG_PHASE_BIT] = (set_i.cq_producer & ~cq_mask) == '0;
    entry.flags[COMPLETION_FLAG_C2H_BIT] = r;
    entry.cookie = check_result_i.cookie;
    entry.index = ring_i.completed + 1'b1;
    entry.result = outcome_i.result;
    if (!flags_i.failed
        && (check_result_i.target == UNIT_H2C || check_result_i.target == UNIT_C2H)) begin
      entry.result = 64'(check_result_i.copy_bytes);
    end
    entry.cycles = outcome_i.cycles;
    entry.detail = outcome_i.detail;
  end

  // ---- The rules ------------------------------------------------------------------------------

  index_t ring_mask;
  assign ring_mask = ~({13{1'b1}} << ring_i.log2);

  always_comb begin
    set_o = set_i;
    actions_o = '0;
    actions_o.follow_slot = event_i.slot;
    actions_o.link_from = event_i.slot;
    actions_o.start_status = start_status;
    actions_o.start_detail = flags_i.good ? check_result_i.next : check_result_i.detail;
    actions_o.completion = '{
      owner: set_i.owner,
      interrupt_due: set_i.interrupts
          && (flags_i.failed || check_result_i.flags[DESCRIPTOR_FLAG_INTERRUPT_BIT]),
      base: set_i.cq_base,
      index: 12'(set_i.cq_producer & cq_mask),
      entry: entry
    };
    actions_o.what.slot = '{owner: set_i.owner, number: free_number_i};
    actions_o.what.base = flags_i.linked ? ring_i.chain : ring_i.base;
    actions_o.what.index = flags_i.linked ? '0
        : 12'((ring_i.started + index_t'(ring_i.fetches)) & ring_mask);

    unique case (event_i.kind)
      EVENT_DOORBELL: begin
        if (!mine || !(set_i.state inside {QUEUE_STATE_ENABLED, QUEUE_STATE_STOPPED})) begin
          actions_o.bad_doorbell = 1'b1;
        end else if (!doorbell_i.well) begin
          // A driver that does not know yet that its set has stopped made no error.
          actions_o.bad_doorbell = enabled;
        end else if (event_i.which[1]) begin
          set_o.cq_consumer = event_i.value[12:0];
          set_o.cq_posted = set_i.cq_posted - doorbell_i.moved;
          set_o.cq_free = set_i.cq_free + doorbell_i.moved;
        end else begin
          set_o.rings[r].posted = doorbell_i.moved;
        end
      end

      EVENT_ENABLE: begin
        if (set_i.state != QUEUE_STATE_DISABLED) begin
          actions_o.bad_doorbell = 1'b1;
        end else begin
          set_o.state = QUEUE_STATE_ENABLING;
          set_o.status = STATUS_OK;
          set_o.owner = event_i.page;
          set_o.loading = 1'b1;
          actions_o.load = 1'b1;
        end
      end

      EVENT_LOADED: begin
        set_o.loading = 1'b0;
        if (set_i.state == QUEUE_STATE_ENABLING) begin
          set_o = '0;
          set_o.state = (context_i.status == STATUS_OK) ? QUEUE_STATE_ENABLED : QUEUE_STATE_STOPPED;
          set_o.status = context_i.status;
          set_o.owner = set_i.owner;
          set_o.interrupts = context_i.interrupts;
          set_o.cq_base = context_i.cq_base;
          set_o.cq_log2 = context_i.cq_log2;
          set_o.cq_free = index_t'(1) << context_i.cq_log2;
          for (int unsigned i = 0; i < 2; i++) begin
            set_o.rings[i].base = context_i.bases[i];
            set_o.rings[i].log2 = context_i.log2s[i];
            set_o.rings[i].listed = set_i.rings[i].listed;
          end
        end
      end

      EVENT_RESET: begin
        set_o.status = STATUS_OK;
        if (set_i.state != QUEUE_STATE_DISABLED) set_o.state = QUEUE_STATE_RESETTING;
      end

      EVENT_READ: ;

      EVENT_VISIT: begin
        set_o.rings[r].listed = 1'b0;
        if (flags_i.may_fetch[r] && mine) begin
          actions_o.take = 1'b1;
          actions_o.fetch = 1'b1;
          actions_o.link_fetch = ring_i.fetches != '0;
          actions_o.link_from = '{owner: set_i.owner, number: ring_i.fetch_tail};
          set_o.cq_free = set_i.cq_free - 1'b1;
          if (!ring_i.kept) set_o.rings[r].waits = WAIT_NOTHING;
          set_o.rings[r].fetches = ring_i.fetches + 1'b1;
          set_o.rings[r].fetch_tail = free_number_i;
          if (ring_i.fetches == '0) set_o.rings[r].fetch_head = free_number_i;
        end
      end

      EVENT_ARRIVED, EVENT_EVICT: begin
        if (evicts && !is_kept) begin
          actions_o.unkeep = 1'b1;
        end else if (!flags_i.first_fetch) begin
          actions_o.hold = 1'b1;
        end else if (enabled && !ring_i.flushing && must_wait && may_keep) begin
          set_o.rings[r].kept = 1'b1;
          set_o.rings[r].waits = flags_i.fence_waits ? WAIT_FENCE : WAIT_AFTER;
          if (!flags_i.fence_waits) set_o.after = check_result_i.after;
          actions_o.keep = {!flags_i.fence_waits, flags_i.fence_waits};
          actions_o.unkeep = 1'b1;  // from the other wait
        end else begin
          actions_o.unkeep = 1'b1;
          set_o.rings[r].kept = 1'b0;
          set_o.rings[r].fetches = ring_i.fetches - 1'b1;
          set_o.rings[r].fetch_head = links_i.fetch_next;
          actions_o.follow = !flags_i.only_fetch && links_i.fetch_next_held;
          actions_o.follow_slot.number = links_i.fetch_next;
          if (!enabled || ring_i.flushing || must_wait) begin
            actions_o.give_back = 1'b1;
            set_o.cq_free = set_i.cq_free + 1'b1;
            set_o.rings[r].flushing = !flags_i.only_fetch;
            if (enabled && !ring_i.flushing) begin
              set_o.rings[r].waits = flags_i.fence_waits ? WAIT_FENCE : WAIT_AFTER;
              if (!flags_i.fence_waits) set_o.after = check_result_i.after;
            end
          end else begin
            actions_o.start = 1'b1;
            set_o.rings[r].waits = WAIT_NOTHING;
            actions_o.link_job = ring_i.jobs != '0;
            actions_o.link_from.number = ring_i.job_tail;
            set_o.rings[r].jobs = ring_i.jobs + 1'b1;
            set_o.rings[r].job_tail = event_i.slot.number;
            if (ring_i.jobs == '0) set_o.rings[r].job_head = event_i.slot.number;
            if (!starts_well) begin
              set_o.state = QUEUE_STATE_STOPPED;
              set_o.status = start_status;
            end else if (flags_i.chain_ends) begin
              set_o.rings[r].chain = '0;
              set_o.rings[r].chained = '0;
              set_o.rings[r].started = (ring_i.started + 1'b1) & {ring_mask[11:0], 1'b1};
              set_o.rings[r].posted = ring_i.posted - 1'b1;
            end else begin
              set_o.rings[r].chain = check_result_i.next[63:7];
              set_o.rings[r].chained = ring_i.chained + 1'b1;
              set_o.rings[r].flushing = !flags_i.only_fetch;
            end
          end
        end
      end

      EVENT_ENDED: begin
        if (flags_i.failed && enabled) begin
          set_o.state = QUEUE_STATE_STOPPED;
          set_o.status = outcome_i.status;
        end
        if (!flags_i.first_job) begin
          actions_o.hold = 1'b1;
        end else begin
          set_o.rings[r].jobs = ring_i.jobs - 1'b1;
          set_o.rings[r].job_head = links_i.job_next;
          set_o.rings[r].completed = ring_i.completed + 1'b1;
          actions_o.follow = !flags_i.only_job && links_i.job_next_held;
          actions_o.follow_slot.number = links_i.job_next;
          actions_o.give_back = 1'b1;
          if (writes_completion) begin
            actions_o.complete = 1'b1;
            set_o.cq_producer = (set_i.cq_producer + 1'b1) & {cq_mask[11:0], 1'b1};
            set_o.cq_posted = set_i.cq_posted + 1'b1;
          end else begin
            set_o.cq_free = set_i.cq_free + 1'b1;
          end
        end
      end

      default: ;
    endcase
  end
endmodule
