// The memories of a map's image, and their loader.
//
// An image comes as a stream of beats (layout: crush_pkg). The first beat is the header, which
// gives the number of beats of each section. The loader counts beats to find the memory of each. In
// parallel, it computes the checksum of the whole image. After the last beat and its checksum, the
// loader pulses load_done_o. It sets load_ok_o if the header is right, every section fits into its
// memory, the stream is as long as the header says, and the checksum is the header's. The loader
// does not check the sections' contents: an index that is too large reads another entry, so a wrong
// image only gives wrong answers to its owner.
//
// While an image is loading, and after a refused image, there are no buckets and no rules: the
// counts are 0.

module crush_map_memory #(
  parameter int unsigned LANES = 16,
  parameter int unsigned SLOT_ROWS = 2048,  // rows of 16 slots
  parameter int unsigned BUCKETS = 4096,
  parameter int unsigned DEVICES = 16384,
  parameter int unsigned RULES = 64,
  parameter int unsigned STEPS = 1024,
  localparam int unsigned SLOT_BITS = $clog2(SLOT_ROWS * crush_pkg::ROW_SLOTS),
  localparam int unsigned ROW_BITS = SLOT_BITS - $clog2(LANES)
) (
  input  logic                            clk_i,
  input  logic                            rst_ni,

  // An image.
  input  logic                            load_valid_i,
  output logic                            load_ready_o,
  input  fs_pkg::beat_t                   load_beat_i,
  input  logic                            load_last_i,
  output logic                            load_done_o,  // pulses after the last beat
  output logic                            load_ok_o,    // valid with load_done_o

  output crush_pkg::settings_t            settings_o,
  output logic [16:0]                     buckets_o,    // number of buckets in the image

  // Memories. Data comes one cycle after its index and stays until the next read.
  input  logic [1:0]                      bucket_read_i,
  input  logic [1:0][15:0]                bucket_index_i,
  output crush_pkg::bucket_t [1:0]        bucket_o,
  input  logic                            row_read_i,
  input  logic [ROW_BITS-1:0]             row_index_i,  // in rows of LANES slots
  output crush_pkg::slot_t [LANES-1:0]    row_o,
  input  logic                            slot_read_i,
  input  logic [SLOT_BITS-1:0]            slot_index_i,
  output crush_pkg::slot_t                slot_o,
  input  logic                            reweight_read_i,
  input  logic [15:0]                     reweight_index_i,
  output logic [31:0]                     reweight_o,
  input  logic                            rule_read_i,
  input  logic [15:0]                     rule_index_i,
  output crush_pkg::rule_t                rule_o,
  input  logic                            step_read_i,
  input  logic [15:0]                     step_index_i,
  output crush_pkg::step_t                step_o
);
  import crush_pkg::*;

  localparam int unsigned SECTIONS = 5;
  typedef enum logic [2:0] {BUCKET, SLOT, REWEIGHT, RULE, STEP, HEADER, EXCESS} section_e;

  // Largest number of entries of each section.
  localparam logic [31:0] ROOM [SECTIONS] = '{BUCKETS, SLOT_ROWS, DEVICES, RULES, STEPS};

  image_header_t beat_header;
  assign beat_header = load_beat_i;

  // Four slots of 16 bytes make a beat, and 16 make a row. In the other sections, 4, 16, 8 and 8
  // entries make a beat. So the beats of a section are 4 times its entries, divided by 2 to the
  // power of this number.
  localparam int unsigned SHIFT [SECTIONS] = '{4, 0, 6, 5, 5};

  // Beats of a section whose count fits into its memory.
  function automatic logic [16:0] beats(input logic [31:0] entries, input int unsigned shift);
    return 17'(((entries << 2) + (32'd1 << shift) - 32'd1) >> shift);
  endfunction

  // The header.
  logic header_ok;
  always_comb begin
    header_ok = beat_header.magic == IMAGE_MAGIC && beat_header.version == IMAGE_VERSION;
    for (int unsigned section = 0; section < SECTIONS; section++) begin
      if (beat_header.entries[section] > ROOM[section]) header_ok = 1'b0;
    end
  end

  typedef enum logic [1:0] {IDLE, SECTIONS_COME, SUM_COMES} state_e;
  state_e state_q;
  logic take, is_header;
  assign load_ready_o = state_q != SUM_COMES;
  assign take = load_valid_i && load_ready_o;
  assign is_header = state_q == IDLE;

  // The memory of the next beat: the first section that still misses beats. `left_q` counts the
  // missing beats of each section; index_q counts up within a section.
  logic [SECTIONS-1:0][16:0] left_q;
  logic [16:0] index_q;
  section_e section;
  always_comb begin
    section = EXCESS;
    for (int unsigned s = SECTIONS; s > 0; s--) begin
      if (left_q[s-1] != '0) section = section_e'(3'(s - 1));
    end
    if (is_header) section = HEADER;
  end

  // verilator lint_off UNUSEDSIGNAL
  image_header_t header_q;  // the fields that have been checked are not kept
  // verilator lint_on UNUSEDSIGNAL
  logic ok_q, loaded_q;
  logic sum_valid;
  logic [31:0] sum;
  logic [SECTIONS-1:0] misses;  // the section misses beats after this one
  always_comb begin
    for (int unsigned s = 0; s < SECTIONS; s++) begin
      misses[s] = left_q[s] > ((section == section_e'(3'(s))) ? 17'd1 : 17'd0);
    end
  end

  always_ff @(posedge clk_i) begin
    load_done_o <= 1'b0;
    if (take) begin
      if (is_header) begin
        header_q <= beat_header;
        ok_q <= header_ok && !(load_last_i && beat_header.entries != '0);
        loaded_q <= 1'b0;
        for (int unsigned s = 0; s < SECTIONS; s++) begin
          left_q[s] <= header_ok ? beats(beat_header.entries[s], SHIFT[s]) : '0;
        end
        index_q <= '0;
      end else if (section == EXCESS) begin
        ok_q <= 1'b0;
      end else begin
        left_q[section] <= left_q[section] - 1'b1;
        index_q <= (left_q[section] == 17'd1) ? '0 : index_q + 1'b1;
        if (load_last_i && misses != '0) ok_q <= 1'b0;
      end
      state_q <= load_last_i ? SUM_COMES : SECTIONS_COME;
    end
    if (sum_valid) begin
      state_q <= IDLE;
      load_done_o <= 1'b1;
      load_ok_o <= ok_q && sum == header_q.crc;
      loaded_q <= ok_q && sum == header_q.crc;
    end
    if (!rst_ni) begin
      state_q <= IDLE;
      loaded_q <= 1'b0;
    end
  end

  fs_pkg::beat_t summed;
  always_comb begin
    summed = load_beat_i;
    if (is_header) summed[fs_pkg::BEAT_BITS-1 -: 32] = '0;  // the checksum's own field
  end
  crc32c i_crc (
    .clk_i,
    .rst_ni,
    .in_valid_i(take),
    .in_data_i(summed),
    .in_last_i(load_last_i),
    .in_bytes_i(7'd64),
    .out_valid_o(sum_valid),
    .out_sum_o(sum)
  );

  assign buckets_o = loaded_q ? header_q.entries[BUCKET][16:0] : '0;
  assign settings_o = '{
    algorithms: header_q.algorithms,
    rules: loaded_q ? header_q.entries[RULE][15:0] : '0,
    devices: header_q.entries[REWEIGHT],
    choose_tries: header_q.choose_tries,
    vary_r: header_q.vary_r,
    stable: header_q.stable,
    descend_once: header_q.descend_once
  };

  logic [SECTIONS-1:0] write;
  for (genvar s = 0; s < SECTIONS; s++) begin : gen_write
    assign write[s] = take && section == section_e'(s);
  end

  crush_table #(.ENTRY_BITS($bits(bucket_t)), .ENTRIES(BUCKETS), .READS(2)) i_buckets (
    .clk_i,
    .write_i(write[BUCKET]), .write_index_i(index_q[$clog2(BUCKETS)-3:0]), .write_data_i(load_beat_i),
    .read_i(bucket_read_i), .index_i(bucket_index_i), .entry_o(bucket_o)
  );
  crush_slots #(.LANES(LANES), .SLOT_ROWS(SLOT_ROWS)) i_slots (
    .clk_i,
    .write_i(write[SLOT]), .write_index_i(index_q[SLOT_BITS-3:0]), .write_data_i(load_beat_i),
    .row_read_i, .row_index_i, .row_o, .slot_read_i, .slot_index_i, .slot_o
  );
  crush_table #(.ENTRY_BITS(32), .ENTRIES(DEVICES)) i_reweights (
    .clk_i,
    .write_i(write[REWEIGHT]), .write_index_i(index_q[$clog2(DEVICES)-5:0]), .write_data_i(load_beat_i),
    .read_i(reweight_read_i), .index_i(reweight_index_i), .entry_o(reweight_o)
  );
  crush_table #(.ENTRY_BITS($bits(rule_t)), .ENTRIES(RULES)) i_rules (
    .clk_i,
    .write_i(write[RULE]), .write_index_i(index_q[$clog2(RULES)-4:0]), .write_data_i(load_beat_i),
    .read_i(rule_read_i), .index_i(rule_index_i), .entry_o(rule_o)
  );
  crush_table #(.ENTRY_BITS($bits(step_t)), .ENTRIES(STEPS)) i_steps (
    .clk_i,
    .write_i(write[STEP]), .write_index_i(index_q[$clog2(STEPS)-4:0]), .write_data_i(load_beat_i),
    .read_i(step_read_i), .index_i(step_index_i), .entry_o(step_o)
  );
endmodule
