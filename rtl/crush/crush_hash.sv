// The hash of CRUSH, rjenkins1, of 2, 3 or 4 words: one hash per cycle.
//
// The hash starts as a constant exclusive-or all words and goes through a series of mixes, each with
// two more words; all three are changed in place. Beside the words hashed there are two constants, x
// and y, which are variables of the mixes too. Which words a mix takes is part of the definition:
//
//   2 words   (a, b) (x, a) (b, y)
//   3 words   (a, b) (c, x) (y, a) (b, x) (y, c)
//   4 words   (a, b) (c, d) (a, x) (y, b) (c, x) (y, d)
//
// Every mix is a pipeline of 9 / LINES_PER_STAGE stages; the words that a mix leaves alone wait
// beside it, from their first use (words that are hashed: from the start) to their last. With three
// lines per stage the hashes take 9, 15 and 18 cycles.

module crush_hash #(
  parameter int unsigned ARGS = 3,
  parameter int unsigned LINES_PER_STAGE = 3,
  localparam int unsigned STAGES = crush_pkg::hash_stages(ARGS, LINES_PER_STAGE)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  valid_i,
  input  logic [ARGS-1:0][31:0] args_i,  // args_i[0] is the first word

  output logic                  valid_o,
  output logic [31:0]           hash_o
);
  if (ARGS < 2 || ARGS > 4) begin : gen_check
    $error("the hash is of 2, 3 or 4 words");
  end

  localparam int unsigned MIXES = crush_pkg::hash_mixes(ARGS);
  localparam int unsigned MIX_STAGES = 9 / LINES_PER_STAGE;
  localparam logic [31:0] SEED = 32'd1315423911;

  // The words, by number.
  localparam int unsigned A = 0, B = 1, C = 2, D = 3, X = 4, Y = 5, WORDS = 6;
  localparam logic [31:0] X_START = 32'd231232, Y_START = 32'd1232;

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

  // Some mix before this one takes the word.
  function automatic bit is_taken_before(input int unsigned mix, input int unsigned word);
    for (int unsigned m = 0; m < mix; m++) if (takes(m, word)) return 1'b1;
    return 1'b0;
  endfunction

  // This mix or a later one takes the word.
  function automatic bit is_wanted_from(input int unsigned mix, input int unsigned word);
    for (int unsigned m = mix; m < MIXES; m++) if (takes(m, word)) return 1'b1;
    return 1'b0;
  endfunction

  logic [STAGES:0] valid;  // a beat stands before this stage
  logic [STAGES-1:0] valid_q;
  assign valid = {valid_q, valid_i};
  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else valid_q <= valid[STAGES-1:0];
  end

  // Before mix m: words[m], hash[m].
  logic [31:0] words [MIXES+1][WORDS];
  logic [31:0] hash [MIXES+1];

  for (genvar word = 0; word < WORDS; word++) begin : gen_start
    if (word < ARGS) begin : gen_arg
      assign words[0][word] = args_i[word];
    end else begin : gen_constant
      assign words[0][word] = (word == X) ? X_START : (word == Y) ? Y_START : '0;
    end
  end

  always_comb begin
    hash[0] = SEED;
    for (int unsigned arg = 0; arg < ARGS; arg++) hash[0] ^= args_i[arg];
  end

  for (genvar mix = 0; mix < MIXES; mix++) begin : gen_mix
    localparam int unsigned FIRST = first_word(mix);
    localparam int unsigned SECOND = second_word(mix);
    logic [MIX_STAGES-1:0] mix_valid;
    assign mix_valid = valid[mix*MIX_STAGES +: MIX_STAGES];

    // verilator lint_off UNUSEDSIGNAL
    logic [31:0] first, second;  // no later mix may take them
    // verilator lint_on UNUSEDSIGNAL
    crush_mix #(.LINES_PER_STAGE(LINES_PER_STAGE)) i_mix (
      .clk_i,
      .valid_i(mix_valid),
      .a_i(words[mix][FIRST]),
      .b_i(words[mix][SECOND]),
      .c_i(hash[mix]),
      .a_o(first),
      .b_o(second),
      .c_o(hash[mix+1])
    );

    for (genvar word = 0; word < WORDS; word++) begin : gen_word
      if (!is_wanted_from(mix + 1, word)) begin : gen_done
        assign words[mix+1][word] = '0;
      end else if (word == FIRST) begin : gen_first
        assign words[mix+1][word] = first;
      end else if (word == SECOND) begin : gen_second
        assign words[mix+1][word] = second;
      end else if (word >= ARGS && !is_taken_before(mix, word)) begin : gen_constant
        assign words[mix+1][word] = (word == X) ? X_START : Y_START;
      end else begin : gen_wait
        crush_delay #(.WIDTH(32), .STAGES(MIX_STAGES)) i_delay (
          .clk_i,
          .valid_i(mix_valid),
          .data_i(words[mix][word]),
          .data_o(words[mix+1][word])
        );
      end
    end
  end

  assign valid_o = valid[STAGES];
  assign hash_o = hash[MIXES];
endmodule
