//! The interface to accelerators.

use fieldstone_buf::AlignedBuf;

use crate::{Job, JobError, JobId, JobOutput, SubmissionQueueId};

/// A finished job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCompletion {
    /// The number that the submitter gave the job.
    pub job: JobId,
    /// Its result.
    pub result: Result<JobOutput, JobError>,
}

/// The time that a device may have for a job, unless it says otherwise.
const LIMIT_NS: u64 = 2_000_000_000;

/// A device that executes jobs, with exactly the bits of software.
pub trait Device: Send {
    /// A short name for status pages.
    fn name(&self) -> &str;

    /// True when the device can do this kind of job. `submit` says whether the device has room.
    fn takes(&self, job: &Job) -> bool;

    /// A buffer with arbitrary content for an input of a job, in the memory that the device reads
    /// fastest.
    fn buffer(&self, len_bytes: usize) -> AlignedBuf {
        AlignedBuf::stale(len_bytes)
    }

    /// Accepts a job, or returns it because the queue is full.
    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job>;

    /// The longest time that a job takes on the device, with the wait for the jobs before it. An
    /// engine repeats a job in software after that.
    fn limit_ns(&self) -> u64 {
        LIMIT_NS
    }

    /// Coding jobs that may wait for room on this device. With 0, software does a job for which
    /// there is no room.
    fn backlog(&self) -> usize {
        0
    }

    /// Appends the jobs of `queue` that have finished since the last call. Never blocks. A
    /// simulated device may use the call to make progress.
    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>);
}
