// Remainders by reciprocal, one per lane and cycle: sum_o = offset_i + n_i mod w_i, of which 16
// bits are used. w_i is not 0 and comes with its short reciprocal (crush_pkg). The quotient is
//
//   q = (n + n * m / 2^32) >> shift, with the reciprocal's multiplier as 2^32 + m.
//
// offset + n - q * w fits into 16 bits, so its terms may be cut to 16 bits, too.

module crush_modulo #(
  parameter int unsigned LANES = 16,
  localparam int unsigned STAGES = crush_pkg::MODULO_STAGES
) (
  input  logic                     clk_i,
  input  logic [STAGES-1:0]        valid_i,  // a beat is before this stage
  input  logic [31:0]              n_i [LANES],
  input  logic [15:0]              w_i [LANES],
  input  logic [31:0]              m_i [LANES],
  input  logic [4:0]               shift_i [LANES],
  input  logic [15:0]              offset_i [LANES],
  output logic [15:0]              sum_o [LANES]
);
  localparam int unsigned MULTIPLIED = crush_pkg::multiplier_stages(32, 32);

  if (STAGES != MULTIPLIED + 3) begin : gen_check
    $error("the stages are those of the multiplier and three");
  end

  typedef logic [15:0] halves_t [LANES];

  logic [63:0] product [LANES];
  crush_multiplier #(.LANES(LANES), .A_BITS(32), .B_BITS(32)) i_product (
    .clk_i,
    .valid_i(valid_i[MULTIPLIED-1:0]),
    .a_i(n_i),
    .b_i(m_i),
    .product_o(product)
  );

  logic [31:0] n [LANES];
  logic [4:0] shift [LANES];
  halves_t w, offset;
  crush_delay_line #(.LANES(LANES), .WIDTH(32), .STAGES(MULTIPLIED)) i_n (
    .clk_i, .valid_i(valid_i[MULTIPLIED-1:0]), .data_i(n_i), .data_o(n)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(5), .STAGES(MULTIPLIED)) i_shift (
    .clk_i, .valid_i(valid_i[MULTIPLIED-1:0]), .data_i(shift_i), .data_o(shift)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(16), .STAGES(MULTIPLIED + 1)) i_w (
    .clk_i, .valid_i(valid_i[MULTIPLIED:0]), .data_i(w_i), .data_o(w)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(16), .STAGES(MULTIPLIED + 1)) i_offset (
    .clk_i, .valid_i(valid_i[MULTIPLIED:0]), .data_i(offset_i), .data_o(offset)
  );

  halves_t quotient_q, n_low_q, multiple_q, rest_q, sum_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[MULTIPLIED]) begin
      automatic halves_t quotient, low;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        quotient[lane] = 16'((33'(n[lane]) + 33'(product[lane] >> 32)) >> shift[lane]);
        low[lane] = n[lane][15:0];
      end
      quotient_q <= quotient;
      n_low_q <= low;
    end
    if (valid_i[MULTIPLIED+1]) begin
      automatic halves_t multiple, rest;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        multiple[lane] = quotient_q[lane] * w[lane];
        rest[lane] = n_low_q[lane] + offset[lane];
      end
      multiple_q <= multiple;
      rest_q <= rest;
    end
    if (valid_i[MULTIPLIED+2]) begin
      automatic halves_t sum;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) sum[lane] = rest_q[lane] - multiple_q[lane];
      sum_q <= sum;
    end
  end
  assign sum_o = sum_q;
endmodule
