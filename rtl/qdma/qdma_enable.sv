// Reads the contexts of the queue sets that are being enabled from host memory, and checks them.
// Rings of descriptors begin at multiples of a descriptor's size, and the ring of completions
// begins at a multiple of a beat. All rings lie inside the function's window.
//
// A register write asks for a context, and does not wait for it: the unit has room for the request
// of every queue set. It reads one context at a time, round robin by function: a function that
// enables all its queue sets delays another's by one context.

/* verilator lint_off PINCONNECTEMPTY */  // no queue set needs a slot here
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_enable
  import qdma_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  output logic               idle_o,
  input  windows_t [FUNCTIONS-1:0] windows_i,

  // Requests come at least four cycles apart. A queue set has one at most.
  input  logic               load_valid_i,
  input  set_number_t        load_set_i,
  input  fs_pkg::function_t  load_owner_i,
  input  host_beat_t         load_address_i,
  output logic               loaded_valid_o,
  input  logic               loaded_ready_i,
  output set_number_t        loaded_set_o,
  output context_t           loaded_context_o,

  output logic               read_valid_o,
  input  logic               read_ready_i,
  output host_read_t         read_o,
  input  logic               data_valid_i,
  input  host_data_t         data_i
);
  localparam int unsigned SET_BITS = $clog2(QUEUE_SETS);

  // ---- Requests, listed by function -------------------------------------------------------------

  host_beat_t addresses_q [QUEUE_SETS];
  host_beat_t address_q;
  logic push_q, push_ready, list_idle, next_valid, next_ready;
  set_number_t push_set_q, set_q;
  fs_pkg::function_t push_owner_q, next_owner, owner_q;
  ring_number_t next;

  always_ff @(posedge clk_i) begin
    if (load_valid_i) begin
      addresses_q[SET_BITS'(load_set_i)] <= load_address_i;
      {push_set_q, push_owner_q} <= {load_set_i, load_owner_i};
    end
    address_q <= addresses_q[SET_BITS'(set_q)];
    if (!rst_ni) push_q <= 1'b0;
    else push_q <= load_valid_i || (push_q && !push_ready);
  end

  // Here every number of the scheduler's lists is a queue set, and no slot is needed.
  qdma_scheduler #(.QUEUE_SETS(QUEUE_SETS / 2)) i_list (
    .clk_i, .rst_ni, .idle_o(list_idle),
    .push_valid_i(push_q), .push_ready_o(push_ready), .push_owner_i(push_owner_q),
    .push_ring_i(ring_number_t'(push_set_q)), .has_slot_i('1), .visiting_i(1'b0), .starved_o(),
    .visit_valid_o(next_valid), .visit_ready_i(next_ready), .visit_owner_o(next_owner),
    .visit_ring_o(next)
  );

  assert property (@(posedge clk_i) disable iff (!rst_ni) !load_valid_i || !push_q)
  else $error("requests come too fast");

  // ---- One context at a time --------------------------------------------------------------------

  typedef enum logic [3:0] { IDLE, FIND, ASK, LISTEN, CHECK, PICK, ADD, COMPARE, DONE } state_e;
  state_e state_q;

  queue_context_t context_q;
  logic [7:0] status_q;
  logic [1:0] ring_q;  // H2C, C2H, completions
  host_beat_t first_q;
  logic [13:0] beats_q;
  logic [58:0] past_q;
  logic below_q, beyond_q;
  window_t window_q;

  assign read_valid_o = state_q == ASK;
  assign read_o = '{
    owner: owner_q, tag: '{kind: READ_CONTEXT, number: '0}, address: address_q, two: 1'b0
  };

  logic bad_size, bad_base;
  assign bad_size = context_q.h2c_log2 > 8'(MAX_RING_LOG2) || context_q.c2h_log2 > 8'(MAX_RING_LOG2)
      || context_q.cq_log2 > 8'(MAX_RING_LOG2);
  assign bad_base = context_q.h2c_base[6:0] != '0 || context_q.c2h_base[6:0] != '0
      || context_q.cq_base[5:0] != '0;

  host_beat_t first;
  logic [3:0] log2;
  logic [13:0] entries, beats;
  always_comb begin
    unique case (ring_q)
      2'd0: {first, log2} = {context_q.h2c_base[63:6], context_q.h2c_log2[3:0]};
      2'd1: {first, log2} = {context_q.c2h_base[63:6], context_q.c2h_log2[3:0]};
      default: {first, log2} = {context_q.cq_base[63:6], context_q.cq_log2[3:0]};
    endcase
    entries = 14'd1 << log2;
    // A descriptor has two beats; a beat holds two completions.
    beats = ring_q[1] ? (entries >> 1) | 14'(entries[0]) : entries << 1;
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= IDLE;
    end else begin
      unique case (state_q)
        IDLE: begin
          {owner_q, set_q} <= {next_owner, set_number_t'(next)};
          if (next_valid) state_q <= FIND;
        end
        FIND: state_q <= ASK;
        ASK: if (read_ready_i) state_q <= LISTEN;
        LISTEN: begin
          if (data_valid_i && data_i.tag.kind == READ_CONTEXT) begin
            context_q <= data_i.data;
            status_q <= data_i.error ? STATUS_HOST_ERROR : STATUS_OK;
            state_q <= CHECK;
          end
        end
        CHECK: begin
          if (status_q == STATUS_OK && bad_size) status_q <= STATUS_BAD_PARAMETER;
          else if (status_q == STATUS_OK && bad_base) status_q <= STATUS_BAD_ALIGNMENT;
          ring_q <= '0;
          window_q <= windows_i[owner_q].host;
          {below_q, beyond_q} <= '0;
          state_q <= PICK;
        end
        // The unit picks the next ring while it checks the last one.
        PICK: begin
          first_q <= first;
          beats_q <= beats;
          if (below_q || beyond_q) status_q <= STATUS_HOST_FAULT;
          state_q <= (status_q != STATUS_OK || below_q || beyond_q || ring_q == 2'd3) ? DONE : ADD;
        end
        ADD: begin
          past_q <= 59'(first_q) + 59'(beats_q);
          state_q <= COMPARE;
        end
        COMPARE: begin
          below_q <= first_q < window_q.base;
          beyond_q <= past_q > 59'(window_q.limit);
          ring_q <= ring_q + 1'b1;
          state_q <= PICK;
        end
        DONE: if (loaded_ready_i) state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end

  assign next_ready = state_q == IDLE;
  assign idle_o = state_q == IDLE && list_idle && !push_q;
  assign loaded_valid_o = state_q == DONE;
  assign loaded_set_o = set_q;
  assign loaded_context_o = '{
    status: status_q,
    interrupts: context_q.flags[CONTEXT_FLAG_INTERRUPTS_BIT],
    cq_base: context_q.cq_base[63:6],
    cq_log2: context_q.cq_log2[3:0],
    bases: {context_q.c2h_base[63:7], context_q.h2c_base[63:7]},
    log2s: {context_q.c2h_log2[3:0], context_q.h2c_log2[3:0]}
  };
endmodule
