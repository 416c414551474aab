// A remainder by reciprocal, one per cycle: sum_o = offset_i + n_i mod w, of which 16 bits count; w = w_i
// is not 0 and has its short reciprocal beside it (crush_pkg). The quotient is
//
//   q = (n + n * m / 2^32) >> shift, with the reciprocal's multiplier as 2^32 + m,
//
// and since offset + n - q * w fits into 16 bits, so may all that it is computed from.

module crush_modulo #(
  localparam int unsigned STAGES = crush_pkg::MODULO_STAGES
) (
  input  logic                     clk_i,
  input  logic [STAGES-1:0]        valid_i,  // a beat stands before this stage
  input  logic [31:0]              n_i,
  input  logic [15:0]              w_i,
  input  logic [31:0]              m_i,
  input  logic [4:0]               shift_i,
  input  logic [15:0]              offset_i,
  output logic [15:0]              sum_o
);
  localparam int unsigned MULTIPLIED = crush_pkg::multiplier_stages(32, 32);

  if (STAGES != MULTIPLIED + 3) begin : gen_check
    $error("the stages are those of the multiplier and three");
  end

  // verilator lint_off UNUSEDSIGNAL
  logic [63:0] product;  // rounded down to multiples of 2^32
  // verilator lint_on UNUSEDSIGNAL
  crush_multiplier #(.A_BITS(32), .B_BITS(32)) i_product (
    .clk_i,
    .valid_i(valid_i[MULTIPLIED-1:0]),
    .a_i(n_i),
    .b_i(m_i),
    .product_o(product)
  );

  logic [31:0] n;
  logic [4:0] shift;
  crush_delay #(.WIDTH(32 + 5), .STAGES(MULTIPLIED)) i_n (
    .clk_i,
    .valid_i(valid_i[MULTIPLIED-1:0]),
    .data_i({n_i, shift_i}),
    .data_o({n, shift})
  );
  // What is left of the remainder but for q * w.
  logic [15:0] w, sum;
  crush_delay #(.WIDTH(16), .STAGES(MULTIPLIED + 1)) i_w (
    .clk_i,
    .valid_i(valid_i[MULTIPLIED:0]),
    .data_i(w_i),
    .data_o(w)
  );
  crush_delay #(.WIDTH(16), .STAGES(MULTIPLIED + 2)) i_sum (
    .clk_i,
    .valid_i(valid_i[MULTIPLIED+1:0]),
    .data_i(n_i[15:0] + offset_i),
    .data_o(sum)
  );

  logic [15:0] quotient_q, multiple_q, sum_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[MULTIPLIED]) quotient_q <= 16'((33'(n) + 33'(product[63:32])) >> shift);
    if (valid_i[MULTIPLIED+1]) multiple_q <= quotient_q * w;
    if (valid_i[MULTIPLIED+2]) sum_q <= sum - multiple_q;
  end
  assign sum_o = sum_q;
endmodule
