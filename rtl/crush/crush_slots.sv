// The slots of the image, in rows of LANES. Writes take beats of 4 slots. The kernels read row by
// row; crush_resolve reads single slots to find the drawn items. Data comes one cycle after the
// address and stays until the next read.

module crush_slots #(
  parameter int unsigned LANES = 16,
  parameter int unsigned SLOT_ROWS = 2048,  // rows of 16 slots
  localparam int unsigned SLOTS = SLOT_ROWS * crush_pkg::ROW_SLOTS,
  localparam int unsigned SLOT_BITS = $clog2(SLOTS),
  localparam int unsigned ROW_BITS = $clog2(SLOTS / LANES)
) (
  input  logic                            clk_i,

  input  logic                            write_i,
  input  logic [SLOT_BITS-3:0]            write_index_i,  // index of the beat
  input  fs_pkg::beat_t                   write_data_i,

  input  logic                            row_read_i,
  input  logic [ROW_BITS-1:0]             row_index_i,
  output crush_pkg::slot_t [LANES-1:0]    row_o,

  input  logic                            slot_read_i,
  input  logic [SLOT_BITS-1:0]            slot_index_i,
  output crush_pkg::slot_t                slot_o
);
  import crush_pkg::*;

  localparam int unsigned BEAT_SLOTS = 4;
  localparam int unsigned GROUPS = LANES / BEAT_SLOTS;  // beats in a row; each has its own memory
  localparam int unsigned GROUP_BITS = $clog2(LANES) - 2;

  if (LANES != 4 && LANES != 8 && LANES != 16) begin : gen_lanes_check
    $error("LANES must be 4, 8 or 16");
  end
  if (SLOT_ROWS < 2 || (SLOT_ROWS & (SLOT_ROWS - 1)) != 0) begin : gen_rows_check
    $error("SLOT_ROWS must be a power of two");
  end

  slot_t [GROUPS-1:0][BEAT_SLOTS-1:0] found;
  for (genvar group = 0; group < GROUPS; group++) begin : gen_group
    fs_pkg::beat_t beats_q [SLOTS / LANES];
    fs_pkg::beat_t row_q, found_q;
    logic is_written, is_read;
    if (GROUPS > 1) begin : gen_select
      assign is_written = write_index_i[GROUP_BITS-1:0] == GROUP_BITS'(group);
      assign is_read = slot_index_i[2 +: GROUP_BITS] == GROUP_BITS'(group);
    end else begin : gen_only
      assign is_written = 1'b1;
      assign is_read = 1'b1;
    end
    always_ff @(posedge clk_i) begin
      if (write_i && is_written) beats_q[write_index_i[GROUP_BITS +: ROW_BITS]] <= write_data_i;
      if (row_read_i) row_q <= beats_q[row_index_i];
      if (slot_read_i && is_read) found_q <= beats_q[slot_index_i[SLOT_BITS-1 -: ROW_BITS]];
    end
    assign row_o[group*BEAT_SLOTS +: BEAT_SLOTS] = row_q;
    assign found[group] = found_q;
  end

  logic [$clog2(LANES)-1:0] lane_q;
  always_ff @(posedge clk_i) if (slot_read_i) lane_q <= slot_index_i[$clog2(LANES)-1:0];
  if (GROUPS > 1) begin : gen_groups
    assign slot_o = found[lane_q[2 +: GROUP_BITS]][lane_q[1:0]];
  end else begin : gen_group_only
    assign slot_o = found[0][lane_q[1:0]];
  end
endmodule
