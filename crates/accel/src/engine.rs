//! A device and the CPU behind one interface.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

use fieldstone_buf::AlignedBuf;

use crate::verify::Verifier;
use crate::{
    Counters, Device, Job, JobCompletion, JobError, JobId, JobKind, JobOutput, SoftwareEngine,
    SubmissionQueueId, execute,
};

/// Wrong results and delays after which the engine gives the device up.
pub const MAX_DEVICE_FAULTS: u64 = 3;

/// The work of software in one [`Engine::poll`], in bytes of [`Job::software_cost_bytes`]. A poll
/// that has more to do leaves the rest to the next polls. A job is not divided: a poll does at
/// least one, and begins none that exceeds what is left.
///
/// The caller's core serves no one else meanwhile, so a poll should take less than a millisecond.
/// One core verifies and codes 5 to 50 GB/s with the wide kernels, and 1 GB/s with slow codes and
/// CPUs: 1 MiB takes 0.02 to 1 ms.
pub const POLL_SOFTWARE_BYTES: u64 = 1 << 20;

/// How many smaller jobs may overtake a job that waits for room on the device.
const OVERTAKEN_MAX: u32 = 16;

/// Executes jobs on a device where possible, in software otherwise.
///
/// The engine verifies each result of the device (module `verify`). Software repeats a job with a
/// wrong result, and a job that the device has for longer than [`Device::limit_ns`]. After
/// [`MAX_DEVICE_FAULTS`] of these faults the engine gives the device up. When the device is full,
/// coding jobs wait for room, as many as [`Device::backlog`] says; software does the others.
///
/// A job that waits for room is tried again when the device has finished another job. A smaller job
/// may fit where a larger one does not, and then overtakes it. A refused try costs time, so the
/// engine does not try a job as large as one that the device has just refused. Software does a job
/// that has waited for [`Device::limit_ns`]. The device is not late then: other engines may use its
/// room.
///
/// Software works in [`Engine::poll`], up to [`POLL_SOFTWARE_BYTES`] each time: it verifies the
/// device's results, and does the jobs that the device did wrong, is late with, or no longer takes.
/// All this waits in one queue, in order. [`Engine::unfinished`] and [`Engine::deadline_ns`] tell
/// the caller to poll again. A job that software does from the beginning is done in
/// [`Engine::submit`]; it overtakes that queue, which every poll makes shorter.
///
/// An engine belongs to one reactor or one state machine. It shares no state. It has no clock: its
/// caller says what time it is, in nanoseconds from any moment.
#[derive(Default)]
pub struct Engine {
    device: Option<Box<dyn Device>>,
    software: SoftwareEngine,
    /// Jobs on the device. The engine keeps them so that software can repeat them.
    on_device: BTreeMap<(SubmissionQueueId, JobId), OnDevice>,
    /// Coding jobs that wait for room on the device, in order.
    waiting: VecDeque<Waiting>,
    /// Results of the device in the present poll; kept to reuse the memory.
    arrived: Vec<JobCompletion>,
    /// The work of software, in order.
    pending: VecDeque<Pending>,
    verifier: Verifier,
    /// The name of the device that the engine gave up.
    given_up: Option<String>,
    /// The device that the engine gave up.
    given_up_device: Option<Box<dyn Device>>,
    counters: Counters,
    /// Delays of the device: polls that found late jobs.
    delays: u64,
    /// When the engine last counted a delay.
    delayed_at_ns: u64,
    /// Input bytes of the smallest job that the device has refused since it last finished one.
    refused_bytes: Option<u64>,
}

/// A job that waits for room on the device.
struct Waiting {
    queue: SubmissionQueueId,
    id: JobId,
    job: Job,
    since_ns: u64,
    /// Jobs that have overtaken this one.
    overtaken: u32,
}

/// A job that the device no longer has, and that waits for software.
struct Pending {
    queue: SubmissionQueueId,
    id: JobId,
    job: Job,
    work: Work,
}

/// The work of software for a job that the device had.
enum Work {
    /// Verify the device's result.
    Verify(JobOutput),
    /// Repeat a job whose result is an error or not trusted. Software's result decides.
    Decide(Result<JobOutput, JobError>),
    /// Do a job that has no result.
    Execute,
}

/// A job that the device has.
struct OnDevice {
    job: Job,
    since_ns: u64,
    /// When the device is late with it.
    until_ns: u64,
}

/// The keys of all jobs of a queue.
fn of_queue(queue: SubmissionQueueId) -> RangeInclusive<(SubmissionQueueId, JobId)> {
    (queue, JobId(0))..=(queue, JobId(u64::MAX))
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

    /// True if the engine has a device and has not given it up.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// A buffer with arbitrary content for an input of a job, in the memory that the device reads
    /// fastest.
    #[must_use]
    pub fn buffer(&self, len_bytes: usize) -> AlignedBuf {
        let device = self.device.as_ref().map(|device| device.buffer(len_bytes));
        device.unwrap_or_else(|| AlignedBuf::stale(len_bytes))
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The device that the engine has given up, once. To drop a device may take long: it has to
    /// stop using memory.
    pub fn take_given_up(&mut self) -> Option<Box<dyn Device>> {
        self.given_up_device.take()
    }

    /// Ends the engine. Jobs on its device get no result.
    #[must_use]
    pub fn into_device(self) -> Option<Box<dyn Device>> {
        self.device.or(self.given_up_device)
    }

    /// Jobs whose result only a later poll can give: the device has them, they wait for room there,
    /// or they wait for software.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.on_device.len() + self.waiting.len() + self.pending.len()
    }

    /// Jobs that wait for software. While there are any, the next poll has work to do.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// When the device is late with the first of its jobs, or 0 if a job waits for software. `None`
    /// if no job is unfinished.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        if !self.pending.is_empty() {
            return Some(0);
        }
        let limit_ns = self.device.as_ref().map_or(0, |device| device.limit_ns());
        let waiting = self.waiting.front().map(|job| job.since_ns.saturating_add(limit_ns));
        self.on_device.values().map(|sent| sent.until_ns).chain(waiting).min()
    }

    /// Accepts a job, or returns it because the queue holds too many completions: poll first. A
    /// queue never gets the same number again, because the result of a late job may come at any
    /// time.
    pub fn submit(
        &mut self,
        now_ns: u64,
        queue: SubmissionQueueId,
        id: JobId,
        job: Job,
    ) -> Result<(), Job> {
        let (kind, bytes) = (job.kind(), job.input_bytes());
        let behind = kind == JobKind::Code && !self.waiting.is_empty();
        let refused = match behind && !self.may_overtake(bytes) {
            true => Err(job),
            false => self.submit_to_device(now_ns, queue, id, job),
        };
        if refused.is_ok() && behind {
            self.waiting.iter_mut().for_each(|waiting| waiting.overtaken += 1);
        }
        if let Err(job) = refused {
            let device = self.device.as_ref().filter(|device| device.takes(&job));
            let backlog = device.map_or(0, |device| device.backlog());
            if kind == JobKind::Code && self.waiting.len() < backlog {
                let waiting = Waiting { queue, id, job, since_ns: now_ns, overtaken: 0 };
                self.waiting.push_back(waiting);
            } else {
                if kind == JobKind::Code && backlog > 0 {
                    self.counters.kind_mut(kind).device_full += 1;
                }
                self.software.submit(queue, id, job)?;
            }
        }
        let counters = self.counters.kind_mut(kind);
        counters.jobs += 1;
        counters.bytes += bytes;
        Ok(())
    }

    /// Appends the jobs of `queue` that have finished. Software works on the jobs of all queues, up
    /// to [`POLL_SOFTWARE_BYTES`].
    pub fn poll(
        &mut self,
        now_ns: u64,
        queue: SubmissionQueueId,
        completions: &mut Vec<JobCompletion>,
    ) {
        self.software.poll(queue, completions);
        if self.device.is_some() {
            self.poll_device(now_ns, queue);
        }
        let mut budget_bytes = POLL_SOFTWARE_BYTES;
        self.work_off(&mut budget_bytes);
        if self.counters.device_wrong() + self.delays >= MAX_DEVICE_FAULTS {
            self.abandon_device();
            self.work_off(&mut budget_bytes);
        }
        self.software.poll(queue, completions);
    }

    /// Takes the device's results for `queue`, gives up the jobs that it is late with, and gives it
    /// the jobs that wait for room.
    fn poll_device(&mut self, now_ns: u64, queue: SubmissionQueueId) {
        let Some(device) = &mut self.device else { return };
        let mut arrived = std::mem::take(&mut self.arrived);
        device.poll(queue, &mut arrived);
        if !arrived.is_empty() {
            self.refused_bytes = None;
        }
        for completion in arrived.drain(..) {
            // Software has done a job that was late.
            let id = completion.job;
            let work = completion.result.map_or_else(|e| Work::Decide(Err(e)), Work::Verify);
            let Some(sent) = self.on_device.remove(&(queue, id)) else { continue };
            self.pending.push_back(Pending { queue, id, job: sent.job, work });
        }
        self.arrived = arrived;
        self.give_up_late(now_ns, queue);
        self.send_waiting(now_ns, queue);
    }

    /// Does the work of software in order, as far as the budget goes. The results wait in their
    /// queues, which may exceed their bound.
    fn work_off(&mut self, budget_bytes: &mut u64) {
        while let Some(next) = self.pending.front() {
            let cost_bytes = next.job.software_cost_bytes();
            let is_first = *budget_bytes == POLL_SOFTWARE_BYTES;
            if cost_bytes > *budget_bytes && !is_first {
                return;
            }
            *budget_bytes = budget_bytes.saturating_sub(cost_bytes);
            let Some(pending) = self.pending.pop_front() else { return };
            let (queue, id) = (pending.queue, pending.id);
            if let Some(result) = self.work_on(pending) {
                self.software.keep(queue, JobCompletion { job: id, result });
            }
        }
    }

    /// Does the next step of a job. `None` if another step has to follow, which is then the first
    /// in the queue.
    fn work_on(&mut self, pending: Pending) -> Option<Result<JobOutput, JobError>> {
        let Pending { queue, id, job, work } = pending;
        match work {
            Work::Verify(output) if self.verifier.trusts(&job, &output) => Some(Ok(output)),
            Work::Verify(output) => {
                let work = Work::Decide(Ok(output));
                self.pending.push_front(Pending { queue, id, job, work });
                None
            }
            // Software decides on errors, too.
            Work::Decide(of_device) => {
                let result = execute(&job);
                if result != of_device {
                    let counters = self.counters.kind_mut(job.kind());
                    counters.device_failures += 1;
                    counters.device_wrong += u64::from(of_device.is_ok());
                }
                Some(result)
            }
            Work::Execute => Some(execute(&job)),
        }
    }

    /// A coding job of `bytes` input bytes may be tried on the device although others wait.
    fn may_overtake(&self, bytes: u64) -> bool {
        let patient = self.waiting.iter().all(|waiting| waiting.overtaken < OVERTAKEN_MAX);
        patient && self.refused_bytes.is_none_or(|refused| bytes < refused)
    }

    /// Gives waiting jobs to the device, as far as there is room. Leaves to software those that the
    /// device does not take any more, and those that have waited for too long.
    fn send_waiting(&mut self, now_ns: u64, queue: SubmissionQueueId) {
        if self.waiting.is_empty() {
            return;
        }
        self.give_up_waiting(now_ns);
        if self.on_device.range(of_queue(queue)).next().is_none() {
            // No result of this queue will tell of new room.
            self.refused_bytes = None;
        }
        let mut passed: VecDeque<Waiting> = VecDeque::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting { queue, id, job, since_ns, overtaken } = waiting;
            let bytes = job.input_bytes();
            let may_pass = passed.iter().all(|job| job.overtaken < OVERTAKEN_MAX);
            let refused = match may_pass && self.refused_bytes.is_none_or(|min| bytes < min) {
                true => self.submit_to_device(now_ns, queue, id, job),
                false => Err(job),
            };
            match refused {
                Ok(()) => passed.iter_mut().for_each(|job| job.overtaken += 1),
                Err(job) => passed.push_back(Waiting { queue, id, job, since_ns, overtaken }),
            }
        }
        self.waiting = passed;
    }

    /// Leaves to software the waiting jobs that the device does not take any more, and those that
    /// have waited for too long.
    fn give_up_waiting(&mut self, now_ns: u64) {
        for waiting in std::mem::take(&mut self.waiting) {
            let device = self.device.as_ref().filter(|device| device.takes(&waiting.job));
            let limit_ns = device.map(|device| device.limit_ns());
            if limit_ns.is_some_and(|limit| now_ns.saturating_sub(waiting.since_ns) < limit) {
                self.waiting.push_back(waiting);
                continue;
            }
            self.counters.kind_mut(waiting.job.kind()).device_full += 1;
            let Waiting { queue, id, job, .. } = waiting;
            self.pending.push_back(Pending { queue, id, job, work: Work::Execute });
        }
    }

    /// Leaves to software the jobs of `queue` that the device is late with.
    fn give_up_late(&mut self, now_ns: u64, queue: SubmissionQueueId) {
        let late =
            self.on_device.range(of_queue(queue)).filter(|(_, sent)| sent.until_ns <= now_ns);
        let late: Vec<(SubmissionQueueId, JobId)> = late.map(|(key, _)| *key).collect();
        let mut last_ns = None;
        for key in late {
            let Some(sent) = self.on_device.remove(&key) else { continue };
            last_ns = last_ns.max(Some(sent.since_ns));
            let counters = self.counters.kind_mut(sent.job.kind());
            counters.device_failures += 1;
            counters.device_late += 1;
            let (queue, id) = key;
            self.pending.push_back(Pending { queue, id, job: sent.job, work: Work::Execute });
        }
        // One cause may delay all jobs that the device had at that time.
        let counts = |since_ns| self.delays == 0 || since_ns >= self.delayed_at_ns;
        if last_ns.is_some_and(counts) {
            self.delays += 1;
            self.delayed_at_ns = now_ns;
        }
    }

    /// Gives the device up, for good, and leaves its unfinished jobs to software, which does them
    /// in the next polls. Without a device this does nothing.
    pub fn abandon_device(&mut self) {
        let Some(device) = self.device.take() else { return };
        self.given_up = Some(format!("{} (given up)", device.name()));
        for ((queue, id), sent) in std::mem::take(&mut self.on_device) {
            self.counters.kind_mut(sent.job.kind()).device_failures += 1;
            self.pending.push_back(Pending { queue, id, job: sent.job, work: Work::Execute });
        }
        for Waiting { queue, id, job, .. } in std::mem::take(&mut self.waiting) {
            self.counters.kind_mut(job.kind()).device_full += 1;
            self.pending.push_back(Pending { queue, id, job, work: Work::Execute });
        }
        self.given_up_device = Some(device);
    }

    /// Gives the job to the device, if there is one that takes the job and has room.
    fn submit_to_device(
        &mut self,
        now_ns: u64,
        queue: SubmissionQueueId,
        id: JobId,
        job: Job,
    ) -> Result<(), Job> {
        let Some(device) = self.device.as_mut().filter(|device| device.takes(&job)) else {
            return Err(job);
        };
        let counters = self.counters.kind_mut(job.kind());
        let (copy, bytes) = (job.clone(), job.input_bytes());
        if let Err(job) = device.submit(queue, id, job) {
            if job.kind() == JobKind::Code {
                self.refused_bytes = Some(self.refused_bytes.map_or(bytes, |min| min.min(bytes)));
            }
            counters.device_full += u64::from(device.backlog() == 0 || job.kind() != JobKind::Code);
            return Err(job);
        }
        counters.device_jobs += 1;
        let until_ns = now_ns.saturating_add(device.limit_ns());
        self.on_device.insert((queue, id), OnDevice { job: copy, since_ns: now_ns, until_ns });
        Ok(())
    }
}
