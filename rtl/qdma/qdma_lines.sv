// Jobs that wait for a unit, in a line for each function, and whose turn it is: round robin over
// the functions, and within a function in order. A function with many jobs gets no more turns than
// one with a single job. A line has a place for every slot of its function, so a job always finds
// room.
//
// A function that is barred keeps its line, and gets no turn. The jobs of a function that is being
// cleared leave before all others, marked, so that they are not done.
//
// The choice takes two cycles: the function, then the first of its line. So the next job is there
// three cycles after one has left. Until a job is taken, another one may come before it.

module qdma_lines
  import qdma_pkg::*;
(
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  put_valid_i,  // always taken
  input  slot_t                 put_slot_i,

  input  logic [FUNCTIONS-1:0]  barred_i,
  input  logic [FUNCTIONS-1:0]  clear_i,
  output logic [FUNCTIONS-1:0]  waiting_o,    // functions with jobs in their lines

  output logic                  next_valid_o,
  output slot_t                 next_slot_o,
  output logic                  next_cleared_o,
  input  logic                  take_i        // the next job leaves its line
);
  slot_number_t numbers_q [SLOTS];
  slot_number_t [FUNCTIONS-1:0] head_q;
  logic [FUNCTIONS-1:0][4:0] count_q;
  logic [FUNCTIONS-1:0] waiting_q;
  logic [FUNCTIONS-1:0] after_q;  // functions after the last one that had its turn

  // ---- The choice of a function ---------------------------------------------------------------

  logic [FUNCTIONS-1:0] cleared, able, behind, candidates, first_q;
  logic chosen_q, cleared_q;
  assign cleared = waiting_q & clear_i;
  assign able = waiting_q & ~barred_i;
  assign behind = able & after_q;
  assign candidates = (cleared != '0) ? cleared : (behind != '0) ? behind : able;

  always_ff @(posedge clk_i) begin
    first_q <= candidates & (~candidates + 1'b1);
    cleared_q <= cleared != '0;
    if (!rst_ni) chosen_q <= 1'b0;
    else chosen_q <= candidates != '0 && !take_i;
  end

  // ---- The first of its line ------------------------------------------------------------------

  fs_pkg::function_t number;
  slot_number_t head;
  logic valid_q, next_cleared_q;
  slot_t slot_q;
  always_comb begin
    {number, head} = '0;
    for (int unsigned f = 0; f < FUNCTIONS; f++) begin
      if (first_q[f]) {number, head} |= {fs_pkg::function_t'(f), head_q[f]};
    end
  end

  always_ff @(posedge clk_i) begin
    slot_q <= '{owner: number, number: numbers_q[{number, head}]};
    next_cleared_q <= cleared_q;
    if (!rst_ni) valid_q <= 1'b0;
    else valid_q <= chosen_q && !take_i;
  end
  assign next_valid_o = valid_q;
  assign next_slot_o = slot_q;
  assign next_cleared_o = next_cleared_q;

  // ---- The lines ------------------------------------------------------------------------------

  fs_pkg::function_t put_owner, take_owner;
  slot_number_t tail;
  assign put_owner = put_slot_i.owner;
  assign take_owner = slot_q.owner;
  assign tail = head_q[put_owner] + count_q[put_owner][3:0];

  always_ff @(posedge clk_i) begin
    if (put_valid_i) numbers_q[{put_owner, tail}] <= put_slot_i.number;
    if (!rst_ni) begin
      head_q <= '0;
      count_q <= '0;
      waiting_q <= '0;
      after_q <= '0;
    end else begin
      for (int unsigned f = 0; f < FUNCTIONS; f++) begin
        if (put_valid_i && 32'(put_owner) == f && !(take_i && 32'(take_owner) == f)) begin
          count_q[f] <= count_q[f] + 1'b1;
          waiting_q[f] <= 1'b1;
        end
        if (take_i && 32'(take_owner) == f) begin
          head_q[f] <= head_q[f] + 1'b1;
          if (!(put_valid_i && 32'(put_owner) == f)) begin
            count_q[f] <= count_q[f] - 1'b1;
            waiting_q[f] <= count_q[f] != 5'd1;
          end
        end
        if (take_i && !next_cleared_q) after_q[f] <= f > 32'(take_owner);
      end
    end
  end
  assign waiting_o = waiting_q;

  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !put_valid_i || count_q[put_owner] != 5'(FUNCTION_JOBS))
  else $error("more jobs than slots");
  assert property (@(posedge clk_i) disable iff (!rst_ni)
    !take_i || (valid_q && waiting_q[take_owner]))
  else $error("a job leaves that is not there");
endmodule
