// Priority select: the first wrong one of COUNT findings about a descriptor, for an engine's
// answer.
//
// A finding may be a long comparison, and the selection among many findings is long, too. Both the
// comparison and the selection end in registers, so the outputs follow the inputs after two cycles.

module fs_priority_select
  import fs_pkg::*;
#(
  parameter int unsigned COUNT = 8
) (
  input  logic         clk_i,

  input  finding_t     findings_i [COUNT],

  output logic         found_o,
  output logic [7:0]   status_o,  // status_o and detail_o are 0 without a finding
  output logic [63:0]  detail_o
);
  if (COUNT == 0) begin : gen_count_check
    $error("COUNT must be at least 1");
  end

  logic [COUNT-1:0] wrong_q, first;
  logic [7:0] status;
  logic [63:0] detail;

  always_comb begin
    status = '0;
    detail = '0;
    for (int unsigned i = 0; i < COUNT; i++) begin
      first[i] = wrong_q[i] && (wrong_q & COUNT'((1 << i) - 1)) == '0;
      if (first[i]) status |= findings_i[i].status;
      if (first[i]) detail |= findings_i[i].detail;
    end
  end

  always_ff @(posedge clk_i) begin
    for (int unsigned i = 0; i < COUNT; i++) wrong_q[i] <= findings_i[i].is_wrong;
    found_o <= wrong_q != '0;
    status_o <= status;
    detail_o <= detail;
  end
endmodule
