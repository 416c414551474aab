// The logarithm of straw2: n_o = 2^48 - crush_ln(u_i), for u_i from 0 to 65535, exactly; one per
// lane and cycle.
//
// crush_ln(u) is about 2^44 * log2(u + 1), by two table steps (crates/crush/src/ln.rs). u + 1 is
// shifted left by 15 - exponent to x = (128 + k) * 256 + low. k selects the reciprocal RH[k] and
// the logarithm LH[k]. Only bits 55 to 48 of the product x * RH[k] are used. The product is
//
//   256 * (128 + k) * RH[k] + low * RH[k] = 2^63 + 256 * EXCESS[k] + low * RH[k]
//
// so a multiplier of 8 by 49 bits is enough. Those bits select LL, and
//
//   crush_ln(u) = exponent * 2^44 + (LH[k] + LL) / 16.
//
// Stages: add and count zeros, shift, read tables, multiply (two), read LL, add, subtract.

module crush_ln #(
  parameter int unsigned LANES = 16
) (
  input  logic         clk_i,
  input  logic [crush_pkg::LN_STAGES-1:0] valid_i,  // a beat is before this stage
  input  logic [15:0]  u_i [LANES],
  output logic [48:0]  n_o [LANES]
);
  import crush_ln_pkg::*;

  if (crush_pkg::LN_STAGES != 8) begin : gen_check
    $error("this pipeline has 8 stages");
  end

  typedef logic [3:0] shifts_t [LANES];
  typedef logic [7:0] bytes_t [LANES];
  typedef logic [15:0] halves_t [LANES];
  typedef logic [32:0] products_t [LANES];
  typedef logic [47:0] logarithms_t [LANES];
  typedef logic [48:0] wide_t [LANES];

  // Zeros before the highest set bit of 16, at most 15.
  function automatic logic [3:0] zeros(input logic [15:0] word);
    zeros = 4'd15;
    for (int unsigned position = 0; position < 16; position++) begin
      if (word[position]) zeros = 4'(15 - position);
    end
  endfunction

  // u + 1, and its shift. Only 2^16 has bit 16. It needs no shift, as the numbers with bit 15 need
  // none. Bit 16 is not stored, because k = 128 and low = 0 follow without it.
  halves_t x_q;
  shifts_t shift_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[0]) begin
      automatic halves_t x;
      automatic shifts_t shift;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        x[lane] = u_i[lane] + 16'd1;
        shift[lane] = (x[lane] == '0) ? 4'd0 : zeros(x[lane]);
      end
      x_q <= x;
      shift_q <= shift;
    end
  end

  halves_t shifted_q;
  shifts_t shifted_by_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[1]) begin
      automatic halves_t shifted;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) shifted[lane] = x_q[lane] << shift_q[lane];
      shifted_q <= shifted;
      shifted_by_q <= shift_q;
    end
  end

  wide_t reciprocal_q;
  logarithms_t high_q;
  bytes_t excess_q, low_q;
  shifts_t read_shift_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[2]) begin
      automatic wide_t reciprocal;
      automatic logarithms_t high;
      automatic bytes_t excess, low;
      automatic logic [7:0] k;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        k = shifted_q[lane][15:8] ^ 8'h80;  // of x = 2^16: 128
        reciprocal[lane] = RH[k];
        high[lane] = LH[k];
        excess[lane] = EXCESS[k];
        low[lane] = shifted_q[lane][7:0];
      end
      reciprocal_q <= reciprocal;
      high_q <= high;
      excess_q <= excess;
      low_q <= low;
      read_shift_q <= shifted_by_q;
    end
  end

  // The sum of the two products and the excess.
  products_t product_low_q, product_high_q;
  bytes_t product_excess_q, remainder_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[3]) begin
      automatic products_t product_low, product_high;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        product_low[lane] = 33'(low_q[lane]) * 33'(reciprocal_q[lane][24:0]);
        product_high[lane] = 33'(low_q[lane]) * 33'(reciprocal_q[lane][48:25]);
      end
      product_low_q <= product_low;
      product_high_q <= product_high;
      product_excess_q <= excess_q;
    end
    if (valid_i[4]) begin
      automatic bytes_t remainder;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        remainder[lane] = 8'((58'(product_low_q[lane]) + {product_high_q[lane], 25'd0}
                            + 58'({product_excess_q[lane], 8'd0})) >> 48);
      end
      remainder_q <= remainder;
    end
  end

  logarithms_t correction_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[5]) begin
      automatic logarithms_t correction;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) correction[lane] = LL[remainder_q[lane]];
      correction_q <= correction;
    end
  end

  // LH[k] and the shift are delayed until the correction is read.
  logarithms_t high;
  shifts_t shift, sum_shift_q;
  crush_delay_line #(.LANES(LANES), .WIDTH(48), .STAGES(3)) i_high (
    .clk_i, .valid_i(valid_i[5:3]), .data_i(high_q), .data_o(high)
  );
  crush_delay_line #(.LANES(LANES), .WIDTH(4), .STAGES(3)) i_shift (
    .clk_i, .valid_i(valid_i[5:3]), .data_i(read_shift_q), .data_o(shift)
  );

  wide_t sum_q, n_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[6]) begin
      automatic wide_t sum;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) sum[lane] = 49'(high[lane]) + 49'(correction_q[lane]);
      sum_q <= sum;
      sum_shift_q <= shift;
    end
    // 2^48 minus exponent * 2^44 is (16 - exponent) * 2^44, and 16 - exponent is shift + 1.
    if (valid_i[7]) begin
      automatic wide_t n;
      // verilator unroll_disable
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        n[lane] = {5'(sum_shift_q[lane]) + 5'd1, 44'd0} - (sum_q[lane] >> 4);
      end
      n_q <= n;
    end
  end
  assign n_o = n_q;
endmodule
