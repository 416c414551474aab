// The queue engine: the host's queue sets, and the units between the queue sets and memory or
// engines.
//
// A queue set has three rings in host memory: descriptors to the card (H2C), descriptors from the
// card (C2H), and completions. rtl/regs/device.toml describes the host's view. Thousands of queue
// sets belong to up to 16 functions. The tenants of these functions do not trust each other.
//
//   MMIO -> regs -> context: the state of every queue set, changed by one event at a time
//                     |  ^
//  scheduler <- may fetch |   picks a ring: round robin over functions, then over rings
//       |             ^    |
//       +-> descriptor: fetches, checks -> arrived
//                     |
//                 dispatch -> h2c, c2h (copies alternate), engines -> ended -> completion -> host
//
// **Order.** Descriptors of a ring start in order, run at the same time, and complete in order. A
// descriptor with FENCE waits for all descriptors before it in its ring. A C2H descriptor with
// AFTER waits for the count of the H2C ring.
//
// **Isolation.** Every function has its own slots for descriptors in the device. A descriptor that
// waits for a fence or a count stays in its slot. When another ring of its function has no slot, it
// gives the slot back: at once if it waits for a count, after a while if it waits for a fence. One
// that waits for a consumer holds no slot. Before the engine fetches a descriptor, it reserves a
// place in the completion ring, so nothing in the device waits for a host. Every access to host
// memory passes a guard, which knows only the function's window.
//
// **Fairness.** Functions take turns in front of every unit that they share: fetches, copies (every
// 4 KiB), engines, contexts. An engine's time is divided among the functions that want it. Register
// accesses and resets take at most every second event.
//
// **Errors** stop their queue set and complete with their status. Jobs in flight end. A reset of
// the queue set lets the driver enable it again. Other queue sets are not affected.

module qdma
  import qdma_pkg::*;
#(
  parameter int unsigned QUEUE_SETS = 64
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,
  output logic                     idle_o,  // nothing to do until the next register access

  // Registers. Reads are answered in order.
  input  logic                     mmio_valid_i,
  output logic                     mmio_ready_o,
  input  mmio_request_t            mmio_data_i,
  output logic                     mmio_answer_valid_o,
  input  logic                     mmio_answer_ready_i,
  output logic [63:0]              mmio_answer_data_o,

  // Function-level reset: the host holds a function's reset until it is done.
  input  logic [FUNCTIONS-1:0]     function_reset_i,
  output logic [FUNCTIONS-1:0]     function_reset_done_o,

  // Host memory.
  output logic                     host_read_valid_o,
  input  logic                     host_read_ready_i,
  output host_read_t               host_read_data_o,
  input  logic                     host_data_valid_i,
  output logic                     host_data_ready_o,
  input  host_data_t               host_data_data_i,
  output logic                     host_write_valid_o,
  input  logic                     host_write_ready_i,
  output host_write_t              host_write_data_o,

  // Card memory.
  output logic                     card_read_valid_o,
  input  logic                     card_read_ready_i,
  output fs_pkg::card_read_t       card_read_data_o,
  input  logic                     card_data_valid_i,
  output logic                     card_data_ready_o,
  input  fs_pkg::card_data_t       card_data_data_i,
  output logic                     card_write_valid_o,
  input  logic                     card_write_ready_i,
  output fs_pkg::card_write_t      card_write_data_o,
  input  fs_pkg::card_done_t       card_done_i,

  // The engines, in this order: placements and maps, linear maps, checksums, the reconfigurable
  // partition.
  output logic                     place_command_valid_o,
  input  logic                     place_command_ready_i,
  output fs_pkg::engine_command_t  place_command_o,
  input  logic                     place_answer_valid_i,
  output logic                     place_answer_ready_o,
  input  fs_pkg::engine_answer_t   place_answer_i,
  output logic                     code_command_valid_o,
  input  logic                     code_command_ready_i,
  output fs_pkg::engine_command_t  code_command_o,
  input  logic                     code_answer_valid_i,
  output logic                     code_answer_ready_o,
  input  fs_pkg::engine_answer_t   code_answer_i,
  output logic                     checksum_command_valid_o,
  input  logic                     checksum_command_ready_i,
  output fs_pkg::engine_command_t  checksum_command_o,
  input  logic                     checksum_answer_valid_i,
  output logic                     checksum_answer_ready_o,
  input  fs_pkg::engine_answer_t   checksum_answer_i,
  output logic                     reconfigure_command_valid_o,
  input  logic                     reconfigure_command_ready_i,
  output fs_pkg::engine_command_t  reconfigure_command_o,
  input  logic                     reconfigure_answer_valid_i,
  output logic                     reconfigure_answer_ready_o,
  input  fs_pkg::engine_answer_t   reconfigure_answer_i,

  // Interrupts.
  output logic                     interrupt_valid_o,
  input  logic                     interrupt_ready_i,
  output logic [7:0]               interrupt_data_o,  // vector

  output windows_t [FUNCTIONS-1:0] windows_o,  // for the guards of card memory
  input  device_status_t           device_i
);
  // ---- Registers ------------------------------------------------------------------------------

  logic [31:0] cycles;
  logic [7:0] vectors [FUNCTIONS];
  logic [1:0] refused;
  logic clearing, regs_ready;
  logic regs_idle, context_idle, slots_idle, scheduler_idle, completion_idle, writes_idle;
  logic enable_idle, reset_idle;

  host_beat_t context_address;
  logic loaded_valid, loaded_ready;
  set_number_t loaded_set;
  context_t loaded_context;

  logic regs_valid, regs_event_ready, regs_done, event_valid, event_ready, event_done, event_bad;
  event_t regs_event, event_asked;
  logic [63:0] event_data;
  fs_regs_pkg::function_table_queues_t [FUNCTIONS-1:0] queues;

  logic unsent;
  logic [FUNCTIONS-1:0] interrupting, reset_ended, clear, enabled, unsent_of;

  // The reset of function 0 is that of all functions, whatever the host holds for the others.
  logic [FUNCTIONS-1:0] resets;
  assign resets = function_reset_i | {FUNCTIONS{function_reset_i[0]}};

  assign mmio_ready_o = regs_ready && !clearing;
  qdma_regs #(.QUEUE_SETS(QUEUE_SETS)) i_regs (
    .clk_i, .rst_ni,
    .mmio_valid_i(mmio_valid_i && !clearing), .mmio_ready_o(regs_ready), .mmio_i(mmio_data_i),
    .answer_valid_o(mmio_answer_valid_o), .answer_ready_i(mmio_answer_ready_i),
    .answer_data_o(mmio_answer_data_o),
    .context_address_o(context_address),
    .event_valid_o(regs_valid), .event_ready_i(regs_event_ready), .event_o(regs_event),
    .event_done_i(regs_done), .event_bad_i(event_bad), .event_data_i(event_data),
    .unsent_i(unsent), .in_use_i(enabled | unsent_of),
    .reset_i(resets), .reset_ended_i(reset_ended),
    .windows_o, .queues_o(queues), .vectors_o(vectors), .cycles_o(cycles), .refused_i(refused),
    .device_i, .idle_o(regs_idle)
  );

  qdma_function_reset #(.QUEUE_SETS(QUEUE_SETS)) i_function_reset (
    .clk_i, .rst_ni, .idle_o(reset_idle),
    .reset_i(resets), .held_i(function_reset_i), .ended_o(reset_ended),
    .done_o(function_reset_done_o), .clear_o(clear),
    .queues_i(queues),
    .regs_valid_i(regs_valid), .regs_ready_o(regs_event_ready), .regs_event_i(regs_event),
    .regs_done_o(regs_done),
    .event_valid_o(event_valid), .event_ready_i(event_ready), .event_o(event_asked),
    .event_done_i(event_done), .event_state_i(fs_regs_pkg::queue_state_e'(event_data[3:0])),
    .unsent_i(unsent), .interrupting_i(interrupting)
  );

  // Reads of host memory: contexts, descriptors, copies.
  logic [2:0] read_valid, read_ready;
  host_read_t [2:0] reads;
  logic data_valid;
  host_data_t data;

  // ---- Queue sets -----------------------------------------------------------------------------

  logic visit_valid, visit_ready, visiting, push_valid, push_ready;
  fs_pkg::function_t visit_owner, push_owner, owner;
  ring_number_t visit_ring, push_ring, arrived_ring, ended_ring, act_ring;
  logic arrived_valid, arrived_ready, ending_valid, ending_ready, act_valid;
  slot_t arrived_slot, looked_slot, slot, act_slot;
  ending_t ending;
  logic [FUNCTIONS-1:0] has_free, starved;
  logic [1:0][FUNCTIONS-1:0][FUNCTION_JOBS-1:0] kept;
  logic evict_valid, evict_ready;
  slot_t evict_slot;
  ring_number_t evict_ring;
  slot_number_t free_number;
  logic check_valid;
  slot_t check_slot;
  check_result_t new_check_result, check_result;
  copy_t copy;
  outcome_t outcome;
  links_t links;
  logic fetch_room, start_room, completion_room;
  actions_t act;

  qdma_context #(.QUEUE_SETS(QUEUE_SETS)) i_context (
    .clk_i, .rst_ni, .clearing_o(clearing), .idle_o(context_idle), .enabled_o(enabled),
    .mmio_valid_i(event_valid), .mmio_ready_o(event_ready), .mmio_event_i(event_asked),
    .mmio_done_o(event_done), .mmio_bad_o(event_bad), .mmio_data_o(event_data),
    .loaded_valid_i(loaded_valid), .loaded_ready_o(loaded_ready), .loaded_set_i(loaded_set),
    .loaded_context_i(loaded_context),
    .visit_valid_i(visit_valid), .visit_ready_o(visit_ready), .visit_owner_i(visit_owner),
    .visit_ring_i(visit_ring), .visiting_o(visiting),
    .arrived_valid_i(arrived_valid), .arrived_ready_o(arrived_ready), .arrived_slot_i(arrived_slot),
    .arrived_ring_i(arrived_ring),
    .ended_valid_i(ending_valid), .ended_ready_o(ending_ready), .ended_slot_i(ending.slot),
    .ended_ring_i(ended_ring),
    .evict_valid_i(evict_valid), .evict_ready_o(evict_ready), .evict_slot_i(evict_slot),
    .evict_ring_i(evict_ring),
    .owner_o(owner), .free_number_i(free_number), .slot_o(slot), .check_result_i(check_result),
    .outcome_i(outcome), .links_i(links),
    .fetch_room_i(fetch_room), .start_room_i(start_room), .completion_room_i(completion_room),
    .act_valid_o(act_valid), .act_slot_o(act_slot), .act_ring_o(act_ring), .act_o(act),
    .push_valid_o(push_valid), .push_ready_i(push_ready), .push_owner_o(push_owner),
    .push_ring_o(push_ring)
  );

  qdma_slots i_slots (
    .clk_i, .rst_ni, .cycles_i(cycles), .idle_o(slots_idle),
    .has_free_o(has_free), .owner_i(owner), .free_number_o(free_number), .kept_o(kept),
    .check_valid_i(check_valid), .check_slot_i(check_slot), .check_result_i(new_check_result),
    .ending_valid_i(ending_valid && ending_ready), .ending_i(ending),
    .arrived_slot_i(looked_slot), .arrived_ring_o(arrived_ring),
    .ended_slot_i(ending.slot), .ended_ring_o(ended_ring),
    .evict_slot_i(evict_slot), .evict_ring_o(evict_ring),
    .slot_i(slot), .check_result_o(check_result), .outcome_o(outcome), .links_o(links),
    .act_valid_i(act_valid), .act_slot_i(act_slot), .act_ring_i(act_ring), .act_i(act)
  );

  qdma_scheduler #(.QUEUE_SETS(QUEUE_SETS)) i_scheduler (
    .clk_i, .rst_ni, .idle_o(scheduler_idle),
    .push_valid_i(push_valid), .push_ready_o(push_ready), .push_owner_i(push_owner),
    .push_ring_i(push_ring), .has_slot_i(has_free), .visiting_i(visiting), .starved_o(starved),
    .visit_valid_o(visit_valid), .visit_ready_i(visit_ready), .visit_owner_o(visit_owner),
    .visit_ring_o(visit_ring)
  );

  qdma_evict i_evict (
    .clk_i, .rst_ni, .starved_i(starved), .kept_i(kept),
    .evict_valid_o(evict_valid), .evict_ready_i(evict_ready), .evict_slot_o(evict_slot)
  );

  qdma_enable #(.QUEUE_SETS(QUEUE_SETS)) i_enable (
    .clk_i, .rst_ni, .idle_o(enable_idle), .windows_i(windows_o),
    .load_valid_i(act_valid && act.load), .load_set_i(act_ring.set),
    .load_owner_i(event_asked.page), .load_address_i(context_address),
    .loaded_valid_o(loaded_valid), .loaded_ready_i(loaded_ready), .loaded_set_o(loaded_set),
    .loaded_context_o(loaded_context),
    .read_valid_o(read_valid[0]), .read_ready_i(read_ready[0]), .read_o(reads[0]),
    .data_valid_i(data_valid), .data_i(data)
  );

  // ---- Descriptors ----------------------------------------------------------------------------

  slot_t beat_slot;
  logic beat_second;
  fs_pkg::beat_t beat;
  qdma_descriptor i_descriptor (
    .clk_i, .rst_ni, .windows_i(windows_o),
    .fetch_room_o(fetch_room), .fetch_valid_i(act_valid && act.fetch), .fetch_i(act.what),
    .read_valid_o(read_valid[1]), .read_ready_i(read_ready[1]), .read_o(reads[1]),
    .data_valid_i(data_valid), .data_i(data),
    .looked_slot_o(looked_slot), .looked_ring_i(arrived_ring),
    .check_valid_o(check_valid), .check_slot_o(check_slot), .check_result_o(new_check_result),
    .copy_o(copy),
    .arrived_valid_o(arrived_valid), .arrived_ready_i(arrived_ready), .arrived_slot_o(arrived_slot),
    .beat_slot_i(beat_slot), .beat_second_i(beat_second), .beat_o(beat)
  );

  logic h2c_valid, h2c_ready, c2h_valid, c2h_ready;
  slot_t h2c_slot, c2h_slot;
  logic [1:0] copied_valid, copied_ready;
  ending_t [1:0] copied;
  qdma_dispatch i_dispatch (
    .clk_i, .rst_ni,
    .start_room_o(start_room), .start_valid_i(act_valid && act.start), .start_slot_i(act_slot),
    .start_target_i(check_result.target), .start_status_i(act.start_status),
    .start_detail_i(act.start_detail), .clear_i(clear),
    .h2c_valid_o(h2c_valid), .h2c_ready_i(h2c_ready), .h2c_slot_o(h2c_slot),
    .c2h_valid_o(c2h_valid), .c2h_ready_i(c2h_ready), .c2h_slot_o(c2h_slot),
    .beat_slot_o(beat_slot), .beat_second_o(beat_second), .beat_i(beat),
    .command_valid_o({reconfigure_command_valid_o, checksum_command_valid_o,
      code_command_valid_o, place_command_valid_o}),
    .command_ready_i({reconfigure_command_ready_i, checksum_command_ready_i,
      code_command_ready_i, place_command_ready_i}),
    .command_o({reconfigure_command_o, checksum_command_o, code_command_o, place_command_o}),
    .answer_valid_i({reconfigure_answer_valid_i, checksum_answer_valid_i,
      code_answer_valid_i, place_answer_valid_i}),
    .answer_ready_o({reconfigure_answer_ready_o, checksum_answer_ready_o,
      code_answer_ready_o, place_answer_ready_o}),
    .answer_i({reconfigure_answer_i, checksum_answer_i, code_answer_i, place_answer_i}),
    .copy_valid_i(copied_valid), .copy_ready_o(copied_ready), .copy_i(copied),
    .ending_valid_o(ending_valid), .ending_ready_i(ending_ready), .ending_o(ending)
  );

  // ---- Copies and completions -----------------------------------------------------------------

  qdma_h2c i_h2c (
    .clk_i, .rst_ni,
    .load_valid_i(check_valid && new_check_result.target == UNIT_H2C), .load_slot_i(check_slot),
    .load_i(copy),
    .start_valid_i(h2c_valid), .start_ready_o(h2c_ready), .start_slot_i(h2c_slot),
    .read_valid_o(read_valid[2]), .read_ready_i(read_ready[2]), .read_o(reads[2]),
    .data_valid_i(data_valid), .data_i(data),
    .write_valid_o(card_write_valid_o), .write_ready_i(card_write_ready_i),
    .write_o(card_write_data_o), .done_i(card_done_i),
    .ending_valid_o(copied_valid[0]), .ending_ready_i(copied_ready[0]), .ending_o(copied[0])
  );

  assign card_data_ready_o = 1'b1;

  // Writes to host memory: completions, copies.
  logic [1:0] write_valid, write_ready;
  noted_write_t [1:0] writes;
  logic done_valid, done_error;
  write_note_t done_note;

  qdma_c2h i_c2h (
    .clk_i, .rst_ni,
    .load_valid_i(check_valid && new_check_result.target == UNIT_C2H), .load_slot_i(check_slot),
    .load_i(copy),
    .start_valid_i(c2h_valid), .start_ready_o(c2h_ready), .start_slot_i(c2h_slot),
    .read_valid_o(card_read_valid_o), .read_ready_i(card_read_ready_i), .read_o(card_read_data_o),
    .data_valid_i(card_data_valid_i), .data_i(card_data_data_i),
    .write_valid_o(write_valid[1]), .write_ready_i(write_ready[1]), .write_o(writes[1]),
    .done_valid_i(done_valid && !done_note.completion), .done_error_i(done_error),
    .done_note_i(done_note),
    .ending_valid_o(copied_valid[1]), .ending_ready_i(copied_ready[1]), .ending_o(copied[1])
  );

  qdma_completion i_completion (
    .clk_i, .rst_ni, .vectors_i(vectors), .idle_o(completion_idle),
    .reset_i(resets), .interrupting_o(interrupting),
    .asked_set_i(event_asked.set), .unsent_o(unsent), .unsent_of_o(unsent_of),
    .room_o(completion_room), .valid_i(act_valid && act.complete), .set_i(act_ring.set),
    .completion_i(act.completion),
    .write_valid_o(write_valid[0]), .write_ready_i(write_ready[0]), .write_o(writes[0]),
    .done_valid_i(done_valid && done_note.completion), .done_note_i(done_note),
    .interrupt_valid_o, .interrupt_ready_i, .interrupt_vector_o(interrupt_data_o)
  );

  // ---- Host memory ----------------------------------------------------------------------------

  logic merged_read_valid, merged_read_ready, merged_write_valid, merged_write_ready;
  host_read_t merged_read;
  noted_write_t merged_write;
  qdma_merge #(.STREAMS(3), .WIDTH($bits(host_read_t))) i_reads (
    .clk_i, .rst_ni,
    .in_valid_i(read_valid), .in_ready_o(read_ready), .in_data_i(reads),
    .out_valid_o(merged_read_valid), .out_ready_i(merged_read_ready), .out_data_o(merged_read)
  );
  qdma_merge #(.STREAMS(2), .WIDTH($bits(noted_write_t))) i_writes (
    .clk_i, .rst_ni,
    .in_valid_i(write_valid), .in_ready_o(write_ready), .in_data_i(writes),
    .out_valid_o(merged_write_valid), .out_ready_i(merged_write_ready), .out_data_o(merged_write)
  );

  qdma_read_guard i_read_guard (
    .clk_i, .rst_ni, .windows_i(windows_o), .reset_i(resets), .refused_o(refused[0]),
    .in_valid_i(merged_read_valid), .in_ready_o(merged_read_ready), .in_i(merged_read),
    .in_data_valid_o(data_valid), .in_data_o(data),
    .host_valid_o(host_read_valid_o), .host_ready_i(host_read_ready_i), .host_o(host_read_data_o),
    .host_data_valid_i, .host_data_ready_o, .host_data_i(host_data_data_i)
  );
  qdma_write_guard i_write_guard (
    .clk_i, .rst_ni, .windows_i(windows_o), .reset_i(resets), .refused_o(refused[1]),
    .idle_o(writes_idle),
    .in_valid_i(merged_write_valid), .in_ready_o(merged_write_ready), .in_i(merged_write),
    .done_valid_o(done_valid), .done_error_o(done_error), .done_note_o(done_note),
    .host_valid_o(host_write_valid_o), .host_ready_i(host_write_ready_i), .host_o(host_write_data_o)
  );

  // A slot is taken while its descriptor is on its way, at work, or waits. Slots that wait do not
  // count: what they wait for comes with the job of another slot, or never. Without other slots,
  // only completions can be on their way. Only a register access or a function's reset ends
  // idleness, so the other inputs may be one cycle old.
  logic idle_q;
  always_ff @(posedge clk_i) begin
    if (!rst_ni) idle_q <= 1'b0;
    else idle_q <= regs_idle && enable_idle && context_idle && slots_idle && scheduler_idle
        && completion_idle && !merged_write_valid && writes_idle;
  end
  assign idle_o = regs_idle && reset_idle && idle_q;
endmodule
