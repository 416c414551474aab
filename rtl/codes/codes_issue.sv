// The control of a unit's compute phase: goes through the table of operations once per pass.
//
// The order is: for every row, for every beat of the slice, for every operation of the row. The
// module issues one operation per cycle. In this order, a sum of several operations needs one
// register, and the beats of an output come in order.
//
// A pass begins when its bank is filled. The module issues a step when the output has room for the
// sum. At a fence it also waits until all scratch has landed.

module codes_issue
  import fs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned LANE_BEATS = 1024,
  parameter int unsigned OPERATIONS = 1024,
  parameter int unsigned OUT_BEATS = 32,  // room for sums
  localparam int unsigned LANE_BITS = (LANES > 1) ? $clog2(LANES) : 1,
  localparam int unsigned OFFSET_BITS = $clog2(LANE_BEATS)
) (
  input  logic                               clk_i,
  input  logic                               rst_ni,

  // The table is written only while the unit is in reset.
  input  table_write_t                       table_i,
  input  logic [15:0]                        operations_i,

  input  logic                               pass_valid_i,
  output logic                               pass_ready_o,
  input  slice_t                             pass_i,
  input  logic                               filled_i,          // one more bank is filled
  input  logic                               scratch_landed_i,  // one beat of scratch has landed
  input  logic                               out_leaves_i,      // a sum left the queue

  // One operation on one beat.
  output logic                               step_valid_o,
  output logic                               step_bank_o,
  output logic                               step_first_o,  // first operation of the sum
  output logic                               step_last_o,   // last operation of the sum
  output logic                               step_end_o,    // last operation of the pass
  output logic                               step_scratch_o,
  output logic [LANE_BITS-1:0]               step_lane_o,
  output logic [OFFSET_BITS-1:0]             step_address_o,
  output logic [LANES-1:0]                   step_reads_o,      // lanes that have a term
  output logic [LANES-1:0][OFFSET_BITS-1:0]  step_addresses_o,
  output logic [LANES-1:0][7:0]              step_coefficients_o,

  // The target, for outputs only. It is valid one cycle before its step.
  output logic                               target_valid_o,
  output place_t                             target_base_o,
  output logic [15:0]                        target_shard_o,
  output logic [15:0]                        target_element_o,
  output logic [5:0]                         target_beat_o
);
  localparam int unsigned INDEX_BITS = (OPERATIONS > 1) ? $clog2(OPERATIONS) : 1;
  localparam int unsigned ROOM_BITS = $clog2(OUT_BEATS + 1);
  localparam int unsigned SCRATCH_BITS = 4;  // scratch beats in flight; the pipeline's stages bound
                                             // their number

  if (LANES == 0 || LANES > MAX_LANES) begin : gen_lanes_check
    $error("an operation has at most 12 terms");
  end

  typedef struct packed {
    logic                               final_one;  // the table's last operation
    logic                               fence;
    logic                               scratch;
    logic                               last;
    logic [LANE_BITS-1:0]               lane;
    logic [OFFSET_BITS-1:0]             offset;
    logic [15:0]                        element;
    logic [15:0]                        shard;
    logic [LANES-1:0]                   reads;
    logic [LANES-1:0][OFFSET_BITS-1:0]  offsets;
    logic [LANES-1:0][7:0]              coefficients;
  } entry_t;

  entry_t entries [OPERATIONS];

  /* verilator lint_off UNUSEDSIGNAL */  // reserved bits, and high bits that codes_loader has
                                         // checked
  operation_t new_operation;
  /* verilator lint_on UNUSEDSIGNAL */
  entry_t new_entry;
  assign new_operation = table_i.data;
  logic [INDEX_BITS-1:0] final_index_q;
  always_ff @(posedge clk_i) final_index_q <= INDEX_BITS'(operations_i - 16'd1);
  always_comb begin
    new_entry.final_one = table_i.index[INDEX_BITS-1:0] == final_index_q;
    new_entry.fence = new_operation.fence;
    new_entry.scratch = new_operation.scratch;
    new_entry.last = new_operation.last;
    new_entry.lane = new_operation.lane[LANE_BITS-1:0];
    new_entry.offset = new_operation.offset[OFFSET_BITS-1:0];
    new_entry.element = new_operation.element;
    new_entry.shard = new_operation.shard;
    for (int unsigned l = 0; l < LANES; l++) begin
      new_entry.reads[l] = new_operation.terms[l].coefficient != '0;
      new_entry.offsets[l] = new_operation.terms[l].offset[OFFSET_BITS-1:0];
      new_entry.coefficients[l] = new_operation.terms[l].coefficient;
    end
  end

  // The position in the table.
  entry_t entry_q;         // the operation at index_q
  logic entry_valid_q;
  logic [INDEX_BITS-1:0] index_q, index_d, row_q, row_d;
  logic [5:0] beat_q, beat_d;
  logic first_q, first_d;
  // The current pass.
  logic active_q;
  place_t base_q;
  logic [5:0] last_beat_q;
  logic bank_q;

  logic [1:0] filled_q;
  logic [ROOM_BITS-1:0] room_q;
  logic [SCRATCH_BITS-1:0] scratch_q;

  logic begins, go, ends_slice, ends_pass, to_output, to_scratch;
  assign begins = !active_q && pass_valid_i && filled_q != '0;
  assign go = entry_valid_q && active_q && room_q != '0
           && !(entry_q.fence && beat_q == '0 && scratch_q != '0);
  assign ends_slice = entry_q.last && beat_q == last_beat_q;
  assign ends_pass = ends_slice && entry_q.final_one;
  assign to_output = go && entry_q.last && !entry_q.scratch;
  assign to_scratch = go && entry_q.last && entry_q.scratch;
  assign pass_ready_o = begins;

  always_comb begin
    index_d = index_q;
    row_d = row_q;
    beat_d = beat_q;
    first_d = first_q;
    if (go) begin
      first_d = entry_q.last;
      if (entry_q.last && !ends_slice) begin
        index_d = row_q;
        beat_d = beat_q + 1'b1;
      end else begin
        index_d = ends_pass ? '0 : index_q + 1'b1;
        if (ends_slice) begin
          row_d = index_d;
          beat_d = '0;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (table_i.valid && table_i.is_operation) entries[table_i.index[INDEX_BITS-1:0]] <= new_entry;
    if (go || !entry_valid_q) entry_q <= entries[index_d];
    if (begins) begin
      base_q <= pass_i.place;
      last_beat_q <= 6'(pass_i.beats - 7'd1);
    end
    if (!rst_ni) begin
      active_q <= 1'b0;
      entry_valid_q <= 1'b0;
      index_q <= '0;
      row_q <= '0;
      beat_q <= '0;
      first_q <= 1'b1;
      bank_q <= 1'b0;
      filled_q <= '0;
      room_q <= ROOM_BITS'(OUT_BEATS);
      scratch_q <= '0;
    end else begin
      entry_valid_q <= 1'b1;
      index_q <= index_d;
      row_q <= row_d;
      beat_q <= beat_d;
      first_q <= first_d;
      if (begins) active_q <= 1'b1;
      if (go && ends_pass) begin
        active_q <= 1'b0;
        bank_q <= !bank_q;
      end
      if (filled_i != begins) filled_q <= filled_i ? filled_q + 1'b1 : filled_q - 1'b1;
      if (to_output != out_leaves_i) room_q <= out_leaves_i ? room_q + 1'b1 : room_q - 1'b1;
      if (to_scratch != scratch_landed_i) begin
        scratch_q <= to_scratch ? scratch_q + 1'b1 : scratch_q - 1'b1;
      end
    end
  end

  // The step's output registers.
  always_ff @(posedge clk_i) begin
    step_valid_o <= rst_ni && go;
    if (go) begin
      step_bank_o <= bank_q;
      step_first_o <= first_q;
      step_last_o <= entry_q.last;
      step_end_o <= ends_pass;
      step_scratch_o <= entry_q.scratch;
      step_lane_o <= entry_q.lane;
      step_address_o <= entry_q.offset + OFFSET_BITS'(beat_q);
      step_reads_o <= entry_q.reads;
      step_coefficients_o <= entry_q.coefficients;
      for (int unsigned l = 0; l < LANES; l++) begin
        step_addresses_o[l] <= entry_q.offsets[l] + OFFSET_BITS'(beat_q);
      end
    end
  end

  assign target_valid_o = to_output;
  assign target_base_o = base_q;
  assign target_shard_o = entry_q.shard;
  assign target_element_o = entry_q.element;
  assign target_beat_o = beat_q;
endmodule
