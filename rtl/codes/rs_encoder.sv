// Reed-Solomon encoder with constant coefficients. Every cycle, it takes 64 bytes of each of K
// sources and gives 64 bytes of each of M parities.
//
// The default matrix is ISA-L's Cauchy matrix (profile rs:K+M): coefficient l of parity r is 1 /
// ((K + r) xor l), or 1 with M = 1. Source l is in bytes 64 l to 64 l + 63 of a beat, and parities
// lie in the same way.
//
// The pipeline cannot stall. The encoder takes a beat only when the output FIFO has room for all
// beats in flight.

module rs_encoder
  import gf_pkg::*;
#(
  parameter int unsigned K = 8,
  parameter int unsigned M = 4,
  parameter logic [8*M*K-1:0] COEFFICIENTS = cauchy()
) (
  input  logic              clk_i,
  input  logic              rst_ni,

  input  logic              in_valid_i,
  output logic              in_ready_o,
  input  logic [512*K-1:0]  in_data_i,

  output logic              out_valid_o,
  input  logic              out_ready_i,
  output logic [512*M-1:0]  out_data_o
);
  localparam int unsigned DEPTH = 8;  // more than the cycles from taking a beat to its exit

  if (K + M > 256) begin : gen_size_check
    $error("a code over bytes has at most 256 shards");
  end

  function automatic logic [8*M*K-1:0] cauchy();
    for (int unsigned r = 0; r < M; r++) begin
      for (int unsigned l = 0; l < K; l++) begin
        cauchy[8*(r*K+l) +: 8] = (M == 1) ? 8'd1 : inverse(8'(K + r) ^ 8'(l));
      end
    end
  endfunction

  logic [$clog2(DEPTH+1)-1:0] room_q;
  logic take, leave;
  assign in_ready_o = room_q != '0;
  assign take = in_valid_i && in_ready_o;
  assign leave = out_valid_o && out_ready_i;

  always_ff @(posedge clk_i) begin
    if (!rst_ni) room_q <= ($clog2(DEPTH+1))'(DEPTH);
    else if (take != leave) room_q <= leave ? room_q + 1'b1 : room_q - 1'b1;
  end

  planes_t sources [K];
  for (genvar l = 0; l < int'(K); l++) begin : gen_source
    assign sources[l] = transpose(in_data_i[512*l +: 512]);
  end

  logic     sums_valid;
  planes_t  sums [M];

  gf_tree #(
    .LANES       (K),
    .ROWS        (M),
    .CONSTANT    (1'b1),
    .COEFFICIENTS(COEFFICIENTS)
  ) i_tree (
    .clk_i,
    .rst_ni,
    .in_valid_i       (take),
    .in_operands_i    (sources),
    .in_coefficients_i('0),
    .out_valid_o      (sums_valid),
    .out_sums_o       (sums)
  );

  logic [512*M-1:0] parities;
  for (genvar r = 0; r < int'(M); r++) begin : gen_parity
    assign parities[512*r +: 512] = transpose(sums[r]);
  end

  logic has_room;
  logic [$clog2(DEPTH+1)-1:0] level;

  fs_fifo #(
    .WIDTH(512 * M),
    .DEPTH(DEPTH)
  ) i_parities (
    .clk_i,
    .rst_ni,
    .in_valid_i (sums_valid),
    .in_ready_o (has_room),
    .in_data_i  (parities),
    .out_valid_o,
    .out_ready_i,
    .out_data_o,
    .level_o    (level)
  );

  assert property (@(posedge clk_i) disable iff (!rst_ni) sums_valid |-> has_room)
  else $error("no room for a parity");
  assert property (@(posedge clk_i) disable iff (!rst_ni) level <= ($clog2(DEPTH+1))'(DEPTH) - room_q)
  else $error("more parities wait than beats were taken in");
endmodule
