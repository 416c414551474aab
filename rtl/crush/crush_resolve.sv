// Reads the items for the drawn positions, and gives the answers of the draw engine.
//
// Every kernel has a queue of its drawn positions, and there is one queue for draws that no kernel
// can make. Round robin, the module takes an entry of a queue and reads the item's slot. The answer
// stays at the output until it is taken. The user keeps at most IN_FLIGHT draws in flight, so every
// queue has room for its entries.

module crush_resolve
  import crush_pkg::*;
#(
  parameter int unsigned SLOT_BITS = 15,
  parameter int unsigned IN_FLIGHT = 64,
  parameter int unsigned KERNELS = 3
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  // Positions that the kernels have drawn.
  input  logic [KERNELS-1:0]       drawn_valid_i,
  input  drawn_t [KERNELS-1:0]     drawn_i,

  // Draws that no kernel can make: the bucket is empty, or bad.
  input  logic                     refused_valid_i,
  input  tag_t                     refused_tag_i,
  input  logic                     refused_is_empty_i,

  output logic                     slot_read_o,
  output logic [SLOT_BITS-1:0]     slot_index_o,
  // verilator lint_off UNUSEDSIGNAL
  input  slot_t                    slot_i,  // only the kernels use the payload
  // verilator lint_on UNUSEDSIGNAL

  output logic                     chosen_valid_o,
  input  logic                     chosen_ready_i,
  output chosen_t                  chosen_o
);
  localparam int unsigned QUEUES = KERNELS + 1;
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES);

  typedef struct packed {
    logic                  is_empty;
    logic                  is_bad;
    logic                  is_stretched;
    logic                  is_list;
    logic [SLOT_BITS-1:0]  slot;
    tag_t                  tag;
  } entry_t;

  logic [QUEUES-1:0] in_valid, in_ready, out_valid, out_ready;
  entry_t [QUEUES-1:0] in, out;

  for (genvar kernel = 0; kernel < KERNELS; kernel++) begin : gen_kernel
    assign in_valid[kernel] = drawn_valid_i[kernel];
    assign in[kernel] = '{
      is_empty: 1'b0,
      is_bad: 1'b0,
      is_stretched: drawn_i[kernel].tag.is_stretched,
      is_list: drawn_i[kernel].tag.is_list,
      slot: SLOT_BITS'(drawn_i[kernel].tag.slot + 20'(drawn_i[kernel].position)),
      tag: drawn_i[kernel].tag.tag
    };
  end
  assign in_valid[KERNELS] = refused_valid_i;
  assign in[KERNELS] = '{
    is_empty: refused_is_empty_i,
    is_bad: !refused_is_empty_i,
    is_stretched: 1'b0,
    is_list: 1'b0,
    slot: '0,
    tag: refused_tag_i
  };

  for (genvar queue = 0; queue < QUEUES; queue++) begin : gen_queue
    // verilator lint_off UNUSEDSIGNAL
    logic [$clog2(IN_FLIGHT+1)-1:0] level;
    // verilator lint_on UNUSEDSIGNAL
    fs_fifo #(.WIDTH($bits(entry_t)), .DEPTH(IN_FLIGHT)) i_queue (
      .clk_i,
      .rst_ni,
      .in_valid_i(in_valid[queue]),
      .in_ready_o(in_ready[queue]),
      .in_data_i(in[queue]),
      .out_valid_o(out_valid[queue]),
      .out_ready_i(out_ready[queue]),
      .out_data_o(out[queue]),
      .level_o(level)
    );
  end

  // The next queue with an entry after the queue served last.
  logic [QUEUE_BITS-1:0] last_q, next;
  always_comb begin
    next = last_q;
    for (int unsigned distance = QUEUES - 1; distance > 0; distance--) begin
      if (out_valid[(32'(last_q) + distance) % QUEUES]) next = QUEUE_BITS'((32'(last_q) + distance) % QUEUES);
    end
  end

  // Two stages: the slot is being read; the answer is at the output.
  logic reading_q, moves, take;
  // verilator lint_off UNUSEDSIGNAL
  entry_t entry_q;  // its slot is being read
  // verilator lint_on UNUSEDSIGNAL
  assign moves = !chosen_valid_o || chosen_ready_i;
  assign take = out_valid != '0 && (!reading_q || moves);
  always_comb begin
    out_ready = '0;
    out_ready[next] = take;
  end
  assign slot_read_o = take;
  assign slot_index_o = out[next].slot;

  always_ff @(posedge clk_i) begin
    if (take) begin
      last_q <= next;
      entry_q <= out[next];
    end
    if (take) reading_q <= 1'b1;
    else if (moves) reading_q <= 1'b0;
    if (moves) begin
      chosen_valid_o <= reading_q;
      if (reading_q) begin
        chosen_o <= '{
          tag: entry_q.tag,
          is_empty: entry_q.is_empty,
          is_bad: entry_q.is_bad,
          is_stretched: entry_q.is_stretched,
          kind: slot_i.kind,
          item: entry_q.is_list ? slot_i.hash_id : slot_i.item
        };
      end
    end
    if (!rst_ni) begin
      last_q <= '0;
      reading_q <= 1'b0;
      chosen_valid_o <= 1'b0;
    end
  end

  assert property (@(posedge clk_i) disable iff (!rst_ni) (in_valid & ~in_ready) == '0)
  else $error("more draws in flight than there is room for");
endmodule
