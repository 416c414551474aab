// Finds the least key of a draw, the first among equals: a tournament of the lanes of a beat, one
// level per stage, then the best beat so far. STAGES cycles after its last beat, the draw is decided.
//
// A later key wins only if it is less. So lanes without a slot, which come after those with one, may
// bring the greatest key.

module crush_least #(
  parameter int unsigned LANES = 16,
  parameter int unsigned KEY_BITS = 48,
  localparam int unsigned STAGES = $clog2(LANES) + 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 valid_i,
  input  logic                 first_i,
  input  logic                 last_i,
  input  logic [KEY_BITS-1:0]  keys_i [LANES],

  output logic                 valid_o,
  output logic [15:0]          position_o  // lane, plus LANES for every beat before
);
  localparam int unsigned LEVELS = $clog2(LANES);
  localparam int unsigned LANE_BITS = (LEVELS == 0) ? 1 : LEVELS;

  if (LANES == 0 || (LANES & (LANES - 1)) != 0) begin : gen_check
    $error("LANES must be a power of two");
  end

  logic [STAGES-1:0] valid_q, first_q, last_q;  // after each stage
  always_ff @(posedge clk_i) begin
    if (!rst_ni) valid_q <= '0;
    else valid_q <= STAGES'({valid_q, valid_i});
    first_q <= STAGES'({first_q, first_i});
    last_q <= STAGES'({last_q, last_i});
  end

  // After level l (0: none yet) there are LANES >> l players.
  for (genvar level = 0; level <= LEVELS; level++) begin : gen_level
    logic [KEY_BITS-1:0] key [LANES >> level];
    logic [LANE_BITS-1:0] lane [LANES >> level];
    for (genvar player = 0; player < (LANES >> level); player++) begin : gen_player
      if (level == 0) begin : gen_lane
        assign key[player] = keys_i[player];
        assign lane[player] = LANE_BITS'(player);
      end else begin : gen_match
        logic enters;  // a beat stands before this level
        if (level == 1) begin : gen_input
          assign enters = valid_i;
        end else begin : gen_stage
          assign enters = valid_q[level-2];
        end
        logic takes_right;
        assign takes_right = gen_level[level-1].key[2*player+1] < gen_level[level-1].key[2*player];
        logic [KEY_BITS-1:0] key_q;
        logic [LANE_BITS-1:0] lane_q;
        always_ff @(posedge clk_i) begin
          if (enters) begin
            key_q <= takes_right ? gen_level[level-1].key[2*player+1] : gen_level[level-1].key[2*player];
            lane_q <= takes_right ? gen_level[level-1].lane[2*player+1] : gen_level[level-1].lane[2*player];
          end
        end
        assign key[player] = key_q;
        assign lane[player] = lane_q;
      end
    end
  end

  // The best beat.
  logic beat_valid, beat_first;
  if (LEVELS == 0) begin : gen_one_lane
    assign beat_valid = valid_i;
    assign beat_first = first_i;
  end else begin : gen_lanes
    assign beat_valid = valid_q[STAGES-2];
    assign beat_first = first_q[STAGES-2];
  end

  logic [KEY_BITS-1:0] best_q;
  logic [15:0] position_q, next_q, start;  // next_q: position of the next beat's lane 0
  assign start = beat_first ? '0 : next_q;
  always_ff @(posedge clk_i) begin
    if (beat_valid) begin
      next_q <= start + 16'(LANES);
      if (beat_first || gen_level[LEVELS].key[0] < best_q) begin
        best_q <= gen_level[LEVELS].key[0];
        position_q <= start | ((LEVELS == 0) ? '0 : 16'(gen_level[LEVELS].lane[0]));
      end
    end
  end

  assign valid_o = valid_q[STAGES-1] && last_q[STAGES-1];
  assign position_o = position_q;
endmodule
