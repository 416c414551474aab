// The logarithm of straw2: n_o = 2^48 - crush_ln(u_i), for u_i from 0 to 65535, exactly; one per cycle.
//
// crush_ln(u) is about 2^44 * log2(u + 1), by two table steps (crates/crush/src/ln.rs). u + 1 is
// shifted up to x = (128 + k) * 256 + low, by 15 - exponent; k selects the reciprocal RH[k] and the
// logarithm LH[k]. The product x * RH[k], of which bits 55 to 48 count, is
//
//   256 * (128 + k) * RH[k] + low * RH[k] = 2^63 + 256 * EXCESS[k] + low * RH[k]
//
// so that a multiplier of 8 by 49 bits will do. Those bits select LL, and
//
//   crush_ln(u) = exponent * 2^44 + (LH[k] + LL) / 16.
//
// Stages: add and count zeros, shift, read tables, multiply (two), read LL, add, subtract.

module crush_ln (
  input  logic         clk_i,
  input  logic [crush_pkg::LN_STAGES-1:0] valid_i,  // a beat stands before this stage
  input  logic [15:0]  u_i,
  output logic [48:0]  n_o
);
  import crush_ln_pkg::*;

  if (crush_pkg::LN_STAGES != 8) begin : gen_check
    $error("this pipeline has 8 stages");
  end

  // Zeros before the highest set bit of 16, at most 15.
  function automatic logic [3:0] zeros(input logic [15:0] word);
    zeros = 4'd15;
    for (int unsigned position = 0; position < 16; position++) begin
      if (word[position]) zeros = 4'(15 - position);
    end
  endfunction

  logic [16:0] x_d;
  logic [15:0] x_q;  // without bit 16: x = 2^16 then is k = 128 and low = 0 all the same
  logic [3:0] shift_q, shift2_q;
  logic [15:0] shifted_q;
  assign x_d = 17'(u_i) + 17'd1;

  // x = 2^16 is the only one with bit 16; it needs no shift, as little as those with bit 15.
  always_ff @(posedge clk_i) begin
    if (valid_i[0]) begin
      x_q <= x_d[15:0];
      shift_q <= x_d[16] ? 4'd0 : zeros(x_d[15:0]);
    end
    if (valid_i[1]) begin
      shifted_q <= x_q << shift_q;
      shift2_q <= shift_q;
    end
  end

  logic [7:0] k;
  assign k = shifted_q[15:8] ^ 8'h80;  // of x = 2^16: 128

  logic [48:0] reciprocal_q;
  logic [47:0] high_q;
  logic [7:0] excess_q, low_q;
  logic [3:0] shift3_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[2]) begin
      reciprocal_q <= RH[k];
      high_q <= LH[k];
      excess_q <= EXCESS[k];
      low_q <= shifted_q[7:0];
      shift3_q <= shift2_q;
    end
  end

  // Two products and the excess make one sum.
  logic [32:0] product_low_q, product_high_q;
  logic [7:0] excess4_q;
  // verilator lint_off UNUSEDSIGNAL
  logic [57:0] sum;  // bits 55 to 48 count
  // verilator lint_on UNUSEDSIGNAL
  logic [7:0] remainder_q;
  assign sum = 58'(product_low_q) + {product_high_q, 25'd0} + 58'({excess4_q, 8'd0});
  always_ff @(posedge clk_i) begin
    if (valid_i[3]) begin
      product_low_q <= 33'(low_q) * 33'(reciprocal_q[24:0]);
      product_high_q <= 33'(low_q) * 33'(reciprocal_q[48:25]);
      excess4_q <= excess_q;
    end
    if (valid_i[4]) remainder_q <= sum[55:48];
  end

  logic [47:0] correction_q;
  always_ff @(posedge clk_i) if (valid_i[5]) correction_q <= LL[remainder_q];

  // {shift, LH[k]} waits for the correction.
  logic [51:0] waiting4_q, waiting5_q, waiting6_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[3]) waiting4_q <= {shift3_q, high_q};
    if (valid_i[4]) waiting5_q <= waiting4_q;
    if (valid_i[5]) waiting6_q <= waiting5_q;
  end

  // verilator lint_off UNUSEDSIGNAL
  logic [48:0] logarithm_q;  // the lowest four bits are rounded away
  // verilator lint_on UNUSEDSIGNAL
  logic [3:0] shift7_q;
  logic [48:0] n_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[6]) begin
      logarithm_q <= 49'(waiting6_q[47:0]) + 49'(correction_q);
      shift7_q <= waiting6_q[51:48];
    end
    // 2^48 less exponent * 2^44 is (16 - exponent) * 2^44, and 16 - exponent is shift + 1.
    if (valid_i[7]) n_q <= {5'(shift7_q) + 5'd1, 44'd0} - 49'(logarithm_q[48:4]);
  end
  assign n_o = n_q;
endmodule
