//! The seam to accelerators.

use crate::{Job, JobError, JobId, JobOutput, QueueId};

/// A finished job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCompletion {
    /// The number under which it was submitted.
    pub job: JobId,
    /// What came of it.
    pub result: Result<JobOutput, JobError>,
}

/// Something that executes jobs, with exactly the bits that software would give.
pub trait Device: Send {
    /// A short name for status pages.
    fn name(&self) -> &str;

    /// True when the device can do this job at all; whether it has room is told by `submit`.
    fn takes(&self, job: &Job) -> bool;

    /// Accepts a job, or gives it back because the queue is full.
    fn submit(&mut self, queue: QueueId, id: JobId, job: Job) -> Result<(), Job>;

    /// Appends the jobs of `queue` that have finished since the last call. Never blocks; a simulated
    /// device may use the call to make progress.
    fn poll(&mut self, queue: QueueId, completions: &mut Vec<JobCompletion>);
}
