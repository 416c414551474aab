//! Every bound of the driver.
//!
//! Sizes that the driver shares with the device are in [`regs`](crate::regs). If a job is over a
//! bound, the driver does not take it or gives it back, and the CPU does it. If a wait is longer
//! than a bound, the driver gives up.

use crate::regs::{BEAT_BYTES, FUNCTION_JOBS, MAX_COPY_BYTES, MAX_FUNCTIONS, MAX_OPERATION_CYCLES};

/// Entries of an H2C ring, as a power of two.
pub const H2C_LOG2: u32 = 8;
/// Entries of a C2H ring, as a power of two.
pub const C2H_LOG2: u32 = 8;
/// Entries of a completion ring, as a power of two: room for the completions of both rings.
pub const CQ_LOG2: u32 = 9;
/// Descriptors that may wait for their doorbell.
pub const MAX_BURST: u32 = 64;

/// Jobs that a queue set has in flight.
pub const MAX_JOBS: usize = 64;
/// Shards of a linear map, for its inputs and for its outputs: each shard takes a descriptor.
pub const MAX_SHARDS: usize = 64;
/// Bytes of a job's inputs, and of its outputs, in their layout in memory. A shard is one copy at
/// most.
pub const MAX_JOB_BYTES: usize = 16 << 20;
/// Inputs of a placement job.
pub const MAX_PLACEMENTS: usize = 4096;

/// Coding jobs that become one operation.
pub const MAX_BATCH_JOBS: usize = 16;
/// Bytes of those jobs, inputs and outputs. In batches of this size, an operation's fixed cost
/// matters little.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Images of maps that the driver keeps compiled and in card memory.
pub const MAX_IMAGES: usize = 8;
/// Programs that a queue set keeps compiled and in card memory.
pub const MAX_PROGRAMS: usize = 64;
/// Placements in a row that must miss the same module before the driver changes the partition. So
/// two maps that alternate do not change it all the time.
pub const SWAP_PATIENCE: u32 = 8;

/// Reads of a queue set's state, one per poll, before the driver gives up enabling it.
pub const MAX_CONTROL_POLLS: u32 = 1 << 16;
/// Most cycles of an operation from when it is the first of its function's at an engine to its end,
/// whatever other functions do (`rtl/qdma/qdma_lines.sv`, `qdma_share.sv`).
///
/// The function may owe the others as much time as each of them may take for an operation. Then
/// each has one turn before it, the engine has at most two operations, and its own comes last.
pub const MAX_TURN_CYCLES: u64 =
    (2 * (MAX_FUNCTIONS as u64 - 1) + 2 + 1) * MAX_OPERATION_CYCLES as u64;
/// Most cycles in which the device moves the copies of all functions, in one direction: a beat in
/// two cycles, because both directions share the card's memory with the engines.
const MAX_COPIES_CYCLES: u64 =
    2 * FUNCTION_JOBS * (MAX_FUNCTIONS * MAX_COPY_BYTES / BEAT_BYTES) as u64;
/// Most cycles from a doorbell to the next completion of a queue set with work, or from its reset
/// to its end: all jobs of its function that are in the device may be before its own.
const MAX_WAIT_CYCLES: u64 = FUNCTION_JOBS * MAX_TURN_CYCLES + MAX_COPIES_CYCLES;
/// Cycles of the device before the driver gives up a reset. No caller waits for it meanwhile.
pub const MAX_RESET_CYCLES: u64 = MAX_WAIT_CYCLES;
/// Polls without a completion after which the driver checks whether the device runs.
pub const POLLS_PER_CHECK: u32 = 1 << 10;
/// Cycles of the device without a completion after which the driver resets a queue set with jobs.
/// No other tenant can make a queue set wait for so long: a driver whose patience is shorter than
/// what others may legally take resets a queue set that works, again and again, and gives it up.
pub const MAX_SILENT_CYCLES: u64 = MAX_WAIT_CYCLES;
/// A device at work easily does that many cycles between two checks. A simulated device that does
/// fewer has no work: its clock rests then, but for the read of the counter, which takes some 300
/// cycles.
pub const MIN_CYCLES_PER_CHECK: u64 = 1024;
/// Checks in a row that find the device resting before the driver resets a queue set with jobs: a
/// doorbell was lost.
pub const MAX_RESTING_CHECKS: u32 = 16;
/// Checks in a row that find the device's cycle counter unchanged before the driver gives up the
/// device.
pub const MAX_STILL_CHECKS: u32 = 64;
/// Resets of a queue set without a good job in between before the driver gives up the queue set.
pub const MAX_RESETS: u32 = 8;
/// Polls without an interrupt after which the driver reads the completion ring all the same.
pub const POLLS_PER_LOST_INTERRUPT: u32 = 1 << 8;
