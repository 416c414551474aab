//! Random jobs on a card, compared with the scalar kernel and the plain mapper bit by bit.
//!
//! Everything follows from a seed. Several threads share a card, each with its own device. A
//! thread makes a random map ([`maps`]) and executes many jobs with it: of any length, with inputs
//! that begin at any byte, in memory that the card reads directly and in other memory, with and
//! without checksums. The card's memory for the outputs is filled with a pattern before each job,
//! so an output byte that the program does not write is found. Some of the jobs are
//! placements, each with a random map of devices ([`placements`]).

pub mod maps;
pub mod placements;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use fieldstone_accel::{
    Device, Job, JobCompletion, JobError, JobId, JobKind, JobOutput, Shard, SubmissionQueueId,
    crc32c,
};
use fieldstone_gf::{Kernel, LinearMap};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::maps::MapMaker;
use crate::card::Card;
use crate::driver::DriverError;
use crate::{GpuDevice, Policy};

/// Jobs of a thread on the device at once.
const DEPTH: usize = 16;
/// Wrong results and failures that a report describes.
const DESCRIBED_MAX: usize = 4;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Jobs in all.
    pub count: u64,
    /// Jobs with one map.
    pub jobs_per_map: u64,
    /// Threads.
    pub threads: usize,
    /// Bytes of the longest element.
    pub element_bytes_max: usize,
    /// One of that many jobs is a placement. With 0, none is.
    pub jobs_per_placement: u64,
}

/// The results of all jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Maps.
    pub maps: u64,
    /// Jobs that the card did.
    pub done: u64,
    /// Of these, placements.
    pub placements: u64,
    /// Bytes of their inputs.
    pub bytes: u64,
    /// Jobs that the device did not take.
    pub not_taken: u64,
    /// Jobs that the card failed.
    pub failed: u64,
    /// Jobs with other bits than those of the scalar kernel or the plain mapper.
    pub wrong: u64,
    /// The first wrong results and failures, for people.
    pub first: Vec<String>,
}

impl Report {
    /// No wrong result and no failure, and the card did some jobs.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.wrong == 0 && self.failed == 0 && self.done > 0
    }

    fn say(&mut self, what: String) {
        if self.first.len() < DESCRIBED_MAX {
            self.first.push(what);
        }
    }

    fn add(&mut self, other: Self) {
        self.maps += other.maps;
        self.done += other.done;
        self.placements += other.placements;
        self.bytes += other.bytes;
        self.not_taken += other.not_taken;
        self.failed += other.failed;
        self.wrong += other.wrong;
        other.first.into_iter().for_each(|what| self.say(what));
    }
}

/// Runs the jobs. `progress` gets the number of finished jobs now and then, and ends the run by
/// returning false.
///
/// # Errors
/// The card has failed, or has too little memory for the threads' devices.
pub fn run(
    card: &Arc<Card>,
    options: &Options,
    mut progress: impl FnMut(u64) -> bool,
) -> Result<Report, DriverError> {
    let (finished, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Report::default());
    let threads = options.threads.max(1) as u64;
    let mut workers = Vec::new();
    for thread in 0..threads {
        let mut device = GpuDevice::with_policy(card, Policy::everything(card))?;
        device.poison_outputs();
        let rng =
            ChaCha8Rng::seed_from_u64(options.seed.wrapping_mul(1 << 16).wrapping_add(thread));
        let count = options.count / threads + u64::from(thread < options.count % threads);
        workers.push(Worker { device, rng, count, options: *options, report: Report::default() });
    }
    thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let (finished, stop, total) = (&finished, &stop, &total);
                scope.spawn(move || {
                    let report = worker.run(finished, stop);
                    total.lock().unwrap_or_else(PoisonError::into_inner).add(report);
                })
            })
            .collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            if !progress(finished.load(Ordering::Relaxed)) {
                stop.store(true, Ordering::Relaxed);
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

const QUEUE: SubmissionQueueId = SubmissionQueueId(0);

/// A thread's jobs.
struct Worker {
    device: GpuDevice,
    rng: ChaCha8Rng,
    count: u64,
    options: Options,
    report: Report,
}

impl Worker {
    fn run(mut self, finished: &AtomicU64, stop: &AtomicBool) -> Report {
        let maker = MapMaker::default();
        let (mut made, mut next) = (0, 0);
        let mut under_way: BTreeMap<JobId, Job> = BTreeMap::new();
        while made < self.count && !stop.load(Ordering::Relaxed) {
            let map = maker.make(&mut self.rng);
            self.report.maps += 1;
            for _ in 0..self.options.jobs_per_map.min(self.count - made) {
                made += 1;
                next += 1;
                let job = match next % self.options.jobs_per_placement.max(1) {
                    0 if self.options.jobs_per_placement > 0 => {
                        placements::job(&mut self.rng, self.options.element_bytes_max / 4)
                    }
                    _ => self.job(&map),
                };
                if self.device.submit(QUEUE, JobId(next), job.clone()).is_ok() {
                    under_way.insert(JobId(next), job);
                } else {
                    self.report.not_taken += 1;
                    finished.fetch_add(1, Ordering::Relaxed);
                }
                while under_way.len() >= DEPTH {
                    self.collect(&mut under_way, finished);
                }
            }
            while !under_way.is_empty() {
                self.collect(&mut under_way, finished);
            }
        }
        self.report
    }

    fn collect(&mut self, under_way: &mut BTreeMap<JobId, Job>, finished: &AtomicU64) {
        let mut completions = Vec::new();
        self.device.poll(QUEUE, &mut completions);
        if completions.is_empty() {
            thread::yield_now();
        }
        for JobCompletion { job: id, result } in completions {
            let Some(job) = under_way.remove(&id) else { continue };
            finished.fetch_add(1, Ordering::Relaxed);
            self.report.bytes += job.input_bytes();
            match result {
                Ok(output) => {
                    self.report.done += 1;
                    self.report.placements += u64::from(job.kind() == JobKind::Place);
                    if expected(&job).as_ref() != Some(&output) {
                        self.report.wrong += 1;
                        let what = describe(&job, &output);
                        self.report.say(what);
                    }
                }
                Err(error) => {
                    self.report.failed += 1;
                    self.report.say(failure(&error));
                }
            }
        }
    }

    fn job(&mut self, map: &Arc<LinearMap>) -> Job {
        let rng = &mut self.rng;
        let elements: usize = map.shape().input_elements.iter().map(|&n| n as usize).sum();
        let most = (self.options.element_bytes_max / elements.div_ceil(8)).max(2);
        // Short lengths as often as long ones.
        let bits = rng.random_range(0..=most.ilog2());
        let mut element_bytes = rng.random_range(1usize << bits..2 << bits).min(most);
        let checksum_block_bytes = rng.random_bool(0.25).then(|| match rng.random_bool(0.5) {
            true => 512 * rng.random_range(1..=8),
            false => rng.random_range(1..5000),
        });
        if let Some(block_bytes) = checksum_block_bytes.filter(|_| rng.random_bool(0.5)) {
            // Whole blocks, whose checksums the card computes if it can.
            element_bytes = element_bytes.next_multiple_of(block_bytes);
        }
        let pinned = rng.random_bool(0.5);
        let card = Arc::clone(self.device.card());
        let inputs = map.shape().input_elements.iter().map(|&count| {
            let (len, skip) = (count as usize * element_bytes, rng.random_range(0..64));
            let buffer = if pinned { card.host_buffer(len + skip) } else { None };
            let bytes = match buffer {
                Some(mut buffer) => {
                    rng.fill(&mut buffer[..]);
                    buffer.freeze()
                }
                None => {
                    let mut bytes = vec![0; len + skip];
                    rng.fill(&mut bytes[..]);
                    Bytes::from(bytes)
                }
            };
            bytes.slice(skip..)
        });
        let inputs = inputs.collect();
        Job::Code { map: Arc::clone(map), inputs, checksum_block_bytes }
    }
}

/// The result of the scalar kernel or of the plain mapper.
fn expected(job: &Job) -> Option<JobOutput> {
    let Job::Code { map, inputs, checksum_block_bytes } = job else {
        return placements::expected(job);
    };
    let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let element_bytes = map.element_bytes(&inputs).expect("the inputs fit the map");
    let lengths = map.shape().output_elements.iter().map(|&n| n as usize * element_bytes);
    let mut outputs: Vec<Vec<u8>> = lengths.map(|len| vec![0; len]).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute_with(Kernel::Scalar, &inputs, &mut slices).expect("the outputs fit the map");
    let shard = |data: Vec<u8>| {
        let sums = |block_bytes| data.chunks(block_bytes).map(crc32c).collect();
        let checksums = checksum_block_bytes.map_or_else(Vec::new, sums);
        Shard { data: data.into(), checksums }
    };
    Some(JobOutput::Code(outputs.into_iter().map(shard).collect()))
}

fn describe(job: &Job, output: &JobOutput) -> String {
    let (found, right) = match (output, expected(job)) {
        (JobOutput::Code(found), Some(JobOutput::Code(right))) => (found, right),
        (JobOutput::Place(found), Some(JobOutput::Place(right))) => {
            let at = found.iter().zip(&right).position(|(found, right)| found != right);
            return format!("placement {at:?} of {} is another", right.len());
        }
        _ => return "a result of another kind".to_owned(),
    };
    let Job::Code { map, inputs, .. } = job else { return String::new() };
    let shape = map.shape();
    let place = found.iter().zip(&right).enumerate().find_map(|(shard, (found, right))| {
        let differs = found.data.iter().zip(&right.data).position(|(a, b)| a != b);
        differs.map(|at| format!("byte {at} of output {shard}"))
    });
    format!(
        "{}: {} inputs of {} bytes (elements {:?}), outputs {:?}, scratch {}",
        place.unwrap_or_else(|| "a checksum or a length".to_owned()),
        inputs.len(),
        inputs.first().map_or(0, Bytes::len),
        shape.input_elements,
        shape.output_elements,
        shape.scratch_elements
    )
}

fn failure(error: &JobError) -> String {
    format!("a job failed: {error}")
}
