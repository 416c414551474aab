// Starts the jobs of descriptors. Copies go to the copy units by slot. For an engine, the unit
// reads the descriptor and makes a command of it, with the slot as the tag. Every target has a
// queue with a place for every slot, so a slow engine delays only its own work. Descriptors that
// need no target (NOP, a wrong descriptor) end here. The unit merges all endings into one stream.

/* verilator lint_off PINCONNECTEMPTY */  // this module does not use the levels of its queues

module qdma_dispatch
  import qdma_pkg::*;
(
  input  logic                     clk_i,
  input  logic                     rst_ni,

  // A job starts. start_room_o: there is room for a job that ends at once.
  output logic                     start_room_o,
  input  logic                     start_valid_i,
  input  slot_t                    start_slot_i,
  input  unit_e                    start_target_i,
  input  logic [7:0]               start_status_i,
  input  logic [63:0]              start_detail_i,

  // To the copy units.
  output logic                     h2c_valid_o,
  input  logic                     h2c_ready_i,
  output slot_t                    h2c_slot_o,
  output logic                     c2h_valid_o,
  input  logic                     c2h_ready_i,
  output slot_t                    c2h_slot_o,

  // Beats of descriptors.
  output slot_t                    beat_slot_o,
  output logic                     beat_second_o,
  input  fs_pkg::beat_t            beat_i,

  // Engines: placements and maps, linear maps, checksums, reconfiguration.
  output logic [3:0]               command_valid_o,
  input  logic [3:0]               command_ready_i,
  output fs_pkg::engine_command_t [3:0] command_o,
  input  logic [3:0]               answer_valid_i,
  output logic [3:0]               answer_ready_o,
  input  fs_pkg::engine_answer_t [3:0] answer_i,

  // Endings of the copies, and the stream of all endings.
  input  logic [1:0]               copy_valid_i,
  output logic [1:0]               copy_ready_o,
  input  ending_t [1:0]            copy_i,
  output logic                     ending_valid_o,
  input  logic                     ending_ready_i,
  output ending_t                  ending_o
);
  // ---- Queues ---------------------------------------------------------------------------------

  localparam int unsigned ENGINES = 4;
  localparam int unsigned QUEUES = 2 + ENGINES;  // in the order of unit_e, from UNIT_H2C on

  logic [QUEUES-1:0] valid, ready;
  slot_t [QUEUES-1:0] slots;
  logic ends_at_once;
  assign ends_at_once = start_target_i == UNIT_NONE || start_status_i != fs_regs_pkg::STATUS_OK;

  for (genvar q = 0; q < QUEUES; q++) begin : gen_queues
    logic room, put;
    assign put = start_valid_i && !ends_at_once && start_target_i == unit_e'(q + 1);
    fs_fifo #(.WIDTH($bits(slot_t)), .DEPTH(SLOTS)) i_queue (
      .clk_i, .rst_ni,
      .in_valid_i(put), .in_ready_o(room), .in_data_i(start_slot_i),
      .out_valid_o(valid[q]), .out_ready_i(ready[q]), .out_data_o(slots[q]), .level_o()
    );
    assert property (@(posedge clk_i) disable iff (!rst_ni) !put || room)
    else $error("more jobs than slots");
  end

  assign h2c_valid_o = valid[0];
  assign h2c_slot_o = slots[0];
  assign ready[0] = h2c_ready_i;
  assign c2h_valid_o = valid[1];
  assign c2h_slot_o = slots[1];
  assign ready[1] = c2h_ready_i;

  // ---- Commands: read the two beats of a descriptor into its engine's register ----------------

  typedef enum logic [1:0] { PICK, FIRST, SECOND, STORE } state_e;
  state_e state_q;
  logic [1:0] engine_q;
  logic [ENGINES-1:0] command_valid_q;
  fs_pkg::engine_command_t [ENGINES-1:0] command_q;

  logic [ENGINES-1:0] able;
  assign able = valid[QUEUES-1:2] & ~command_valid_q;
  logic [1:0] engine;
  always_comb begin
    engine = '0;
    for (int i = ENGINES - 1; i >= 0; i--) begin
      if (able[i]) engine = 2'(i);
    end
  end

  assign beat_slot_o = slots[3'(engine_q) + 3'd2];
  assign beat_second_o = state_q == SECOND;
  for (genvar e = 0; e < ENGINES; e++) begin : gen_engines
    assign ready[2+e] = state_q == STORE && engine_q == 2'(e);
    assign command_valid_o[e] = command_valid_q[e];
    assign command_o[e] = command_q[e];
  end

  always_ff @(posedge clk_i) begin
    if (state_q == SECOND) begin
      command_q[engine_q].tag <= 16'(beat_slot_o);
      command_q[engine_q].owner <= beat_slot_o.owner;
      command_q[engine_q].descriptor[511:0] <= beat_i;
    end
    if (state_q == STORE) command_q[engine_q].descriptor[1023:512] <= beat_i;
    if (!rst_ni) begin
      state_q <= PICK;
      command_valid_q <= '0;
    end else begin
      command_valid_q <= command_valid_q & ~command_ready_i;
      unique case (state_q)
        PICK: begin
          engine_q <= engine;
          if (able != '0) state_q <= FIRST;
        end
        FIRST: state_q <= SECOND;
        SECOND: state_q <= STORE;
        STORE: begin
          command_valid_q[engine_q] <= 1'b1;
          state_q <= PICK;
        end
      endcase
    end
  end

  // ---- Endings --------------------------------------------------------------------------------

  logic now_valid, now_ready;
  ending_t now, at_once;
  assign at_once = '{
    slot: start_slot_i, status: start_status_i, result: '0,
    detail: (start_status_i == fs_regs_pkg::STATUS_OK) ? '0 : start_detail_i
  };
  fs_fifo #(.WIDTH($bits(ending_t)), .DEPTH(2)) i_at_once (
    .clk_i, .rst_ni,
    .in_valid_i(start_valid_i && ends_at_once), .in_ready_o(start_room_o), .in_data_i(at_once),
    .out_valid_o(now_valid), .out_ready_i(now_ready), .out_data_o(now), .level_o()
  );

  ending_t [ENGINES-1:0] answered;
  for (genvar e = 0; e < ENGINES; e++) begin : gen_answers
    assign answered[e] = '{
      slot: answer_i[e].tag[7:0], status: answer_i[e].status,
      result: answer_i[e].result, detail: answer_i[e].detail
    };
  end

  qdma_merge_slow #(.STREAMS(3 + ENGINES), .WIDTH($bits(ending_t))) i_endings (
    .clk_i, .rst_ni,
    .in_valid_i({answer_valid_i, copy_valid_i, now_valid}),
    .in_ready_o({answer_ready_o, copy_ready_o, now_ready}),
    .in_data_i({answered, copy_i, now}),
    .out_valid_o(ending_valid_o), .out_ready_i(ending_ready_i), .out_data_o(ending_o)
  );
endmodule
