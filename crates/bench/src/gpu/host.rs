//! Measures jobs on objects in the host's memory, beside the link to the card and the CPU.
//!
//! The inputs lie in memory that the card reads directly. Several jobs are in flight, each on an
//! object of its own, so that the copies in, the programs and the copies out of different jobs
//! overlap. In each round the device, the link and the CPU have one pass each over the same inputs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use fieldstone_accel::{Device, Job, JobId, JobOutput, SubmissionQueueId, execute};
use fieldstone_gf::LinearMap;
use fieldstone_gpu::Card;

use super::arena::{Arena, noise};
use super::case::Sizes;
use super::device;
use super::link::Link;

const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
/// Most jobs in flight.
const FLIGHT_MAX: u64 = 8;
/// Most objects of a pass.
const PASS_OBJECTS_MAX: u64 = 2048;
/// The device has failed if it completes nothing for so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Noise that the inputs repeat.
const NOISE_BYTES: usize = 16 << 20;

/// Bytes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of the inputs of the jobs in flight together.
    pub flight_bytes: u64,
    /// Most bytes of the outputs of an object.
    pub output_bytes: u64,
    /// Bytes of the objects of a pass on the device.
    pub pass_bytes: u64,
    /// Bytes of the objects of a pass on the CPU.
    pub software_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flight_bytes: 2 << 30,
            // A half of the largest object.
            output_bytes: 512 << 20,
            pass_bytes: 256 << 20,
            software_bytes: 16 << 20,
        }
    }
}

/// The times of a case: seconds per object, one value for each round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// Jobs on the device.
    pub device: Vec<f64>,
    /// Copies through the link.
    pub link: Vec<f64>,
    /// Jobs on one core of the CPU.
    pub software: Vec<f64>,
    /// Jobs in flight.
    pub in_flight: usize,
    /// Seconds of all passes.
    pub seconds: f64,
}

/// Jobs in flight, and objects of a pass on the device and on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    in_flight: u64,
    objects: u64,
    software_objects: u64,
}

impl Amount {
    /// The amount for objects with this many bytes of inputs. `None` if one does not fit into the
    /// memory for inputs.
    fn new(limits: &Limits, input_bytes: u64) -> Option<Self> {
        let input_bytes = input_bytes.max(1);
        let in_flight = (limits.flight_bytes / input_bytes).min(FLIGHT_MAX);
        let objects = |bytes: u64| bytes.div_ceil(input_bytes).min(PASS_OBJECTS_MAX);
        (in_flight > 0).then(|| Self {
            in_flight,
            objects: objects(limits.pass_bytes).max(2 * in_flight),
            software_objects: objects(limits.software_bytes),
        })
    }
}

/// A device with its card, and the memory for inputs.
pub struct Host {
    device: Box<dyn Device>,
    link: Link,
    memory: Bytes,
    limits: Limits,
}

impl Host {
    /// Opens the device, and takes the memory.
    ///
    /// # Errors
    /// The card has failed, or there is too little memory.
    pub fn open(card: &Arc<Card>, limits: Limits) -> anyhow::Result<Self> {
        let device = device::open(card)?;
        let link = Link::new(card, usize::try_from(limits.output_bytes)?)?;
        let input_bytes = usize::try_from(limits.flight_bytes)?;
        let mut memory = device::host_buffer(card, input_bytes)
            .context("there is too little memory that the card reads directly")?;
        let noise = noise(9, NOISE_BYTES.min(input_bytes.max(1)));
        for part in memory.chunks_mut(noise.len()) {
            part.copy_from_slice(&noise[..part.len()]);
        }
        Ok(Self { device, link, memory: memory.freeze(), limits })
    }

    /// The inputs of objects, one behind the other in the memory.
    fn objects(&self, sizes: &Sizes, count: u64) -> Vec<Vec<Bytes>> {
        let mut at = 0;
        let mut input = |&bytes: &u64| {
            let start = at;
            at += bytes as usize;
            self.memory.slice(start..at)
        };
        (0..count).map(|_| sizes.inputs.iter().map(&mut input).collect()).collect()
    }

    /// Measures a map. `None` if not even one object fits.
    ///
    /// # Errors
    /// The card has failed, or computes other bytes than the CPU.
    pub fn measure(
        &mut self,
        arena: &Arena,
        map: &Arc<LinearMap>,
        sizes: &Sizes,
        rounds: u32,
    ) -> anyhow::Result<Option<Times>> {
        let Some(amount) = Amount::new(&self.limits, sizes.input_bytes()) else {
            return Ok(None);
        };
        let objects = self.objects(sizes, amount.in_flight);
        let jobs: Vec<Job> =
            objects.iter().map(|inputs| Job::code(Arc::clone(map), inputs.clone())).collect();
        self.verify(&jobs)?;
        let mut times = Times { in_flight: jobs.len(), ..Times::default() };
        let count = amount.objects as usize;
        for round in 0..rounds {
            for place in 0..3 {
                let (list, seconds, count) = match (round + place) % 3 {
                    0 => (&mut times.device, pass(&mut *self.device, &jobs, count, drop)?, count),
                    1 => {
                        let link = self.link.pass(arena, &objects, &sizes.outputs, count)?;
                        (&mut times.link, link, count)
                    }
                    _ => {
                        let count = amount.software_objects as usize;
                        (&mut times.software, software_pass(&jobs, count)?, count)
                    }
                };
                list.push(seconds / count as f64);
                times.seconds += seconds;
            }
        }
        Ok(Some(times))
    }

    /// Runs each job once, and compares the results of the first with the CPU's. This also loads
    /// the program and takes the memory for outputs.
    fn verify(&mut self, jobs: &[Job]) -> anyhow::Result<()> {
        let first = jobs.first().context("there are jobs")?;
        ensure!(self.device.takes(first), "the device does not take this job");
        let mut results = Vec::new();
        pass(&mut *self.device, jobs, jobs.len(), |(id, output)| {
            if id == JobId(0) {
                results.push(output);
            }
        })?;
        ensure!(
            results.pop() == Some(execute(first)?),
            "the card computes other bytes than the CPU"
        );
        Ok(())
    }
}

/// Runs so many jobs, as many at once as there are different ones. Returns the seconds from the
/// first submission to the last completion.
fn pass(
    device: &mut dyn Device,
    jobs: &[Job],
    count: usize,
    mut each: impl FnMut((JobId, JobOutput)),
) -> anyhow::Result<f64> {
    let (mut submitted, mut done) = (0, 0);
    let mut completions = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while done < count {
        while submitted < count && submitted - done < jobs.len() {
            let job = jobs[submitted % jobs.len()].clone();
            if device.submit(QUEUE, JobId(submitted as u64), job).is_err() {
                break;
            }
            submitted += 1;
        }
        device.poll(QUEUE, &mut completions);
        if completions.is_empty() && last.elapsed() > PATIENCE {
            bail!("the device has completed nothing for {} s", PATIENCE.as_secs());
        }
        for completion in completions.drain(..) {
            each((completion.job, completion.result?));
            done += 1;
            last = Instant::now();
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Executes so many jobs on this core. Returns the seconds. The outputs lie in memory that was
/// written before, as those of the card do: fresh pages would slow this contender down.
fn software_pass(jobs: &[Job], count: usize) -> anyhow::Result<f64> {
    let Some(Job::Code { map, inputs, .. }) = jobs.first() else { return Ok(0.0) };
    let first: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let element_bytes = map.element_bytes(&first)?;
    let elements = map.shape().output_elements.iter();
    let mut outputs: Vec<Vec<u8>> =
        elements.map(|&count| vec![1; count as usize * element_bytes]).collect();
    let begun = Instant::now();
    for job in jobs.iter().cycle().take(count) {
        let Job::Code { map, inputs, .. } = job else { continue };
        let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        map.execute(&inputs, &mut targets)?;
        std::hint::black_box(&targets);
    }
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fieldstone_accel::JobCompletion;

    use super::*;

    /// A device in software with room for three jobs. It completes one job for each poll, the one
    /// that came last.
    #[derive(Default)]
    struct Small {
        waiting: VecDeque<(JobId, Job)>,
        most: usize,
    }

    impl Device for Small {
        fn name(&self) -> &str {
            "small"
        }

        fn takes(&self, _job: &Job) -> bool {
            true
        }

        fn submit(&mut self, _queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
            if self.waiting.len() == 3 {
                return Err(job);
            }
            self.waiting.push_back((id, job));
            self.most = self.most.max(self.waiting.len());
            Ok(())
        }

        fn poll(&mut self, _queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
            if let Some((job, work)) = self.waiting.pop_back() {
                completions.push(JobCompletion { job, result: execute(&work) });
            }
        }
    }

    #[test]
    fn a_pass_runs_every_job_and_has_several_in_flight() {
        let job = |byte| Job::Checksum { data: vec![byte; 64].into(), block_bytes: 64 };
        let jobs: Vec<Job> = (0..5).map(job).collect();
        let mut device = Small::default();
        let mut seen = Vec::new();
        pass(&mut device, &jobs, 12, |(id, output)| seen.push((id.0, output))).expect("it runs");
        seen.sort_by_key(|(id, _)| *id);
        assert_eq!(seen.len(), 12);
        for (at, (id, output)) in seen.iter().enumerate() {
            assert_eq!(*id, at as u64);
            assert_eq!(Ok(output.clone()), execute(&jobs[at % 5]));
        }
        assert_eq!(device.most, 3);
        assert!(software_pass(&jobs, 7).expect("it runs") >= 0.0);
    }

    #[test]
    fn the_amount_follows_the_size_of_the_objects() {
        let amount = |bytes| Amount::new(&Limits::default(), bytes);
        let (in_flight, objects, software_objects) = (8, 2048, 256);
        assert_eq!(amount(64 << 10), Some(Amount { in_flight, objects, software_objects }));
        let (in_flight, objects, software_objects) = (8, 16, 1);
        assert_eq!(amount(64 << 20), Some(Amount { in_flight, objects, software_objects }));
        let (in_flight, objects, software_objects) = (2, 4, 1);
        assert_eq!(amount(1 << 30), Some(Amount { in_flight, objects, software_objects }));
        assert_eq!(amount((2 << 30) + 1), None);
    }
}
