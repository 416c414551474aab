// The core CV32E40P (OpenHW Group) with the instructions of PULP, as the bench drives it: its two
// memory ports, and each instruction as it leaves the decoder. The ports follow OBI; the memory of
// instructions grants every request.
module handler_core (
    input  logic        clk_i,
    input  logic        rst_ni,
    input  logic [31:0] boot_addr_i,

    output logic        instr_req_o,
    output logic [31:0] instr_addr_o,
    input  logic        instr_rvalid_i,
    input  logic [31:0] instr_rdata_i,

    output logic        data_req_o,
    input  logic        data_gnt_i,
    output logic        data_we_o,
    output logic [3:0]  data_be_o,
    output logic [31:0] data_addr_o,
    output logic [31:0] data_wdata_o,
    input  logic        data_rvalid_i,
    input  logic [31:0] data_rdata_i,

    // An instruction leaves the decoder in this cycle, and its address.
    output logic        issued_o,
    output logic [31:0] issued_pc_o
);
  assign issued_o = core.id_stage_i.minstret;
  assign issued_pc_o = core.pc_id;

  cv32e40p_core #(
      .COREV_PULP(1)
  ) core (
      .clk_i,
      .rst_ni,
      .pulp_clock_en_i(1'b1),
      .scan_cg_en_i(1'b0),
      .boot_addr_i,
      .mtvec_addr_i(32'h9000_0000),
      .dm_halt_addr_i('0),
      .hart_id_i('0),
      .dm_exception_addr_i('0),
      .instr_req_o,
      .instr_gnt_i(1'b1),
      .instr_rvalid_i,
      .instr_addr_o,
      .instr_rdata_i,
      .data_req_o,
      .data_gnt_i,
      .data_rvalid_i,
      .data_we_o,
      .data_be_o,
      .data_addr_o,
      .data_wdata_o,
      .data_rdata_i,
      .apu_busy_o(),
      .apu_req_o(),
      .apu_gnt_i(1'b0),
      .apu_operands_o(),
      .apu_op_o(),
      .apu_flags_o(),
      .apu_rvalid_i(1'b0),
      .apu_result_i('0),
      .apu_flags_i('0),
      .irq_i('0),
      .irq_ack_o(),
      .irq_id_o(),
      .debug_req_i(1'b0),
      .debug_havereset_o(),
      .debug_running_o(),
      .debug_halted_o(),
      .fetch_enable_i(1'b1),
      .core_sleep_o()
  );
endmodule

// The core's clock gate: its clock never stops here.
module cv32e40p_clock_gate (
    input  logic clk_i,
    input  logic en_i,
    input  logic scan_cg_en_i,
    output logic clk_o
);
  logic unused;
  assign unused = &{1'b0, en_i, scan_cg_en_i};
  assign clk_o = clk_i;
endmodule
