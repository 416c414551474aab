// Computes where a slice of an element begins: base + shard * stride + element * stride + beat, all
// in beats. Three stages: operands, products, sum. The module marks a sum outside the card's
// address space.

module codes_address
  import fs_pkg::*;
  import codes_pkg::*;
#(
  parameter int unsigned TAG_BITS = 1  // bits of the tag that comes out with the address
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 in_valid_i,
  input  logic [TAG_BITS-1:0]  in_tag_i,
  input  place_t               in_base_i,
  input  logic [15:0]          in_shard_i,
  input  logic [15:0]          in_element_i,
  input  logic [5:0]           in_beat_i,
  input  strides_t             strides_i,  // constant while addresses are in the pipeline

  output logic                 out_valid_o,
  output logic [TAG_BITS-1:0]  out_tag_o,
  output place_t               out_place_o
);
  localparam int unsigned SHARD_BITS = CARD_BEAT_BITS + 16;
  localparam int unsigned ELEMENT_BITS = $bits(element_beats_t) + 16;
  localparam int unsigned SUM_BITS = CARD_BEAT_BITS + 2;

  logic [2:0]               valid_q;
  logic [TAG_BITS-1:0]      tag_q [3];
  place_t                   base_q, at_q, place_q;
  logic [15:0]              shard_q, element_q;
  logic [5:0]               beat_q;
  logic [SHARD_BITS-1:0]    of_shard_q;
  logic [ELEMENT_BITS-1:0]  of_element_q;

  logic [SUM_BITS-1:0] sum;
  logic is_far;  // one of the products is too large
  assign sum = SUM_BITS'(at_q.beat) + SUM_BITS'(of_shard_q[CARD_BEAT_BITS-1:0])
             + SUM_BITS'(of_element_q[CARD_BEAT_BITS-1:0]);
  assign is_far = of_shard_q >> CARD_BEAT_BITS != '0 || of_element_q >> CARD_BEAT_BITS != '0;

  always_ff @(posedge clk_i) begin
    if (in_valid_i) begin
      tag_q[0] <= in_tag_i;
      base_q <= in_base_i;
      shard_q <= in_shard_i;
      element_q <= in_element_i;
      beat_q <= in_beat_i;
    end
    if (valid_q[0]) begin
      tag_q[1] <= tag_q[0];
      at_q <= add(base_q, card_beat_t'(beat_q));
      of_shard_q <= shard_q * strides_i.shard;
      of_element_q <= element_q * strides_i.element;
    end
    if (valid_q[1]) begin
      tag_q[2] <= tag_q[1];
      place_q.beat <= sum[CARD_BEAT_BITS-1:0];
      place_q.outside <= at_q.outside || is_far || sum[SUM_BITS-1:CARD_BEAT_BITS] != '0;
    end
    valid_q <= rst_ni ? {valid_q[1:0], in_valid_i} : '0;
  end

  assign out_valid_o = valid_q[2];
  assign out_tag_o = tag_q[2];
  assign out_place_o = place_q;
endmodule
