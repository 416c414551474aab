// Properties of fs_arbiter_registered, for a solver. The holder is one-hot. A requester waits for
// at most COUNT-1 services of others. If there are requests but the holder makes none, a requester
// holds the grant in the next cycle.

module fs_arbiter_registered_formal #(
  parameter int unsigned COUNT = 4
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic [COUNT-1:0]  new_i,     // new requests
  input  logic              ready_i,
  input  logic [1:0]        watch_i    // the solver's choice of the watched requester, constant
                                       // over time
);
  localparam int unsigned INDEX_BITS = $clog2(COUNT);

  logic [COUNT-1:0] request_q, holder, holder_q, served;
  logic [7:0] waited_q;
  logic [INDEX_BITS-1:0] watch_q;
  logic is_chosen_q, was_idle_q, stayed_q;

  assign served = ready_i ? request_q & holder : '0;

  fs_arbiter_registered #(.COUNT(COUNT)) i_arbiter (
    .clk_i, .rst_ni, .request_i(request_q), .ready_i, .holder_o(holder)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      request_q <= '0;
      waited_q <= '0;
      watch_q <= watch_i;
      is_chosen_q <= 1'b1;
      was_idle_q <= 1'b0;
      stayed_q <= 1'b0;
    end else begin
      request_q <= (request_q & ~served) | new_i;
      holder_q <= holder;
      // A holder that requests and is not served keeps the grant. A holder without a request passes
      // the grant on.
      stayed_q <= (request_q & holder) != '0 && !ready_i;
      was_idle_q <= (request_q & holder) == '0 && request_q != '0;
      if (!request_q[watch_q] || served[watch_q]) waited_q <= '0;
      else if (served != '0) waited_q <= waited_q + 1'b1;
    end
  end

  always_comb begin
    if (rst_ni && is_chosen_q) begin
      assert ($onehot(holder));
      if (stayed_q) assert (holder == holder_q);
      if (was_idle_q) assert ((request_q & holder) != '0);
      assert (waited_q < 8'(COUNT));
    end
  end
endmodule
