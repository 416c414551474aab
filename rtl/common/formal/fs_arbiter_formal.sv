// Properties of fs_arbiter, for a solver. The arbiter grants only a requester that requests. It
// keeps a grant until the requester is served. A requester waits for at most COUNT-1 services of
// others.

module fs_arbiter_formal #(
  parameter int unsigned COUNT = 4
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic [COUNT-1:0]  new_i,     // new requests
  input  logic              served_i,
  input  logic [1:0]        watch_i    // the solver's choice of the watched requester, constant
                                       // over time
);
  localparam int unsigned INDEX_BITS = $clog2(COUNT);

  logic [COUNT-1:0] request_q;
  logic valid, served, is_locked_q;
  logic [INDEX_BITS-1:0] index, index_q;
  logic [7:0] waited_q;
  logic [INDEX_BITS-1:0] watch_q;
  logic is_chosen_q;

  assign served = served_i && valid;

  fs_arbiter #(.COUNT(COUNT)) i_arbiter (
    .clk_i, .rst_ni, .request_i(request_q), .valid_o(valid), .index_o(index), .served_i(served)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      request_q <= '0;
      is_locked_q <= 1'b0;
      waited_q <= '0;
      watch_q <= watch_i;
      is_chosen_q <= 1'b1;
    end else begin
      request_q <= request_q | new_i;
      if (served) request_q[index] <= new_i[index];
      is_locked_q <= valid && !served;
      index_q <= index;
      if (!request_q[watch_q] || (served && index == watch_q)) waited_q <= '0;
      else if (served) waited_q <= waited_q + 1'b1;
    end
  end

  always_comb begin
    if (rst_ni && is_chosen_q) begin
      assert (valid == (request_q != '0));
      if (valid) assert (request_q[index]);
      if (is_locked_q) assert (index == index_q);
      assert (waited_q < 8'(COUNT));
    end
  end
endmodule
