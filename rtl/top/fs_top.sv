// The device: everything between the host's bus and the card's memory.
//
//                        +-- crush_unit --- dfx_partition (uniform | list | tree)
//   MMIO ----+           |     straw, straw2          ^
//            +-- qdma ---+-- codes_engine              |
//   host ----+           +-- crc_engine                |
//   memory               +-- dfx_config ---------------+
//                             |
//                        fs_card_crossbar --- card memory
//
// On a card, this module's ports connect to a PCIe block (MMIO by function, reads and writes of
// host memory, interrupts) and to a memory controller. In simulation, crates/fpga stands for both.
//
// After a reset (rst_ni), the device has forgotten its requests to both memories, so no answer to
// an older request may come after the reset. On a card, the reset is held until the PCIe block and
// the memory controller are quiet.

/* verilator lint_off PINCONNECTEMPTY */  // the queue engine knows when units are idle

module fs_top
  import fs_pkg::*;
  import fs_pkg::BEAT_BYTES;  // the register map has one, too
  import fs_regs_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64,
  parameter int unsigned ITEM_LANES = 16,
  parameter int unsigned CONTEXTS = 32,
  parameter int unsigned CODE_LANES = 8,
  parameter int unsigned CODE_UNITS = 1,
  parameter int unsigned LANE_BEATS = 1024,
  parameter int unsigned PROGRAM_OPS = 1024,
  parameter int unsigned FRAME_CYCLES = 16
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  output logic                   idle_o,  // no work in flight: the clock may stop until the next
                                          // MMIO request, or the reset of a function

  // Registers. Reads are answered in order. The device takes every access in a bounded time,
  // whatever the host does at the other ports. The host takes answers at once: it asks for no more
  // than it has room for.
  input  logic                   mmio_valid_i,
  output logic                   mmio_ready_o,
  input  logic                   mmio_write_i,
  input  logic [3:0]             mmio_function_i,
  input  logic [16:0]            mmio_offset_i,
  input  logic [7:0]             mmio_strobe_i,  // the bytes of a write
  input  logic [63:0]            mmio_data_i,
  output logic                   mmio_answer_valid_o,
  output logic [63:0]            mmio_answer_data_o,

  // Function-level reset, a bit per function. The host holds a bit until the device has answered it
  // with its own: then the function accesses no host memory, and has no answer to wait for. The reset
  // of function 0 is that of all functions, with or without bits of theirs, and is done when all are.
  input  logic [15:0]            function_reset_i,
  output logic [15:0]            function_reset_done_o,

  // Host memory, addressed by beat of 64 bytes. A read is of one or two beats. Beats of one tag
  // come in order, tags in any order. Writes are posted: no write is answered. The host keeps the
  // order of PCIe: nothing of the device's writes, interrupts and answers to register reads passes a
  // write that left in an earlier cycle.
  output logic                   host_read_valid_o,
  input  logic                   host_read_ready_i,
  output logic [3:0]             host_read_function_o,
  output logic [9:0]             host_read_tag_o,
  output logic [57:0]            host_read_address_o,
  output logic                   host_read_two_o,
  input  logic                   host_data_valid_i,
  output logic                   host_data_ready_o,
  input  logic [9:0]             host_data_tag_i,
  input  logic                   host_data_error_i,
  input  logic                   host_data_last_i,
  input  beat_t                  host_data_i,
  output logic                   host_write_valid_o,
  input  logic                   host_write_ready_i,
  output logic [3:0]             host_write_function_o,
  output logic [57:0]            host_write_address_o,
  output logic [BEAT_BYTES-1:0]  host_write_strobe_o,
  output beat_t                  host_write_data_o,

  output logic                   interrupt_valid_o,
  input  logic                   interrupt_ready_i,
  output logic [7:0]             interrupt_vector_o,

  // Card memory. Reads are answered in order, as are writes.
  output logic                   card_read_valid_o,
  input  logic                   card_read_ready_i,
  output card_beat_t             card_read_address_o,
  output logic [5:0]             card_read_beats_minus_1_o,
  input  logic                   card_data_valid_i,
  output logic                   card_data_ready_o,
  input  beat_t                  card_data_i,
  output logic                   card_write_valid_o,
  input  logic                   card_write_ready_i,
  output card_beat_t             card_write_address_o,
  output logic [BEAT_BYTES-1:0]  card_write_strobe_o,
  output beat_t                  card_write_data_o,
  input  logic                   card_write_done_i
);
  localparam int unsigned FUNCTIONS = MAX_FUNCTIONS;

  // Clients of card memory.
  localparam int unsigned QDMA = 0;
  localparam int unsigned CRUSH = 1;
  localparam int unsigned CODES = 2;
  localparam int unsigned CRC = 3;
  localparam int unsigned CONFIG = 4;
  localparam int unsigned READERS = 5;
  localparam int unsigned WRITERS = 4;  // all clients but CONFIG

  // The engines' port numbers in the queue engine.
  localparam int unsigned PLACE = 0;
  localparam int unsigned CODE = 1;
  localparam int unsigned CHECKSUM = 2;
  localparam int unsigned RECONFIGURE = 3;
  localparam int unsigned ENGINES = 4;

  logic [READERS-1:0] read_valid, read_ready, data_valid, data_ready;
  card_read_t [READERS-1:0] reads;
  card_data_t data;
  logic [WRITERS-1:0] write_valid, write_ready;
  card_write_t [WRITERS-1:0] writes;
  card_done_t [WRITERS-1:0] done;

  logic [ENGINES-1:0] command_valid, command_ready, answer_valid, answer_ready;
  engine_command_t [ENGINES-1:0] commands;
  engine_answer_t [ENGINES-1:0] answers;

  // ---------------------------------------------------------------------------------- queue engine

  qdma_pkg::mmio_request_t mmio;
  qdma_pkg::host_read_t host_read;
  qdma_pkg::host_data_t host_data;
  qdma_pkg::host_write_t host_write;
  qdma_pkg::windows_t [FUNCTIONS-1:0] windows;
  qdma_pkg::device_status_t status;

  assign mmio = '{
    write: mmio_write_i, page: mmio_function_i, offset: mmio_offset_i, strobe: mmio_strobe_i,
    data: mmio_data_i
  };
  assign host_read_function_o = host_read.owner;
  assign host_read_tag_o = host_read.tag;
  assign host_read_address_o = host_read.address;
  assign host_read_two_o = host_read.two;
  assign host_data = '{
    tag: host_data_tag_i, error: host_data_error_i, last: host_data_last_i, data: host_data_i
  };
  assign host_write_function_o = host_write.owner;
  assign host_write_address_o = host_write.address;
  assign host_write_strobe_o = host_write.strobe;
  assign host_write_data_o = host_write.data;

  qdma #(.QUEUE_SETS(QUEUE_SETS)) i_qdma (
    .clk_i, .rst_ni, .idle_o,
    .mmio_valid_i, .mmio_ready_o,
    .mmio_data_i                 (mmio),
    .mmio_answer_valid_o,
    .mmio_answer_ready_i         (1'b1),
    .mmio_answer_data_o,
    .function_reset_i, .function_reset_done_o,
    .host_read_valid_o, .host_read_ready_i,
    .host_read_data_o            (host_read),
    .host_data_valid_i, .host_data_ready_o,
    .host_data_data_i            (host_data),
    .host_write_valid_o, .host_write_ready_i,
    .host_write_data_o           (host_write),
    .card_read_valid_o           (read_valid[QDMA]),
    .card_read_ready_i           (read_ready[QDMA]),
    .card_read_data_o            (reads[QDMA]),
    .card_data_valid_i           (data_valid[QDMA]),
    .card_data_ready_o           (data_ready[QDMA]),
    .card_data_data_i            (data),
    .card_write_valid_o          (write_valid[QDMA]),
    .card_write_ready_i          (write_ready[QDMA]),
    .card_write_data_o           (writes[QDMA]),
    .card_done_i                 (done[QDMA]),
    .place_command_valid_o       (command_valid[PLACE]),
    .place_command_ready_i       (command_ready[PLACE]),
    .place_command_o             (commands[PLACE]),
    .place_answer_valid_i        (answer_valid[PLACE]),
    .place_answer_ready_o        (answer_ready[PLACE]),
    .place_answer_i              (answers[PLACE]),
    .code_command_valid_o        (command_valid[CODE]),
    .code_command_ready_i        (command_ready[CODE]),
    .code_command_o              (commands[CODE]),
    .code_answer_valid_i         (answer_valid[CODE]),
    .code_answer_ready_o         (answer_ready[CODE]),
    .code_answer_i               (answers[CODE]),
    .checksum_command_valid_o    (command_valid[CHECKSUM]),
    .checksum_command_ready_i    (command_ready[CHECKSUM]),
    .checksum_command_o          (commands[CHECKSUM]),
    .checksum_answer_valid_i     (answer_valid[CHECKSUM]),
    .checksum_answer_ready_o     (answer_ready[CHECKSUM]),
    .checksum_answer_i           (answers[CHECKSUM]),
    .reconfigure_command_valid_o (command_valid[RECONFIGURE]),
    .reconfigure_command_ready_i (command_ready[RECONFIGURE]),
    .reconfigure_command_o       (commands[RECONFIGURE]),
    .reconfigure_answer_valid_i  (answer_valid[RECONFIGURE]),
    .reconfigure_answer_ready_o  (answer_ready[RECONFIGURE]),
    .reconfigure_answer_i        (answers[RECONFIGURE]),
    .interrupt_valid_o, .interrupt_ready_i,
    .interrupt_data_o            (interrupt_vector_o),
    .windows_o                   (windows),
    .device_i                    (status)
  );

  // ----------------------------------------------------------------------------------- card memory

  card_beat_t [FUNCTIONS-1:0] window_base, window_end;
  logic [1:0] refused;
  logic [31:0] card_faults_q;

  for (genvar g = 0; g < FUNCTIONS; g++) begin : gen_window
    assign window_base[g] = windows[g].card.base;
    assign window_end[g] = windows[g].card.limit;
  end

  fs_card_crossbar #(.READERS(READERS), .WRITERS(WRITERS), .FUNCTIONS(FUNCTIONS)) i_crossbar (
    .clk_i, .rst_ni,
    .read_valid_i             (read_valid),
    .read_ready_o             (read_ready),
    .read_i                   (reads),
    .data_valid_o             (data_valid),
    .data_ready_i             (data_ready),
    .data_o                   (data),
    .write_valid_i            (write_valid),
    .write_ready_o            (write_ready),
    .write_i                  (writes),
    .done_o                   (done),
    .window_base_i            (window_base),
    .window_end_i             (window_end),
    .mem_read_valid_o         (card_read_valid_o),
    .mem_read_ready_i         (card_read_ready_i),
    .mem_read_address_o       (card_read_address_o),
    .mem_read_beats_minus_1_o (card_read_beats_minus_1_o),
    .mem_data_valid_i         (card_data_valid_i),
    .mem_data_ready_o         (card_data_ready_o),
    .mem_data_i               (card_data_i),
    .mem_write_valid_o        (card_write_valid_o),
    .mem_write_ready_i        (card_write_ready_i),
    .mem_write_address_o      (card_write_address_o),
    .mem_write_strobe_o       (card_write_strobe_o),
    .mem_write_data_o         (card_write_data_o),
    .mem_write_done_i         (card_write_done_i),
    .faults_o                 (refused)
  );

  always_ff @(posedge clk_i) begin
    if (!rst_ni) card_faults_q <= '0;
    else card_faults_q <= card_faults_q + 32'(refused[0]) + 32'(refused[1]);
  end

  // ------------------------------------------------------------------ placement, and its partition

  reconfigurable_module_e rp_module;
  logic rp_ready, rp_busy, rp_decouple, rp_rst_n;
  partition_state_e rp_state;
  logic [31:0] rp_swaps;

  logic rp_beat_valid, rp_drawn_valid;
  crush_pkg::kernel_beat_t rp_beat;
  logic [ITEM_LANES-1:0] rp_mask;
  crush_pkg::slot_t [ITEM_LANES-1:0] rp_slots;
  crush_pkg::drawn_t rp_drawn;

  logic [31:0] draws;
  logic [15:0] draw_cycles;

  crush_unit #(.LANES(ITEM_LANES), .CONTEXTS(CONTEXTS)) i_crush (
    .clk_i, .rst_ni,
    .command_valid_i (command_valid[PLACE]),
    .command_ready_o (command_ready[PLACE]),
    .command_i       (commands[PLACE]),
    .answer_valid_o  (answer_valid[PLACE]),
    .answer_ready_i  (answer_ready[PLACE]),
    .answer_o        (answers[PLACE]),
    .read_valid_o    (read_valid[CRUSH]),
    .read_ready_i    (read_ready[CRUSH]),
    .read_o          (reads[CRUSH]),
    .data_valid_i    (data_valid[CRUSH]),
    .data_ready_o    (data_ready[CRUSH]),
    .data_i          (data),
    .write_valid_o   (write_valid[CRUSH]),
    .write_ready_i   (write_ready[CRUSH]),
    .write_o         (writes[CRUSH]),
    .done_i          (done[CRUSH]),
    .rp_module_i     (rp_module),
    .rp_ready_i      (rp_ready),
    .rp_busy_o       (rp_busy),
    .rp_valid_o      (rp_beat_valid),
    .rp_beat_o       (rp_beat),
    .rp_mask_o       (rp_mask),
    .rp_slots_o      (rp_slots),
    .rp_valid_i      (rp_drawn_valid),
    .rp_drawn_i      (rp_drawn),
    .draws_o         (draws),
    .draw_cycles_o   (draw_cycles),
    .idle_o          ()
  );

  dfx_partition #(.LANES(ITEM_LANES)) i_partition (
    .clk_i,
    .rst_ni     (rp_rst_n),
    .module_i   (rp_module),
    .decouple_i (rp_decouple),
    .valid_i    (rp_beat_valid),
    .beat_i     (rp_beat),
    .mask_i     (rp_mask),
    .slots_i    (rp_slots),
    .valid_o    (rp_drawn_valid),
    .drawn_o    (rp_drawn)
  );

  dfx_config #(.FRAME_CYCLES(FRAME_CYCLES)) i_config (
    .clk_i, .rst_ni,
    .command_valid_i   (command_valid[RECONFIGURE]),
    .command_ready_o   (command_ready[RECONFIGURE]),
    .command_i         (commands[RECONFIGURE]),
    .answer_valid_o    (answer_valid[RECONFIGURE]),
    .answer_ready_i    (answer_ready[RECONFIGURE]),
    .answer_o          (answers[RECONFIGURE]),
    .read_valid_o      (read_valid[CONFIG]),
    .read_ready_i      (read_ready[CONFIG]),
    .read_o            (reads[CONFIG]),
    .data_valid_i      (data_valid[CONFIG]),
    .data_ready_o      (data_ready[CONFIG]),
    .data_i            (data),
    .module_o          (rp_module),
    .partition_ready_o (rp_ready),
    .decouple_o        (rp_decouple),
    .partition_rst_no  (rp_rst_n),
    .partition_busy_i  (rp_busy),
    .state_o           (rp_state),
    .swaps_o           (rp_swaps)
  );

  // --------------------------------------------------------------------------- codes and checksums

  logic [63:0] code_reads, code_writes, code_busy;

  codes_engine #(
    .LANES(CODE_LANES), .LANE_BEATS(LANE_BEATS), .OPERATIONS(PROGRAM_OPS), .UNITS(CODE_UNITS)
  ) i_codes (
    .clk_i, .rst_ni, .function_reset_i(function_reset_i | {16{function_reset_i[0]}}),
    .command_valid_i (command_valid[CODE]),
    .command_ready_o (command_ready[CODE]),
    .command_i       (commands[CODE]),
    .answer_valid_o  (answer_valid[CODE]),
    .answer_ready_i  (answer_ready[CODE]),
    .answer_o        (answers[CODE]),
    .read_valid_o    (read_valid[CODES]),
    .read_ready_i    (read_ready[CODES]),
    .read_o          (reads[CODES]),
    .data_valid_i    (data_valid[CODES]),
    .data_ready_o    (data_ready[CODES]),
    .data_i          (data),
    .write_valid_o   (write_valid[CODES]),
    .write_ready_i   (write_ready[CODES]),
    .write_o         (writes[CODES]),
    .done_i          (done[CODES]),
    .read_beats_o    (code_reads),
    .write_beats_o   (code_writes),
    .busy_cycles_o   (code_busy)
  );

  crc_engine i_crc (
    .clk_i, .rst_ni,
    .command_valid_i (command_valid[CHECKSUM]),
    .command_ready_o (command_ready[CHECKSUM]),
    .command_i       (commands[CHECKSUM]),
    .answer_valid_o  (answer_valid[CHECKSUM]),
    .answer_ready_i  (answer_ready[CHECKSUM]),
    .answer_o        (answers[CHECKSUM]),
    .read_valid_o    (read_valid[CRC]),
    .read_ready_i    (read_ready[CRC]),
    .read_o          (reads[CRC]),
    .data_valid_i    (data_valid[CRC]),
    .data_ready_o    (data_ready[CRC]),
    .data_i          (data),
    .write_valid_o   (write_valid[CRC]),
    .write_ready_i   (write_ready[CRC]),
    .write_o         (writes[CRC]),
    .done_i          (done[CRC])
  );

  // ---------------------------------------------------------------------------------------- status

  reg_build_t build;
  reg_rm_state_t rm_state;
  reg_draws_t draws_status;

  assign build = '{
    program_ops: 16'(PROGRAM_OPS),
    lane_beats: 16'(LANE_BEATS),
    code_units: 8'(CODE_UNITS),
    code_lanes: 8'(CODE_LANES),
    contexts: 8'(CONTEXTS),
    item_lanes: 8'(ITEM_LANES)
  };
  assign rm_state = '{swaps: rp_swaps, unused_0: '0, state: rp_state, module_id: rp_module};
  assign draws_status = '{unused_0: '0, last_cycles: draw_cycles, count: draws};
  assign status = '{
    build: build,
    rm_state: rm_state,
    card_faults: card_faults_q,
    card_reads: code_reads,
    card_writes: code_writes,
    code_busy: code_busy,
    draws: draws_status
  };
endmodule
