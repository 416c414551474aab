// Who has had more than its share of an engine's time, and so has to stay out for a while.
//
// An engine works on an operation to its end, up to MAX_OPERATION_CYCLES. Turns alone would give a
// tenant with long operations nearly all of the time of one with short ones. So an operation that
// takes more than TURN_CYCLES takes its time from others: for each of its cycles, its function owes
// a cycle to every other function that is *active*, that is, has work for the engine, or had some
// less than TURN_CYCLES ago. A function that owes is barred: it gets no turn until the debt is
// paid, one cycle for each cycle in which it has no operation in the engine. It pays even if no
// other function uses the time: those whose operations are short and rare come back, and then find
// the engine free.
//
// So with n active functions, one whose operations are long has the engine for one n-th of the time
// at most. Another function waits for one such operation of each, and then has as much time as one
// of them took. Operations within TURN_CYCLES make no debt; turns divide the engine among them. A
// function that is alone owes nothing.
//
// The unit looks at one function per cycle, so it counts in steps of FUNCTIONS cycles, and one
// adder serves all.

module qdma_share
  import qdma_pkg::*;
  import fs_regs_pkg::TURN_CYCLES;
  import fs_regs_pkg::MAX_OPERATION_CYCLES;
(
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [FUNCTIONS-1:0]  waiting_i,  // functions with operations in their lines
  input  logic [FUNCTIONS-1:0]  working_i,  // functions with operations in the engine
  input  logic [FUNCTIONS-1:0]  begins_i,   // an operation of the function begins: a new turn
  output logic [FUNCTIONS-1:0]  barred_o
);
  localparam int unsigned TURN_STEPS = TURN_CYCLES / FUNCTIONS;
  localparam int unsigned TURN_BITS = $clog2(TURN_STEPS + 1);
  // An operation's steps, for each of the other functions. An engine may take some
  // cycles longer to end an operation; then the debt stays at its largest.
  localparam int unsigned MAX_DEBT = MAX_OPERATION_CYCLES / FUNCTIONS * (FUNCTIONS - 1);
  localparam int unsigned DEBT_BITS = $clog2(MAX_DEBT + 1);
  typedef logic [TURN_BITS-1:0] turn_t;
  typedef logic [DEBT_BITS-1:0] debt_t;

  if (TURN_STEPS < 2 || TURN_CYCLES != FUNCTIONS << $clog2(TURN_STEPS)) begin : gen_turn_check
    $error("TURN_CYCLES must be the number of functions, times a power of two");
  end

  turn_t used_q [FUNCTIONS];   // steps of the turn that its operation has used
  turn_t quiet_q [FUNCTIONS];  // steps until it counts as inactive
  debt_t debts_q [FUNCTIONS];

  // ---- Read -----------------------------------------------------------------------------------

  fs_pkg::function_t read_q, number_q;
  logic [FUNCTIONS-1:0] active_q;
  logic [4:0] actives_q;  // their number
  turn_t used_read_q, quiet_read_q;
  debt_t debt_read_q;
  logic [FUNCTIONS-1:0] begun_q;
  logic clear_q, valid_q;  // the first round clears
  always_ff @(posedge clk_i) begin
    number_q <= read_q;
    used_read_q <= used_q[read_q];
    quiet_read_q <= quiet_q[read_q];
    debt_read_q <= debts_q[read_q];
    if (!rst_ni) begin
      read_q <= '0;
      clear_q <= 1'b1;
      valid_q <= 1'b0;
    end else begin
      read_q <= read_q + 1'b1;
      valid_q <= 1'b1;
      if (number_q == fs_pkg::function_t'(FUNCTIONS - 1) && valid_q) clear_q <= 1'b0;
    end
  end

  // ---- Change and write -----------------------------------------------------------------------

  logic works, turn_over, turn_ends, active;
  logic [4:0] others;
  turn_t used, quiet;
  debt_t debt;
  logic [DEBT_BITS:0] more;
  assign works = working_i[number_q];
  assign turn_over = used_read_q == turn_t'(TURN_STEPS) && !begun_q[number_q];
  assign turn_ends = used_read_q == turn_t'(TURN_STEPS - 1) && !begun_q[number_q];
  assign others = actives_q - 5'(active_q[number_q]);
  // When its turn ends, an operation owes for all of it.
  assign more = {1'b0, debt_read_q}
      + (turn_ends ? (DEBT_BITS+1)'(others) << $clog2(TURN_STEPS) : (DEBT_BITS+1)'(others));
  always_comb begin
    used = '0;
    quiet = turn_t'(TURN_STEPS);
    debt = debt_read_q;
    if (works && !begun_q[number_q]) used = turn_over ? used_read_q : used_read_q + 1'b1;
    if (!works && !waiting_i[number_q]) begin
      quiet = (quiet_read_q == '0) ? '0 : quiet_read_q - 1'b1;
    end
    if (works) begin
      if (turn_over || turn_ends) begin
        debt = (more > (DEBT_BITS+1)'(MAX_DEBT)) ? debt_t'(MAX_DEBT) : more[DEBT_BITS-1:0];
      end
    end else if (debt_read_q != '0) begin
      debt = debt_read_q - 1'b1;
    end
    if (clear_q) {used, quiet, debt} = '0;
    active = quiet != '0;
  end

  always_ff @(posedge clk_i) begin
    used_q[number_q] <= used;
    quiet_q[number_q] <= quiet;
    debts_q[number_q] <= debt;
    if (!rst_ni) begin
      begun_q <= '0;
      active_q <= '0;
      actives_q <= '0;
      barred_o <= '0;
    end else if (valid_q) begin
      active_q[number_q] <= active;
      if (active != active_q[number_q]) begin
        actives_q <= active ? actives_q + 1'b1 : actives_q - 1'b1;
      end
      barred_o[number_q] <= debt != '0;
      begun_q <= (begun_q & ~(FUNCTIONS'(1) << number_q)) | begins_i;
    end
  end
endmodule
