// Types of the queue engine.
//
// A **queue set** has three rings in host memory: descriptors to the card (H2C), descriptors from
// the card (C2H), completions. A **ring** here is one of the two descriptor rings. A descriptor in
// the device holds a **slot** from the request that fetches it until its completion. Every function
// has FUNCTION_JOBS slots, and no function can take another's. A slot's number names its owner.

/* verilator lint_off UNUSEDPARAM */  // no unit uses the whole package

package qdma_pkg;
  localparam int unsigned FUNCTIONS = fs_regs_pkg::MAX_FUNCTIONS;
  localparam int unsigned FUNCTION_JOBS = fs_regs_pkg::FUNCTION_JOBS;  // slots of one function
  localparam int unsigned SLOTS = FUNCTIONS * FUNCTION_JOBS;
  localparam int unsigned FETCH_AHEAD = 8;  // descriptors of one ring that are fetched, not started
  localparam int unsigned WAIT_AHEAD = 5;   // the same, while the first of them waits
  localparam int unsigned PATIENCE_CYCLES = 256;  // without a slot, before fences give up theirs
  localparam int unsigned QUANTUM_BEATS = 64;  // beats that a copy moves before the next one may go

  typedef logic [10:0] set_number_t;
  typedef logic [12:0] index_t;  // into a ring, modulo twice its size
  typedef logic [3:0] slot_number_t;  // among the slots of its function
  typedef logic [57:0] host_beat_t;  // host addresses by beat
  typedef logic [56:0] descriptor_address_t;  // host addresses by descriptor

  typedef struct packed {
    fs_pkg::function_t owner;
    slot_number_t number;
  } slot_t;

  typedef struct packed {
    set_number_t set;
    logic c2h;
  } ring_number_t;

  // ---- Host memory ----------------------------------------------------------------------------

  typedef enum logic [1:0] {
    READ_COPY,        // number: place in the reorder buffer
    READ_DESCRIPTOR,  // number: slot
    READ_CONTEXT      // the context of a queue set that is being enabled
  } read_kind_e;

  typedef struct packed {
    read_kind_e kind;
    logic [7:0] number;
  } host_tag_t;

  // Reads bring one or two beats. Two beats begin at a multiple of 128 bytes.
  typedef struct packed {
    fs_pkg::function_t owner;
    host_tag_t tag;
    host_beat_t address;
    logic two;
  } host_read_t;

  // Beats of one tag come in order, tags in any order and mixed.
  typedef struct packed {
    host_tag_t tag;
    logic error;
    logic last;
    fs_pkg::beat_t data;
  } host_data_t;

  // Writes are posted: done in order, and not answered.
  typedef struct packed {
    fs_pkg::function_t owner;
    host_beat_t address;
    logic [fs_pkg::BEAT_BYTES-1:0] strobe;
    fs_pkg::beat_t data;
  } host_write_t;

  // A client of host writes needs this note when its write has left.
  typedef struct packed {
    logic completion;  // the write is of a completion, else of a copy
    logic notice;      // completion: raise the vector; copy: this was its last beat
    logic [7:0] number;  // vector, or slot
  } write_note_t;

  typedef struct packed {
    write_note_t note;
    host_write_t write;
  } noted_write_t;

  // ---- Registers ------------------------------------------------------------------------------

  typedef struct packed {
    logic write;
    fs_pkg::function_t page;
    logic [16:0] offset;
    logic [7:0] strobe;  // the bytes of a write
    logic [63:0] data;
  } mmio_request_t;

  // The memory that a function may access: beats from base up to, not including, limit.
  typedef struct packed {
    host_beat_t base;
    host_beat_t limit;
  } window_t;

  typedef struct packed {
    fs_pkg::card_beat_t base;
    fs_pkg::card_beat_t limit;
  } card_window_t;

  typedef struct packed {
    window_t host;
    card_window_t card;
  } windows_t;

  typedef struct packed {
    logic [63:0] build;
    logic [63:0] rm_state;
    logic [31:0] card_faults;
    logic [63:0] card_reads;
    logic [63:0] card_writes;
    logic [63:0] code_busy;
    logic [63:0] draws;
  } device_status_t;

  // ---- Queue sets -----------------------------------------------------------------------------

  typedef enum logic [1:0] {
    WAIT_NOTHING,
    WAIT_FENCE,  // until the ring has no job
    WAIT_AFTER   // until the H2C ring has completed enough
  } wait_e;

  // A descriptor ring. Its descriptors in the device form two queues of slots, each in the ring's
  // order: those being fetched (linked in qdma_slots by fetch_next) and those at work (linked by
  // job_next). If the ring waits, and the first of its fetches is kept, that one has arrived and
  // waits; else the device has only jobs of the ring, and fetches when the wait is over.
  typedef struct packed {
    descriptor_address_t base;
    logic [3:0] log2;
    index_t started;  // the entry to start next
    index_t posted;   // entries from `started` on that the driver has written
    descriptor_address_t chain;  // the linked descriptor to start before that entry; 0 if none
    logic [5:0] chained;  // linked descriptors of the entry that have started
    logic [3:0] fetches;
    slot_number_t fetch_head;
    slot_number_t fetch_tail;
    logic flushing;  // the descriptors being fetched will give back their slots
    logic [4:0] jobs;
    slot_number_t job_head;
    slot_number_t job_tail;
    logic [31:0] completed;
    wait_e waits;
    logic kept;
    logic listed;  // the scheduler lists the ring
  } ring_t;

  // A place of the completion ring is in one of three states: free, reserved for a descriptor in
  // the device, or posted.
  typedef struct packed {
    fs_regs_pkg::queue_state_e state;
    logic [7:0] status;  // the status that stopped the set
    logic loading;  // qdma_enable will bring the context
    fs_pkg::function_t owner;
    logic interrupts;
    logic [31:0] after;  // the count for which the C2H ring waits
    host_beat_t cq_base;
    logic [3:0] cq_log2;
    index_t cq_producer;
    index_t cq_consumer;
    index_t cq_posted;
    index_t cq_free;
    ring_t [1:0] rings;  // [1] is C2H
  } queue_set_t;

  // A context, as read from host memory.
  typedef struct packed {
    logic [7:0] status;  // OK, or why the set cannot be enabled
    logic interrupts;
    host_beat_t cq_base;
    logic [3:0] cq_log2;
    descriptor_address_t [1:0] bases;
    logic [1:0][3:0] log2s;
  } context_t;

  // ---- Events ---------------------------------------------------------------------------------

  typedef enum logic [3:0] {
    EVENT_DOORBELL,  // which: 0 H2C, 1 C2H, 2 completions consumed
    EVENT_ENABLE,    // the context is asked for
    EVENT_RESET,
    EVENT_READ,      // CONTROL
    EVENT_VISIT,     // the scheduler picked this ring to fetch
    EVENT_ARRIVED,   // a descriptor has arrived and has been checked, or its wait is over
    EVENT_EVICT,     // a descriptor that waits has to give back its slot
    EVENT_ENDED,     // a descriptor's job is done
    EVENT_LOADED     // the context has come
  } event_e;

  typedef struct packed {
    event_e kind;
    set_number_t set;
    logic [1:0] which;  // the doorbell; for other events, bit 0 is the ring
    fs_pkg::function_t page;  // the function that made the access
    slot_t slot;
    logic [63:0] value;  // the doorbell's number
  } event_t;

  // Flags of a queue set, computed from its counters (qdma_flags).
  typedef struct packed {
    logic [1:0] may_fetch;
    logic [1:0] wakes;  // the first fetch of the ring is kept, and must not wait any longer
    logic idle;         // the device holds none of its descriptors, and reads no context for it
    // For the event's ring and slot:
    logic first_fetch;  // the slot is the first of the ring's fetches,
    logic only_fetch;   // and the only one
    logic first_job;
    logic only_job;
    logic linked;       // the ring has a linked descriptor to start before its next entry
    logic fence_waits;
    logic after_waits;
    logic chain_ends;
    logic bad_chain;    // too long
    logic good;         // from the check result
    logic failed;       // from the outcome
  } flags_t;

  // A decoded doorbell (qdma_doorbell).
  typedef struct packed {
    index_t moved;  // entries posted now, or completions consumed
    logic well;     // the number is valid
  } doorbell_t;

  // The next slots after the event's slot, in the ring's two queues.
  typedef struct packed {
    slot_number_t fetch_next;
    slot_number_t job_next;
    logic fetch_next_held;
    logic job_next_held;
  } links_t;

  // ---- Descriptors ----------------------------------------------------------------------------

  typedef enum logic [2:0] {
    UNIT_NONE,  // the descriptor ends at once
    UNIT_H2C,
    UNIT_C2H,
    UNIT_PLACE,
    UNIT_CODE,
    UNIT_CHECKSUM,
    UNIT_RECONFIGURE
  } unit_e;

  // The result of the check, kept until the descriptor's end.
  typedef struct packed {
    logic [7:0] status;
    logic [63:0] detail;  // the wrong value or field
    unit_e target;
    logic [2:0] flags;
    logic [15:0] cookie;
    logic [31:0] after;
    logic [63:0] next;
    logic [24:0] copy_bytes;
  } check_result_t;

  // The parameters of a copy, or of its rest.
  typedef struct packed {
    host_beat_t host;
    fs_pkg::card_beat_t card;
    logic [18:0] beats;
    logic [5:0] tail_bytes;  // of the last beat; 0 means all
  } copy_t;

  // The part of a copy that moves before the next copy may go: up to QUANTUM_BEATS.
  typedef struct packed {
    slot_t slot;
    host_beat_t host;
    fs_pkg::card_beat_t card;
    logic [5:0] beats_minus_1;
    logic last;  // the copy's last burst
    logic [5:0] tail_bytes;
  } burst_t;

  // The end of a descriptor's job.
  typedef struct packed {
    slot_t slot;
    logic [7:0] status;
    logic [63:0] result;
    logic [63:0] detail;
  } ending_t;

  typedef struct packed {
    logic [7:0] status;
    logic [31:0] cycles;
    logic [63:0] result;
    logic [63:0] detail;
  } outcome_t;

  // A descriptor to fetch.
  typedef struct packed {
    slot_t slot;
    descriptor_address_t base;
    logic [11:0] index;
  } fetch_t;

  // A completion on its way to the host.
  typedef struct packed {
    fs_pkg::function_t owner;
    logic interrupt_due;
    host_beat_t base;
    logic [11:0] index;
    fs_regs_pkg::completion_t entry;
  } completion_write_t;

  // The actions of an event besides its change of the queue set.
  typedef struct packed {
    logic take;         // the ring takes the free slot
    logic fetch;        // fetch into that slot
    fetch_t what;
    logic link_fetch;   // link that slot behind the ring's last fetch
    logic link_job;     // link the event's slot behind the ring's last job
    slot_t link_from;
    logic hold;         // the event's slot is not the first of its queue: it waits
    logic [1:0] keep;   // the event's slot waits as the first of its fetches: fence, count
    logic unkeep;       // the event's slot waits no longer
    logic follow;       // the next slot of the queue was held: repeat the event for it
    slot_t follow_slot;
    logic start;        // start the job of the event's slot
    logic [7:0] start_status;  // if not OK, the job ends at once with this status
    logic [63:0] start_detail;
    logic give_back;    // the event's slot becomes free
    logic complete;
    completion_write_t completion;
    logic load;         // ask for the set's context
    logic bad_doorbell;  // the set is not enabled, or the number goes too far
  } actions_t;

  // Bytes of a beat: all, or the first `bytes` of the last one.
  function automatic logic [63:0] beat_strobe(input logic is_tail, input logic [5:0] bytes);
    return (is_tail && bytes != '0) ? ~({64{1'b1}} << bytes) : {64{1'b1}};
  endfunction
endpackage
