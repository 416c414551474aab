// The whole unit. All three kernels that the reconfigurable partition may hold are instances;
// rp_module_i selects one. The module counts draws for the benches.

module unit_tb
  import crush_pkg::*;
#(
  parameter int unsigned LANES = 16,
  parameter int unsigned CONTEXTS = 32,
  // Limit of a placement. It is high, because random rules try for longer than the device's limit.
  parameter int unsigned MAX_CYCLES = 1 << 30
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  input  logic                     command_valid_i,
  output logic                     command_ready_o,
  input  fs_pkg::engine_command_t  command_i,
  output logic                     answer_valid_o,
  input  logic                     answer_ready_i,
  output fs_pkg::engine_answer_t   answer_o,

  output logic                     read_valid_o,
  input  logic                     read_ready_i,
  output fs_pkg::card_read_t       read_o,
  input  logic                     data_valid_i,
  output logic                     data_ready_o,
  input  fs_pkg::card_data_t       data_i,
  output logic                     write_valid_o,
  input  logic                     write_ready_i,
  output fs_pkg::card_write_t      write_o,
  input  fs_pkg::card_done_t       done_i,

  input  logic [7:0]               rp_module_i,
  input  logic                     rp_ready_i,
  output logic                     rp_busy_o,
  output logic                     idle_o,

  output logic [31:0]              draws_o,       // counted since reset
  output logic [15:0]              draw_cycles_o  // of the last draw
);
  logic to_kernel;
  kernel_beat_t beat;
  logic [LANES-1:0] mask;
  slot_t [LANES-1:0] slots;
  logic from_kernel;
  drawn_t drawn;

  crush_unit #(
    .LANES(LANES),
    .CONTEXTS(CONTEXTS),
    .MAX_CYCLES(MAX_CYCLES)
  ) i_unit (
    .clk_i,
    .rst_ni,
    .command_valid_i,
    .command_ready_o,
    .command_i,
    .answer_valid_o,
    .answer_ready_i,
    .answer_o,
    .read_valid_o,
    .read_ready_i,
    .read_o,
    .data_valid_i,
    .data_ready_o,
    .data_i,
    .write_valid_o,
    .write_ready_i,
    .write_o,
    .done_i,
    .rp_module_i,
    .rp_ready_i,
    .rp_busy_o,
    .rp_valid_o (to_kernel),
    .rp_beat_o  (beat),
    .rp_mask_o  (mask),
    .rp_slots_o (slots),
    .rp_valid_i (from_kernel),
    .rp_drawn_i (drawn),
    .draws_o,
    .draw_cycles_o,
    .idle_o
  );

  logic [3:1] valid, drawn_valid;
  drawn_t [3:1] drawn_by;
  for (genvar kernel = 1; kernel <= 3; kernel++) begin : gen_valid
    assign valid[kernel] = to_kernel && rp_module_i == 8'(kernel);
  end
  crush_uniform #(.LANES(LANES)) i_uniform (
    .clk_i, .rst_ni, .valid_i(valid[1]), .beat_i(beat), .mask_i(mask), .slots_i(slots),
    .valid_o(drawn_valid[1]), .drawn_o(drawn_by[1])
  );
  crush_list #(.LANES(LANES)) i_list (
    .clk_i, .rst_ni, .valid_i(valid[2]), .beat_i(beat), .mask_i(mask), .slots_i(slots),
    .valid_o(drawn_valid[2]), .drawn_o(drawn_by[2])
  );
  crush_tree #(.LANES(LANES)) i_tree (
    .clk_i, .rst_ni, .valid_i(valid[3]), .beat_i(beat), .mask_i(mask), .slots_i(slots),
    .valid_o(drawn_valid[3]), .drawn_o(drawn_by[3])
  );
  always_comb begin
    from_kernel = 1'b0;
    drawn = '0;
    for (int unsigned kernel = 1; kernel <= 3; kernel++) begin
      if (rp_module_i == 8'(kernel)) begin
        from_kernel = drawn_valid[kernel];
        drawn = drawn_by[kernel];
      end
    end
  end
endmodule
