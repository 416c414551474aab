// Round robin among COUNT requesters, decided a cycle ahead: a token goes around, and who holds it is a
// register. Only the holder is served. The token stays where it is while nobody else asks, so that a
// requester alone is served in every cycle; otherwise it leaves a holder that was served or that asks for
// nothing, for the next one that asks.

module fs_token #(
  parameter int unsigned COUNT = 4
) (
  input  logic              clk_i,
  input  logic              rst_ni,

  input  logic [COUNT-1:0]  request_i,
  input  logic              ready_i,   // the holder, if it asks, is done in this cycle
  output logic [COUNT-1:0]  holder_o   // one bit is set
);
  if (COUNT == 0) begin : gen_count_check
    $error("COUNT must be at least 1");
  end

  logic [COUNT-1:0] holder_q, first, next;
  logic leaves;

  // For each that may hold it, the first that asks after that one.
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
