// Starts the jobs of descriptors. Copies go to the copy units by slot. For an engine, the unit
// reads the descriptor and makes a command of it, with the slot as the tag. Descriptors that need
// no target (NOP, a wrong descriptor) end here. The unit merges all endings into one stream.
//
// **Engines.** In front of every engine, jobs wait in a line for each function, and functions take
// turns (qdma_lines). A function whose operations take long stays out until others have had as much
// time (qdma_share). An engine gets an operation only when it has ended those before: IN_FLIGHT
// says how many it may have, so that no more of another tenant are before a job whose turn has
// come. The command of the next operation is in its register before that, and is replaced if
// another function's job comes that is to go first.
//
// Operations of a function that is being reset, and that have not begun, end here.

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

  // Functions whose jobs that wait for an engine end: all their queue sets are being reset.
  input  logic [FUNCTIONS-1:0]     clear_i,

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
  // ---- Copies ---------------------------------------------------------------------------------

  localparam int unsigned ENGINES = 4;
  // Operations that an engine may have. Placements overlap; the others are done one at a time.
  localparam int unsigned IN_FLIGHT [ENGINES] = '{2, 1, 1, 1};

  logic ends_at_once;
  assign ends_at_once = start_target_i == UNIT_NONE || start_status_i != fs_regs_pkg::STATUS_OK;

  logic [1:0] copy_starts;
  slot_t [1:0] copy_slots;
  for (genvar c = 0; c < 2; c++) begin : gen_copies
    logic room, put;
    assign put = start_valid_i && !ends_at_once && start_target_i == unit_e'(int'(UNIT_H2C) + c);
    fs_fifo #(.WIDTH($bits(slot_t)), .DEPTH(SLOTS)) i_queue (
      .clk_i, .rst_ni,
      .in_valid_i(put), .in_ready_o(room), .in_data_i(start_slot_i),
      .out_valid_o(copy_starts[c]), .out_ready_i((c == 0) ? h2c_ready_i : c2h_ready_i),
      .out_data_o(copy_slots[c]), .level_o()
    );
    assert property (@(posedge clk_i) disable iff (!rst_ni) !put || room)
    else $error("more jobs than slots");
  end

  assign {c2h_valid_o, h2c_valid_o} = copy_starts;
  assign {c2h_slot_o, h2c_slot_o} = copy_slots;

  // ---- Whose turn it is -----------------------------------------------------------------------

  logic [ENGINES-1:0] next_valid, next_cleared, offers, dropped_ready;
  slot_t [ENGINES-1:0] next;

  // The command registers: loaded with the descriptor of the next job, then offered to the engine.
  logic [ENGINES-1:0] loaded_q, offered_q, is_loaded;
  fs_pkg::engine_command_t [ENGINES-1:0] command_q;

  for (genvar e = 0; e < ENGINES; e++) begin : gen_engines
    logic [FUNCTIONS-1:0] barred, waiting, working, begins;
    logic [FUNCTIONS-1:0][1:0] counts_q;  // operations in the engine
    logic [1:0] count_q;
    logic ends;
    fs_pkg::function_t ended;

    qdma_lines i_lines (
      .clk_i, .rst_ni,
      .put_valid_i(start_valid_i && !ends_at_once
        && start_target_i == unit_e'(int'(UNIT_PLACE) + e)),
      .put_slot_i(start_slot_i),
      .barred_i(barred), .clear_i, .waiting_o(waiting),
      .next_valid_o(next_valid[e]), .next_slot_o(next[e]), .next_cleared_o(next_cleared[e]),
      .take_i(offers[e] || (next_valid[e] && next_cleared[e] && dropped_ready[e]))
    );
    qdma_share i_share (
      .clk_i, .rst_ni, .waiting_i(waiting), .working_i(working), .begins_i(begins),
      .barred_o(barred)
    );

    // An answer that waits is of an operation that has ended.
    assign is_loaded[e] = loaded_q[e] && command_q[e].tag[7:0] == next[e];
    assign offers[e] = next_valid[e] && !next_cleared[e] && is_loaded[e] && !offered_q[e]
        && 3'(count_q) < 3'(IN_FLIGHT[e]) + 3'(answer_valid_i[e]);
    assign ends = answer_valid_i[e] && answer_ready_o[e];
    assign ended = answer_i[e].tag[7:4];
    always_comb begin
      for (int unsigned f = 0; f < FUNCTIONS; f++) begin
        begins[f] = offers[e] && 32'(next[e].owner) == f;
        working[f] = counts_q[f] != '0;
      end
    end
    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        count_q <= '0;
        counts_q <= '0;
      end else begin
        if (offers[e] != ends) count_q <= offers[e] ? count_q + 1'b1 : count_q - 1'b1;
        for (int unsigned f = 0; f < FUNCTIONS; f++) begin
          if (begins[f] != (ends && 32'(ended) == f)) begin
            counts_q[f] <= begins[f] ? counts_q[f] + 1'b1 : counts_q[f] - 1'b1;
          end
        end
      end
    end

    assign command_valid_o[e] = offered_q[e];
    assign command_o[e] = command_q[e];

    assert property (@(posedge clk_i) disable iff (!rst_ni) !ends || counts_q[ended] != '0)
    else $error("an engine answered what it was not asked");
  end

  // ---- Commands: read the two beats of a descriptor into its engine's register ----------------

  typedef enum logic [1:0] { PICK, FIRST, SECOND, STORE } state_e;
  state_e state_q;
  logic [1:0] engine_q;
  slot_t slot_q;

  logic [ENGINES-1:0] able;
  assign able = next_valid & ~next_cleared & ~is_loaded & ~offered_q;
  logic [1:0] engine;
  always_comb begin
    engine = '0;
    for (int i = ENGINES - 1; i >= 0; i--) begin
      if (able[i]) engine = 2'(i);
    end
  end

  assign beat_slot_o = slot_q;
  assign beat_second_o = state_q == SECOND;

  always_ff @(posedge clk_i) begin
    if (state_q == PICK) {engine_q, slot_q} <= {engine, next[engine]};
    if (state_q == SECOND) begin
      command_q[engine_q].tag <= 16'(slot_q);
      command_q[engine_q].owner <= slot_q.owner;
      command_q[engine_q].descriptor[511:0] <= beat_i;
    end
    if (state_q == STORE) command_q[engine_q].descriptor[1023:512] <= beat_i;
    if (!rst_ni) begin
      state_q <= PICK;
      loaded_q <= '0;
      offered_q <= '0;
    end else begin
      offered_q <= (offered_q & ~command_ready_i) | offers;
      // A command is used once, and a job that leaves without its engine takes its command along.
      loaded_q <= loaded_q & ~offers & ~(next_valid & next_cleared);
      unique case (state_q)
        PICK: begin
          if (able != '0) begin
            state_q <= FIRST;
            loaded_q[engine] <= 1'b0;
          end
        end
        FIRST: state_q <= SECOND;
        SECOND: state_q <= STORE;
        STORE: begin
          // The job may have left meanwhile.
          loaded_q[engine_q] <= next_valid[engine_q] && !next_cleared[engine_q]
              && next[engine_q] == slot_q;
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

  ending_t [ENGINES-1:0] answered, dropped;
  for (genvar e = 0; e < ENGINES; e++) begin : gen_answers
    assign dropped[e] = '{
      slot: next[e], status: fs_regs_pkg::STATUS_HOST_FAULT, result: '0, detail: '0
    };
    assign answered[e] = '{
      slot: answer_i[e].tag[7:0], status: answer_i[e].status,
      result: answer_i[e].result, detail: answer_i[e].detail
    };
  end

  qdma_merge_slow #(.STREAMS(3 + 2 * ENGINES), .WIDTH($bits(ending_t))) i_endings (
    .clk_i, .rst_ni,
    .in_valid_i({next_valid & next_cleared, answer_valid_i, copy_valid_i, now_valid}),
    .in_ready_o({dropped_ready, answer_ready_o, copy_ready_o, now_ready}),
    .in_data_i({dropped, answered, copy_i, now}),
    .out_valid_o(ending_valid_o), .out_ready_i(ending_ready_i), .out_data_o(ending_o)
  );
endmodule
