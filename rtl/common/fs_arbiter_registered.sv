// Round robin among COUNT requesters with a registered grant, decided one cycle ahead. Only the
// holder of the grant is served. The grant stays while no other requester requests, so a lone
// requester is served in every cycle. Otherwise the grant leaves a holder that was served, or that
// does not request, and goes to the next requester.

module fs_arbiter_registered #(
  parameter int unsigned COUNT = 4
) (
  input  logic              clk_i,
  input  logic              rst_ni,

  input  logic [COUNT-1:0]  request_i,
  input  logic              ready_i,   // the holder, if it requests, is done in this cycle
  output logic [COUNT-1:0]  holder_o   // one-hot
);
  if (COUNT == 0) begin : gen_count_check
    $error("COUNT must be at least 1");
  end

  logic [COUNT-1:0] holder_q, first, next;
  logic leaves;

  // For each possible holder, the first requester after it.
  always_comb begin
    next = '0;
    first = '0;
    for (int unsigned holder = 0; holder < COUNT; holder++) begin
      first = '0;
      for (int unsigned distance = COUNT - 1; distance > 0; distance--) begin
        if (request_i[(holder + distance) % COUNT]) first = COUNT'(1) << ((holder + distance) % COUNT);
      end
      if (holder_q[holder]) next |= first;
    end
  end

  assign leaves = next != '0 && (ready_i || (request_i & holder_q) == '0);
  assign holder_o = holder_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) holder_q <= COUNT'(1);
    else if (leaves) holder_q <= next;
  end
endmodule
