// Kernel of uniform buckets: item r of a pseudo-random permutation (r < size).
//
// The permutation is the shuffle of Fisher and Yates: step p, from 0 to r, swaps position p with
// position
//
//   target(p) = p + hash(x, bucket, p) mod (size - p).
//
// The kernel finds the item at position r backwards, without an array. The item came from
// target(r). Then, for p from r - 1 down to 0: if the item came to position target(p), it came from
// position p. So the rows come in descending order, and only slots up to r matter.
//
// The kernel makes all comparisons of a row at once. `origin[lane]` is the lane that the item of
// this lane came from, after the steps of the lower lanes are undone. The first stage finds one
// hop; each later stage doubles the length of the hops twice. The last stage compares the position
// that the earlier rows have left with all targets of the row. The highest lane with an equal
// target gives the origin.
//
// Stages: hash, remainder, hops, doublings, row.

module crush_uniform #(
  parameter int unsigned LANES = 16
) (
  input  logic                           clk_i,
  input  logic                           rst_ni,

  // verilator lint_off UNUSEDSIGNAL
  // All kernels have the same ports; each uses only some of them.
  input  logic                           valid_i,
  input  crush_pkg::kernel_beat_t        beat_i,
  input  logic [LANES-1:0]               mask_i,
  input  crush_pkg::slot_t [LANES-1:0]   slots_i,
  // verilator lint_on UNUSEDSIGNAL

  output logic                           valid_o,
  output crush_pkg::drawn_t              drawn_o
);
  import crush_pkg::*;

  if (LANES == 0 || LANES > ROW_SLOTS || (LANES & (LANES - 1)) != 0) begin : gen_check
    $error("LANES must be a power of two, up to a row of slots");
  end

  localparam int unsigned LEVELS = $clog2(LANES);
  localparam int unsigned LANE_BITS = (LANES > 1) ? LEVELS : 1;
  localparam int unsigned DOUBLING_STAGES = (LEVELS + 1) / 2;
  localparam int unsigned HASHED = hash_stages(3, 3);
  localparam int unsigned TARGETED = HASHED + MODULO_STAGES;
  localparam int unsigned STAGES = TARGETED + 1 + DOUBLING_STAGES + 1;

  // verilator lint_off UNUSEDSIGNAL
  logic [STAGES:0] valid, first, last;  // some stages use only some of them
  // verilator lint_on UNUSEDSIGNAL
  draw_tag_t tag;
  crush_pipeline_control #(.STAGES(STAGES)) i_control (
    .clk_i,
    .rst_ni,
    .valid_i,
    .first_i(beat_i.first),
    .last_i(beat_i.last),
    .tag_i(beat_i.tag),
    .valid_o(valid),
    .first_o(first),
    .last_o(last),
    .drawn_o(valid_o),
    .tag_o(tag)
  );

  typedef logic [LANE_BITS-1:0] lane_t;
  typedef struct packed {
    logic [31:0]  multiplier;  // without its highest bit
    logic [4:0]   shift;
  } short_t;

  // Position p of each lane; a lane counts if its position is up to r.
  logic [15:0] row_in;
  logic [LANES-1:0] counts_in, counts;
  short_t [LANES-1:0] shorts_in, shorts;
  logic [15:0] row_hash, size_hash, row, r;
  assign row_in = beat_i.row;
  crush_sideband_fifo #(.WIDTH(LANES * $bits(short_t) + 32), .STAGES(HASHED)) i_shorts (
    .clk_i,
    .rst_ni,
    .in_i(valid_i),
    .data_i({shorts_in, row_in, beat_i.size}),
    .out_i(valid[HASHED]),
    .data_o({shorts, row_hash, size_hash})
  );
  crush_sideband_fifo #(.WIDTH(LANES + 32), .STAGES(TARGETED)) i_counts (
    .clk_i,
    .rst_ni,
    .in_i(valid_i),
    .data_i({counts_in, row_in, beat_i.r[15:0]}),
    .out_i(valid[TARGETED]),
    .data_o({counts, row, r})
  );

  // verilator lint_off UNUSEDSIGNAL
  logic hash_valid;  // valid[HASHED]
  // verilator lint_on UNUSEDSIGNAL
  logic [31:0] args [3][LANES];
  logic [31:0] hash [LANES], multiplier [LANES];
  logic [15:0] p_hash [LANES], rest [LANES], target [LANES];
  logic [4:0] shift [LANES];
  logic [LANES-1:0][15:0] targets;
  for (genvar lane = 0; lane < LANES; lane++) begin : gen_lane
    logic [15:0] p;
    // verilator lint_off UNUSEDSIGNAL
    reciprocal_t reciprocal;  // the bits that a short reciprocal does not have
    // verilator lint_on UNUSEDSIGNAL
    assign p = 16'(row_in << LEVELS) | 16'(lane);
    assign counts_in[lane] = 32'(p) <= beat_i.r;
    assign reciprocal = slots_i[lane].payload;
    assign shorts_in[lane] = '{multiplier: reciprocal.multiplier[31:0], shift: reciprocal.shift[4:0]};
    assign args[0][lane] = beat_i.x;
    assign args[1][lane] = beat_i.bucket;
    assign args[2][lane] = 32'(p);
    assign p_hash[lane] = 16'(row_hash << LEVELS) | 16'(lane);
    assign rest[lane] = size_hash - p_hash[lane];
    assign multiplier[lane] = shorts[lane].multiplier;
    assign shift[lane] = shorts[lane].shift;
    assign targets[lane] = target[lane];
  end

  crush_hash_lanes #(.LANES(LANES), .ARGS(3)) i_hash (
    .clk_i, .rst_ni, .valid_i, .args_i(args), .valid_o(hash_valid), .hash_o(hash)
  );
  crush_modulo #(.LANES(LANES)) i_target (
    .clk_i,
    .valid_i(valid[TARGETED-1:HASHED]),
    .n_i(hash),
    .w_i(rest),
    .m_i(multiplier),
    .shift_i(shift),
    .offset_i(p_hash),
    .sum_o(target)
  );

  // A row's values for the last stages.
  typedef struct packed {
    logic [LANES-1:0]        steps;    // lanes below r, whose steps are undone
    logic [LANES-1:0][15:0]  targets;
    lane_t [LANES-1:0]       origin;
    logic [15:0]             row;
    logic [15:0]             start;    // target(r), in the first row
  } row_t;

  row_t hops_q;
  logic [LANES-1:0] steps;
  always_comb begin
    for (int unsigned lane = 0; lane < LANES; lane++) begin
      steps[lane] = counts[lane] && (16'(row << LEVELS) | 16'(lane)) != r;
    end
  end
  always_ff @(posedge clk_i) begin
    if (valid[TARGETED]) begin
      hops_q.steps <= steps;
      hops_q.targets <= targets;
      hops_q.row <= row;
      hops_q.start <= (LANES > 1) ? targets[lane_t'(r)] : targets[0];
      for (int unsigned lane = 0; lane < LANES; lane++) begin
        hops_q.origin[lane] <= lane_t'(lane);
        for (int unsigned earlier = 0; earlier < lane; earlier++) begin
          if (steps[earlier] && targets[earlier] == (16'(row << LEVELS) | 16'(lane))) begin
            hops_q.origin[lane] <= lane_t'(earlier);
          end
        end
      end
    end
  end

  function automatic lane_t [LANES-1:0] doubled(input lane_t [LANES-1:0] origin);
    for (int unsigned lane = 0; lane < LANES; lane++) doubled[lane] = origin[origin[lane]];
  endfunction

  for (genvar stage = 0; stage <= DOUBLING_STAGES; stage++) begin : gen_doubling
    row_t hops;
    if (stage == 0) begin : gen_start
      assign hops = hops_q;
    end else begin : gen_double
      row_t next_q;
      always_ff @(posedge clk_i) begin
        if (valid[TARGETED+stage]) begin
          next_q <= gen_doubling[stage-1].hops;
          next_q.origin <= doubled(doubled(gen_doubling[stage-1].hops.origin));
        end
      end
      assign hops = next_q;
    end
  end

  row_t hops;
  logic [15:0] position, position_d, position_q;
  assign hops = gen_doubling[DOUBLING_STAGES].hops;
  assign position = first[STAGES-1] ? hops.start : position_q;
  always_comb begin
    position_d = position;
    for (int unsigned lane = 0; lane < LANES; lane++) begin
      if (hops.steps[lane] && hops.targets[lane] == position) begin
        position_d = 16'(hops.row << LEVELS) | ((LANES > 1) ? 16'(hops.origin[lane]) : '0);
      end
    end
  end
  always_ff @(posedge clk_i) if (valid[STAGES-1]) position_q <= position_d;

  assign drawn_o = '{tag: tag, position: position_q};
endmodule
