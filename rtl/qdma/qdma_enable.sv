// Enables a queue set: reads its context from host memory and checks the context. Rings of
// descriptors begin at multiples of a descriptor's size, and the ring of completions begins at a
// multiple of a beat. All rings lie inside the function's window.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_enable
  import qdma_pkg::*;
  import fs_regs_pkg::*;
(
  input  logic               clk_i,
  input  logic               rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,

  input  logic               start_i,
  input  fs_pkg::function_t  owner_i,
  input  host_beat_t         address_i,
  output logic               done_o,
  output context_t           context_o,

  output logic               read_valid_o,
  input  logic               read_ready_i,
  output host_read_t         read_o,
  input  logic               data_valid_i,
  input  host_data_t         data_i
);
  typedef enum logic [2:0] { IDLE, ASK, LISTEN, CHECK, PICK, ADD, COMPARE, DONE } state_e;
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
    owner: owner_i, tag: '{kind: READ_CONTEXT, number: '0}, address: address_i, two: 1'b0
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
        IDLE: if (start_i) state_q <= ASK;
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
          window_q <= windows_i[owner_i].host;
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
        DONE: state_q <= IDLE;
        default: state_q <= IDLE;
      endcase
    end
  end

  assign done_o = state_q == DONE;
  assign context_o = '{
    status: status_q,
    interrupts: context_q.flags[CONTEXT_FLAG_INTERRUPTS_BIT],
    cq_base: context_q.cq_base[63:6],
    cq_log2: context_q.cq_log2[3:0],
    bases: {context_q.c2h_base[63:7], context_q.h2c_base[63:7]},
    log2s: {context_q.c2h_log2[3:0], context_q.h2c_log2[3:0]}
  };
endmodule
