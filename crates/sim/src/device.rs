//! The accelerator devices of volume processes: slow, full, out of order, and faulty.
//!
//! A full device gives jobs back. A device may lose a job. A reset loses all its jobs. A device may
//! answer late, with an error, or with wrong bits. The volume's engine has to hide all of this:
//! each job has one result, with the bits of software, within a bound of time. If wrong parity got
//! through, the checker would see wrong bytes as soon as the world takes shards away.

use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_accel::{
    Device, Job, JobCompletion, JobError, JobId, JobOutput, Shard, SubmissionQueueId, execute,
};
use fieldstone_block::Nanos;
use fieldstone_crush::{OsdId, Osds};

use crate::random::RandomStream;

/// The time that a device may have for a job.
const LIMIT_NS: u64 = 500_000_000;

/// How the devices of a run behave. The chances are per thousand jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// Mean time of a job.
    pub job_ns: u64,
    /// The chance that the device is full and gives a job back.
    pub full: u32,
    /// The chance of one of the faults of [`DeviceFault`].
    pub fault: u32,
    /// The largest number of coding jobs that wait while the device is full.
    pub backlog: usize,
}

impl DevicePlan {
    /// The devices of a run; `None` if its volumes use the CPU.
    #[must_use]
    pub fn draw(rng: &mut RandomStream) -> Option<Self> {
        if !rng.chance(300) {
            return None;
        }
        Some(Self {
            job_ns: rng.pick(&[2_000, 50_000, 1_000_000, 20_000_000, 200_000_000]),
            full: rng.pick(&[0, 50, 500]),
            fault: rng.pick(&[0, 5, 50]),
            backlog: rng.pick(&[0, 2, 64]),
        })
    }
}

/// A fault of a device on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceFault {
    /// It reports an error.
    Error,
    /// It reports a wrong result.
    Wrong,
    /// It never reports a result.
    Lost,
    /// It reports the result when the engine does not wait for it any more.
    Late,
    /// It loses all its jobs.
    Reset,
}

const FAULTS: [DeviceFault; 5] = [
    DeviceFault::Error,
    DeviceFault::Wrong,
    DeviceFault::Lost,
    DeviceFault::Late,
    DeviceFault::Reset,
];

impl DeviceFault {
    /// Its name, for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "device-error",
            Self::Wrong => "device-wrong",
            Self::Lost => "device-lost",
            Self::Late => "device-late",
            Self::Reset => "device-reset",
        }
    }
}

struct Waiting {
    due: Nanos,
    queue: SubmissionQueueId,
    completion: JobCompletion,
}

struct State {
    now: Nanos,
    plan: DevicePlan,
    rng: RandomStream,
    waiting: Vec<Waiting>,
    faults: Vec<DeviceFault>,
}

impl State {
    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: &Job) {
        let mut due = self.now.plus(Nanos(self.rng.around(self.plan.job_ns)));
        let mut result = execute(job);
        let fault = self.rng.chance(self.plan.fault).then(|| self.rng.pick(&FAULTS));
        self.faults.extend(fault);
        match fault {
            None => {}
            Some(DeviceFault::Error) => result = Err(JobError::Device("a fault".to_owned())),
            Some(DeviceFault::Wrong) => {
                if let Ok(output) = &mut result {
                    distort(output, &mut self.rng);
                }
            }
            Some(DeviceFault::Lost) => return,
            Some(DeviceFault::Late) => {
                due = due.plus(Nanos(self.rng.between(LIMIT_NS, 3 * LIMIT_NS)));
            }
            Some(DeviceFault::Reset) => return self.waiting.clear(),
        }
        let completion = JobCompletion { job: id, result };
        self.waiting.push(Waiting { due, queue, completion });
    }
}

/// Makes a result wrong, if it has anything in it.
fn distort(output: &mut JobOutput, rng: &mut RandomStream) {
    match output {
        JobOutput::Code(shards) => {
            let index = rng.index(shards.len());
            let Shard { data, checksums } = &mut shards[index];
            if !checksums.is_empty() && rng.chance(500) {
                let at = rng.index(checksums.len());
                checksums[at] ^= 1 << rng.index(32);
            } else if !data.is_empty() {
                let mut bytes = data.to_vec();
                let at = rng.index(bytes.len());
                bytes[at] ^= 1 << rng.index(8);
                *data = bytes.into();
            }
        }
        // Twice the same node, or a node that does not exist.
        JobOutput::Place(placements) => {
            let Some(Osds(osds)) = placements.first_mut() else { return };
            match &mut osds[..] {
                [first, .., last] if first.is_some() && rng.chance(500) => *last = *first,
                [first, ..] => *first = Some(OsdId(10_000)),
                [] => {}
            }
        }
        JobOutput::Checksum(sums) => sums.iter_mut().for_each(|sum| *sum ^= 1),
    }
}

/// The device as the volume's engine sees it.
pub struct SeededDevice(Arc<Mutex<State>>);

/// The device as the world sees it.
pub struct DeviceHandle(Arc<Mutex<State>>);

/// Makes the device of a process, and its handle.
#[must_use]
pub fn device(plan: DevicePlan, rng: RandomStream) -> (SeededDevice, DeviceHandle) {
    let (waiting, faults) = (Vec::new(), Vec::new());
    let state = Arc::new(Mutex::new(State { now: Nanos(0), plan, rng, waiting, faults }));
    (SeededDevice(Arc::clone(&state)), DeviceHandle(state))
}

fn locked<R>(state: &Mutex<State>, work: impl FnOnce(&mut State) -> R) -> R {
    work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

impl DeviceHandle {
    /// It is `now`.
    pub fn set_now(&self, now: Nanos) {
        locked(&self.0, |state| state.now = now);
    }

    /// When the device next has a result.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        locked(&self.0, |state| state.waiting.iter().map(|waiting| waiting.due).min())
    }

    /// The faults since the last call.
    #[must_use]
    pub fn take_faults(&self) -> Vec<DeviceFault> {
        locked(&self.0, |state| std::mem::take(&mut state.faults))
    }
}

impl Device for SeededDevice {
    fn name(&self) -> &str {
        "seeded"
    }

    fn takes(&self, _: &Job) -> bool {
        true
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        locked(&self.0, |state| {
            if state.rng.chance(state.plan.full) {
                return Err(job);
            }
            state.submit(queue, id, &job);
            Ok(())
        })
    }

    fn limit_ns(&self) -> u64 {
        LIMIT_NS
    }

    fn backlog(&self) -> usize {
        locked(&self.0, |state| state.plan.backlog)
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        locked(&self.0, |state| {
            let now = state.now;
            let due = |waiting: &mut Waiting| waiting.queue == queue && waiting.due <= now;
            let due = state.waiting.extract_if(.., due);
            completions.extend(due.map(|waiting| waiting.completion));
        });
    }
}
