//! Every bound of the driver.
//!
//! Sizes that the device shares are in [`regs`](crate::regs). Whatever is over a bound is not taken
//! or given back, and the CPU does it; what waits longer than a bound is given up.

use crate::regs::MAX_OPERATION_CYCLES;

/// Entries of an H2C ring, as a power of two.
pub const H2C_LOG2: u32 = 8;
/// Entries of a C2H ring, as a power of two.
pub const C2H_LOG2: u32 = 8;
/// Entries of a completion ring, as a power of two: as many as both rings can owe.
pub const CQ_LOG2: u32 = 9;
/// Descriptors that may wait for their doorbell.
pub const MAX_BURST: u32 = 64;

/// Jobs that a queue set has in flight.
pub const MAX_JOBS: usize = 64;
/// Shards of a linear map, of its inputs and of its outputs: each takes a descriptor.
pub const MAX_SHARDS: usize = 64;
/// Bytes of a job's inputs, and of its outputs, as they lie in memory. A shard is one copy at most.
pub const MAX_JOB_BYTES: usize = 16 << 20;
/// Inputs of a placement job.
pub const MAX_PLACEMENTS: usize = 4096;

/// Coding jobs that become one operation.
pub const MAX_BATCH_JOBS: usize = 16;
/// Bytes of those jobs, inputs and outputs: an operation has long begun to pay then.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Images of maps that are kept compiled and in card memory.
pub const MAX_IMAGES: usize = 8;
/// Programs that a queue set keeps compiled and in card memory.
pub const MAX_PROGRAMS: usize = 64;
/// Placements one after the other that must miss the same module before the partition is changed,
/// so that two maps that take turns do not change it all the time.
pub const SWAP_PATIENCE: u32 = 8;

/// Looks at a queue set's state, one per poll, before an enabling is given up.
pub const MAX_CONTROL_LOOKS: u32 = 1 << 16;
/// Cycles of the device before a reset is given up: in front of the queue set's last job there may be
/// those of all other slots. No caller waits for the reset meanwhile.
pub const MAX_RESET_CYCLES: u64 = 256 * MAX_OPERATION_CYCLES as u64;
/// Polls without news after which the driver looks whether the device is alive.
pub const POLLS_PER_CHECK: u32 = 1 << 10;
/// Cycles of the device without a completion after which a queue set with jobs is reset: a few
/// operations of others may be in front of ours.
pub const MAX_SILENT_CYCLES: u64 = 8 * MAX_OPERATION_CYCLES as u64;
/// Cycles between two checks that a device at work does without difficulty. One that does less has
/// nothing to do, if it is simulated: its clock rests then.
pub const MIN_CYCLES_PER_CHECK: u64 = 128;
/// Checks in a row that find the device resting before a queue set with jobs is reset: a doorbell
/// was lost.
pub const MAX_RESTING_CHECKS: u32 = 16;
/// Looks that find the device's cycle counter where it was before the device is given up.
pub const MAX_STILL_CHECKS: u32 = 64;
/// Resets of a queue set without a good job in between before the queue set is given up.
pub const MAX_RESETS: u32 = 8;
/// Polls without an interrupt after which the completion ring is looked at all the same.
pub const POLLS_PER_LOST_INTERRUPT: u32 = 1 << 8;
