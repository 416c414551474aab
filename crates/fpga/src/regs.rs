//! Registers, descriptors, completions and status codes of the device.
//!
//! Written by `cargo run -p fieldstone-regs` from rtl/regs/device.toml; change that instead.

use crate::field::{Bits, Field};

/// Value of the ID register: "FSA0".
pub const IDENTIFICATION: u64 = 0x46534130;
/// Version of this register map.
pub const VERSION: u64 = 2;
/// One function's page of registers; function f's begins at f times this.
pub const PAGE_BYTES: usize = 0x20000;
/// Size of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 128;
/// Size of a completion.
pub const COMPLETION_BYTES: usize = 32;
/// Bytes of a beat of card memory and of the host data path; all addresses are multiples.
pub const BEAT_BYTES: usize = 64;
/// Queue sets of all functions together.
pub const MAX_QUEUE_SETS: usize = 2048;
/// Function 0 is the physical function.
pub const MAX_FUNCTIONS: usize = 16;
/// Descriptors of one function that are in the device at a time, of all its queue sets.
pub const FUNCTION_JOBS: u64 = 16;
/// A ring has 2^0 to 2^12 entries.
pub const MAX_RING_LOG2: usize = 12;
/// Descriptors linked by NEXT behind one ring entry.
pub const MAX_CHAIN: usize = 32;
/// Host reads in flight.
pub const H2C_REQUESTS: u64 = 256;
/// Most bytes of one host read, so the reorder buffer has 32 KiB.
pub const H2C_REQUEST_BYTES: usize = 128;
/// Bytes of one placement: a count and up to 15 items.
pub const PLACE_ROW_BYTES: usize = 64;
/// Most items of one placement.
pub const MAX_WIDTH: usize = 15;
/// Largest LENGTH of a COPY.
pub const MAX_COPY_BYTES: usize = 0x1000000;
/// Largest slice of an element in the codes engine.
pub const SLICE_BYTES: usize = 4096;
/// After so many cycles an engine ends a CODE, PLACE or CHECKSUM with TOO_LONG, because all
/// functions share the engine. 16 MiB of Reed-Solomon or of checksums need a fifteenth of these
/// cycles.
pub const MAX_OPERATION_CYCLES: usize = 0x400000;
/// Cycles of an engine that a function may use in its turn. What an operation takes beyond, its
/// function gives to the others before it has another turn.
pub const TURN_CYCLES: u64 = 4096;
/// First word of a partial bitstream: "FSB1".
pub const BITSTREAM_MAGIC: u64 = 0x31425346;

/// Registers: byte offsets in a function's page.
pub mod register {
    use super::Bits;

    /// IDENTIFICATION.
    pub const ID: u64 = 0x0;
    /// VERSION.
    pub const VERSION: u64 = 0x8;
    /// The function whose page this is, and how many queue sets it has.
    pub const FUNCTION: u64 = 0x10;
    /// Number of the function.
    pub const FUNCTION_NUMBER: Bits = Bits { high: 7, low: 0 };
    /// Number of queue sets of the function.
    pub const FUNCTION_QUEUES: Bits = Bits { high: 31, low: 16 };
    /// Errors of this function outside of any queue. Writing ones clears.
    pub const FUNCTION_ERRORS: u64 = 0x18;
    /// A doorbell or queue register of a queue that the function does not have.
    pub const FUNCTION_ERRORS_DOORBELL_RANGE: Bits = Bits { high: 0, low: 0 };
    /// A doorbell of a queue that is not enabled, or past the ring's size; ENABLE of a queue that
    /// is not disabled.
    pub const FUNCTION_ERRORS_DOORBELL_STATE: Bits = Bits { high: 1, low: 1 };
    /// An access to a register that does not exist, is read-only or belongs to function 0, or a
    /// value or command that the register does not take, or a write of a part of a register other
    /// than the low half of a doorbell.
    pub const FUNCTION_ERRORS_REGISTER_ACCESS: Bits = Bits { high: 2, low: 2 };
    /// Clock cycles since reset.
    pub const CYCLES: u64 = 0x20;
    /// How this device was built.
    pub const BUILD: u64 = 0x28;
    /// Items that a bucket kernel hashes in one cycle (P).
    pub const BUILD_ITEM_LANES: Bits = Bits { high: 7, low: 0 };
    /// Mappings in flight.
    pub const BUILD_CONTEXTS: Bits = Bits { high: 15, low: 8 };
    /// Operands of the codes engine's multiply-add tree.
    pub const BUILD_CODE_LANES: Bits = Bits { high: 23, low: 16 };
    /// Processing units of the codes engine.
    pub const BUILD_CODE_UNITS: Bits = Bits { high: 31, low: 24 };
    /// Beats that one bank of a code lane's buffer holds.
    pub const BUILD_LANE_BEATS: Bits = Bits { high: 47, low: 32 };
    /// Operations that the program table holds.
    pub const BUILD_PROGRAM_OPS: Bits = Bits { high: 63, low: 48 };
    /// The reconfigurable partition. Function 0 only.
    pub const RM_STATE: u64 = 0x100;
    /// The loaded module. One of reconfigurable_module.
    pub const RM_STATE_MODULE_ID: Bits = Bits { high: 7, low: 0 };
    /// The state of the partition. One of partition_state.
    pub const RM_STATE_STATE: Bits = Bits { high: 11, low: 8 };
    /// Successful reconfigurations since reset.
    pub const RM_STATE_SWAPS: Bits = Bits { high: 63, low: 32 };
    /// Memory accesses that the guards refused since reset, except those that a function-level
    /// reset cuts off. Function 0 only.
    pub const FAULTS: u64 = 0x108;
    /// In host memory.
    pub const FAULTS_HOST: Bits = Bits { high: 31, low: 0 };
    /// In card memory.
    pub const FAULTS_CARD: Bits = Bits { high: 63, low: 32 };
    /// Beats that the codes engine read from card memory since reset. Function 0 only.
    pub const CARD_READS: u64 = 0x110;
    /// Beats that the codes engine wrote to card memory since reset. Function 0 only.
    pub const CARD_WRITES: u64 = 0x118;
    /// Cycles in which the codes engine had a job. Function 0 only.
    pub const CODE_BUSY: u64 = 0x120;
    /// Draws of one item of one bucket since reset. Function 0 only.
    pub const DRAWS: u64 = 0x128;
    /// Number of draws.
    pub const DRAWS_COUNT: Bits = Bits { high: 31, low: 0 };
    /// Cycles of the last draw, from its request to its answer.
    pub const DRAWS_LAST_CYCLES: Bits = Bits { high: 47, low: 32 };
}

/// The resources of each function. Guards check every access of a function's queues and jobs
/// against the function's windows. To take a window away: set its END to 0, reset the function or
/// all its queue sets, and give the window to others once the reset is done, or the sets are
/// DISABLED. To take queue sets away: do the same, and then write QUEUES. Function 0 only.
pub mod function_table {
    use super::Bits;

    /// Where the first entry begins in a function's page.
    pub const BASE: u64 = 0x1000;
    /// Bytes from one entry to the next.
    pub const STRIDE: u64 = 64;
    /// Entries.
    pub const COUNT: usize = super::MAX_FUNCTIONS;
    /// First byte of host memory that the function may access: a multiple of BEAT_BYTES, other
    /// values are refused.
    pub const HOST_BASE: u64 = 0x0;
    /// First byte past that window, rounded down to a multiple of BEAT_BYTES.
    pub const HOST_END: u64 = 0x8;
    /// First byte of card memory that the function may access: a multiple of BEAT_BYTES, other
    /// values are refused.
    pub const CARD_BASE: u64 = 0x10;
    /// First byte past that window, rounded down to a multiple of BEAT_BYTES.
    pub const CARD_END: u64 = 0x18;
    /// The function's queue sets and interrupt vector. A queue set has one function at a time.
    /// While a queue set of the function is not DISABLED, a write with another FIRST or a smaller
    /// COUNT is refused.
    pub const QUEUES: u64 = 0x20;
    /// First queue set.
    pub const QUEUES_FIRST: Bits = Bits { high: 15, low: 0 };
    /// Number of queue sets.
    pub const QUEUES_COUNT: Bits = Bits { high: 31, low: 16 };
    /// Interrupt vector.
    pub const QUEUES_VECTOR: Bits = Bits { high: 39, low: 32 };
}

/// Doorbells and control of a queue set. Writing an index tells the device of new descriptors, or
/// of completions consumed.
pub mod queue {
    use super::Bits;

    /// Where the first entry begins in a function's page.
    pub const BASE: u64 = 0x2000;
    /// Bytes from one entry to the next.
    pub const STRIDE: u64 = 32;
    /// Entries.
    pub const COUNT: usize = super::MAX_QUEUE_SETS;
    /// Doorbell: index after the last descriptor that the driver wrote, modulo twice the ring's
    /// size.
    pub const H2C_PRODUCER: u64 = 0x0;
    /// Doorbell of the C2H ring.
    pub const C2H_PRODUCER: u64 = 0x8;
    /// Index after the last completion that the driver read, modulo twice the ring's size.
    pub const CQ_CONSUMER: u64 = 0x10;
    /// Enables and resets the queue set, and shows its state.
    pub const CONTROL: u64 = 0x18;
    /// The command. One of queue_command.
    pub const CONTROL_COMMAND: Bits = Bits { high: 7, low: 0 };
    /// ENABLE: host address of the queue set's QUEUE_CONTEXT, divided by BEAT_BYTES.
    pub const CONTROL_CONTEXT_BASE: Bits = Bits { high: 63, low: 8 };
    /// State of the queue set. One of queue_state.
    pub const CONTROL_STATE: Bits = Bits { high: 3, low: 0 };
    /// The status that stopped the queue set. One of status.
    pub const CONTROL_STATUS: Bits = Bits { high: 15, low: 8 };
}

/// The context that ENABLE reads: the places of the rings of a queue set in host memory.
pub mod queue_context {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 64;
    /// Ring of descriptors, aligned to DESCRIPTOR_BYTES.
    pub const H2C_BASE: Field = Field { offset: 0, bytes: 8 };
    /// Ring of descriptors, aligned to DESCRIPTOR_BYTES.
    pub const C2H_BASE: Field = Field { offset: 8, bytes: 8 };
    /// Ring of completions, aligned to BEAT_BYTES.
    pub const CQ_BASE: Field = Field { offset: 16, bytes: 8 };
    /// Entries of the ring, as a power of two.
    pub const H2C_LOG2: Field = Field { offset: 24, bytes: 1 };
    /// Entries of the ring, as a power of two.
    pub const C2H_LOG2: Field = Field { offset: 25, bytes: 1 };
    /// Entries of the ring, as a power of two.
    pub const CQ_LOG2: Field = Field { offset: 26, bytes: 1 };
    /// Options of the queue set. One of context_flag.
    pub const FLAGS: Field = Field { offset: 27, bytes: 1 };
}

/// One operation. The words from PARAMETERS on belong to the operation.
pub mod descriptor {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 128;
    /// The operation: h2c_op or c2h_op, by the ring.
    pub const OP: Field = Field { offset: 0, bytes: 1 };
    /// Options of the operation. One of descriptor_flag.
    pub const FLAGS: Field = Field { offset: 1, bytes: 1 };
    /// A number that the completion repeats.
    pub const COOKIE: Field = Field { offset: 2, bytes: 2 };
    /// C2H: the descriptor starts when the H2C ring of its queue set has completed this many
    /// descriptors since the set was enabled (modulo 2^32).
    pub const AFTER: Field = Field { offset: 4, bytes: 4 };
    /// Address of the input data: host memory in H2C copies, else card memory.
    pub const SOURCE: Field = Field { offset: 8, bytes: 8 };
    /// Address of the output data: host memory in C2H copies, else card memory.
    pub const DESTINATION: Field = Field { offset: 16, bytes: 8 };
    /// Bytes of data.
    pub const LENGTH: Field = Field { offset: 24, bytes: 8 };
    /// Host address of a descriptor to do next, before the ring's next, aligned to
    /// DESCRIPTOR_BYTES; 0 if none.
    pub const NEXT: Field = Field { offset: 32, bytes: 8 };
    /// Parameters of the operation.
    pub const PARAMETERS: Field = Field { offset: 40, bytes: 88 };
}

/// h2c_op PLACE: map LENGTH / 4 inputs (u32 each, at SOURCE) through the rule of the loaded map;
/// one row of PLACE_ROW_BYTES each goes to DESTINATION: u32 count, then items (i32), unused ones
/// 0x7fffffff.
pub mod place {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 128;
    /// The epoch of the loaded map.
    pub const EPOCH: Field = Field { offset: 40, bytes: 4 };
    /// Items wanted, 1 to MAX_WIDTH.
    pub const WIDTH: Field = Field { offset: 44, bytes: 2 };
    /// Slot of the rule in the image.
    pub const RULE: Field = Field { offset: 46, bytes: 2 };
}

/// h2c_op LOAD_MAP: load the image of LENGTH bytes at SOURCE (card memory). Waits until mappings in
/// flight are done. For function 0 only: all functions place with its map.
pub mod load_map {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 128;
    /// The epoch by which placements name this map.
    pub const EPOCH: Field = Field { offset: 40, bytes: 4 };
}

/// h2c_op CODE: execute the program of LENGTH bytes at SOURCE. DESTINATION is not used.
pub mod code {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 128;
    /// Bytes of one element, a multiple of BEAT_BYTES.
    pub const ELEMENT_BYTES: Field = Field { offset: 40, bytes: 4 };
    /// Number of stripes, one behind the other; 1 for a single job.
    pub const BATCH: Field = Field { offset: 44, bytes: 4 };
    /// Card address of input shard 0.
    pub const INPUT_BASE: Field = Field { offset: 48, bytes: 8 };
    /// Card address of output shard 0.
    pub const OUTPUT_BASE: Field = Field { offset: 56, bytes: 8 };
    /// Bytes from one input shard to the next.
    pub const INPUT_STRIDE: Field = Field { offset: 64, bytes: 8 };
    /// Bytes from one output shard to the next.
    pub const OUTPUT_STRIDE: Field = Field { offset: 72, bytes: 8 };
    /// Bytes from one stripe's inputs to the next's.
    pub const INPUT_BATCH: Field = Field { offset: 80, bytes: 8 };
    /// Bytes from one stripe's outputs to the next's.
    pub const OUTPUT_BATCH: Field = Field { offset: 88, bytes: 8 };
}

/// h2c_op CHECKSUM: CRC32C of every block of LENGTH bytes at SOURCE; the sums (u32 each, packed) go
/// to DESTINATION. The last sum is also the completion's result.
pub mod checksum {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 128;
    /// Bytes of a block; the last may be short. A multiple of BEAT_BYTES unless there is only one
    /// block.
    pub const BLOCK_BYTES: Field = Field { offset: 40, bytes: 4 };
}

/// h2c_op RECONFIGURE, function 0 only: load the partial bitstream of LENGTH bytes at SOURCE (card
/// memory) into the reconfigurable partition.
pub mod reconfigure {
    /// Its size.
    pub const BYTES: usize = 128;
}

/// The entry that the device writes when a descriptor with COMPLETE is done, or when a descriptor
/// fails.
pub mod completion {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 32;
    /// The status of the descriptor. One of status.
    pub const STATUS: Field = Field { offset: 0, bytes: 1 };
    /// The phase, and the ring of the descriptor. One of completion_flag.
    pub const FLAGS: Field = Field { offset: 1, bytes: 1 };
    /// The descriptor's COOKIE.
    pub const COOKIE: Field = Field { offset: 2, bytes: 2 };
    /// Descriptors that the ring has completed with this one since it was enabled.
    pub const INDEX: Field = Field { offset: 4, bytes: 4 };
    /// By operation: bytes copied, placements, the last checksum.
    pub const RESULT: Field = Field { offset: 8, bytes: 8 };
    /// Cycles from the descriptor's start to its end.
    pub const CYCLES: Field = Field { offset: 16, bytes: 4 };
    /// Zero.
    pub const PHASES: Field = Field { offset: 20, bytes: 4 };
    /// With an error: the address, length or number that was wrong.
    pub const DETAIL: Field = Field { offset: 24, bytes: 8 };
}

/// Head of a partial bitstream. The frames follow; their content stands for the module's
/// configuration and is covered by the checksum.
pub mod bitstream {
    use super::Field;

    /// Its size.
    pub const BYTES: usize = 64;
    /// BITSTREAM_MAGIC.
    pub const MAGIC: Field = Field { offset: 0, bytes: 4 };
    /// The module that the bitstream configures. One of reconfigurable_module.
    pub const MODULE_ID: Field = Field { offset: 4, bytes: 4 };
    /// Bytes that follow, a multiple of 64.
    pub const FRAMES_BYTES: Field = Field { offset: 8, bytes: 4 };
    /// CRC32C of the frames.
    pub const FRAMES_CRC: Field = Field { offset: 12, bytes: 4 };
    /// VERSION.
    pub const VERSION: Field = Field { offset: 16, bytes: 4 };
    /// CRC32C of the 60 bytes before it.
    pub const HEADER_CRC: Field = Field { offset: 60, bytes: 4 };
}

/// Operations of the H2C ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H2cOp {
    /// Nothing; for fences and tests.
    Nop = 0,
    /// Host memory to card memory.
    Copy = 1,
    /// CRUSH mappings.
    Place = 2,
    /// A new map for the placements.
    LoadMap = 3,
    /// A linear map over GF(2^8).
    Code = 4,
    /// CRC32C of blocks.
    Checksum = 5,
    /// Another module for the reconfigurable partition.
    Reconfigure = 6,
}

impl H2cOp {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Nop),
            1 => Some(Self::Copy),
            2 => Some(Self::Place),
            3 => Some(Self::LoadMap),
            4 => Some(Self::Code),
            5 => Some(Self::Checksum),
            6 => Some(Self::Reconfigure),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nop => "NOP",
            Self::Copy => "COPY",
            Self::Place => "PLACE",
            Self::LoadMap => "LOAD_MAP",
            Self::Code => "CODE",
            Self::Checksum => "CHECKSUM",
            Self::Reconfigure => "RECONFIGURE",
        }
    }
}

/// Operations of the C2H ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum C2hOp {
    /// Nothing.
    Nop = 0,
    /// Card memory to host memory.
    Copy = 1,
}

impl C2hOp {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Nop),
            1 => Some(Self::Copy),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nop => "NOP",
            Self::Copy => "COPY",
        }
    }
}

/// States of a queue set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Nothing is fetched; doorbells are errors. Once a read of CONTROL returns this state, the
    /// device no longer accesses the queue set's memory, and what it has written there is in
    /// memory.
    Disabled = 0,
    /// At work.
    Enabled = 1,
    /// An error stopped it; reset it.
    Stopped = 2,
    /// Waits for the descriptors in flight, or for the context of an ENABLE before the reset.
    Resetting = 3,
    /// Reads the context; then the state is ENABLED, or STOPPED if the context is refused.
    /// Doorbells are errors.
    Enabling = 4,
    /// The function does not have this queue set; the read sets DOORBELL_RANGE. It says nothing
    /// about memory.
    Absent = 15,
}

impl QueueState {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Disabled),
            1 => Some(Self::Enabled),
            2 => Some(Self::Stopped),
            3 => Some(Self::Resetting),
            4 => Some(Self::Enabling),
            15 => Some(Self::Absent),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "DISABLED",
            Self::Enabled => "ENABLED",
            Self::Stopped => "STOPPED",
            Self::Resetting => "RESETTING",
            Self::Enabling => "ENABLING",
            Self::Absent => "ABSENT",
        }
    }
}

/// Commands of a queue set's CONTROL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCommand {
    /// Take over the context at CONTEXT_BASE, and begin. Poll the state: it is ENABLING first.
    Enable = 1,
    /// Descriptors in flight end without completions; then the state is DISABLED.
    Reset = 2,
}

impl QueueCommand {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Enable),
            2 => Some(Self::Reset),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Enable => "ENABLE",
            Self::Reset => "RESET",
        }
    }
}

/// Modules for the reconfigurable partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconfigurableModule {
    /// Nothing: the partition is empty or its last bitstream was bad.
    None = 0,
    /// Kernel of uniform buckets.
    Uniform = 1,
    /// Kernel of list buckets.
    List = 2,
    /// Kernel of tree buckets.
    Tree = 3,
}

impl ReconfigurableModule {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Uniform),
            2 => Some(Self::List),
            3 => Some(Self::Tree),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Uniform => "UNIFORM",
            Self::List => "LIST",
            Self::Tree => "TREE",
        }
    }
}

/// States of the reconfigurable partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    /// The module is in service.
    Running = 0,
    /// Jobs in flight end; new ones that need it are refused.
    Draining = 1,
    /// The bitstream comes in; the partition is decoupled.
    Loading = 2,
    /// Decoupled until a good bitstream comes.
    Failed = 3,
}

impl PartitionState {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Running),
            1 => Some(Self::Draining),
            2 => Some(Self::Loading),
            3 => Some(Self::Failed),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Draining => "DRAINING",
            Self::Loading => "LOADING",
            Self::Failed => "FAILED",
        }
    }
}

/// Results of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No such operation in this ring.
    BadOp = 1,
    /// An address is not a multiple of BEAT_BYTES.
    BadAlignment = 2,
    /// A length is zero, too long, or no multiple of the required unit.
    BadLength = 3,
    /// An address outside of the function's window of host memory.
    HostFault = 4,
    /// An address outside of the function's window of card memory.
    CardFault = 5,
    /// More than MAX_CHAIN descriptors linked by NEXT.
    BadChain = 6,
    /// A parameter of the operation is out of its range.
    BadParameter = 7,
    /// The operation is for function 0 only.
    NotPermitted = 8,
    /// No map is loaded, or the loaded map has another epoch.
    StaleEpoch = 9,
    /// The map needs a module that is not in the reconfigurable partition.
    NotLoaded = 10,
    /// The map's image is damaged or does not fit.
    BadImage = 11,
    /// The program is damaged or does not fit.
    BadProgram = 12,
    /// Header, length or checksum of the bitstream is wrong.
    BadBitstream = 13,
    /// Host memory answered with an error.
    HostError = 14,
    /// The operation took more than MAX_OPERATION_CYCLES. The data that it has written stays.
    TooLong = 15,
}

impl Status {
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Ok),
            1 => Some(Self::BadOp),
            2 => Some(Self::BadAlignment),
            3 => Some(Self::BadLength),
            4 => Some(Self::HostFault),
            5 => Some(Self::CardFault),
            6 => Some(Self::BadChain),
            7 => Some(Self::BadParameter),
            8 => Some(Self::NotPermitted),
            9 => Some(Self::StaleEpoch),
            10 => Some(Self::NotLoaded),
            11 => Some(Self::BadImage),
            12 => Some(Self::BadProgram),
            13 => Some(Self::BadBitstream),
            14 => Some(Self::HostError),
            15 => Some(Self::TooLong),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::BadOp => "BAD_OP",
            Self::BadAlignment => "BAD_ALIGNMENT",
            Self::BadLength => "BAD_LENGTH",
            Self::HostFault => "HOST_FAULT",
            Self::CardFault => "CARD_FAULT",
            Self::BadChain => "BAD_CHAIN",
            Self::BadParameter => "BAD_PARAMETER",
            Self::NotPermitted => "NOT_PERMITTED",
            Self::StaleEpoch => "STALE_EPOCH",
            Self::NotLoaded => "NOT_LOADED",
            Self::BadImage => "BAD_IMAGE",
            Self::BadProgram => "BAD_PROGRAM",
            Self::BadBitstream => "BAD_BITSTREAM",
            Self::HostError => "HOST_ERROR",
            Self::TooLong => "TOO_LONG",
        }
    }
}

/// FLAGS of a descriptor.
pub mod descriptor_flag {
    /// Write a completion. A descriptor that fails always writes one.
    pub const COMPLETE: u64 = 1;
    /// Start only when all descriptors before it in its ring have completed.
    pub const FENCE: u64 = 2;
    /// Raise the function's interrupt after the completion.
    pub const INTERRUPT: u64 = 4;
}

/// FLAGS of a queue context.
pub mod context_flag {
    /// Raise the function's interrupt for descriptors that ask for it.
    pub const INTERRUPTS: u64 = 1;
}

/// FLAGS of a completion.
pub mod completion_flag {
    /// Starts with 1, and flips whenever the completion ring wraps around.
    pub const PHASE: u64 = 1;
    /// Of the C2H ring; else of the H2C ring.
    pub const C2H: u64 = 2;
}
