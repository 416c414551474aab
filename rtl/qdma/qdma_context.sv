// The state of all queue sets, and the events that change the state, one at a time.
//
// A queue set is one word of a memory (block or ultra RAM). Every event reads its word, computes
// flags from it (qdma_flags), applies the rules (qdma_event), computes the flags of the result,
// lists the rings that may now fetch, and writes the word back. This takes six cycles. No other
// event comes between the read and the write. A descriptor takes three events, so the engine does
// up to one descriptor in eighteen cycles. One that waits takes a fourth: it **wakes**.
//
//   TAKE read - FETCH - FLAGS - APPLY - NEW_FLAGS - WAKE write, choose - TAKE
//
// The unit chooses the next event while the last one ends. The choice waits as one bit per source,
// because a source holds its valid until its event is taken. The unit chooses an event only if
// there is room for everything that the event can cause. This room becomes free without other
// events, so there is no deadlock. After reset, the unit clears the memory.
//
// Register accesses and resets of functions come first, but not twice in a row while a descriptor
// waits: however many a tenant makes, the descriptors of others have every second event. A register
// access waits for one event at most, and for those that follow it. Descriptors that wake take
// turns with those that arrive.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module qdma_context
  import qdma_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  output logic               clearing_o,
  output logic               idle_o,  // no event is under way or waits
  output logic [fs_regs_pkg::MAX_FUNCTIONS-1:0] enabled_o,  // functions with sets not DISABLED

  // Doorbells and CONTROL. Each access gets one answer.
  input  logic               mmio_valid_i,
  output logic               mmio_ready_o,
  input  event_t             mmio_event_i,
  output logic               mmio_done_o,
  output logic               mmio_bad_o,  // a wrong doorbell
  output logic [63:0]        mmio_data_o,

  // Contexts that qdma_enable has read.
  input  logic               loaded_valid_i,
  output logic               loaded_ready_o,
  input  set_number_t        loaded_set_i,
  input  context_t           loaded_context_i,

  // The scheduler's visit of a ring.
  input  logic               visit_valid_i,
  output logic               visit_ready_o,
  input  fs_pkg::function_t  visit_owner_i,
  input  ring_number_t       visit_ring_i,
  output logic               visiting_o,  // a visit is under way and has not taken its slot yet

  // Descriptors that have arrived, and jobs that have ended.
  input  logic               arrived_valid_i,
  output logic               arrived_ready_o,
  input  slot_t              arrived_slot_i,
  input  ring_number_t       arrived_ring_i,
  input  logic               ended_valid_i,
  output logic               ended_ready_o,
  input  slot_t              ended_slot_i,
  input  ring_number_t       ended_ring_i,

  // A descriptor that waits is to give back its slot (qdma_evict).
  input  logic               evict_valid_i,
  output logic               evict_ready_o,
  input  slot_t              evict_slot_i,
  input  ring_number_t       evict_ring_i,

  // The state of the event's slot (qdma_slots).
  output fs_pkg::function_t  owner_o,  // the function that will take a slot
  input  slot_number_t       free_number_i,
  output slot_t              slot_o,
  input  check_result_t      check_result_i,
  input  outcome_t           outcome_i,
  input  links_t             links_i,

  // What the event causes, valid for one cycle. Inputs: room for a fetch, a start, a completion.
  input  logic               fetch_room_i,
  input  logic               start_room_i,
  input  logic               completion_room_i,
  output logic               act_valid_o,
  output slot_t              act_slot_o,
  output ring_number_t       act_ring_o,
  output actions_t           act_o,

  // Rings that may fetch.
  output logic               push_valid_o,
  input  logic               push_ready_i,
  output fs_pkg::function_t  push_owner_o,
  output ring_number_t       push_ring_o
);
  localparam int unsigned SET_BITS = $clog2(QUEUE_SETS);
  typedef logic [SET_BITS-1:0] row_t;

  if (QUEUE_SETS < 2 || QUEUE_SETS > fs_regs_pkg::MAX_QUEUE_SETS
      || QUEUE_SETS != (1 << SET_BITS)) begin : gen_sets_check
    $error("QUEUE_SETS must be a power of two from 2 to %0d", fs_regs_pkg::MAX_QUEUE_SETS);
  end

  typedef enum logic [2:0] { CLEAR, IDLE, TAKE, FETCH, FLAGS, APPLY, NEW_FLAGS, WAKE } state_e;
  state_e state_q;

  // ---- The next event -------------------------------------------------------------------------

  // Followers of an event. There is at most one of each kind, because only an event or follower of
  // the same kind makes a new one.
  logic follow_arrived_q, follow_ended_q;
  slot_t follow_arrived_slot_q, follow_ended_slot_q;
  ring_number_t follow_arrived_ring_q, follow_ended_ring_q;
  logic [1:0] wakes_q;  // rings of the last event's set whose first fetch wakes
  logic [1:0] push_q;  // rings of the last event's set that go to the scheduler

  typedef struct packed {
    logic follow_ended;
    logic follow_arrived;
    logic mmio;
    logic ended;
    logic woken;
    logic arrived;
    logic loaded;
    logic evict;
    logic visit;
  } source_t;  // one-hot, or zero

  // A kept descriptor whose wait is over.
  typedef struct packed {
    slot_t slot;
    ring_number_t ring;
  } woken_t;

  source_t choice, source_q;
  logic mmio_was_last_q, woken_was_last_q, woken_valid;
  woken_t woken;
  logic ended_waits, woken_waits, arrived_waits, evict_waits, others_wait;
  assign ended_waits = ended_valid_i && !follow_ended_q && completion_room_i;
  assign woken_waits = woken_valid && !follow_arrived_q && start_room_i;
  assign arrived_waits = arrived_valid_i && !follow_arrived_q && start_room_i;
  assign evict_waits = evict_valid_i && !follow_arrived_q;
  assign others_wait = ended_waits || woken_waits || arrived_waits || loaded_valid_i || evict_waits
      || (visit_valid_i && fetch_room_i);
  always_comb begin
    choice = '0;
    if (follow_ended_q) choice.follow_ended = completion_room_i;
    else if (follow_arrived_q) choice.follow_arrived = start_room_i;
    if (choice == '0) begin
      if (mmio_valid_i && !(mmio_was_last_q && others_wait)) choice.mmio = 1'b1;
      else if (ended_waits) choice.ended = 1'b1;
      else if (woken_waits && !(woken_was_last_q && arrived_waits)) choice.woken = 1'b1;
      else if (arrived_waits) choice.arrived = 1'b1;
      else if (loaded_valid_i) choice.loaded = 1'b1;
      else if (evict_waits) choice.evict = 1'b1;
      else if (visit_valid_i && fetch_room_i) choice.visit = 1'b1;
    end
  end

  event_t event_q, taken;
  context_t context_q;
  always_comb begin
    taken = '0;
    unique case (1'b1)
      source_q.follow_ended: begin
        taken.kind = EVENT_ENDED;
        taken.slot = follow_ended_slot_q;
        {taken.set, taken.which[0]} = follow_ended_ring_q;
      end
      source_q.follow_arrived: begin
        taken.kind = EVENT_ARRIVED;
        taken.slot = follow_arrived_slot_q;
        {taken.set, taken.which[0]} = follow_arrived_ring_q;
      end
      source_q.mmio: taken = mmio_event_i;
      source_q.ended: begin
        taken.kind = EVENT_ENDED;
        taken.slot = ended_slot_i;
        {taken.set, taken.which[0]} = ended_ring_i;
      end
      source_q.woken: begin
        taken.kind = EVENT_ARRIVED;
        taken.slot = woken.slot;
        {taken.set, taken.which[0]} = woken.ring;
      end
      source_q.arrived: begin
        taken.kind = EVENT_ARRIVED;
        taken.slot = arrived_slot_i;
        {taken.set, taken.which[0]} = arrived_ring_i;
      end
      source_q.loaded: begin
        taken.kind = EVENT_LOADED;
        taken.set = loaded_set_i;
      end
      source_q.evict: begin
        taken.kind = EVENT_EVICT;
        taken.slot = evict_slot_i;
        {taken.set, taken.which[0]} = evict_ring_i;
      end
      source_q.visit: begin
        taken.kind = EVENT_VISIT;
        taken.page = visit_owner_i;
        {taken.set, taken.which[0]} = visit_ring_i;
      end
      default: ;
    endcase
  end

  logic take;
  assign take = state_q == TAKE;
  assign mmio_ready_o = take && source_q.mmio;
  assign ended_ready_o = take && source_q.ended;
  assign arrived_ready_o = take && source_q.arrived;
  assign loaded_ready_o = take && source_q.loaded;
  assign evict_ready_o = take && source_q.evict;
  assign visit_ready_o = take && source_q.visit;

  // ---- The memory -----------------------------------------------------------------------------

  queue_set_t sets_q [QUEUE_SETS];
  queue_set_t read_q, set_q, written;
  row_t clear_q;
  logic write;

  always_ff @(posedge clk_i) begin
    if (take) read_q <= sets_q[row_t'(taken.set)];
    if (write) sets_q[(state_q == CLEAR) ? clear_q : row_t'(event_q.set)] <= written;
  end

  // ---- Flags, rules, flags of the result ------------------------------------------------------

  // A separate copy of the event's ring, so the rules need no multiplexer between the two rings.
  ring_t ring_q;
  flags_t flags, flags_q;
  qdma_flags i_flags (
    .set_i         (set_q),
    .ring_i        (ring_q),
    .event_i       (event_q),
    .check_result_i(check_result_i),
    .outcome_i     (outcome_i),
    .flags_o       (flags)
  );

  doorbell_t doorbell;
  qdma_doorbell i_doorbell (
    .clk_i, .set_i(read_q), .event_i(event_q), .doorbell_o(doorbell)
  );

  slot_number_t free_number_q;
  queue_set_t applied;
  actions_t actions;
  qdma_event i_event (
    .event_i       (event_q),
    .set_i         (set_q),
    .ring_i        (ring_q),
    .flags_i       (flags_q),
    .doorbell_i    (doorbell),
    .context_i     (context_q),
    .free_number_i (free_number_q),
    .check_result_i(check_result_i),
    .outcome_i     (outcome_i),
    .links_i       (links_i),
    .set_o         (applied),
    .actions_o     (actions)
  );
  assign owner_o = set_q.owner;
  assign slot_o = event_q.slot;

  logic [1:0] lists;
  for (genvar r = 0; r < 2; r++) begin : gen_lists
    assign lists[r] = flags_q.may_fetch[r] && !set_q.rings[r].listed;
  end

  always_comb begin
    written = set_q;
    for (int unsigned r = 0; r < 2; r++) begin
      written.rings[r].listed = set_q.rings[r].listed || lists[r];
      written.rings[r].kept = set_q.rings[r].kept && !flags_q.wakes[r];
    end
    if (set_q.state == fs_regs_pkg::QUEUE_STATE_RESETTING && flags_q.idle) begin
      written.state = fs_regs_pkg::QUEUE_STATE_DISABLED;
    end
    if (state_q == CLEAR) written = '0;
  end
  assign write = state_q == WAKE || state_q == CLEAR;

  always_ff @(posedge clk_i) begin
    source_q <= choice;
    if (take) event_q <= taken;
    if (take) mmio_was_last_q <= source_q.mmio;
    if (take && (source_q.woken || source_q.arrived)) woken_was_last_q <= source_q.woken;
    if (loaded_ready_o) context_q <= loaded_context_i;
    if (state_q == FETCH) begin
      set_q <= read_q;
      ring_q <= read_q.rings[event_q.which[0]];
    end
    free_number_q <= free_number_i;
    if (state_q == FLAGS || state_q == NEW_FLAGS) flags_q <= flags;
    if (state_q == APPLY) begin
      set_q <= applied;
      act_o <= actions;
    end
    if (!rst_ni) begin
      state_q <= CLEAR;
      clear_q <= '0;
    end else begin
      unique case (state_q)
        CLEAR: begin
          clear_q <= clear_q + 1'b1;
          if (clear_q == row_t'(QUEUE_SETS - 1)) state_q <= IDLE;
        end
        IDLE, WAKE: state_q <= (choice != '0) ? TAKE : IDLE;
        TAKE: state_q <= FETCH;
        FETCH: state_q <= FLAGS;
        FLAGS: state_q <= APPLY;
        APPLY: state_q <= NEW_FLAGS;
        NEW_FLAGS: state_q <= WAKE;
        default: state_q <= CLEAR;
      endcase
    end
  end
  assign clearing_o = state_q == CLEAR;
  assign idle_o = state_q == IDLE && push_q == '0 && !follow_arrived_q && !follow_ended_q
      && wakes_q == '0 && !woken_valid;

  // ---- Queue sets that are not DISABLED, by owner -----------------------------------------------

  logic [fs_regs_pkg::MAX_FUNCTIONS-1:0][SET_BITS:0] enabled_q;
  logic begins, ends;
  assign begins = read_q.state == fs_regs_pkg::QUEUE_STATE_DISABLED;
  assign ends = written.state == fs_regs_pkg::QUEUE_STATE_DISABLED;

  always_ff @(posedge clk_i) begin
    for (int unsigned f = 0; f < fs_regs_pkg::MAX_FUNCTIONS; f++) begin
      if (!rst_ni) enabled_q[f] <= '0;
      else if (state_q == WAKE && set_q.owner == fs_pkg::function_t'(f)) begin
        enabled_q[f] <= enabled_q[f] + (SET_BITS + 1)'(begins) - (SET_BITS + 1)'(ends);
      end
    end
  end
  for (genvar f = 0; f < fs_regs_pkg::MAX_FUNCTIONS; f++) begin : gen_enabled
    assign enabled_o[f] = enabled_q[f] != '0;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni)
    state_q != WAKE || !ends || begins || enabled_o[set_q.owner])
  else $error("a queue set ends that did not begin");

  // ---- Actions --------------------------------------------------------------------------------

  assign act_valid_o = state_q == NEW_FLAGS;
  assign act_slot_o = event_q.slot;
  assign act_ring_o = '{set: event_q.set, c2h: event_q.which[0]};

  assign visiting_o = event_q.kind == EVENT_VISIT
      && state_q inside {FETCH, FLAGS, APPLY, NEW_FLAGS, WAKE};

  logic is_mmio;
  assign is_mmio = event_q.kind inside {EVENT_DOORBELL, EVENT_ENABLE, EVENT_RESET, EVENT_READ};
  assign mmio_done_o = state_q == WAKE && is_mmio;
  assign mmio_bad_o = act_o.bad_doorbell;
  assign mmio_data_o = {48'd0, set_q.status, 4'd0, set_q.state};

  always_ff @(posedge clk_i) begin
    if (act_valid_o && act_o.follow) begin
      if (event_q.kind == EVENT_ENDED) begin
        follow_ended_slot_q <= act_o.follow_slot;
        follow_ended_ring_q <= act_ring_o;
      end else begin
        follow_arrived_slot_q <= act_o.follow_slot;
        follow_arrived_ring_q <= act_ring_o;
      end
    end
    if (!rst_ni) begin
      follow_arrived_q <= 1'b0;
      follow_ended_q <= 1'b0;
    end else begin
      if (take && source_q.follow_ended) follow_ended_q <= 1'b0;
      if (take && source_q.follow_arrived) follow_arrived_q <= 1'b0;
      if (act_valid_o && act_o.follow) begin
        if (event_q.kind == EVENT_ENDED) follow_ended_q <= 1'b1;
        else follow_arrived_q <= 1'b1;
      end
    end
  end

  // ---- Descriptors that wake ------------------------------------------------------------------

  // A kept descriptor wakes once. It has its slot until its event, so there is room for all.
  fs_pkg::function_t wakes_owner_q;
  set_number_t wakes_set_q;
  slot_number_t [1:0] wakes_heads_q;
  always_ff @(posedge clk_i) begin
    if (state_q == WAKE) begin
      {wakes_owner_q, wakes_set_q} <= {set_q.owner, event_q.set};
      wakes_heads_q <= {set_q.rings[1].fetch_head, set_q.rings[0].fetch_head};
    end
    if (!rst_ni) wakes_q <= '0;
    else if (state_q == WAKE) wakes_q <= flags_q.wakes;
    else wakes_q <= wakes_q[0] ? {wakes_q[1], 1'b0} : 2'b00;
  end

  logic woken_room;
  woken_t wakes;
  assign wakes = '{
    slot: '{owner: wakes_owner_q, number: wakes_heads_q[!wakes_q[0]]},
    ring: '{set: wakes_set_q, c2h: !wakes_q[0]}
  };
  fs_fifo #(.WIDTH($bits(woken_t)), .DEPTH(SLOTS)) i_woken (
    .clk_i, .rst_ni,
    .in_valid_i(wakes_q != '0), .in_ready_o(woken_room), .in_data_i(wakes),
    .out_valid_o(woken_valid), .out_ready_i(take && source_q.woken), .out_data_o(woken), .level_o()
  );

  assert property (@(posedge clk_i) disable iff (!rst_ni) wakes_q == '0 || woken_room)
  else $error("more descriptors wake than slots");

  // ---- Rings that may fetch -------------------------------------------------------------------

  fs_pkg::function_t push_owner_q;
  set_number_t push_set_q;
  assign push_valid_o = push_q != '0;
  assign push_owner_o = push_owner_q;
  assign push_ring_o = '{set: push_set_q, c2h: !push_q[0]};

  always_ff @(posedge clk_i) begin
    if (state_q == WAKE) {push_owner_q, push_set_q} <= {set_q.owner, event_q.set};
    if (!rst_ni) push_q <= '0;
    else if (state_q == WAKE) push_q <= lists;
    else if (push_ready_i) push_q <= push_q[0] ? {push_q[1], 1'b0} : 2'b00;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) state_q != WAKE || push_q == '0)
  else $error("rings are listed too slowly");
endmodule
