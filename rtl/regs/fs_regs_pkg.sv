// Written by `cargo run -p fieldstone-regs` from rtl/regs/device.toml; change that instead.
//
// Registers, descriptors, completions and status codes of the device.

/* verilator lint_off UNUSEDPARAM */  // a package is used in parts

package fs_regs_pkg;
  localparam int unsigned IDENTIFICATION = 32'h46534130;  // Value of the ID register: "FSA0".
  localparam int unsigned VERSION = 2;  // Version of this register map.
  // One function's page of registers; function f's begins at f times this.
  localparam int unsigned PAGE_BYTES = 32'h00020000;
  localparam int unsigned DESCRIPTOR_BYTES = 128;  // Size of a descriptor.
  localparam int unsigned COMPLETION_BYTES = 32;  // Size of a completion.
  // Bytes of a beat of card memory and of the host data path; all addresses are multiples.
  localparam int unsigned BEAT_BYTES = 64;
  localparam int unsigned MAX_QUEUE_SETS = 2048;  // Queue sets of all functions together.
  localparam int unsigned MAX_FUNCTIONS = 16;  // Function 0 is the physical function.
  // Descriptors of one function that are in the device at a time, of all its queue sets.
  localparam int unsigned FUNCTION_JOBS = 16;
  localparam int unsigned MAX_RING_LOG2 = 12;  // A ring has 2^0 to 2^12 entries.
  localparam int unsigned MAX_CHAIN = 32;  // Descriptors linked by NEXT behind one ring entry.
  localparam int unsigned H2C_REQUESTS = 256;  // Host reads in flight.
  // Most bytes of one host read, so the reorder buffer has 32 KiB.
  localparam int unsigned H2C_REQUEST_BYTES = 128;
  localparam int unsigned PLACE_ROW_BYTES = 64;  // Bytes of one placement: a count and up to 15 items.
  localparam int unsigned MAX_WIDTH = 15;  // Most items of one placement.
  localparam int unsigned MAX_COPY_BYTES = 32'h01000000;  // Largest LENGTH of a COPY.
  localparam int unsigned SLICE_BYTES = 4096;  // Largest slice of an element in the codes engine.
  // After so many cycles an engine ends a CODE, PLACE or CHECKSUM with TOO_LONG, because all functions share
  // the engine. 16 MiB of Reed-Solomon or of checksums need a fifteenth of these cycles.
  localparam int unsigned MAX_OPERATION_CYCLES = 32'h00400000;
  // Cycles of an engine that a function may use in its turn. What an operation takes beyond, its function
  // gives to the others before it has another turn.
  localparam int unsigned TURN_CYCLES = 4096;
  localparam int unsigned BITSTREAM_MAGIC = 32'h31425346;  // First word of a partial bitstream: "FSB1".

  // Operations of the H2C ring.
  typedef enum logic [7:0] {
    H2C_OP_NOP = 8'd0,  // Nothing; for fences and tests.
    H2C_OP_COPY = 8'd1,  // Host memory to card memory.
    H2C_OP_PLACE = 8'd2,  // CRUSH mappings.
    H2C_OP_LOAD_MAP = 8'd3,  // A new map for the placements.
    H2C_OP_CODE = 8'd4,  // A linear map over GF(2^8).
    H2C_OP_CHECKSUM = 8'd5,  // CRC32C of blocks.
    H2C_OP_RECONFIGURE = 8'd6  // Another module for the reconfigurable partition.
  } h2c_op_e;

  // Operations of the C2H ring.
  typedef enum logic [7:0] {
    C2H_OP_NOP = 8'd0,  // Nothing.
    C2H_OP_COPY = 8'd1  // Card memory to host memory.
  } c2h_op_e;

  // States of a queue set.
  typedef enum logic [3:0] {
    // Nothing is fetched; doorbells are errors. Once a read of CONTROL returns this state, the device no
    // longer accesses the queue set's memory, and what it has written there is in memory.
    QUEUE_STATE_DISABLED = 4'd0,
    QUEUE_STATE_ENABLED = 4'd1,  // At work.
    QUEUE_STATE_STOPPED = 4'd2,  // An error stopped it; reset it.
    // Waits for the descriptors in flight, or for the context of an ENABLE before the reset.
    QUEUE_STATE_RESETTING = 4'd3,
    // Reads the context; then the state is ENABLED, or STOPPED if the context is refused. Doorbells are
    // errors.
    QUEUE_STATE_ENABLING = 4'd4,
    // The function does not have this queue set; the read sets DOORBELL_RANGE. It says nothing about memory.
    QUEUE_STATE_ABSENT = 4'd15
  } queue_state_e;

  // Commands of a queue set's CONTROL.
  typedef enum logic [7:0] {
    // Take over the context at CONTEXT_BASE, and begin. Poll the state: it is ENABLING first.
    QUEUE_COMMAND_ENABLE = 8'd1,
    QUEUE_COMMAND_RESET = 8'd2  // Descriptors in flight end without completions; then the state is DISABLED.
  } queue_command_e;

  // Modules for the reconfigurable partition.
  typedef enum logic [7:0] {
    RECONFIGURABLE_MODULE_NONE = 8'd0,  // Nothing: the partition is empty or its last bitstream was bad.
    RECONFIGURABLE_MODULE_UNIFORM = 8'd1,  // Kernel of uniform buckets.
    RECONFIGURABLE_MODULE_LIST = 8'd2,  // Kernel of list buckets.
    RECONFIGURABLE_MODULE_TREE = 8'd3  // Kernel of tree buckets.
  } reconfigurable_module_e;

  // States of the reconfigurable partition.
  typedef enum logic [3:0] {
    PARTITION_STATE_RUNNING = 4'd0,  // The module is in service.
    PARTITION_STATE_DRAINING = 4'd1,  // Jobs in flight end; new ones that need it are refused.
    PARTITION_STATE_LOADING = 4'd2,  // The bitstream comes in; the partition is decoupled.
    PARTITION_STATE_FAILED = 4'd3  // Decoupled until a good bitstream comes.
  } partition_state_e;

  // Results of operations.
  typedef enum logic [7:0] {
    STATUS_OK = 8'd0,  // Done.
    STATUS_BAD_OP = 8'd1,  // No such operation in this ring.
    STATUS_BAD_ALIGNMENT = 8'd2,  // An address is not a multiple of BEAT_BYTES.
    STATUS_BAD_LENGTH = 8'd3,  // A length is zero, too long, or no multiple of the required unit.
    STATUS_HOST_FAULT = 8'd4,  // An address outside of the function's window of host memory.
    STATUS_CARD_FAULT = 8'd5,  // An address outside of the function's window of card memory.
    STATUS_BAD_CHAIN = 8'd6,  // More than MAX_CHAIN descriptors linked by NEXT.
    STATUS_BAD_PARAMETER = 8'd7,  // A parameter of the operation is out of its range.
    STATUS_NOT_PERMITTED = 8'd8,  // The operation is for function 0 only.
    STATUS_STALE_EPOCH = 8'd9,  // No map is loaded, or the loaded map has another epoch.
    STATUS_NOT_LOADED = 8'd10,  // The map needs a module that is not in the reconfigurable partition.
    STATUS_BAD_IMAGE = 8'd11,  // The map's image is damaged or does not fit.
    STATUS_BAD_PROGRAM = 8'd12,  // The program is damaged or does not fit.
    STATUS_BAD_BITSTREAM = 8'd13,  // Header, length or checksum of the bitstream is wrong.
    STATUS_HOST_ERROR = 8'd14,  // Host memory answered with an error.
    // The operation took more than MAX_OPERATION_CYCLES. The data that it has written stays.
    STATUS_TOO_LONG = 8'd15
  } status_e;

  // FLAGS of a descriptor.
  // Write a completion. A descriptor that fails always writes one.
  localparam int unsigned DESCRIPTOR_FLAG_COMPLETE_BIT = 0;
  // Start only when all descriptors before it in its ring have completed.
  localparam int unsigned DESCRIPTOR_FLAG_FENCE_BIT = 1;
  // Raise the function's interrupt after the completion.
  localparam int unsigned DESCRIPTOR_FLAG_INTERRUPT_BIT = 2;

  // FLAGS of a queue context.
  // Raise the function's interrupt for descriptors that ask for it.
  localparam int unsigned CONTEXT_FLAG_INTERRUPTS_BIT = 0;

  // FLAGS of a completion.
  // Starts with 1, and flips whenever the completion ring wraps around.
  localparam int unsigned COMPLETION_FLAG_PHASE_BIT = 0;
  localparam int unsigned COMPLETION_FLAG_C2H_BIT = 1;  // Of the C2H ring; else of the H2C ring.

  // Registers: byte offsets in a function's page.
  localparam logic [16:0] REG_ID = 17'h00000;  // ro: IDENTIFICATION.
  localparam logic [16:0] REG_VERSION = 17'h00008;  // ro: VERSION.
  // ro: The function whose page this is, and how many queue sets it has.
  localparam logic [16:0] REG_FUNCTION = 17'h00010;
  // w1c: Errors of this function outside of any queue. Writing ones clears.
  localparam logic [16:0] REG_FUNCTION_ERRORS = 17'h00018;
  localparam logic [16:0] REG_CYCLES = 17'h00020;  // ro: Clock cycles since reset.
  localparam logic [16:0] REG_BUILD = 17'h00028;  // ro: How this device was built.
  localparam logic [16:0] REG_RM_STATE = 17'h00100;  // ro: The reconfigurable partition. Function 0 only.
  // ro: Memory accesses that the guards refused since reset, except those that a function-level reset cuts
  // off. Function 0 only.
  localparam logic [16:0] REG_FAULTS = 17'h00108;
  // ro: Beats that the codes engine read from card memory since reset. Function 0 only.
  localparam logic [16:0] REG_CARD_READS = 17'h00110;
  // ro: Beats that the codes engine wrote to card memory since reset. Function 0 only.
  localparam logic [16:0] REG_CARD_WRITES = 17'h00118;
  // ro: Cycles in which the codes engine had a job. Function 0 only.
  localparam logic [16:0] REG_CODE_BUSY = 17'h00120;
  // ro: Draws of one item of one bucket since reset. Function 0 only.
  localparam logic [16:0] REG_DRAWS = 17'h00128;

  typedef struct packed {
    logic [31:0]   unused_1;
    logic [15:0]   queues;  // Number of queue sets of the function.
    logic [7:0]    unused_0;
    logic [7:0]    number;  // Number of the function.
  } reg_function_t;

  typedef struct packed {
    logic [60:0]   unused_0;
    // An access to a register that does not exist, is read-only or belongs to function 0, or a value or
    // command that the register does not take, or a write of a part of a register other than the low half of
    // a doorbell.
    logic          register_access;
    // A doorbell of a queue that is not enabled, or past the ring's size; ENABLE of a queue that is not
    // disabled.
    logic          doorbell_state;
    // A doorbell or queue register of a queue that the function does not have.
    logic          doorbell_range;
  } reg_function_errors_t;

  typedef struct packed {
    logic [15:0]   program_ops;  // Operations that the program table holds.
    logic [15:0]   lane_beats;  // Beats that one bank of a code lane's buffer holds.
    logic [7:0]    code_units;  // Processing units of the codes engine.
    logic [7:0]    code_lanes;  // Operands of the codes engine's multiply-add tree.
    logic [7:0]    contexts;  // Mappings in flight.
    logic [7:0]    item_lanes;  // Items that a bucket kernel hashes in one cycle (P).
  } reg_build_t;

  typedef struct packed {
    logic [31:0]   swaps;  // Successful reconfigurations since reset.
    logic [19:0]   unused_0;
    logic [3:0]    state;  // partition_state: The state of the partition.
    logic [7:0]    module_id;  // reconfigurable_module: The loaded module.
  } reg_rm_state_t;

  typedef struct packed {
    logic [31:0]   card;  // In card memory.
    logic [31:0]   host;  // In host memory.
  } reg_faults_t;

  typedef struct packed {
    logic [15:0]   unused_0;
    logic [15:0]   last_cycles;  // Cycles of the last draw, from its request to its answer.
    logic [31:0]   count;  // Number of draws.
  } reg_draws_t;

  // FUNCTION_TABLE: The resources of each function. Guards check every access of a function's queues and jobs
  // against the function's windows. To take a window away: set its END to 0, reset the function or all its
  // queue sets, and give the window to others once the reset is done, or the sets are DISABLED. To take queue
  // sets away: do the same, and then write QUEUES. Function 0 only.
  localparam logic [16:0] FUNCTION_TABLE_BASE = 17'h01000;
  localparam int unsigned FUNCTION_TABLE_STRIDE = 64;
  localparam int unsigned FUNCTION_TABLE_COUNT = MAX_FUNCTIONS;
  // rw: First byte of host memory that the function may access: a multiple of BEAT_BYTES, other values are
  // refused.
  localparam logic [5:0] FUNCTION_TABLE_REG_HOST_BASE = 6'd0;
  // rw: First byte past that window, rounded down to a multiple of BEAT_BYTES.
  localparam logic [5:0] FUNCTION_TABLE_REG_HOST_END = 6'd8;
  // rw: First byte of card memory that the function may access: a multiple of BEAT_BYTES, other values are
  // refused.
  localparam logic [5:0] FUNCTION_TABLE_REG_CARD_BASE = 6'd16;
  // rw: First byte past that window, rounded down to a multiple of BEAT_BYTES.
  localparam logic [5:0] FUNCTION_TABLE_REG_CARD_END = 6'd24;
  // rw: The function's queue sets and interrupt vector. A queue set has one function at a time. While a queue
  // set of the function is not DISABLED, a write with another FIRST or a smaller COUNT is refused.
  localparam logic [5:0] FUNCTION_TABLE_REG_QUEUES = 6'd32;

  typedef struct packed {
    logic [23:0]   unused_0;
    logic [7:0]    vector;  // Interrupt vector.
    logic [15:0]   count;  // Number of queue sets.
    logic [15:0]   first;  // First queue set.
  } function_table_queues_t;

  // QUEUE: Doorbells and control of a queue set. Writing an index tells the device of new descriptors, or of
  // completions consumed.
  localparam logic [16:0] QUEUE_BASE = 17'h02000;
  localparam int unsigned QUEUE_STRIDE = 32;
  localparam int unsigned QUEUE_COUNT = MAX_QUEUE_SETS;
  // wo: Doorbell: index after the last descriptor that the driver wrote, modulo twice the ring's size.
  localparam logic [4:0] QUEUE_REG_H2C_PRODUCER = 5'd0;
  localparam logic [4:0] QUEUE_REG_C2H_PRODUCER = 5'd8;  // wo: Doorbell of the C2H ring.
  // wo: Index after the last completion that the driver read, modulo twice the ring's size.
  localparam logic [4:0] QUEUE_REG_CQ_CONSUMER = 5'd16;
  // rw: Enables and resets the queue set, and shows its state.
  localparam logic [4:0] QUEUE_REG_CONTROL = 5'd24;

  typedef struct packed {
    logic [47:0]   unused_1;
    logic [7:0]    status;  // status: The status that stopped the queue set.
    logic [3:0]    unused_0;
    logic [3:0]    state;  // queue_state: State of the queue set.
  } queue_control_read_t;

  typedef struct packed {
    // ENABLE: host address of the queue set's QUEUE_CONTEXT, divided by BEAT_BYTES.
    logic [55:0]   context_base;
    logic [7:0]    command;  // queue_command: The command.
  } queue_control_write_t;

  // The context that ENABLE reads: the places of the rings of a queue set in host memory.
  typedef struct packed {
    logic [287:0]  unused_0;
    logic [7:0]    flags;  // context_flag: Options of the queue set.
    logic [7:0]    cq_log2;  // Entries of the ring, as a power of two.
    logic [7:0]    c2h_log2;  // Entries of the ring, as a power of two.
    logic [7:0]    h2c_log2;  // Entries of the ring, as a power of two.
    logic [63:0]   cq_base;  // Ring of completions, aligned to BEAT_BYTES.
    logic [63:0]   c2h_base;  // Ring of descriptors, aligned to DESCRIPTOR_BYTES.
    logic [63:0]   h2c_base;  // Ring of descriptors, aligned to DESCRIPTOR_BYTES.
  } queue_context_t;

  // One operation. The words from PARAMETERS on belong to the operation.
  typedef struct packed {
    logic [703:0]  parameters;  // Parameters of the operation.
    // Host address of a descriptor to do next, before the ring's next, aligned to DESCRIPTOR_BYTES; 0 if
    // none.
    logic [63:0]   next;
    logic [63:0]   length;  // Bytes of data.
    logic [63:0]   destination;  // Address of the output data: host memory in C2H copies, else card memory.
    logic [63:0]   source;  // Address of the input data: host memory in H2C copies, else card memory.
    // C2H: the descriptor starts when the H2C ring of its queue set has completed this many descriptors since
    // the set was enabled (modulo 2^32).
    logic [31:0]   after;
    logic [15:0]   cookie;  // A number that the completion repeats.
    logic [7:0]    flags;  // descriptor_flag: Options of the operation.
    logic [7:0]    op;  // The operation: h2c_op or c2h_op, by the ring.
  } descriptor_t;

  // h2c_op PLACE: map LENGTH / 4 inputs (u32 each, at SOURCE) through the rule of the loaded map; one row of
  // PLACE_ROW_BYTES each goes to DESTINATION: u32 count, then items (i32), unused ones 0x7fffffff.
  typedef struct packed {
    logic [639:0]  unused_0;
    logic [15:0]   rule;  // Slot of the rule in the image.
    logic [15:0]   width;  // Items wanted, 1 to MAX_WIDTH.
    logic [31:0]   epoch;  // The epoch of the loaded map.
    logic [63:0]   next;
    logic [63:0]   length;
    logic [63:0]   destination;
    logic [63:0]   source;
    logic [31:0]   after;
    logic [15:0]   cookie;
    logic [7:0]    flags;
    logic [7:0]    op;
  } place_descriptor_t;

  // h2c_op LOAD_MAP: load the image of LENGTH bytes at SOURCE (card memory). Waits until mappings in flight
  // are done. For function 0 only: all functions place with its map.
  typedef struct packed {
    logic [671:0]  unused_0;
    logic [31:0]   epoch;  // The epoch by which placements name this map.
    logic [63:0]   next;
    logic [63:0]   length;
    logic [63:0]   destination;
    logic [63:0]   source;
    logic [31:0]   after;
    logic [15:0]   cookie;
    logic [7:0]    flags;
    logic [7:0]    op;
  } load_map_descriptor_t;

  // h2c_op CODE: execute the program of LENGTH bytes at SOURCE. DESTINATION is not used.
  typedef struct packed {
    logic [255:0]  unused_0;
    logic [63:0]   output_batch;  // Bytes from one stripe's outputs to the next's.
    logic [63:0]   input_batch;  // Bytes from one stripe's inputs to the next's.
    logic [63:0]   output_stride;  // Bytes from one output shard to the next.
    logic [63:0]   input_stride;  // Bytes from one input shard to the next.
    logic [63:0]   output_base;  // Card address of output shard 0.
    logic [63:0]   input_base;  // Card address of input shard 0.
    logic [31:0]   batch;  // Number of stripes, one behind the other; 1 for a single job.
    logic [31:0]   element_bytes;  // Bytes of one element, a multiple of BEAT_BYTES.
    logic [63:0]   next;
    logic [63:0]   length;
    logic [63:0]   destination;
    logic [63:0]   source;
    logic [31:0]   after;
    logic [15:0]   cookie;
    logic [7:0]    flags;
    logic [7:0]    op;
  } code_descriptor_t;

  // h2c_op CHECKSUM: CRC32C of every block of LENGTH bytes at SOURCE; the sums (u32 each, packed) go to
  // DESTINATION. The last sum is also the completion's result.
  typedef struct packed {
    logic [671:0]  unused_0;
    // Bytes of a block; the last may be short. A multiple of BEAT_BYTES unless there is only one block.
    logic [31:0]   block_bytes;
    logic [63:0]   next;
    logic [63:0]   length;
    logic [63:0]   destination;
    logic [63:0]   source;
    logic [31:0]   after;
    logic [15:0]   cookie;
    logic [7:0]    flags;
    logic [7:0]    op;
  } checksum_descriptor_t;

  // h2c_op RECONFIGURE, function 0 only: load the partial bitstream of LENGTH bytes at SOURCE (card memory)
  // into the reconfigurable partition.
  typedef struct packed {
    logic [703:0]  unused_0;
    logic [63:0]   next;
    logic [63:0]   length;
    logic [63:0]   destination;
    logic [63:0]   source;
    logic [31:0]   after;
    logic [15:0]   cookie;
    logic [7:0]    flags;
    logic [7:0]    op;
  } reconfigure_descriptor_t;

  // The entry that the device writes when a descriptor with COMPLETE is done, or when a descriptor fails.
  typedef struct packed {
    logic [63:0]   detail;  // With an error: the address, length or number that was wrong.
    logic [31:0]   phases;  // Zero.
    logic [31:0]   cycles;  // Cycles from the descriptor's start to its end.
    logic [63:0]   result;  // By operation: bytes copied, placements, the last checksum.
    logic [31:0]   index;  // Descriptors that the ring has completed with this one since it was enabled.
    logic [15:0]   cookie;  // The descriptor's COOKIE.
    logic [7:0]    flags;  // completion_flag: The phase, and the ring of the descriptor.
    logic [7:0]    status;  // status: The status of the descriptor.
  } completion_t;

  // Head of a partial bitstream. The frames follow; their content stands for the module's configuration and
  // is covered by the checksum.
  typedef struct packed {
    logic [31:0]   header_crc;  // CRC32C of the 60 bytes before it.
    logic [319:0]  unused_0;
    logic [31:0]   version;  // VERSION.
    logic [31:0]   frames_crc;  // CRC32C of the frames.
    logic [31:0]   frames_bytes;  // Bytes that follow, a multiple of 64.
    logic [31:0]   module_id;  // reconfigurable_module: The module that the bitstream configures.
    logic [31:0]   magic;  // BITSTREAM_MAGIC.
  } bitstream_t;
endpackage
