// Multiply-add of LANES operands of 64 bytes into ROWS sums, one beat per cycle.
//
//   operands  the operands and the matrices of their coefficients go into registers
//   products  coefficient times operand, for every row and lane: two levels of 6-input tables
//   sums      adds the products of a row: two levels for up to 36 lanes
//
// Coefficients come with the operands or, with CONSTANT, from the parameter COEFFICIENTS (row r,
// lane l in byte r * LANES + l). Constant coefficients make the products fixed XORs. An operand
// whose coefficients are all zero may have any value. Results are valid LATENCY cycles after their
// operands.

module gf_tree
  import gf_pkg::*;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned ROWS = 1,
  parameter bit CONSTANT = 1'b0,
  parameter logic [8*ROWS*LANES-1:0] COEFFICIENTS = '0
) (
  input  logic                             clk_i,
  input  logic                             rst_ni,

  input  logic                             in_valid_i,
  input  planes_t                          in_operands_i [LANES],
  input  logic [ROWS-1:0][LANES-1:0][7:0]  in_coefficients_i,  // not used with CONSTANT

  output logic                             out_valid_o,
  output planes_t                          out_sums_o [ROWS]
);
  if (LANES == 0 || LANES > 36) begin : gen_lanes_check
    $error("LANES must be 1 to 36: the sum has two levels");
  end
  if (ROWS == 0) begin : gen_rows_check
    $error("ROWS must be at least 1");
  end

  logic valid_q, products_valid_q, sums_valid_q;

  always_ff @(posedge clk_i) begin
    valid_q <= rst_ni && in_valid_i;
    products_valid_q <= rst_ni && valid_q;
    sums_valid_q <= rst_ni && products_valid_q;
  end

  planes_t products_q [ROWS*LANES];

  for (genvar l = 0; l < int'(LANES); l++) begin : gen_lane
    // A row uses the operand.
    logic used, used_q;
    always_comb begin
      used = CONSTANT;
      if (!CONSTANT) begin
        for (int unsigned r = 0; r < ROWS; r++) used |= in_coefficients_i[r][l] != '0;
      end
    end

    planes_t operand_q;
    always_ff @(posedge clk_i) begin
      if (in_valid_i) used_q <= used;
      if (in_valid_i && used) operand_q <= in_operands_i[l];
    end

    for (genvar r = 0; r < int'(ROWS); r++) begin : gen_row
      matrix_t coefficient;
      if (CONSTANT) begin : gen_constant
        assign coefficient = matrix(COEFFICIENTS[8*(r*LANES+l) +: 8]);
      end else begin : gen_table
        matrix_t coefficient_q;
        always_ff @(posedge clk_i) begin
          if (in_valid_i && used) coefficient_q <= matrix(in_coefficients_i[r][l]);
        end
        assign coefficient = coefficient_q;
      end

      planes_t product;
      gf_mul i_mul (
        .matrix_i (coefficient),
        .planes_i (operand_q),
        .product_o(product)
      );

      always_ff @(posedge clk_i) begin
        if (valid_q) begin
          if (used_q) products_q[r*LANES+l] <= product;
          else products_q[r*LANES+l] <= '0;
        end
      end
    end
  end

  for (genvar r = 0; r < int'(ROWS); r++) begin : gen_sum
    planes_t sum, sum_q;
    always_comb begin
      sum = '0;
      for (int unsigned l = 0; l < LANES; l++) sum ^= products_q[r*LANES+l];
    end
    always_ff @(posedge clk_i) if (products_valid_q) sum_q <= sum;
    assign out_sums_o[r] = sum_q;
  end

  assign out_valid_o = sums_valid_q;
endmodule
