//! A device and the CPU behind one interface.

use std::collections::BTreeMap;
use std::fmt;

use crate::verify::Verifier;
use crate::{
    Counters, Device, Job, JobCompletion, JobError, JobId, JobOutput, QueueId, SoftwareEngine,
    execute,
};

/// Polls without a completion after which [`Engine::run`] gives the device up. This is the last
/// resort: long before that, the device's driver ends jobs that make no progress.
pub const MAX_EMPTY_POLLS: u64 = 1 << 26;

/// Wrong results after which the engine gives the device up.
pub const MAX_WRONG_RESULTS: u64 = 3;

/// The queue of [`Engine::run`]. Its completions must not mix with those that other code polls for.
const BLOCKING_QUEUE: QueueId = QueueId(u16::MAX);

/// Executes jobs on a device where possible, in software otherwise.
///
/// The engine verifies each result of the device (module `verify`). Software repeats a job with a
/// wrong result. After [`MAX_WRONG_RESULTS`] of them the engine gives the device up.
///
/// An engine belongs to one reactor or one state machine. It shares no state.
#[derive(Default)]
pub struct Engine {
    device: Option<Box<dyn Device>>,
    software: SoftwareEngine,
    /// Jobs on the device. The engine keeps them so that software can repeat them.
    on_device: BTreeMap<(QueueId, JobId), Job>,
    verifier: Verifier,
    /// The name of the device that the engine gave up.
    given_up: Option<String>,
    counters: Counters,
    blocking_jobs: u64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine without device.
    #[must_use]
    pub fn software() -> Self {
        Self::default()
    }

    /// An engine that prefers `device`.
    #[must_use]
    pub fn with_device(device: Box<dyn Device>) -> Self {
        Self { device: Some(device), ..Self::default() }
    }

    /// The name of the worker: the device's name, also after the engine gave it up, or "software".
    #[must_use]
    pub fn name(&self) -> &str {
        let device = self.device.as_ref().map(|device| device.name());
        device.or(self.given_up.as_deref()).unwrap_or(self.software.name())
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Accepts a job, or returns it because the queue holds too many completions: poll first. The
    /// last queue number belongs to [`Engine::run`]; the engine returns jobs for it, too.
    pub fn submit(&mut self, queue: QueueId, id: JobId, job: Job) -> Result<(), Job> {
        if queue == BLOCKING_QUEUE {
            return Err(job);
        }
        let (kind, bytes) = (job.kind(), job.input_bytes());
        if let Err(job) = self.submit_to_device(queue, id, job) {
            self.software.submit(queue, id, job)?;
        }
        let counters = self.counters.kind_mut(kind);
        counters.jobs += 1;
        counters.bytes += bytes;
        Ok(())
    }

    /// Appends the jobs of `queue` that have finished.
    pub fn poll(&mut self, queue: QueueId, completions: &mut Vec<JobCompletion>) {
        self.software.poll(queue, completions);
        let Some(device) = &mut self.device else { return };
        let first = completions.len();
        device.poll(queue, completions);
        for completion in &mut completions[first..] {
            let Some(job) = self.on_device.remove(&(queue, completion.job)) else { continue };
            let trusted = |output| self.verifier.trusts(&job, output);
            if completion.result.as_ref().is_ok_and(trusted) {
                continue;
            }
            // Software decides in the end, on errors too.
            let counters = self.counters.kind_mut(job.kind());
            let result = std::mem::replace(&mut completion.result, execute(&job));
            if result == completion.result {
                continue;
            }
            counters.device_failures += 1;
            if result.is_ok() {
                counters.device_wrong += 1;
            }
        }
        if self.counters.device_wrong() >= MAX_WRONG_RESULTS {
            self.abandon_device();
        }
    }

    /// Does one job to its end: on the device if the device takes it (polling until it is done),
    /// otherwise at once in software.
    pub fn run(&mut self, job: Job) -> Result<JobOutput, JobError> {
        let counters = self.counters.kind_mut(job.kind());
        counters.jobs += 1;
        counters.bytes += job.input_bytes();
        self.blocking_jobs += 1;
        let id = JobId(self.blocking_jobs);
        if let Err(job) = self.submit_to_device(BLOCKING_QUEUE, id, job) {
            return execute(&job);
        }
        let mut completions = Vec::new();
        let mut empty_polls = 0;
        loop {
            self.poll(BLOCKING_QUEUE, &mut completions);
            if let Some(completion) = completions.drain(..).find(|done| done.job == id) {
                return completion.result;
            }
            empty_polls += 1;
            if empty_polls >= MAX_EMPTY_POLLS {
                self.abandon_device();
            }
        }
    }

    /// Gives the device up, for good, and does its unfinished jobs in software. The results wait in
    /// their queues (which may exceed their bound this once). Without a device this does nothing.
    pub fn abandon_device(&mut self) {
        let Some(device) = self.device.take() else { return };
        self.given_up = Some(format!("{} (given up)", device.name()));
        for ((queue, id), job) in std::mem::take(&mut self.on_device) {
            self.counters.kind_mut(job.kind()).device_failures += 1;
            self.software.finish(queue, id, &job);
        }
    }

    /// Gives the job to the device, if there is one that takes the job and has room.
    fn submit_to_device(&mut self, queue: QueueId, id: JobId, job: Job) -> Result<(), Job> {
        let Some(device) = self.device.as_mut().filter(|device| device.takes(&job)) else {
            return Err(job);
        };
        let counters = self.counters.kind_mut(job.kind());
        let copy = job.clone();
        if let Err(job) = device.submit(queue, id, job) {
            counters.device_full += 1;
            return Err(job);
        }
        counters.device_jobs += 1;
        self.on_device.insert((queue, id), copy);
        Ok(())
    }
}
