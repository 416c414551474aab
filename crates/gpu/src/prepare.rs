//! Which jobs a card takes: those of maps whose programs are loaded, if it is faster than software.
//!
//! A program takes from milliseconds to seconds to load, and no call of a device may wait for that.
//! So a thread of the card, the *preparer*, loads the program of a map when a job asks for it, and
//! the device takes the map's jobs from then on. The preparer also measures from which number of
//! input bytes on the card is faster than software, for one job at a time: copying small jobs to the
//! card and back takes longer than computing them. It does so with inputs that the card reads
//! directly and with others, because the difference is large.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_accel::{Device, Job, JobId, SubmissionQueueId, execute};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;

use crate::GpuDevice;
use crate::card::{Card, Loaded};

/// Maps that a policy knows. Others stay with software.
const MAPS_MAX: usize = 1024;
/// Sizes of jobs that the preparer measures, in input bytes.
const MEASURED_BYTES: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Samples of each size. The fastest counts.
const SAMPLES: usize = 3;
/// The card has failed if a sample takes longer.
const SAMPLE_MAX: Duration = Duration::from_secs(5);

/// From how many input bytes on the card takes jobs of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Inputs that the card reads directly.
    pub direct_bytes: u64,
    /// Other inputs.
    pub staged_bytes: u64,
}

/// A map, as the preparer knows it.
enum State {
    Wanted,
    Ready(Arc<Loaded>, Threshold),
    /// The card does not execute it.
    Refused,
}

/// Maps by address; the list keeps them alive, so addresses stay theirs.
#[derive(Default)]
struct Maps(Mutex<HashMap<usize, (Arc<LinearMap>, State)>>);

impl Maps {
    fn with<R>(&self, act: impl FnOnce(&mut HashMap<usize, (Arc<LinearMap>, State)>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn key(map: &Arc<LinearMap>) -> usize {
    Arc::as_ptr(map).addr()
}

/// Which jobs a device takes.
#[derive(Clone)]
pub struct Policy(Kind);

#[derive(Clone)]
enum Kind {
    /// Every job that fits. The first job of a map waits for its program.
    Everything(Arc<Card>),
    /// Jobs that are worth it, once the program is ready.
    Measured { maps: Arc<Maps>, wanted: Sender<Arc<LinearMap>> },
}

impl Policy {
    /// Every job whose map is a program. The first job of a map waits until the program is loaded,
    /// so this is for tests and measurements.
    #[must_use]
    pub fn everything(card: &Arc<Card>) -> Self {
        Self(Kind::Everything(Arc::clone(card)))
    }

    /// The jobs that the card finishes earlier than software, as measured. Devices that share a
    /// policy share its measurements.
    #[must_use]
    pub fn measured(card: &Arc<Card>) -> Self {
        let maps: Arc<Maps> = Arc::default();
        let (wanted, requests) = channel::<Arc<LinearMap>>();
        let (card, known) = (Arc::downgrade(card), Arc::clone(&maps));
        let prepare = move || {
            for map in requests {
                let Some(card) = card.upgrade() else { break };
                let state = match prepare(&card, &map) {
                    Ok((loaded, threshold)) => State::Ready(loaded, threshold),
                    Err(why) => {
                        tracing::info!("the GPU does not take jobs of a map: {why}");
                        State::Refused
                    }
                };
                known.with(|maps| maps.insert(key(&map), (map, state)));
            }
        };
        if let Err(error) = thread::Builder::new().name("gpu-prepare".to_owned()).spawn(prepare) {
            tracing::warn!("the GPU is not used: cannot start a thread: {error}");
        }
        Self(Kind::Measured { maps, wanted })
    }

    /// Whether the device takes a job with these inputs. Asks the preparer for a map that it does
    /// not know.
    pub(crate) fn takes(&self, map: &Arc<LinearMap>, input_bytes: u64, direct: bool) -> bool {
        let (maps, wanted) = match &self.0 {
            Kind::Everything(card) => return card.program(map).is_ok(),
            Kind::Measured { maps, wanted } => (maps, wanted),
        };
        maps.with(|maps| match maps.get(&key(map)) {
            Some((_, State::Ready(_, threshold))) => {
                let least = match direct {
                    true => threshold.direct_bytes,
                    false => threshold.staged_bytes,
                };
                input_bytes >= least
            }
            Some((_, State::Wanted | State::Refused)) => false,
            None => {
                if maps.len() < MAPS_MAX && wanted.send(Arc::clone(map)).is_ok() {
                    maps.insert(key(map), (Arc::clone(map), State::Wanted));
                }
                false
            }
        })
    }

    /// The program of a map that the device takes.
    pub(crate) fn program(&self, map: &Arc<LinearMap>) -> Option<Arc<Loaded>> {
        match &self.0 {
            Kind::Everything(card) => card.program(map).ok(),
            Kind::Measured { maps, .. } => maps.with(|maps| match maps.get(&key(map)) {
                Some((_, State::Ready(loaded, _))) => Some(Arc::clone(loaded)),
                _ => None,
            }),
        }
    }

    /// The threshold of a map, if it is measured.
    #[must_use]
    pub fn threshold(&self, map: &Arc<LinearMap>) -> Option<Threshold> {
        let Kind::Measured { maps, .. } = &self.0 else { return None };
        maps.with(|maps| match maps.get(&key(map)) {
            Some((_, State::Ready(_, threshold))) => Some(*threshold),
            _ => None,
        })
    }
}

fn prepare(card: &Arc<Card>, map: &Arc<LinearMap>) -> Result<(Arc<Loaded>, Threshold), String> {
    let loaded = card.program(map).map_err(|error| error.to_string())?;
    let mut device = GpuDevice::with_policy(card, Policy::everything(card))
        .map_err(|error| error.to_string())?;
    let mut threshold = |direct| measure(&mut device, map, direct);
    let threshold = Threshold { direct_bytes: threshold(true)?, staged_bytes: threshold(false)? };
    Ok((loaded, threshold))
}

/// The smallest measured size from which on the card is faster than software. `u64::MAX` if it is
/// slower even with the largest size.
fn measure(device: &mut GpuDevice, map: &Arc<LinearMap>, direct: bool) -> Result<u64, String> {
    let mut least = u64::MAX;
    for bytes in MEASURED_BYTES.into_iter().rev() {
        let elements: usize = map.shape().input_elements.iter().map(|&n| n as usize).sum();
        let element_bytes = (bytes / elements).next_multiple_of(64);
        let input = |&count: &u32| {
            let len = count as usize * element_bytes;
            let pinned = if direct { device.card().host_buffer(len) } else { None };
            pinned.unwrap_or_else(|| AlignedBuf::stale(len)).freeze()
        };
        let inputs: Vec<Bytes> = map.shape().input_elements.iter().map(input).collect();
        let job = Job::code(Arc::clone(map), inputs);
        let (mut on_card, mut in_software) = (Duration::MAX, Duration::MAX);
        for _ in 0..SAMPLES {
            let started = Instant::now();
            drop(execute(&job));
            in_software = in_software.min(started.elapsed());
            on_card = on_card.min(run(device, &job)?);
        }
        if on_card >= in_software {
            break;
        }
        least = job.input_bytes();
    }
    Ok(least)
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
