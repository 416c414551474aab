//! Jobs: the heavy steps (coding, placement) that the volume gives to its world.
//!
//! The world may do a job at once in software, or give it to a device and report the result much
//! later. The volume keeps several jobs under way, so that a device has more than one to work on.
//! Results may come in any order. The volume trusts them: the world verifies what a device gives
//! (`accel::Engine`).

use std::collections::BTreeMap;

use fieldstone_accel::{Job, JobError, JobId, JobOutput};

use crate::core::VolumeCore;
use crate::interface::VolumeAction;
use fieldstone_tasks::{Awaited, Filler, oneshot};

/// The result of a job.
pub type JobResult = Result<JobOutput, JobError>;

/// The jobs under way.
#[derive(Default)]
pub struct Jobs {
    /// Number of jobs so far. A job's number is never used again.
    made: u64,
    waiting: BTreeMap<JobId, Filler<JobResult>>,
}

impl VolumeCore {
    /// Gives a job to the world.
    pub fn start_job(&mut self, job: Job) -> Awaited<JobResult> {
        self.outbox.jobs.made += 1;
        let id = JobId(self.outbox.jobs.made);
        let (filler, awaited) = oneshot();
        self.outbox.jobs.waiting.insert(id, filler);
        self.outbox.act(VolumeAction::Job { id, job });
        awaited
    }

    /// The world has done a job.
    pub fn job_done(&mut self, id: JobId, result: JobResult) {
        match self.outbox.jobs.waiting.remove(&id) {
            Some(filler) => filler.fill(result),
            None => debug_assert!(false, "{id:?} has a second result, or was never given"),
        }
    }
}
