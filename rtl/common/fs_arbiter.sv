// Round robin among COUNT requesters: the one after the last one served goes first. A grant stays
// until its requester is served, so the output does not change while it waits.

module fs_arbiter #(
  parameter int unsigned COUNT = 4,
  localparam int unsigned INDEX_BITS = (COUNT > 1) ? $clog2(COUNT) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic [COUNT-1:0]       request_i,
  output logic                   valid_o,   // there is a grant
  output logic [INDEX_BITS-1:0]  index_o,   // the granted requester
  input  logic                   served_i   // the granted requester is done in this cycle
);
  if (COUNT == 0) begin : gen_count_check
    $error("COUNT must be at least 1");
  end

  // The requesters after the last one served. The lowest request among them wins; if there is none,
  // the lowest of all requests wins.
  logic [COUNT-1:0] after_q;
  logic locked_q;
  logic [INDEX_BITS-1:0] locked_index_q;

  function automatic logic [INDEX_BITS-1:0] lowest(input logic [COUNT-1:0] requests);
    for (int unsigned i = 0; i < COUNT; i++) begin
      if (requests[i]) return INDEX_BITS'(i);
    end
    return '0;
  endfunction

  logic [COUNT-1:0] preferred;
  assign preferred = request_i & after_q;
  assign valid_o = |request_i;
  assign index_o = locked_q ? locked_index_q : lowest((|preferred) ? preferred : request_i);

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      after_q <= '0;
      locked_q <= 1'b0;
      locked_index_q <= '0;
    end else if (valid_o) begin
      locked_q <= !served_i;
      locked_index_q <= index_o;
      if (served_i) begin
        for (int unsigned i = 0; i < COUNT; i++) after_q[i] <= INDEX_BITS'(i) > index_o;
      end
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) !locked_q || request_i[locked_index_q])
  else $error("a request was withdrawn");
endmodule
