// One mix of the hash rjenkins1, for LANES hashes in parallel: nine lines, which change three words
// in place. A line subtracts twice and then takes the exclusive-or with a shifted word. There are
// LINES_PER_STAGE lines between registers.
//
// A line is a three-operand sum and an exclusive-or, so three lines are about three carry chains.

module crush_mix #(
  parameter int unsigned LANES = 1,
  parameter int unsigned LINES_PER_STAGE = 3,
  localparam int unsigned STAGES = 9 / LINES_PER_STAGE
) (
  input  logic               clk_i,
  input  logic [STAGES-1:0]  valid_i,  // a beat is before this stage
  input  logic [31:0]        a_i [LANES],
  input  logic [31:0]        b_i [LANES],
  input  logic [31:0]        c_i [LANES],
  output logic [31:0]        a_o [LANES],
  output logic [31:0]        b_o [LANES],
  output logic [31:0]        c_o [LANES]
);
  if (LINES_PER_STAGE == 0 || 9 % LINES_PER_STAGE != 0) begin : gen_check
    $error("LINES_PER_STAGE must be 1, 3 or 9");
  end

  // Shift of each line in bits: right, left, right, and so on.
  localparam logic [4:0] SHIFTS [9] = '{13, 8, 13, 12, 16, 5, 3, 10, 15};

  typedef logic [31:0] words_t [LANES];

  for (genvar stage = 0; stage < STAGES; stage++) begin : gen_stage
    localparam int unsigned FIRST = stage * LINES_PER_STAGE;
    words_t a_from, b_from, c_from, a_q, b_q, c_q;
    if (stage == 0) begin : gen_input
      assign a_from = a_i;
      assign b_from = b_i;
      assign c_from = c_i;
    end else begin : gen_before
      assign a_from = gen_stage[stage-1].a_q;
      assign b_from = gen_stage[stage-1].b_q;
      assign c_from = gen_stage[stage-1].c_q;
    end

    always_ff @(posedge clk_i) begin
      if (valid_i[stage]) begin
        automatic words_t a = a_from, b = b_from, c = c_from;
        // verilator unroll_disable
        for (int unsigned lane = 0; lane < LANES; lane++) begin
          for (int unsigned line = FIRST; line < FIRST + LINES_PER_STAGE; line++) begin
            unique case (line % 3)
              0: a[lane] = (a[lane] - b[lane] - c[lane]) ^ (c[lane] >> SHIFTS[line]);
              1: b[lane] = (b[lane] - c[lane] - a[lane]) ^ (a[lane] << SHIFTS[line]);
              default: c[lane] = (c[lane] - a[lane] - b[lane]) ^ (b[lane] >> SHIFTS[line]);
            endcase
          end
        end
        a_q <= a;
        b_q <= b;
        c_q <= c;
      end
    end
  end

  assign a_o = gen_stage[STAGES-1].a_q;
  assign b_o = gen_stage[STAGES-1].b_q;
  assign c_o = gen_stage[STAGES-1].c_q;
endmodule
