// CRC32C of messages, 64 bytes per cycle.
//
// A message is a sequence of beats. All beats are full but the last, which has in_bytes_i (0 to 64)
// valid bytes at its low end. Messages may follow each other without a gap, and a message may
// pause. Sums come out in the order of the messages, LATENCY cycles after their last beats. The
// pipeline has no back-pressure: its user reserves room for the sums.
//
//   mask      sets bytes that are not valid to 0
//   words     16 matrices: the share of each 4 bytes in the register after the beat
//   sum       the sum of these shares
//   register  register <= (register advanced by a beat) + that sum
//   retreat   seven steps back, by 64 - in_bytes_i zeros in all, and the final inversion
//
// Only the stage `register` is a loop: about 17 inputs per bit, two levels of 6-input tables.

module crc32c
  import crc32c_pkg::*;
(
  input  logic          clk_i,
  input  logic          rst_ni,

  input  logic          in_valid_i,
  input  logic [511:0]  in_data_i,
  input  logic          in_last_i,
  input  logic [6:0]    in_bytes_i,  // valid bytes of the last beat; the other beats are full

  output logic          out_valid_o,
  output logic [31:0]   out_sum_o
);
  localparam logic [WORDS-1:0][31:0][31:0] WORD_MATRICES = word_matrices();
  localparam logic [RETREATS-1:0][31:0][31:0] RETREAT_MATRICES = retreat_matrices();

  // Mask.
  logic          masked_valid_q, masked_last_q;
  logic [511:0]  masked_q;
  logic [6:0]    masked_back_q;

  // A byte is valid if its group of eight bytes is valid, or if it is a valid byte of the partial
  // group.
  function automatic logic is_valid(input int unsigned place, input logic [6:0] bytes);
    return 4'(place / 8) < bytes[6:3] || (4'(place / 8) == bytes[6:3] && 3'(place % 8) < bytes[2:0]);
  endfunction

  always_ff @(posedge clk_i) begin
    if (in_valid_i) begin
      masked_last_q <= in_last_i;
      masked_back_q <= in_last_i ? 7'd64 - in_bytes_i : '0;
      masked_q <= in_data_i;
      if (in_last_i) begin
        for (int unsigned i = 0; i < 64; i++) begin
          if (!is_valid(i, in_bytes_i)) masked_q[8*i +: 8] <= '0;
        end
      end
    end
    masked_valid_q <= rst_ni && in_valid_i;
  end

  // Words.
  logic                    words_valid_q, words_last_q;
  logic [WORDS-1:0][31:0]  words_q;
  logic [6:0]              words_back_q;

  always_ff @(posedge clk_i) begin
    if (masked_valid_q) begin
      words_last_q <= masked_last_q;
      words_back_q <= masked_back_q;
      for (int unsigned w = 0; w < WORDS; w++) begin
        words_q[w] <= multiply(WORD_MATRICES[w], masked_q[32*w +: 32]);
      end
    end
    words_valid_q <= rst_ni && masked_valid_q;
  end

  // Sum.
  logic         sum_valid_q, sum_last_q;
  logic [31:0]  sum_q, sum_d;
  logic [6:0]   sum_back_q;

  always_comb begin
    sum_d = '0;
    for (int unsigned w = 0; w < WORDS; w += 4) begin
      sum_d ^= (words_q[w] ^ words_q[w+1]) ^ (words_q[w+2] ^ words_q[w+3]);
    end
  end

  always_ff @(posedge clk_i) begin
    if (words_valid_q) begin
      sum_last_q <= words_last_q;
      sum_back_q <= words_back_q;
      sum_q <= sum_d;
    end
    sum_valid_q <= rst_ni && words_valid_q;
  end

  // The register and the retreat steps after it. At the end of a message the register starts again.
  logic [31:0]  register_q, register_d;
  logic [31:0]  sums_q [RETREATS+1];  // before the final inversion
  logic [6:0]   back_q [RETREATS];
  logic         done_q [RETREATS+1];  // the message ended with this beat

  assign register_d = multiply(WORD_MATRICES[0], register_q) ^ sum_q;

  always_ff @(posedge clk_i) begin
    if (!rst_ni || (sum_valid_q && sum_last_q)) register_q <= '1;
    else if (sum_valid_q) register_q <= register_d;
    if (sum_valid_q && sum_last_q) begin
      sums_q[0] <= register_d;
      back_q[0] <= sum_back_q;
    end
    done_q[0] <= rst_ni && sum_valid_q && sum_last_q;
  end

  for (genvar i = 0; i < int'(RETREATS); i++) begin : gen_retreat
    always_ff @(posedge clk_i) begin
      if (done_q[i]) begin
        sums_q[i+1] <= back_q[i][i] ? multiply(RETREAT_MATRICES[i], sums_q[i]) : sums_q[i];
      end
      done_q[i+1] <= rst_ni && done_q[i];
    end
    if (i + 1 < int'(RETREATS)) begin : gen_back
      always_ff @(posedge clk_i) if (done_q[i]) back_q[i+1] <= back_q[i];
    end
  end

  assign out_valid_o = done_q[RETREATS];
  assign out_sum_o = ~sums_q[RETREATS];

  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   (in_valid_i && in_last_i) |-> in_bytes_i <= 7'd64)
  else $error("more than 64 bytes in a beat");
endmodule
