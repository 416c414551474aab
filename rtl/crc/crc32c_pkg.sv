// CRC32C (Castagnoli, reflected: polynomial 0x82f63b78) as linear maps over GF(2).
//
// When zeros go into the checksum's register, its value changes by a linear map: advance(). The
// columns of this map, the images of the 32 unit vectors, give the effect of a bit of the message
// or register on the register n bytes later. The inverse map, retreat(), removes zeros that were
// too many.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package crc32c_pkg;
  localparam logic [31:0] POLYNOMIAL = 32'h82f6_3b78;
  localparam int unsigned WORDS = 16;    // of 4 bytes in a beat of 64
  localparam int unsigned RETREATS = 7;  // by 1, 2, 4, ... 64 bytes
  localparam int unsigned LATENCY = 4 + RETREATS;  // cycles of crc32c from a last beat to its sum

  typedef logic [31:0][31:0] matrix_t;  // column b: the image of bit b

  function automatic logic [31:0] advance(input logic [31:0] register);
    return {1'b0, register[31:1]} ^ (register[0] ? POLYNOMIAL : 32'd0);
  endfunction

  function automatic logic [31:0] retreat(input logic [31:0] register);
    return register[31] ? {register[30:0] ^ POLYNOMIAL[30:0], 1'b1} : {register[30:0], 1'b0};
  endfunction

  // Matrix w: from the w-th 4 bytes of a beat to the register after the beat. Matrix 0 also
  // advances the register itself by one beat.
  function automatic logic [WORDS-1:0][31:0][31:0] word_matrices();
    logic [31:0] image;
    for (int unsigned b = 0; b < 32; b++) begin
      image = 32'd1 << b;
      for (int unsigned w = 0; w < WORDS; w++) begin
        for (int unsigned step = 0; step < 32; step++) image = advance(image);
        word_matrices[WORDS-1-w][b] = image;
      end
    end
  endfunction

  // Matrix i removes 2^i bytes of zeros.
  function automatic logic [RETREATS-1:0][31:0][31:0] retreat_matrices();
    logic [31:0] image;
    for (int unsigned b = 0; b < 32; b++) begin
      image = 32'd1 << b;
      for (int unsigned i = 0; i < RETREATS; i++) begin
        for (int unsigned step = 0; step < ((i == 0) ? 8 : (4 << i)); step++) image = retreat(image);
        retreat_matrices[i][b] = image;
      end
    end
  endfunction

  // Groups of six columns, so that synthesis finds two levels of 6-input tables instead of a chain.
  function automatic logic [31:0] multiply(input matrix_t matrix, input logic [31:0] vector);
    logic [31:0] six;
    multiply = '0;
    for (int unsigned first = 0; first < 32; first += 6) begin
      six = '0;
      for (int unsigned b = first; b < first + 6 && b < 32; b++) six ^= {32{vector[b]}} & matrix[b];
      multiply ^= six;
    end
  endfunction
endpackage
