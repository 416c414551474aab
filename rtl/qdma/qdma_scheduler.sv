// Picks the ring that fetches next. The rings that may fetch are listed by function.
//
// Every function has a list of its rings that may fetch, in the order in which they became ready. A
// ring is in its list at most once (qdma_context keeps a bit for this), so one memory word per ring
// holds the links of all lists. The scheduler picks functions round robin: a function with a
// thousand busy rings gets no more visits than one with a single ring. Within a function, every
// ring gets one visit before any ring gets a second. The scheduler skips a function without a free
// slot, and says that it is starved.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_scheduler
  import qdma_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic               clk_i,
  input  logic               rst_ni,

  output logic               idle_o,  // no ring is listed

  // A ring may fetch.
  input  logic               push_valid_i,
  output logic               push_ready_o,
  input  fs_pkg::function_t  push_owner_i,
  input  ring_number_t       push_ring_i,

  // Functions that have a slot for one more descriptor. A bit is not reliable while a visit may
  // take a slot.
  input  logic [FUNCTIONS-1:0] has_slot_i,
  input  logic                 visiting_i,
  output logic [FUNCTIONS-1:0] starved_o,

  // The visit of a ring.
  output logic               visit_valid_o,
  input  logic               visit_ready_i,
  output fs_pkg::function_t  visit_owner_o,
  output ring_number_t       visit_ring_o
);
  localparam int unsigned RINGS = 2 * QUEUE_SETS;
  localparam int unsigned RING_BITS = $clog2(RINGS);

  typedef logic [RING_BITS-1:0] link_t;

  link_t next_q [RINGS];  // the next ring in the list
  link_t read_q;
  link_t [FUNCTIONS-1:0] head_q, tail_q;
  logic [FUNCTIONS-1:0] listed_q;  // functions whose list is not empty

  typedef enum logic [2:0] { PICK, CHOOSE, OFFER, READ, ADVANCE } state_e;
  state_e state_q;
  fs_pkg::function_t owner_q;
  logic [FUNCTIONS-1:0] after_q;  // functions after the last one served

  logic [FUNCTIONS-1:0] able, behind, candidates_q;
  assign able = visiting_i ? '0 : listed_q & has_slot_i;
  assign behind = able & after_q;

  // The first candidate.
  fs_pkg::function_t number;
  logic [FUNCTIONS-1:0] after;
  always_comb begin
    number = '0;
    for (int i = FUNCTIONS - 1; i >= 0; i--) begin
      if (candidates_q[i]) number = fs_pkg::function_t'(i);
    end
    for (int unsigned i = 0; i < FUNCTIONS; i++) after[i] = 32'(number) < i;
  end

  // No push changes links while the unit follows one.
  assign push_ready_o = state_q != READ && state_q != ADVANCE;
  logic push;
  link_t push_link;
  assign push = push_valid_i && push_ready_o;
  assign push_link = RING_BITS'(push_ring_i);

  assign idle_o = listed_q == '0;
  assign visit_valid_o = state_q == OFFER;
  assign visit_owner_o = owner_q;
  assign visit_ring_o = ring_number_t'(head_q[owner_q]);

  // A visit's ring stays listed for some cycles after it has taken the last slot. So the unit looks
  // between visits. A slot that becomes free counts at once.
  always_ff @(posedge clk_i) begin
    if (!rst_ni) starved_o <= '0;
    else if (state_q == PICK && !visiting_i) starved_o <= listed_q & ~has_slot_i;
    else starved_o <= starved_o & ~has_slot_i;
  end

  always_ff @(posedge clk_i) begin
    if (push) begin
      if (listed_q[push_owner_i]) next_q[tail_q[push_owner_i]] <= push_link;
      else head_q[push_owner_i] <= push_link;
      tail_q[push_owner_i] <= push_link;
    end
    if (state_q == READ) read_q <= next_q[head_q[owner_q]];
    if (state_q == ADVANCE) head_q[owner_q] <= read_q;
    if (!rst_ni) begin
      state_q <= PICK;
      listed_q <= '0;
      after_q <= '0;
    end else begin
      if (push) listed_q[push_owner_i] <= 1'b1;
      unique case (state_q)
        PICK: begin
          candidates_q <= (behind != '0) ? behind : able;
          if (able != '0) state_q <= CHOOSE;
        end
        CHOOSE: begin
          owner_q <= number;
          after_q <= after;
          state_q <= OFFER;
        end
        OFFER: if (visit_ready_i) state_q <= READ;
        READ: state_q <= ADVANCE;
        ADVANCE: begin
          if (head_q[owner_q] == tail_q[owner_q]) listed_q[owner_q] <= 1'b0;
          state_q <= PICK;
        end
        default: state_q <= PICK;
      endcase
    end
  end
endmodule
