// Finds the position of the smallest key of a draw; among equal keys the first wins. A comparator
// tree finds the smallest key of a beat, one level per stage. The last stage compares this key with
// the smallest key of the earlier beats. The result is valid STAGES cycles after the draw's last
// beat.
//
// A later key wins only if it is less. Lanes without a slot come after those with one, so they may
// carry the greatest key.

module crush_argmin #(
  parameter int unsigned LANES = 16,
  parameter int unsigned KEY_BITS = 48,
  localparam int unsigned STAGES = $clog2(LANES) + 1
) (
  input  logic                 clk_i,
  input  logic [STAGES-1:0]    valid_i,  // a beat is before this stage
  input  logic                 first_i,  // the beat before the last stage is the draw's first
  input  logic [KEY_BITS-1:0]  keys_i [LANES],
  output logic [15:0]          position_o  // lane, plus LANES for every earlier beat
);
  localparam int unsigned LEVELS = $clog2(LANES);
  localparam int unsigned LANE_BITS = (LEVELS == 0) ? 1 : LEVELS;

  if (LANES == 0 || (LANES & (LANES - 1)) != 0) begin : gen_check
    $error("LANES must be a power of two");
  end

  // Level l of the tree (0 is the input) has LANES >> l nodes, each with a key and its lane.
  for (genvar level = 0; level <= LEVELS; level++) begin : gen_level
    localparam int unsigned NODES = LANES >> level;
    typedef logic [KEY_BITS-1:0] keys_t [NODES];
    typedef logic [LANE_BITS-1:0] lanes_t [NODES];
    keys_t key;
    lanes_t lane;
    if (level == 0) begin : gen_input
      assign key = keys_i;
      for (genvar node = 0; node < NODES; node++) begin : gen_lane
        assign lane[node] = LANE_BITS'(node);
      end
    end else begin : gen_compare
      keys_t key_q;
      lanes_t lane_q;
      always_ff @(posedge clk_i) begin
        if (valid_i[level-1]) begin
          automatic keys_t lesser;
          automatic lanes_t lesser_lane;
          automatic logic right;
          // verilator unroll_disable
          for (int unsigned node = 0; node < NODES; node++) begin
            right = gen_level[level-1].key[2*node+1] < gen_level[level-1].key[2*node];
            lesser[node] = gen_level[level-1].key[2*node+32'(right)];
            lesser_lane[node] = gen_level[level-1].lane[2*node+32'(right)];
          end
          key_q <= lesser;
          lane_q <= lesser_lane;
        end
      end
      assign key = key_q;
      assign lane = lane_q;
    end
  end

  // The best beat so far.
  logic [KEY_BITS-1:0] best_q;
  logic [15:0] position_q, next_q, start;  // next_q: position of the next beat's lane 0
  assign start = first_i ? '0 : next_q;
  always_ff @(posedge clk_i) begin
    if (valid_i[STAGES-1]) begin
      next_q <= start + 16'(LANES);
      if (first_i || gen_level[LEVELS].key[0] < best_q) begin
        best_q <= gen_level[LEVELS].key[0];
        position_q <= start | ((LEVELS == 0) ? '0 : 16'(gen_level[LEVELS].lane[0]));
      end
    end
  end

  assign position_o = position_q;
endmodule
