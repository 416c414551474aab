//! Measures from which size on the card is faster than software.
//!
//! Each size is measured with one job, on an idle device and on this core. The sizes go down from
//! the largest to the first one at which software is as fast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_accel::{Device, Job, JobId, SubmissionQueueId, execute};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;

use super::{Policy, Threshold};
use crate::GpuDevice;
use crate::card::{Card, Loaded};
use crate::images::{Placer, Source};

/// Smaller coding jobs are not worth a measurement, in input bytes.
pub(super) const CODE_BYTES_MIN: u64 = 64 << 10;
/// Sizes of coding jobs, in input bytes.
const CODE_BYTES: [usize; 5] = [16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10];
/// Sizes of placement jobs, in inputs.
const PLACE_INPUTS: [u32; 5] = [16_384, 4096, 1024, 256, 64];
/// Samples of each size. The fastest counts.
const SAMPLES: usize = 3;
/// One sample is enough if the card takes this many times as long as software.
const HOPELESS: u32 = 8;
/// The card has failed if a sample takes longer.
const SAMPLE_MAX: Duration = Duration::from_secs(5);

/// Loads the program of a map, and measures it.
pub(super) fn map(
    card: &Arc<Card>,
    map: &Arc<LinearMap>,
) -> Result<(Arc<Loaded>, Threshold), String> {
    let loaded = card.program(map).map_err(words)?;
    // No job waits for the checksum kernel either.
    drop(card.sums());
    let mut device = GpuDevice::with_policy(card, Policy::everything(card)).map_err(words)?;
    let mut threshold = |direct| {
        let jobs = CODE_BYTES.map(|bytes| move || code(card, map, bytes, direct));
        Ok::<_, String>(
            smallest_faster(&mut device, jobs)?.map_or(u64::MAX, |job| job.input_bytes()),
        )
    };
    let (direct_bytes, staged_bytes) = (threshold(true)?, threshold(false)?);
    Ok((loaded, Threshold { direct_bytes, staged_bytes }))
}

/// Makes an image, and measures placements of this width: from how many inputs times width on the
/// card is faster.
pub(super) fn image(
    card: &Arc<Card>,
    source: &Source,
    width: u32,
) -> Result<(Arc<Placer>, u64), String> {
    let placer = card.placer(source).map_err(words)?;
    let mut device = GpuDevice::with_policy(card, Policy::everything(card)).map_err(words)?;
    let jobs = PLACE_INPUTS.map(|inputs| {
        move || Job::Place {
            map: Arc::clone(&source.map),
            rule: source.rule,
            width: width as usize,
            xs: (0..inputs).collect(),
            weights: Arc::clone(&source.weights),
        }
    });
    let items = |job: Job| match job {
        Job::Place { xs, .. } => xs.len() as u64 * u64::from(width),
        Job::Code { .. } | Job::Checksum { .. } => u64::MAX,
    };
    Ok((placer, smallest_faster(&mut device, jobs)?.map_or(u64::MAX, items)))
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A coding job of about that many input bytes.
fn code(card: &Arc<Card>, map: &Arc<LinearMap>, bytes: usize, direct: bool) -> Job {
    let elements: usize = map.shape().input_elements.iter().map(|&n| n as usize).sum();
    let element_bytes = (bytes / elements.max(1)).next_multiple_of(64);
    let input = |&count: &u32| {
        let len = count as usize * element_bytes;
        let pinned = if direct { card.host_buffer(len) } else { None };
        pinned.unwrap_or_else(|| AlignedBuf::stale(len)).freeze()
    };
    let inputs: Vec<Bytes> = map.shape().input_elements.iter().map(input).collect();
    Job::code(Arc::clone(map), inputs)
}

/// The smallest job from which on the card is faster than software, of jobs that go down in size.
/// `None` if the card is slower even with the first.
fn smallest_faster<F: FnOnce() -> Job, const N: usize>(
    device: &mut GpuDevice,
    jobs: [F; N],
) -> Result<Option<Job>, String> {
    let mut smallest = None;
    for job in jobs {
        let job = job();
        let (mut on_card, mut in_software) = (Duration::MAX, Duration::MAX);
        // The first job of a size takes memory.
        run(device, &job)?;
        for _ in 0..SAMPLES {
            let started = Instant::now();
            drop(execute(&job));
            in_software = in_software.min(started.elapsed());
            on_card = on_card.min(run(device, &job)?);
            if on_card > HOPELESS * in_software {
                break;
            }
        }
        if on_card >= in_software {
            break;
        }
        smallest = Some(job);
    }
    Ok(smallest)
}

/// Executes a job on an idle device, and waits for it.
fn run(device: &mut GpuDevice, job: &Job) -> Result<Duration, String> {
    let (queue, started) = (SubmissionQueueId(0), Instant::now());
    device.submit(queue, JobId(0), job.clone()).map_err(|_| "it refuses a job".to_owned())?;
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.poll(queue, &mut completions);
        if started.elapsed() > SAMPLE_MAX {
            return Err("a job takes too long".to_owned());
        }
    }
    let elapsed = started.elapsed();
    completions.remove(0).result.map_err(|error| error.to_string())?;
    Ok(elapsed)
}
