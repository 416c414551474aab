// Function-level reset (PCIe, section 6.6.2). The host holds held_i of a function until done_o
// rises. Meanwhile the register file ignores writes to the function's page, and the guards refuse
// the function's accesses to host memory. An access that a guard took before still leaves; done_o
// waits for it.
//
// reset_i has the functions that are reset: those that the host holds, and with function 0 all of
// them. So function 0 is done after all others, even if the host no longer holds these: the register
// file empties the function table when the last one has ended.
//
// The unit resets every queue set of the function, and then reads their states until all are
// DISABLED, and their completions and interrupts have left. Both are events of qdma_context, as the
// register file makes them; this unit lies between the two and puts its events between those of the
// register file. Functions that are reset at the same time take turns, event by event, so a
// function whose jobs take long holds up no other.
//
// When all sets have got their reset, the function's jobs that wait for an engine leave without it
// (clear_o). So a reset waits for the operations that have begun, and for no other tenant.

/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_function_reset
  import qdma_pkg::*;
  import fs_regs_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  output logic                  idle_o,

  input  logic [FUNCTIONS-1:0]  reset_i,
  input  logic [FUNCTIONS-1:0]  held_i,
  output logic [FUNCTIONS-1:0]  ended_o,  // one cycle before done_o
  output logic [FUNCTIONS-1:0]  done_o,
  output logic [FUNCTIONS-1:0]  clear_o,  // all queue sets of the function have got their reset
  input  function_table_queues_t [FUNCTIONS-1:0] queues_i,

  // Events of the register file.
  input  logic                  regs_valid_i,
  output logic                  regs_ready_o,
  input  event_t                regs_event_i,
  output logic                  regs_done_o,

  // Events for qdma_context. event_o stays until the event is done.
  output logic                  event_valid_o,
  input  logic                  event_ready_i,
  output event_t                event_o,
  input  logic                  event_done_i,
  input  queue_state_e          event_state_i,
  input  logic                  unsent_i,  // the event's queue set has completions in the device
  input  logic [FUNCTIONS-1:0]  interrupting_i  // functions with interrupts in the device
);
  typedef enum logic [2:0] { PICK, READ, DECIDE, WAIT, SEND, LISTEN } state_e;
  state_e state_q;
  logic [FUNCTIONS-1:0] done_q, work;
  fs_pkg::function_t function_q;

  // For each function: the next queue set, and whether all have got their reset.
  logic [FUNCTIONS-1:0][15:0] numbers_q;
  logic [FUNCTIONS-1:0] are_reset_q;

  assign work = reset_i & ~done_q;
  assign clear_o = reset_i & are_reset_q;
  assign idle_o = work == '0 && state_q == PICK;
  assign ended_o = done_q;

  // ---- The port of qdma_context -----------------------------------------------------------------

  logic is_own, regs_busy_q;
  event_t event_q;
  assign is_own = state_q inside {SEND, LISTEN};
  assign event_valid_o = is_own ? state_q == SEND : regs_valid_i;
  assign event_o = is_own ? event_q : regs_event_i;
  assign regs_ready_o = !is_own && event_ready_i;
  assign regs_done_o = !is_own && event_done_i;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) regs_busy_q <= 1'b0;
    else if (regs_valid_i && regs_ready_o) regs_busy_q <= 1'b1;
    else if (event_done_i) regs_busy_q <= 1'b0;
  end

  // ---- One event at a time, function after function ---------------------------------------------

  function_table_queues_t row_q;
  logic [15:0] number_q;
  logic [16:0] set;
  logic at_end, is_reset_q;
  assign set = 17'(row_q.first) + 17'(number_q);
  assign at_end = number_q >= row_q.count || set >= 17'(QUEUE_SETS);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      state_q <= PICK;
      function_q <= '0;
      done_q <= '0;
      done_o <= '0;
      numbers_q <= '0;
      are_reset_q <= '0;
    end else begin
      done_o <= done_q & held_i;
      if (done_q != '1) done_o[0] <= 1'b0;
      for (int unsigned f = 0; f < FUNCTIONS; f++) begin
        if (!reset_i[f]) begin
          done_q[f] <= 1'b0;
          numbers_q[f] <= '0;
          are_reset_q[f] <= 1'b0;
        end
      end
      unique case (state_q)
        PICK: begin
          if (work[function_q]) state_q <= READ;
          else function_q <= function_q + 1'b1;
        end
        READ: begin
          row_q <= queues_i[function_q];
          number_q <= numbers_q[function_q];
          is_reset_q <= are_reset_q[function_q];
          state_q <= DECIDE;
        end
        DECIDE: begin
          event_q <= '0;
          event_q.kind <= is_reset_q ? EVENT_READ : EVENT_RESET;
          event_q.set <= set[10:0];
          event_q.page <= function_q;
          state_q <= WAIT;
          if (at_end) begin
            numbers_q[function_q] <= '0;
            are_reset_q[function_q] <= 1'b1;
            done_q[function_q] <= is_reset_q && !interrupting_i[function_q];
            function_q <= function_q + 1'b1;
            state_q <= PICK;
          end
        end
        WAIT: if (!regs_valid_i && !regs_busy_q) state_q <= SEND;
        SEND: if (event_ready_i) state_q <= LISTEN;
        LISTEN: begin
          if (event_done_i) begin
            // A register access that was under way may have enabled a set behind its reset.
            if (is_reset_q && !(event_state_i inside {QUEUE_STATE_DISABLED, QUEUE_STATE_RESETTING}))
            begin
              numbers_q[function_q] <= '0;
              are_reset_q[function_q] <= 1'b0;
            end else if (!is_reset_q || (event_state_i == QUEUE_STATE_DISABLED && !unsent_i)) begin
              numbers_q[function_q] <= number_q + 1'b1;
            end
            function_q <= function_q + 1'b1;
            state_q <= PICK;
          end
        end
        default: state_q <= PICK;
      endcase
    end
  end
endmodule
