// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, as in crates/gf, on whole beats.
//
// **Planes.** The engine keeps the 64 bytes of a beat as eight planes: plane b holds bit b of every
// byte (bit b of byte 8 w + k is bit 8 k + w of the plane). The conversion between bytes and planes
// is only wiring. The same function converts in both directions, because it swaps the same two
// digits of every bit's index. In planes, a product by one coefficient is 64 conditional XORs of
// 64-bit words. In hardware, these are the same gates as 64 byte multipliers, but they are many
// times less work for a simulator.
//
// **Product.** c x = sum over b of (bit b of x) (c 2^b). Row b of the coefficient's matrix is c
// 2^b. Bit j of the product is the sum of the planes b whose row has bit j.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package gf_pkg;
  localparam int unsigned BYTES = 64;

  typedef logic [7:0][BYTES-1:0] planes_t;
  typedef logic [7:0][7:0] matrix_t;

  function automatic logic [7:0] double(input logic [7:0] x);
    return {x[6:0], 1'b0} ^ (x[7] ? 8'h1d : 8'h00);
  endfunction

  function automatic matrix_t matrix(input logic [7:0] coefficient);
    matrix[0] = coefficient;
    for (int unsigned b = 1; b < 8; b++) matrix[b] = double(matrix[b-1]);
  endfunction

  function automatic logic [7:0] multiply(input logic [7:0] x, input logic [7:0] y);
    logic [7:0] multiple;
    multiple = x;
    multiply = '0;
    for (int unsigned b = 0; b < 8; b++) begin
      if (y[b]) multiply ^= multiple;
      multiple = double(multiple);
    end
  endfunction

  // 1 / x = x^254; 0 for 0.
  function automatic logic [7:0] inverse(input logic [7:0] x);
    logic [7:0] square;
    square = x;
    inverse = 8'd1;
    for (int unsigned i = 0; i < 7; i++) begin
      square = multiply(square, square);
      inverse = multiply(inverse, square);
    end
  endfunction

  // Converts a beat's bytes to planes, or planes to bytes.
  function automatic planes_t transpose(input planes_t beat);
    logic [BYTES-1:0] word [8];
    logic [BYTES-1:0] low, high;
    for (int unsigned w = 0; w < 8; w++) word[w] = beat[w];
    for (int unsigned w = 0; w < 8; w += 2) begin
      low = word[w];
      high = word[w+1];
      word[w] = (low & 64'h5555_5555_5555_5555) | ((high & 64'h5555_5555_5555_5555) << 1);
      word[w+1] = ((low >> 1) & 64'h5555_5555_5555_5555) | (high & 64'haaaa_aaaa_aaaa_aaaa);
    end
    for (int unsigned i = 0; i < 4; i++) begin
      low = word[4*(i/2) + i%2];
      high = word[4*(i/2) + i%2 + 2];
      word[4*(i/2) + i%2] = (low & 64'h3333_3333_3333_3333) | ((high & 64'h3333_3333_3333_3333) << 2);
      word[4*(i/2) + i%2 + 2] = ((low >> 2) & 64'h3333_3333_3333_3333) | (high & 64'hcccc_cccc_cccc_cccc);
    end
    for (int unsigned w = 0; w < 4; w++) begin
      low = word[w];
      high = word[w+4];
      word[w] = (low & 64'h0f0f_0f0f_0f0f_0f0f) | ((high & 64'h0f0f_0f0f_0f0f_0f0f) << 4);
      word[w+4] = ((low >> 4) & 64'h0f0f_0f0f_0f0f_0f0f) | (high & 64'hf0f0_f0f0_f0f0_f0f0);
    end
    for (int unsigned w = 0; w < 8; w++) transpose[w] = word[w];
  endfunction
endpackage
