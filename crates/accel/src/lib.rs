//! Job queues for the heavy steps of the data path.
//!
//! Coding, placement and checksums are *jobs*. A [`Device`] (an FPGA design, a GPU, a SmartNIC)
//! takes the jobs that it can do. The [`SoftwareEngine`] does all of them. An [`Engine`] combines
//! the two: software does the jobs that the device does not take, has no room for, or fails at. The
//! bits are the same either way.
//!
//! ```text
//!   submit(queue, id, job) --> device takes it? --yes--> device.submit --full--+
//!                                   no                       |                 |
//!                                   +----> software <--------|-----------------+
//!                                             |      failed, wrong or late
//!   poll(queue) <------- completions ---------+--------------+
//! ```
//!
//! Rules of the queues:
//! - The submitter chooses a [`JobId`]. A queue of an [`Engine`] never gets the same number twice.
//! - Every accepted job completes exactly once, on the queue it was submitted to, in any order.
//! - Queues are bounded. A full queue returns the job; polling makes room.
//! - For jobs that the device had, one poll of an [`Engine`] does only so much work in software
//!   ([`POLL_SOFTWARE_BYTES`]).
//! - No call blocks, waits or reads a clock. The caller of an [`Engine`] says what time it is, and
//!   software repeats the jobs that the device has for too long.
//!
//! Jobs own their data by reference count ([`bytes::Bytes`], [`std::sync::Arc`]), so software can
//! repeat a job that a device fails.

mod counters;
mod device;
mod engine;
mod job;
mod software;
mod verify;

pub use counters::{Counters, KindCounters};
pub use device::{Device, JobCompletion};
pub use engine::{Engine, MAX_DEVICE_FAULTS, POLL_SOFTWARE_BYTES};
pub use job::{Job, JobError, JobId, JobKind, JobOutput, Shard, SubmissionQueueId};
pub use software::{MAX_WAITING_COMPLETIONS, SoftwareEngine, crc32c, execute};
