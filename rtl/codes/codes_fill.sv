// The read phase of a unit: brings the slices of all elements of a pass into a bank of the lanes.
//
// The module goes through the table of fills twice. The first walk requests one burst per element
// from card memory, as soon as a bank is free. The second walk follows the data in the order of the
// requests and sends every beat to its lane. So requests run ahead of the data by up to the number
// of banks.
//
//   ask       row of 8 fills | one fill | codes_address (3 stages) | queue of requests
//   receive   row of 8 fills | one fill, offset + beat | the lane's bank

module codes_fill
  import fs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned LANES = 8,
  parameter int unsigned LANE_BEATS = 1024,
  parameter int unsigned FILLS = 1024,
  localparam int unsigned LANE_BITS = (LANES > 1) ? $clog2(LANES) : 1,
  localparam int unsigned OFFSET_BITS = $clog2(LANE_BEATS)
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,

  // The tables are written only while the unit is in reset.
  input  table_write_t            table_i,
  input  logic [15:0]             fills_i,
  input  strides_t                strides_i,

  input  logic                    pass_valid_i,
  output logic                    pass_ready_o,
  input  slice_t                  pass_i,

  output logic                    read_valid_o,
  input  logic                    read_ready_i,
  output card_beat_t              read_address_o,
  output logic [5:0]              read_beats_minus_1_o,

  input  logic                    data_valid_i,
  input  logic                    data_last_i,  // the burst's last beat
  input  beat_t                   data_i,

  output logic                    write_valid_o,
  output logic                    write_bank_o,
  output logic [LANE_BITS-1:0]    write_lane_o,
  output logic [OFFSET_BITS-1:0]  write_address_o,
  output gf_pkg::planes_t         write_data_o,
  output logic                    filled_o,  // this write completes its bank

  input  logic                    bank_free_i,  // the unit has computed on one more bank
  output logic                    fault_o       // an address is outside the card's address space
);
  localparam int unsigned ROWS = FILLS / FILLS_PER_BEAT;
  localparam int unsigned ROW_BITS = (ROWS > 1) ? $clog2(ROWS) : 1;
  localparam int unsigned INDEX_BITS = ROW_BITS + 3;
  localparam int unsigned REQUESTS = 8;  // in the first walk's pipeline and queue together
  localparam int unsigned REQUEST_BITS = $clog2(REQUESTS + 1);

  if (FILLS % FILLS_PER_BEAT != 0 || FILLS == 0) begin : gen_fills_check
    $error("FILLS must be a multiple of 8");
  end

  typedef struct packed {
    logic [15:0]  element;
    logic [15:0]  shard;
  } from_t;

  typedef struct packed {
    logic [OFFSET_BITS-1:0]  offset;
    logic [LANE_BITS-1:0]    lane;
  } to_t;

  from_t [FILLS_PER_BEAT-1:0] from_rows [ROWS];
  to_t [FILLS_PER_BEAT-1:0] to_rows [ROWS];

  fill_t [FILLS_PER_BEAT-1:0] new_fills;
  from_t [FILLS_PER_BEAT-1:0] new_from;
  to_t [FILLS_PER_BEAT-1:0] new_to;
  assign new_fills = table_i.data;
  always_comb begin
    for (int unsigned i = 0; i < FILLS_PER_BEAT; i++) begin
      new_from[i] = '{element: new_fills[i].element, shard: new_fills[i].shard};
      new_to[i] = '{offset: new_fills[i].offset[OFFSET_BITS-1:0], lane: new_fills[i].lane[LANE_BITS-1:0]};
    end
  end

  always_ff @(posedge clk_i) begin
    if (table_i.valid && !table_i.is_operation) begin
      from_rows[table_i.index[ROW_BITS-1:0]] <= new_from;
      to_rows[table_i.index[ROW_BITS-1:0]] <= new_to;
    end
  end

  logic [INDEX_BITS-1:0] last_fill_q;
  always_ff @(posedge clk_i) last_fill_q <= INDEX_BITS'(fills_i - 16'd1);

  // First walk: requests.
  logic busy_q;
  slice_t pass_q;
  logic [INDEX_BITS-1:0] ask_q;
  logic [1:0] free_banks_q;
  logic [REQUEST_BITS-1:0] requests_q;

  logic accept, ask, leave;
  assign pass_ready_o = !busy_q && free_banks_q != '0;
  assign accept = pass_valid_i && pass_ready_o;
  assign ask = busy_q && requests_q != REQUEST_BITS'(REQUESTS);
  assign leave = read_valid_o && read_ready_i;

  from_t [FILLS_PER_BEAT-1:0] from_row_q;
  logic asked_q;
  logic [2:0] asked_index_q;

  always_ff @(posedge clk_i) begin
    if (accept) pass_q <= pass_i;
    if (ask) begin
      from_row_q <= from_rows[ask_q[INDEX_BITS-1:3]];
      asked_index_q <= ask_q[2:0];
    end
    if (!rst_ni) begin
      busy_q <= 1'b0;
      ask_q <= '0;
      asked_q <= 1'b0;
      free_banks_q <= 2'd2;
      requests_q <= '0;
    end else begin
      asked_q <= ask;
      if (accept) busy_q <= 1'b1;
      if (ask) begin
        ask_q <= (ask_q == last_fill_q) ? '0 : ask_q + 1'b1;
        if (ask_q == last_fill_q) busy_q <= 1'b0;
      end
      if (accept != bank_free_i) free_banks_q <= accept ? free_banks_q - 1'b1 : free_banks_q + 1'b1;
      if (ask != leave) requests_q <= ask ? requests_q + 1'b1 : requests_q - 1'b1;
    end
  end

  logic place_valid;
  logic [5:0] place_beats_minus_1;
  place_t place;

  codes_address #(
    .TAG_BITS(6)
  ) i_address (
    .clk_i,
    .rst_ni,
    .in_valid_i  (asked_q),
    .in_tag_i    (6'(pass_q.beats - 7'd1)),
    .in_base_i   (pass_q.place),
    .in_shard_i  (from_row_q[asked_index_q].shard),
    .in_element_i(from_row_q[asked_index_q].element),
    .in_beat_i   ('0),
    .strides_i,
    .out_valid_o (place_valid),
    .out_tag_o   (place_beats_minus_1),
    .out_place_o (place)
  );
  assign fault_o = place_valid && place.outside;

  logic has_room;
  logic [REQUEST_BITS-1:0] level;

  fs_fifo #(
    .WIDTH(CARD_BEAT_BITS + 6),
    .DEPTH(REQUESTS)
  ) i_requests (
    .clk_i,
    .rst_ni,
    .in_valid_i (place_valid && !place.outside),
    .in_ready_o (has_room),
    .in_data_i  ({place.beat, place_beats_minus_1}),
    .out_valid_o(read_valid_o),
    .out_ready_i(read_ready_i),
    .out_data_o ({read_address_o, read_beats_minus_1_o}),
    .level_o    (level)
  );

  assert property (@(posedge clk_i) disable iff (!rst_ni) place_valid |-> has_room)
  else $error("no room for a request");
  assert property (@(posedge clk_i) disable iff (!rst_ni) level <= requests_q)
  else $error("more requests wait than were made");

  // Second walk: data.
  logic [INDEX_BITS-1:0] receive_q;
  logic [5:0] beat_q;
  logic bank_q;

  to_t [FILLS_PER_BEAT-1:0] to_row_q;
  logic row_valid_q, row_bank_q, row_end_q;
  logic [2:0] row_index_q;
  logic [5:0] row_beat_q;
  beat_t row_data_q;
  to_t to;
  assign to = to_row_q[row_index_q];

  always_ff @(posedge clk_i) begin
    if (data_valid_i) begin
      to_row_q <= to_rows[receive_q[INDEX_BITS-1:3]];
      row_index_q <= receive_q[2:0];
      row_bank_q <= bank_q;
      row_beat_q <= beat_q;
      row_end_q <= data_last_i && receive_q == last_fill_q;
      row_data_q <= data_i;
    end
    if (row_valid_q) begin
      write_bank_o <= row_bank_q;
      write_lane_o <= to.lane;
      write_address_o <= to.offset + OFFSET_BITS'(row_beat_q);
      write_data_o <= gf_pkg::transpose(row_data_q);
    end
    if (!rst_ni) begin
      receive_q <= '0;
      beat_q <= '0;
      bank_q <= 1'b0;
      row_valid_q <= 1'b0;
      write_valid_o <= 1'b0;
      filled_o <= 1'b0;
    end else begin
      row_valid_q <= data_valid_i;
      write_valid_o <= row_valid_q;
      filled_o <= row_valid_q && row_end_q;
      if (data_valid_i) begin
        beat_q <= data_last_i ? '0 : beat_q + 1'b1;
        if (data_last_i) receive_q <= (receive_q == last_fill_q) ? '0 : receive_q + 1'b1;
        if (data_last_i && receive_q == last_fill_q) bank_q <= !bank_q;
      end
    end
  end
endmodule
