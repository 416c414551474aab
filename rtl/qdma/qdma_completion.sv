// The completion engine writes completions to the rings in host memory. When the completions have
// landed, it raises interrupts. An interrupt only tells the driver to look at its completions, so
// the waiting interrupts of one function are merged. The engine counts, modulo 2^16, the
// completions that it made and those that have landed. qdma_regs uses the counts: after a driver
// learns that its queue set is disabled, it may use the ring's memory for something else.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // this module uses only parts of its structures

module qdma_completion
  import qdma_pkg::*;
(
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic [7:0]          vectors_i [FUNCTIONS],
  output logic                idle_o,
  output logic [15:0]         made_o,
  output logic [15:0]         landed_o,

  output logic                room_o,
  input  logic                valid_i,
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

  always_ff @(posedge clk_i) begin
    if (!rst_ni) {made_o, landed_o} <= '0;
    else begin
      made_o <= made_o + 16'(valid_i);
      landed_o <= landed_o + 16'(done_valid_i);
    end
  end

  // ---- Interrupts -----------------------------------------------------------------------------

  // Round robin over functions: a function whose completions never end gets one interrupt per
  // round.
  logic [FUNCTIONS-1:0] due_q, after_q, after, first, first_q;
  logic interrupt_valid_q, chosen_q, pick;
  fs_pkg::function_t number;
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
    if (pick) interrupt_vector_o <= vectors_i[number];
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
      if (pick) interrupt_valid_q <= 1'b1;
      else if (interrupt_ready_i) interrupt_valid_q <= 1'b0;
    end
  end
  assign interrupt_valid_o = interrupt_valid_q;
  assign idle_o = !valid && !write_valid_q && due_q == '0 && !interrupt_valid_q;
endmodule
