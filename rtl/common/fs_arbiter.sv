// Round robin among COUNT requesters: the one after the last one served goes first. A requester that
// was chosen stays chosen until it is served, so that what stands at the output does not change.

module fs_arbiter #(
  parameter int unsigned COUNT = 4,
  localparam int unsigned INDEX_BITS = (COUNT > 1) ? $clog2(COUNT) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic [COUNT-1:0]       request_i,
  output logic                   valid_o,   // someone is chosen
  output logic [INDEX_BITS-1:0]  index_o,   // who
  input  logic                   served_i   // the chosen one is done in this cycle
);
  if (COUNT == 0) begin : gen_count_check
    $error("COUNT must be at least 1");
  end

  // Those after the last one served, and all: the first of the former, else the first of the latter.
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
