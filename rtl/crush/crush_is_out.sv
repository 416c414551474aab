// Decides whether a device with a reweight between 0 and 1.0 is out for an input: it is out if the
// low 16 bits of hash2(x, device) are not below the reweight.
//
// The module takes one question per cycle. The answers come in the order of the questions, without
// back-pressure.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues
/* verilator lint_off UNUSEDSIGNAL */  // only 16 bits of the hash are used

module crush_is_out
  import crush_pkg::*;
#(
  parameter int unsigned CONTEXTS = 32  // most questions in flight
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         valid_i,
  output logic         ready_o,     // 1 while at most CONTEXTS questions are in flight
  input  tag_t         index_i,     // comes back with the answer
  input  logic [31:0]  x_i,
  input  logic [31:0]  device_i,
  input  logic [15:0]  reweight_i,  // 16.16 without its integer part

  output logic         valid_o,
  output tag_t         index_o,
  output logic         is_out_o
);
  logic hash_valid;
  logic [31:0] hash;
  crush_hash #(
    .ARGS(2)
  ) i_hash (
    .clk_i,
    .rst_ni,
    .valid_i,
    .args_i  ({device_i, x_i}),
    .valid_o (hash_valid),
    .hash_o  (hash)
  );

  logic [15:0] reweight;
  logic question_valid;
  fs_fifo #(
    .WIDTH(TAG_BITS + 16),
    .DEPTH(CONTEXTS)
  ) i_questions (
    .clk_i,
    .rst_ni,
    .in_valid_i  (valid_i),
    .in_ready_o  (ready_o),
    .in_data_i   ({index_i, reweight_i}),
    .out_valid_o (question_valid),
    .out_ready_i (hash_valid),
    .out_data_o  ({index_o, reweight}),
    .level_o     ()
  );

  assign valid_o = hash_valid;
  assign is_out_o = hash[15:0] >= reweight;

  assert property (@(posedge clk_i) disable iff (!rst_ni) hash_valid |-> question_valid)
  else $error("an answer without a question");
endmodule
