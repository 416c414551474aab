// The data path of a unit's compute phase: buffers of the lanes, multiply-add tree, accumulator.
//
//   step | bank read | operands | products | sums | accumulator | output or scratch
//        |           |----------- gf_tree --------|
//
// A delay line carries the control bits of each step along the pipeline. A second delay line
// carries the address of its output, which takes codes_address three stages.

module codes_datapath
  import fs_pkg::*;
  import codes_pkg::*;
  import gf_pkg::planes_t;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned LANE_BEATS = 1024,
  localparam int unsigned LANE_BITS = (LANES > 1) ? $clog2(LANES) : 1,
  localparam int unsigned OFFSET_BITS = $clog2(LANE_BEATS)
) (
  input  logic                               clk_i,
  input  logic                               rst_ni,
  input  strides_t                           strides_i,  // strides of the outputs
  input  function_t                          owner_i,    // of the job

  // Wipes both banks of all lanes, while the unit is in reset.
  input  logic                               wipe_valid_i,
  input  logic [OFFSET_BITS-1:0]             wipe_address_i,

  input  logic                               fill_valid_i,
  input  logic                               fill_bank_i,
  input  logic [LANE_BITS-1:0]               fill_lane_i,
  input  logic [OFFSET_BITS-1:0]             fill_address_i,
  input  planes_t                            fill_data_i,

  // See codes_issue.
  input  logic                               step_valid_i,
  input  logic                               step_bank_i,
  input  logic                               step_first_i,
  input  logic                               step_last_i,
  input  logic                               step_end_i,
  input  logic                               step_scratch_i,
  input  logic [LANE_BITS-1:0]               step_lane_i,
  input  logic [OFFSET_BITS-1:0]             step_address_i,
  input  logic [LANES-1:0]                   step_reads_i,
  input  logic [LANES-1:0][OFFSET_BITS-1:0]  step_addresses_i,
  input  logic [LANES-1:0][7:0]              step_coefficients_i,
  input  logic                               target_valid_i,
  input  place_t                             target_base_i,
  input  logic [15:0]                        target_shard_i,
  input  logic [15:0]                        target_element_i,
  input  logic [5:0]                         target_beat_i,

  output logic                               scratch_landed_o,
  output logic                               pass_done_o,

  // A beat of an output. There is no ready: codes_issue starts a step only when the output has
  // room.
  output logic                               out_valid_o,
  output card_beat_t                         out_address_o,
  output beat_t                              out_data_o,
  output logic                               fault_o  // an address is outside the card's address
                                                      // space
);
  typedef struct packed {
    logic                    bank;
    logic                    first;
    logic                    last;
    logic                    ends;  // the step ends the pass
    logic                    scratch;
    logic [LANE_BITS-1:0]    lane;
    logic [OFFSET_BITS-1:0]  address;
  } along_t;

  localparam int unsigned STAGES = 5;  // from a step to the accumulator
  localparam int unsigned ADDED = 3;   // stage in which the tree's sums are valid
  localparam int unsigned DONE = 4;    // stage in which the accumulator has the sum

  // The control bits of a step, after i + 1 stages.
  along_t along_q [STAGES];
  logic [STAGES-1:0] valid_q;

  always_ff @(posedge clk_i) begin
    if (step_valid_i) begin
      along_q[0] <= '{
        bank: step_bank_i,
        first: step_first_i,
        last: step_last_i,
        ends: step_end_i,
        scratch: step_scratch_i,
        lane: step_lane_i,
        address: step_address_i
      };
    end
    for (int unsigned i = 1; i < STAGES; i++) begin
      if (valid_q[i-1]) along_q[i] <= along_q[i-1];
    end
    valid_q <= rst_ni ? {valid_q[STAGES-2:0], step_valid_i} : '0;
  end

  // Lanes.
  planes_t operands [LANES];
  logic [LANES-1:0] mine;
  planes_t total_q;
  logic scratch_valid;

  for (genvar l = 0; l < int'(LANES); l++) begin : gen_lane
    codes_lane #(
      .BEATS(LANE_BEATS)
    ) i_lane (
      .clk_i,
      .owner_i,
      .fill_valid_i     (fill_valid_i && fill_lane_i == LANE_BITS'(l)),
      .fill_bank_i,
      .fill_address_i,
      .fill_data_i,
      .scratch_valid_i  (scratch_valid && along_q[DONE].lane == LANE_BITS'(l)),
      .scratch_bank_i   (along_q[DONE].bank),
      .scratch_address_i(along_q[DONE].address),
      .scratch_data_i   (total_q),
      .wipe_valid_i,
      .wipe_address_i,
      .read_valid_i     (step_valid_i && step_reads_i[l]),
      .read_bank_i      (step_bank_i),
      .read_address_i   (step_addresses_i[l]),
      .read_data_o      (operands[l]),
      .read_mine_o      (mine[l])
    );
  end

  // Tree. Nothing is multiplied with what another function's job left in a lane.
  logic [LANES-1:0][7:0] coefficients_q, coefficients;
  always_ff @(posedge clk_i) if (step_valid_i) coefficients_q <= step_coefficients_i;
  for (genvar l = 0; l < int'(LANES); l++) begin : gen_coefficient
    assign coefficients[l] = mine[l] ? coefficients_q[l] : '0;
  end

  logic sum_valid;
  planes_t sums [1];

  gf_tree #(
    .LANES(LANES)
  ) i_tree (
    .clk_i,
    .rst_ni,
    .in_valid_i       (valid_q[0]),
    .in_operands_i    (operands),
    .in_coefficients_i(coefficients),
    .out_valid_o      (sum_valid),
    .out_sums_o       (sums)
  );

  // Accumulator.
  always_ff @(posedge clk_i) begin
    if (sum_valid) total_q <= along_q[ADDED].first ? sums[0] : total_q ^ sums[0];
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) sum_valid == valid_q[ADDED])
  else $error("the tree's stages are not those that go along");

  // Output or scratch.
  logic target_valid;
  /* verilator lint_off UNUSEDSIGNAL */  // codes_address has a tag port; the tag is not used here
  logic target_tag;
  /* verilator lint_on UNUSEDSIGNAL */
  place_t target_q [3];  // target_q[0] is valid together with the tree's products
  logic [2:0] target_valid_q;
  place_t target;

  codes_address i_target (
    .clk_i,
    .rst_ni,
    .in_valid_i  (target_valid_i),
    .in_tag_i    (1'b0),
    .in_base_i   (target_base_i),
    .in_shard_i  (target_shard_i),
    .in_element_i(target_element_i),
    .in_beat_i   (target_beat_i),
    .strides_i,
    .out_valid_o (target_valid),
    .out_tag_o   (target_tag),
    .out_place_o (target)
  );

  always_ff @(posedge clk_i) begin
    if (target_valid) target_q[0] <= target;
    if (target_valid_q[0]) target_q[1] <= target_q[0];
    if (target_valid_q[1]) target_q[2] <= target_q[1];
    target_valid_q <= rst_ni ? {target_valid_q[1:0], target_valid} : '0;
  end

  logic done;
  assign done = valid_q[DONE] && along_q[DONE].last;
  assign scratch_valid = done && along_q[DONE].scratch;
  assign scratch_landed_o = scratch_valid;
  assign pass_done_o = valid_q[DONE] && along_q[DONE].ends;
  assign fault_o = target_valid && target.outside;
  assign out_valid_o = done && !along_q[DONE].scratch && !target_q[2].outside;
  assign out_address_o = target_q[2].beat;
  assign out_data_o = gf_pkg::transpose(total_q);

  assert property (@(posedge clk_i) disable iff (!rst_ni)
                   target_valid_q[2] == (done && !along_q[DONE].scratch))
  else $error("an output and its address are not there together");
endmodule
