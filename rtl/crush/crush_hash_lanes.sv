// The hash of CRUSH, rjenkins1, of 2, 3 or 4 words: LANES hashes per cycle, in parallel.
//
// The hash starts as the exclusive-or of a constant and all words. Then it goes through a series of
// mixes. A mix takes the hash and two more words, and changes all three in place. Besides the
// hashed words there are two constants, x and y, which are also variables of the mixes. The
// definition fixes the words of each mix:
//
//   2 words   (a, b) (x, a) (b, y)
//   3 words   (a, b) (c, x) (y, a) (b, x) (y, c)
//   4 words   (a, b) (c, d) (a, x) (y, b) (c, x) (y, d)
//
// Every mix is a pipeline of 9 / LINES_PER_STAGE stages. A delay line carries each word that a mix
// does not take, from the word's first use (hashed words: from the start) to its last. With three
// lines per stage the hashes take 9, 15 and 18 cycles.
//
// Here and in the other parts of kernels, lanes are loops over arrays in clocked code, and not
// instances. So a simulator runs one piece of code over all lanes, and only when there is a beat.

module crush_hash_lanes #(
  parameter int unsigned LANES = 16,
  parameter int unsigned ARGS = 3,
  parameter int unsigned LINES_PER_STAGE = 3,
  localparam int unsigned STAGES = crush_pkg::hash_stages(ARGS, LINES_PER_STAGE)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  valid_i,
  input  logic [31:0]           args_i [ARGS][LANES],  // args_i[0] are the first words

  output logic                  valid_o,
  output logic [31:0]           hash_o [LANES]
);
  if (ARGS < 2 || ARGS > 4) begin : gen_check
    $error("the hash is of 2, 3 or 4 words");
  end

  localparam int unsigned MIXES = crush_pkg::hash_mixes(ARGS);
  localparam int unsigned MIX_STAGES = 9 / LINES_PER_STAGE;
  localparam logic [31:0] SEED = 32'd1315423911;

  // Numbers of the words.
  localparam int unsigned A = 0, B = 1, C = 2, D = 3, X = 4, Y = 5, WORDS = 6;
  localparam logic [31:0] X_START = 32'd231232, Y_START = 32'd1232;

  // No line coverage for functions that run at elaboration.
  // verilator coverage_off
  function automatic int unsigned first_word(input int unsigned mix);
    unique case (ARGS)
      2: return (mix == 0) ? A : (mix == 1) ? X : B;
      3: return (mix == 0) ? A : (mix == 1) ? C : (mix == 3) ? B : Y;
      default: return (mix == 0) ? A : (mix == 1) ? C : (mix == 2) ? A : (mix == 4) ? C : Y;
    endcase
  endfunction

  function automatic int unsigned second_word(input int unsigned mix);
    unique case (ARGS)
      2: return (mix == 0) ? B : (mix == 1) ? A : Y;
      3: return (mix == 0) ? B : (mix == 2) ? A : (mix == 4) ? C : X;
      default: return (mix == 0) ? B : (mix == 1) ? D : (mix == 3) ? B : (mix == 5) ? D : X;
    endcase
  endfunction

  function automatic bit takes(input int unsigned mix, input int unsigned word);
    return first_word(mix) == word || second_word(mix) == word;
  endfunction

  // An earlier mix takes the word.
  function automatic bit is_taken_before(input int unsigned mix, input int unsigned word);
    for (int unsigned m = 0; m < mix; m++) if (takes(m, word)) return 1'b1;
    return 1'b0;
  endfunction

  // This mix or a later one takes the word.
  function automatic bit is_wanted_from(input int unsigned mix, input int unsigned word);
    for (int unsigned m = mix; m < MIXES; m++) if (takes(m, word)) return 1'b1;
    return 1'b0;
  endfunction
  // verilator coverage_on

  logic [STAGES:0] valid;  // a beat is before this stage
  logic [STAGES-1:0] valid_q;
  assign valid = {valid_q, valid_i};
  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else valid_q <= valid[STAGES-1:0];
  end

  typedef logic [31:0] words_t [LANES];

  // Before mix m: gen_before[m].hash and gen_before[m].gen_word[w].value.
  for (genvar mix = 0; mix <= MIXES; mix++) begin : gen_before
    words_t hash;
    // verilator lint_off UNUSEDSIGNAL
    words_t first, second;  // from the last mix; no later mix may take them
    // verilator lint_on UNUSEDSIGNAL

    if (mix == 0) begin : gen_start
      assign first = '{default: '0};
      assign second = '{default: '0};
      always_comb begin
        // verilator unroll_disable
        for (int unsigned lane = 0; lane < LANES; lane++) begin
          hash[lane] = SEED;
          for (int unsigned arg = 0; arg < ARGS; arg++) hash[lane] ^= args_i[arg][lane];
        end
      end
    end else begin : gen_mix
      crush_mix #(.LANES(LANES), .LINES_PER_STAGE(LINES_PER_STAGE)) i_mix (
        .clk_i,
        .valid_i(valid[(mix-1)*MIX_STAGES +: MIX_STAGES]),
        .a_i(gen_before[mix-1].gen_word[first_word(mix - 1)].value),
        .b_i(gen_before[mix-1].gen_word[second_word(mix - 1)].value),
        .c_i(gen_before[mix-1].hash),
        .a_o(first),
        .b_o(second),
        .c_o(hash)
      );
    end

    for (genvar word = 0; word < WORDS; word++) begin : gen_word
      // verilator lint_off UNUSEDSIGNAL
      words_t value;  // not used after the word's last mix
      // verilator lint_on UNUSEDSIGNAL
      if (!is_wanted_from(mix, word)) begin : gen_done
        assign value = '{default: '0};
      end else if (word >= ARGS && !is_taken_before(mix, word)) begin : gen_constant
        assign value = '{default: (word == X) ? X_START : Y_START};
      end else if (mix == 0) begin : gen_arg
        assign value = args_i[word];
      end else if (word == first_word(mix - 1)) begin : gen_first
        assign value = first;
      end else if (word == second_word(mix - 1)) begin : gen_second
        assign value = second;
      end else begin : gen_wait
        crush_delay_line #(.LANES(LANES), .WIDTH(32), .STAGES(MIX_STAGES)) i_delay (
          .clk_i,
          .valid_i(valid[(mix-1)*MIX_STAGES +: MIX_STAGES]),
          .data_i(gen_before[mix-1].gen_word[word].value),
          .data_o(value)
        );
      end
    end
  end

  assign valid_o = valid[STAGES];
  assign hash_o = gen_before[MIXES].hash;
endmodule
