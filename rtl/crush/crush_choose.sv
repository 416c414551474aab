// The draw engine: selects one item of one bucket for every choose_t.
//
//   cycle 0   the engine accepts the draw and reads its bucket
//   cycle 1   the bucket gives the kernel and the first row of slots; the engine computes r
//   cycle 2   the engine reads the first row of slots; then one row per cycle
//   cycle 3   the kernel gets the first row
//   ...       the kernel answers with a position; crush_resolve reads the item
//
// The engine accepts a new draw as soon as it has read the last row of the one before, so draws
// follow each other every ceil(size / LANES) cycles. Kernels have different latencies; tags match
// answers to draws. No kernel takes back-pressure. So at most IN_FLIGHT draws are in flight, and
// the output queues have room for all of them.
//
// The kernels of straw and straw2 buckets are inside this module. The reconfigurable partition,
// behind the rp_ ports, holds one of the other kernels. A bucket whose kernel is not there is bad.
//
// **Damaged images.** A right checksum does not make an image sound. A bucket whose algorithm is
// not in the header is bad, too: crush_commands decides by the header whether a job uses the
// partition, and a swap could lose a draw in a partition that no job claims to use.
//
// **Uniform buckets.** The engine reads the rows from the row of slot r downwards, where r is less
// than the size. If r is not, the engine needs the remainder first. Slot 0 has the reciprocal of
// the size, so the engine reads row 0 (a *probe*). The remainder comes some cycles later, and no
// other draw starts until then. With a wrong reciprocal the remainder may still not be less than
// the size. Then the bucket is bad, and the engine does not probe again.

module crush_choose
  import crush_pkg::*;
#(
  parameter int unsigned LANES = 16,
  parameter int unsigned SLOT_ROWS = 2048,  // rows of 16 slots
  parameter int unsigned IN_FLIGHT = 64,
  localparam int unsigned SLOT_BITS = $clog2(SLOT_ROWS * ROW_SLOTS),
  localparam int unsigned ROW_BITS = SLOT_BITS - $clog2(LANES)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   choose_valid_i,
  output logic                   choose_ready_o,
  input  choose_t                choose_i,
  output logic                   chosen_valid_o,
  input  logic                   chosen_ready_i,
  output chosen_t                chosen_o,

  // The image (crush_map_memory).
  input  logic [16:0]            buckets_i,
  input  logic [7:0]             algorithms_i,  // the algorithms that the header names
  output logic                   bucket_read_o,
  output logic [15:0]            bucket_index_o,
  // verilator lint_off UNUSEDSIGNAL
  input  bucket_t                bucket_i,  // the rule engine uses the kind
  // verilator lint_on UNUSEDSIGNAL
  output logic                   row_read_o,
  output logic [ROW_BITS-1:0]    row_index_o,
  input  slot_t [LANES-1:0]      row_i,
  output logic                   slot_read_o,
  output logic [SLOT_BITS-1:0]   slot_index_o,
  input  slot_t                  slot_i,

  // The reconfigurable partition: the kernel in it (fs_regs_pkg), and whether draws may start.
  input  logic [7:0]             rp_module_i,
  input  logic                   rp_ready_i,
  output logic                   rp_valid_o,
  output kernel_beat_t           rp_beat_o,
  output logic [LANES-1:0]       rp_mask_o,
  output slot_t [LANES-1:0]      rp_slots_o,
  input  logic                   rp_valid_i,
  input  drawn_t                 rp_drawn_i
);
  localparam int unsigned LEVELS = $clog2(LANES);
  localparam int unsigned CREDIT_BITS = $clog2(IN_FLIGHT + 1);
  localparam int unsigned TAGS = 1 << TAG_BITS;

  if (IN_FLIGHT < 2 || IN_FLIGHT > TAGS) begin : gen_in_flight_check
    $error("IN_FLIGHT must be 2 to the number of tags");
  end

  typedef enum logic [1:0] {STRAW, STRAW2, PARTITION} kernel_e;

  // Cycle 0: accept.
  logic accept, asked_valid_q, asked_leaves;
  choose_t asked_q;
  logic [CREDIT_BITS-1:0] credits_q;
  assign choose_ready_o = credits_q != '0 && (!asked_valid_q || asked_leaves);
  assign accept = choose_valid_i && choose_ready_o;
  assign bucket_read_o = accept;
  assign bucket_index_o = choose_i.bucket;

  always_ff @(posedge clk_i) begin
    if (accept) asked_q <= choose_i;
    if (!rst_ni) begin
      asked_valid_q <= 1'b0;
      credits_q <= CREDIT_BITS'(IN_FLIGHT);
    end else begin
      if (accept) asked_valid_q <= 1'b1;
      else if (asked_leaves) asked_valid_q <= 1'b0;
      credits_q <= credits_q - CREDIT_BITS'(accept) + CREDIT_BITS'(chosen_valid_o && chosen_ready_i);
    end
  end

  // Cycle 1: decode the bucket.
  logic exists, is_empty, is_bad, is_uniform, is_stretched;
  kernel_e kernel;
  logic [31:0] r_d;
  logic [3:0] set;  // number of the weight set
  logic [15:0] row16;
  logic [15:0] leaves, items_row;
  always_comb begin
    exists = bucket_i.exists && 17'(asked_q.bucket) < buckets_i;
    is_empty = exists && bucket_i.size == '0;
    is_uniform = bucket_i.algorithm == ALG_UNIFORM;
    is_bad = !exists || !algorithms_i[bucket_i.algorithm];
    kernel = PARTITION;
    unique case (bucket_i.algorithm)
      ALG_STRAW: kernel = STRAW;
      ALG_STRAW2: kernel = STRAW2;
      ALG_UNIFORM, ALG_LIST, ALG_TREE: begin
        if (!rp_ready_i || rp_module_i != 8'(bucket_i.algorithm)) is_bad = 1'b1;
      end
      default: is_bad = 1'b1;
    endcase
    is_stretched = asked_q.is_indep && is_uniform && bucket_i.divides[asked_q.numrep];
    r_d = asked_q.r_base + 32'(asked_q.ftotal) * (asked_q.is_indep ? 32'(asked_q.numrep) : 32'd1)
        + (is_stretched ? 32'(asked_q.ftotal) : '0);
    set = 4'((asked_q.position < bucket_i.positions) ? asked_q.position : bucket_i.positions - 8'd1);
    row16 = bucket_i.row + bucket_i.stride_rows * 16'(set);
    leaves = 16'd1 << bucket_i.depth[3:0];
    items_row = (bucket_i.algorithm == ALG_TREE) ? bucket_i.items_row : row16;
  end

  // From cycle 2 on: the rows of one draw.
  logic busy_q, starts_q, waits_q, uniform_q, probed_q;
  kernel_e kernel_q;
  kernel_beat_t draw_q;  // first, last and row are set per beat
  logic [15:0] last_row_q, row_q;
  logic [ROW_BITS-1:0] base_q;

  logic [15:0] row;
  logic reads, is_last, is_past, probes, fails;
  assign reads = busy_q && !waits_q;
  assign is_past = uniform_q && draw_q.r >= 32'(draw_q.size);
  assign probes = reads && is_past && !probed_q;
  assign fails = reads && is_past && probed_q;  // the bucket is bad
  always_comb begin
    row = row_q;
    if (starts_q) row = (uniform_q && !is_past) ? 16'(draw_q.r >> LEVELS) : '0;
    is_last = row == (uniform_q ? '0 : last_row_q);
  end
  assign row_read_o = reads;
  assign row_index_o = base_q + ROW_BITS'(row);
  assign asked_leaves = !busy_q || (reads && !is_past && is_last);

  logic remainder_valid;
  logic [15:0] remainder [1];
  always_ff @(posedge clk_i) begin
    if (reads) begin
      row_q <= uniform_q ? row - 16'd1 : row + 16'd1;
      if (probes) waits_q <= 1'b1;
      else if (is_last) busy_q <= 1'b0;
      starts_q <= probes;
      if (probes) probed_q <= 1'b1;
    end
    if (remainder_valid) begin
      waits_q <= 1'b0;
      draw_q.r <= 32'(remainder[0]);
    end
    if (asked_valid_q && asked_leaves && !is_empty && !is_bad) begin
      busy_q <= 1'b1;
      starts_q <= 1'b1;
      probed_q <= 1'b0;
      uniform_q <= is_uniform;
      kernel_q <= kernel;
      base_q <= ROW_BITS'({row16, 4'd0} >> LEVELS);
      last_row_q <= 16'(((bucket_i.algorithm == ALG_TREE ? leaves : bucket_i.size) - 16'd1) >> LEVELS);
      draw_q <= '{
        first: 1'b0,
        last: 1'b0,
        tag: '{
          is_stretched: is_stretched,
          is_list: bucket_i.algorithm == ALG_LIST,
          slot: {items_row, 4'd0},
          tag: asked_q.tag
        },
        x: asked_q.x,
        r: r_d,
        bucket: ~32'(asked_q.bucket),
        size: (bucket_i.algorithm == ALG_TREE) ? leaves : bucket_i.size,
        row: '0
      };
    end
    if (!rst_ni) begin
      busy_q <= 1'b0;
      waits_q <= 1'b0;
    end
  end

  // From cycle 3 on: the data of the rows.
  logic beat_valid_q, probe_valid_q;
  kernel_e beat_kernel_q;
  kernel_beat_t beat_q;
  logic [LANES-1:0] mask_d, mask_q;
  always_comb begin
    for (int unsigned lane = 0; lane < LANES; lane++) begin
      mask_d[lane] = (20'(row << LEVELS) | 20'(lane)) < 20'(draw_q.size);
    end
  end
  always_ff @(posedge clk_i) begin
    if (reads) begin
      beat_q <= draw_q;
      beat_q.first <= starts_q;
      beat_q.last <= is_last;
      beat_q.row <= row;
      beat_kernel_q <= kernel_q;
      mask_q <= mask_d;
    end
    if (!rst_ni) begin
      beat_valid_q <= 1'b0;
      probe_valid_q <= 1'b0;
    end else begin
      beat_valid_q <= reads && !is_past;
      probe_valid_q <= probes;
    end
  end

  // The remainder of r by the size.
  logic [MODULO_STAGES:0] modulo_valid;
  logic [MODULO_STAGES-1:0] modulo_valid_q;
  // verilator lint_off UNUSEDSIGNAL
  reciprocal_t reciprocal;  // of the size; a short reciprocal
  // verilator lint_on UNUSEDSIGNAL
  assign modulo_valid = {modulo_valid_q, probe_valid_q};
  assign remainder_valid = modulo_valid[MODULO_STAGES];
  assign reciprocal = row_i[0].payload;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) modulo_valid_q <= '0;
    else modulo_valid_q <= modulo_valid[MODULO_STAGES-1:0];
  end
  crush_modulo #(.LANES(1)) i_modulo (
    .clk_i,
    .valid_i(modulo_valid[MODULO_STAGES-1:0]),
    .n_i('{draw_q.r}),
    .w_i('{draw_q.size}),
    .m_i('{reciprocal.multiplier[31:0]}),
    .shift_i('{reciprocal.shift[4:0]}),
    .offset_i('{16'd0}),
    .sum_o(remainder)
  );

  // Kernels.
  logic [2:0] drawn_valid;
  drawn_t [2:0] drawn;
  crush_straw #(.LANES(LANES)) i_straw (
    .clk_i,
    .rst_ni,
    .valid_i(beat_valid_q && beat_kernel_q == STRAW),
    .beat_i(beat_q),
    .mask_i(mask_q),
    .slots_i(row_i),
    .valid_o(drawn_valid[STRAW]),
    .drawn_o(drawn[STRAW])
  );
  crush_straw2 #(.LANES(LANES)) i_straw2 (
    .clk_i,
    .rst_ni,
    .valid_i(beat_valid_q && beat_kernel_q == STRAW2),
    .beat_i(beat_q),
    .mask_i(mask_q),
    .slots_i(row_i),
    .valid_o(drawn_valid[STRAW2]),
    .drawn_o(drawn[STRAW2])
  );
  assign rp_valid_o = beat_valid_q && beat_kernel_q == PARTITION;
  assign rp_beat_o = beat_q;
  assign rp_mask_o = mask_q;
  assign rp_slots_o = row_i;
  assign drawn_valid[PARTITION] = rp_valid_i;
  assign drawn[PARTITION] = rp_drawn_i;

  crush_resolve #(.SLOT_BITS(SLOT_BITS), .IN_FLIGHT(IN_FLIGHT), .KERNELS(3)) i_resolve (
    .clk_i,
    .rst_ni,
    .drawn_valid_i(drawn_valid),
    .drawn_i(drawn),
    .refused_valid_i(fails || (asked_valid_q && asked_leaves && (is_empty || is_bad))),
    .refused_tag_i(fails ? draw_q.tag.tag : asked_q.tag),
    .refused_is_empty_i(!fails && is_empty),
    .slot_read_o,
    .slot_index_o,
    .slot_i,
    .chosen_valid_o,
    .chosen_ready_i,
    .chosen_o
  );
endmodule
