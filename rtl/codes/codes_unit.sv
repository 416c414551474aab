// A processing unit: fills a bank of its lanes, computes on the other, and sends the sums to
// memory. These three phases overlap. Units do not depend on each other: each takes the next pass
// of the job when it can.
//
// While the unit is in reset, its tables are written and its lanes are wiped. A unit that is put
// into reset in the middle of a job forgets the job, and ignores data that come later.

module codes_unit
  import fs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned LANE_BEATS = 1024,
  parameter int unsigned OPERATIONS = 1024,
  localparam int unsigned OFFSET_BITS = $clog2(LANE_BEATS)
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  input  table_write_t            table_i,
  input  logic [15:0]             fills_i,
  input  logic [15:0]             operations_i,
  input  strides_t                source_strides_i,
  input  strides_t                target_strides_i,
  input  function_t               owner_i,
  input  logic                    wipe_valid_i,
  input  logic [OFFSET_BITS-1:0]  wipe_address_i,

  input  logic                    pass_valid_i,
  output logic                    pass_ready_o,
  input  slice_t                  pass_source_i,
  input  slice_t                  pass_target_i,

  output logic                    read_valid_o,
  input  logic                    read_ready_i,
  output card_beat_t              read_address_o,
  output logic [5:0]              read_beats_minus_1_o,

  input  logic                    data_valid_i,
  input  logic                    data_last_i,
  input  beat_t                   data_i,

  output logic                    write_valid_o,
  input  logic                    write_ready_i,
  output card_beat_t              write_address_o,
  output beat_t                   write_data_o,

  output logic                    idle_o,
  output logic                    fault_o  // an address is outside the card's address space
);
  localparam int unsigned LANE_BITS = (LANES > 1) ? $clog2(LANES) : 1;
  localparam int unsigned OUT_BEATS = 32;
  localparam int unsigned PASSES = 4;  // taken and not yet computed; at most one per bank, so the
                                       // queue is never full

  // A pass goes to the read phase at once, and waits in a queue for the compute phase.
  logic fill_ready, queue_ready, pass_taken, queued_valid, queued_ready;
  slice_t queued;
  logic [$clog2(PASSES+1)-1:0] queued_level;
  assign pass_ready_o = fill_ready && queue_ready;
  assign pass_taken = pass_valid_i && pass_ready_o;

  fs_fifo #(
    .WIDTH($bits(slice_t)),
    .DEPTH(PASSES)
  ) i_passes (
    .clk_i,
    .rst_ni,
    .in_valid_i (pass_taken),
    .in_ready_o (queue_ready),
    .in_data_i  (pass_target_i),
    .out_valid_o(queued_valid),
    .out_ready_i(queued_ready),
    .out_data_o (queued),
    .level_o    (queued_level)
  );

  logic fill_valid, fill_bank, filled, fill_fault, pass_done;
  logic [LANE_BITS-1:0] fill_lane;
  logic [OFFSET_BITS-1:0] fill_address;
  gf_pkg::planes_t fill_data;

  codes_fill #(
    .LANES     (LANES),
    .LANE_BEATS(LANE_BEATS),
    .FILLS     (OPERATIONS)
  ) i_fill (
    .clk_i,
    .rst_ni,
    .table_i,
    .fills_i,
    .strides_i      (source_strides_i),
    .pass_valid_i   (pass_taken),
    .pass_ready_o   (fill_ready),
    .pass_i         (pass_source_i),
    .read_valid_o,
    .read_ready_i,
    .read_address_o,
    .read_beats_minus_1_o,
    .data_valid_i,
    .data_last_i,
    .data_i,
    .write_valid_o  (fill_valid),
    .write_bank_o   (fill_bank),
    .write_lane_o   (fill_lane),
    .write_address_o(fill_address),
    .write_data_o   (fill_data),
    .filled_o       (filled),
    .bank_free_i    (pass_done),
    .fault_o        (fill_fault)
  );

  logic step_valid, step_bank, step_first, step_last, step_end, step_scratch, scratch_landed, out_leaves;
  logic [LANE_BITS-1:0] step_lane;
  logic [OFFSET_BITS-1:0] step_address;
  logic [LANES-1:0] step_reads;
  logic [LANES-1:0][OFFSET_BITS-1:0] step_addresses;
  logic [LANES-1:0][7:0] step_coefficients;
  logic target_valid;
  place_t target_base;
  logic [15:0] target_shard, target_element;
  logic [5:0] target_beat;

  codes_issue #(
    .LANES     (LANES),
    .LANE_BEATS(LANE_BEATS),
    .OPERATIONS(OPERATIONS),
    .OUT_BEATS (OUT_BEATS)
  ) i_issue (
    .clk_i,
    .rst_ni,
    .table_i,
    .operations_i,
    .pass_valid_i       (queued_valid),
    .pass_ready_o       (queued_ready),
    .pass_i             (queued),
    .filled_i           (filled),
    .scratch_landed_i   (scratch_landed),
    .out_leaves_i       (out_leaves),
    .step_valid_o       (step_valid),
    .step_bank_o        (step_bank),
    .step_first_o       (step_first),
    .step_last_o        (step_last),
    .step_end_o         (step_end),
    .step_scratch_o     (step_scratch),
    .step_lane_o        (step_lane),
    .step_address_o     (step_address),
    .step_reads_o       (step_reads),
    .step_addresses_o   (step_addresses),
    .step_coefficients_o(step_coefficients),
    .target_valid_o     (target_valid),
    .target_base_o      (target_base),
    .target_shard_o     (target_shard),
    .target_element_o   (target_element),
    .target_beat_o      (target_beat)
  );

  logic out_valid, out_ready, out_fault;
  card_beat_t out_address;
  beat_t out_data;

  codes_datapath #(
    .LANES     (LANES),
    .LANE_BEATS(LANE_BEATS)
  ) i_datapath (
    .clk_i,
    .rst_ni,
    .strides_i          (target_strides_i),
    .owner_i,
    .wipe_valid_i,
    .wipe_address_i,
    .fill_valid_i       (fill_valid),
    .fill_bank_i        (fill_bank),
    .fill_lane_i        (fill_lane),
    .fill_address_i     (fill_address),
    .fill_data_i        (fill_data),
    .step_valid_i       (step_valid),
    .step_bank_i        (step_bank),
    .step_first_i       (step_first),
    .step_last_i        (step_last),
    .step_end_i         (step_end),
    .step_scratch_i     (step_scratch),
    .step_lane_i        (step_lane),
    .step_address_i     (step_address),
    .step_reads_i       (step_reads),
    .step_addresses_i   (step_addresses),
    .step_coefficients_i(step_coefficients),
    .target_valid_i     (target_valid),
    .target_base_i      (target_base),
    .target_shard_i     (target_shard),
    .target_element_i   (target_element),
    .target_beat_i      (target_beat),
    .scratch_landed_o   (scratch_landed),
    .pass_done_o        (pass_done),
    .out_valid_o        (out_valid),
    .out_address_o      (out_address),
    .out_data_o         (out_data),
    .fault_o            (out_fault)
  );

  logic [$clog2(OUT_BEATS+1)-1:0] out_level;

  fs_fifo #(
    .WIDTH(CARD_BEAT_BITS + BEAT_BITS),
    .DEPTH(OUT_BEATS)
  ) i_out (
    .clk_i,
    .rst_ni,
    .in_valid_i (out_valid),
    .in_ready_o (out_ready),
    .in_data_i  ({out_address, out_data}),
    .out_valid_o(write_valid_o),
    .out_ready_i(write_ready_i),
    .out_data_o ({write_address_o, write_data_o}),
    .level_o    (out_level)
  );
  assign out_leaves = write_valid_o && write_ready_i;

  assert property (@(posedge clk_i) disable iff (!rst_ni) out_valid |-> out_ready)
  else $error("no room for a sum");
  assert property (@(posedge clk_i) disable iff (!rst_ni) queued_level <= 3)
  else $error("more passes than banks wait");

  // Passes taken and not yet done.
  logic [2:0] passes_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) passes_q <= '0;
    else if (pass_taken != pass_done) passes_q <= pass_taken ? passes_q + 1'b1 : passes_q - 1'b1;
  end

  assign idle_o = passes_q == '0 && out_level == '0;
  assign fault_o = fill_fault || out_fault;
endmodule
