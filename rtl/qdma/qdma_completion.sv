// The completion engine writes completions to the rings in host memory. When a completion has left
// the device, the engine raises its interrupt, which the host gets after the completion. An
// interrupt only tells the driver to look at its completions, so the waiting interrupts of one
// function are merged. The engine remembers the queue sets of the completions that have not left.
// qdma_regs asks for this: after a driver learns that its queue set is disabled, it may use the
// ring's memory for something else. It asks for the functions of these queue sets, too.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_completion
  import qdma_pkg::*;
(
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic [7:0]          vectors_i [FUNCTIONS],
  output logic                idle_o,

  // A function that is being reset raises no further interrupt. One may still be at the output.
  input  logic [FUNCTIONS-1:0] reset_i,
  output logic [FUNCTIONS-1:0] interrupting_o,

  // Has this queue set completions that have not left? The answer is one cycle old.
  input  set_number_t         asked_set_i,
  output logic                unsent_o,
  output logic [FUNCTIONS-1:0] unsent_of_o,  // functions with completions that have not left

  output logic                room_o,
  input  logic                valid_i,
  input  set_number_t         set_i,
  input  completion_write_t   completion_i,

  output logic                write_valid_o,
  input  logic                write_ready_i,
  output noted_write_t        write_o,
  input  logic                done_valid_i,  // a write of this unit
  input  write_note_t         done_note_i,

  output logic                interrupt_valid_o,
  input  logic                interrupt_ready_i,
  output logic [7:0]          interrupt_vector_o
);
  // ---- Writes ---------------------------------------------------------------------------------

  logic valid, take, write_valid_q;
  completion_write_t completion;
  fs_fifo #(.WIDTH($bits(completion_write_t)), .DEPTH(4)) i_completions (
    .clk_i, .rst_ni,
    .in_valid_i(valid_i), .in_ready_o(room_o), .in_data_i(completion_i),
    .out_valid_o(valid), .out_ready_i(take), .out_data_o(completion), .level_o()
  );

  assign take = !write_valid_q || write_ready_i;
  always_ff @(posedge clk_i) begin
    if (valid && take) begin
      write_o.note <= '{
        completion: 1'b1, notice: completion.interrupt_due, number: 8'(completion.owner)
      };
      write_o.write <= '{
        owner: completion.owner,
        address: completion.base + 58'(completion.index[11:1]),
        strobe: completion.index[0] ? {{32{1'b1}}, 32'd0} : {32'd0, {32{1'b1}}},
        data: {completion.entry, completion.entry}
      };
    end
    if (!rst_ni) write_valid_q <= 1'b0;
    else if (take) write_valid_q <= valid;
  end
  assign write_valid_o = write_valid_q;

  // ---- Completions that have not left -----------------------------------------------------------

  // They leave in order. At most four wait in the queue above, one after it, and four behind this
  // unit.
  localparam int unsigned UNSENT = 16;

  set_number_t [UNSENT-1:0] unsent_sets_q;
  logic [UNSENT-1:0] unsent_q, is_asked;
  logic [$clog2(UNSENT)-1:0] newest_q, oldest_q;
  for (genvar i = 0; i < UNSENT; i++) begin : gen_unsent
    assign is_asked[i] = unsent_q[i] && unsent_sets_q[i] == asked_set_i;
  end

  always_ff @(posedge clk_i) begin
    unsent_o <= is_asked != '0;
    if (valid_i) unsent_sets_q[newest_q] <= set_i;
    if (!rst_ni) begin
      unsent_q <= '0;
      newest_q <= '0;
      oldest_q <= '0;
    end else begin
      if (valid_i) begin
        unsent_q[newest_q] <= 1'b1;
        newest_q <= newest_q + 1'b1;
      end
      if (done_valid_i) begin
        unsent_q[oldest_q] <= 1'b0;
        oldest_q <= oldest_q + 1'b1;
      end
    end
  end

  // How many each function has.
  logic [FUNCTIONS-1:0][$clog2(UNSENT):0] counts_q;
  always_ff @(posedge clk_i) begin
    for (int unsigned f = 0; f < FUNCTIONS; f++) begin
      if (!rst_ni) counts_q[f] <= '0;
      else begin
        counts_q[f] <= counts_q[f]
            + ($clog2(UNSENT) + 1)'(valid_i && completion_i.owner == fs_pkg::function_t'(f))
            - ($clog2(UNSENT) + 1)'(done_valid_i && done_note_i.number == 8'(f));
      end
    end
  end
  for (genvar f = 0; f < FUNCTIONS; f++) begin : gen_counts
    assign unsent_of_o[f] = counts_q[f] != '0;
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) !valid_i || !unsent_q[newest_q])
  else $error("more completions in the device than places");
  assert property (@(posedge clk_i) disable iff (!rst_ni) !done_valid_i || unsent_q[oldest_q])
  else $error("a completion left that was not made");

  // ---- Interrupts -----------------------------------------------------------------------------

  // Round robin over functions: a function whose completions never end gets one interrupt per
  // round.
  logic [FUNCTIONS-1:0] due_q, after_q, after, first, first_q;
  logic interrupt_valid_q, chosen_q, pick;
  fs_pkg::function_t number, interrupt_owner_q;
  assign after = due_q & after_q;
  assign first = (after != '0) ? after & (~after + 1'b1) : due_q & (~due_q + 1'b1);
  assign pick = chosen_q && !interrupt_valid_q;
  always_comb begin
    number = '0;
    for (int unsigned f = 0; f < FUNCTIONS; f++) begin
      if (first_q[f]) number |= fs_pkg::function_t'(f);
    end
  end

  always_ff @(posedge clk_i) begin
    first_q <= first;
    if (pick) {interrupt_owner_q, interrupt_vector_o} <= {number, vectors_i[number]};
    if (!rst_ni) begin
      after_q <= '0;
      due_q <= '0;
      chosen_q <= 1'b0;
      interrupt_valid_q <= 1'b0;
    end else begin
      chosen_q <= due_q != '0 && !pick;
      if (pick) begin
        due_q <= due_q & ~first_q;
        after_q <= ~(first_q | (first_q - 1'b1));
      end
      if (done_valid_i && done_note_i.notice) due_q[done_note_i.number[3:0]] <= 1'b1;
      for (int unsigned f = 0; f < FUNCTIONS; f++) begin
        if (reset_i[f]) due_q[f] <= 1'b0;
      end
      if (pick) interrupt_valid_q <= 1'b1;
      else if (interrupt_ready_i) interrupt_valid_q <= 1'b0;
    end
  end
  always_comb begin
    interrupting_o = due_q | first_q;
    if (interrupt_valid_q) interrupting_o[interrupt_owner_q] = 1'b1;
  end
  assign interrupt_valid_o = interrupt_valid_q;
  assign idle_o = !valid && !write_valid_q && due_q == '0 && !interrupt_valid_q;
endmodule
