// One mix of the hash rjenkins1: nine lines of subtract, subtract, exclusive-or with a shifted word,
// which change three words in place; LINES_PER_STAGE lines between registers.
//
// A line is a three-operand sum and an exclusive-or, so three lines are about three carry chains.

module crush_mix #(
  parameter int unsigned LINES_PER_STAGE = 3,
  localparam int unsigned STAGES = 9 / LINES_PER_STAGE
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,  // a beat stands before this stage
  input  logic [31:0]        a_i,
  input  logic [31:0]        b_i,
  input  logic [31:0]        c_i,
  output logic [31:0]        a_o,
  output logic [31:0]        b_o,
  output logic [31:0]        c_o
);
  if (LINES_PER_STAGE == 0 || 9 % LINES_PER_STAGE != 0) begin : gen_check
    $error("LINES_PER_STAGE must be 1, 3 or 9");
  end

  // By how many bits the word is shifted in each line: right, left, right, and so on.
  localparam logic [4:0] SHIFTS [9] = '{13, 8, 13, 12, 16, 5, 3, 10, 15};

  logic [31:0] a_d [STAGES], b_d [STAGES], c_d [STAGES];
  logic [31:0] a_q [STAGES], b_q [STAGES], c_q [STAGES];

  for (genvar stage = 0; stage < STAGES; stage++) begin : gen_stage
    logic [31:0] a, b, c;

    always_comb begin
      a = (stage == 0) ? a_i : a_q[(stage == 0) ? 0 : stage - 1];
      b = (stage == 0) ? b_i : b_q[(stage == 0) ? 0 : stage - 1];
      c = (stage == 0) ? c_i : c_q[(stage == 0) ? 0 : stage - 1];
      for (int unsigned line = stage * LINES_PER_STAGE; line < (stage + 1) * LINES_PER_STAGE; line++) begin
        unique case (line % 3)
          0: a = (a - b - c) ^ (c >> SHIFTS[line]);
          1: b = (b - c - a) ^ (a << SHIFTS[line]);
          default: c = (c - a - b) ^ (b >> SHIFTS[line]);
        endcase
      end
    end

    assign a_d[stage] = a;
    assign b_d[stage] = b;
    assign c_d[stage] = c;

    always_ff @(posedge clk_i) begin
      if (valid_i[stage]) begin
        a_q[stage] <= a_d[stage];
        b_q[stage] <= b_d[stage];
        c_q[stage] <= c_d[stage];
      end
    end
  end

  assign a_o = a_q[STAGES-1];
  assign b_o = b_q[STAGES-1];
  assign c_o = c_q[STAGES-1];
endmodule
