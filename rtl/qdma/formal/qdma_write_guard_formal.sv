// Properties of qdma_write_guard, for a solver, without a bound: what leaves lies inside the window
// of the function that it names, and only what does not is refused, unless the function is being
// reset. While it is, at most two writes leave or count as faults. The windows do not change between
// resets.

module qdma_write_guard_formal
  import qdma_pkg::*;
(
  input  logic                     clk_i,
  input  logic                     rst_ni,
  input  windows_t [FUNCTIONS-1:0] windows_i,
  input  logic [FUNCTIONS-1:0]     reset_i,
  input  fs_pkg::function_t        chosen_i,
  input  logic                     in_valid_i,
  input  noted_write_t             in_i,
  input  logic                     host_ready_i
);
  windows_t [FUNCTIONS-1:0] windows_q;
  fs_pkg::function_t chosen_q;
  logic was_reset_q = 1'b0;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) {windows_q, chosen_q} <= {windows_i, chosen_i};
    if (!rst_ni) was_reset_q <= 1'b1;
  end

  logic refused, idle, in_ready, done_valid, done_error, host_valid;
  write_note_t done_note;
  host_write_t host;
  qdma_write_guard i_guard (
    .clk_i, .rst_ni, .windows_i(windows_q), .reset_i, .refused_o(refused), .idle_o(idle),
    .in_valid_i, .in_ready_o(in_ready), .in_i,
    .done_valid_o(done_valid), .done_error_o(done_error), .done_note_o(done_note),
    .host_valid_o(host_valid), .host_ready_i, .host_o(host)
  );

  window_t own;
  logic is_inside;
  assign own = windows_q[host.owner].host;
  assign is_inside = host.address >= own.base && host.address < own.limit;

  // What has left for a function, and how often something of it was refused and counted, since its
  // reset began. What is in the guard and entered before the reset may still leave, or count.
  logic [1:0] left_q, counted_q;
  logic chosen_is_reset;
  logic [2:0] pending;
  assign chosen_is_reset = reset_i[chosen_q];
  assign pending = 3'(i_guard.valid_q && !i_guard.cut_off_q && i_guard.write_q.write.owner == chosen_q)
      + 3'(i_guard.compared_q && i_guard.counts_q && host.owner == chosen_q);
  always_ff @(posedge clk_i) begin
    if (!rst_ni || !chosen_is_reset) {left_q, counted_q} <= '0;
    else if (host.owner == chosen_q) begin
      if (host_valid && host_ready_i) left_q <= left_q + 1'b1;
      if (refused) counted_q <= counted_q + 1'b1;
    end
  end

  always_comb begin
    if (!was_reset_q) assume (!rst_ni);  // a reset comes first
    if (rst_ni && was_reset_q) begin
      if (host_valid) assert (is_inside);
      if (refused) assert (!is_inside);
      // At most two in all.
      assert (4'(left_q) + 4'(counted_q) + 4'(pending) <= 4'd2);
      // What induction needs: the state between the two.
      if (i_guard.valid_q) begin
        assert (i_guard.window_q == windows_q[i_guard.write_q.write.owner].host);
      end
      if (i_guard.compared_q) begin
        assert (i_guard.inside_q == (is_inside && i_guard.counts_q));
      end
    end
  end
endmodule
