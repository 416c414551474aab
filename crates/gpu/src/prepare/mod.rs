//! Which jobs a card takes: those whose programs are loaded, if it is faster than software.
//!
//! A program takes from milliseconds to seconds to load, and an image of the placement kernel takes
//! milliseconds to make. No call of a device may wait for that. So a thread of the policy, the
//! *preparer*, loads the program of a map or makes the image of a placement when a job asks for it,
//! and the device takes such jobs from then on.
//!
//! The preparer also measures from which size on the card is faster than software, for one job at a
//! time ([`measure`]): to copy small jobs to the card and back takes longer than to compute them.
//! It measures coding jobs with inputs that the card reads directly and with others, because the
//! difference is large. The size of a placement is its inputs times its width. A volume that
//! places one segment at a time has few inputs, which stay with software, and ask for nothing.

mod measure;

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use fieldstone_crush::{Map, RuleId};
use fieldstone_gf::LinearMap;

use crate::card::{Card, Loaded};
use crate::images::{Placer, Recent, Source};

/// Maps that a policy knows. A new one takes the place of another.
const MAPS_MAX: usize = 256;
/// Maps that wait for the preparer. Others ask again with their next job.
const WANTED_MAX: usize = 4;
/// A launch takes some 20 us. Software places fewer inputs than these in that time.
const INPUTS_MIN: usize = 64;

/// From how many input bytes on the card takes jobs of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Inputs that the card reads directly.
    pub direct_bytes: u64,
    /// Other inputs.
    pub staged_bytes: u64,
}

/// A map or a source of placements, as the preparer knows it.
enum State<R> {
    Wanted,
    Ready(R),
    /// The card does not execute it.
    Refused,
}

/// Makes a state of what the preparer found.
impl<R> From<Result<R, String>> for State<R> {
    fn from(prepared: Result<R, String>) -> Self {
        match prepared {
            Ok(ready) => Self::Ready(ready),
            Err(why) => {
                tracing::info!("the GPU does not take some jobs: {why}");
                Self::Refused
            }
        }
    }
}

/// Maps by address; the list keeps them alive, so addresses stay theirs.
type Maps = HashMap<usize, (Arc<LinearMap>, State<(Arc<Loaded>, Threshold)>)>;
/// Images, and from how many inputs times width on the card takes placements with them.
type Sources = Recent<State<(Arc<Placer>, u64)>>;

/// What the preparer knows.
#[derive(Default)]
struct Known {
    maps: Mutex<Maps>,
    sources: Mutex<Sources>,
}

impl Known {
    fn with_maps<R>(&self, act: impl FnOnce(&mut Maps) -> R) -> R {
        act(&mut self.maps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_sources<R>(&self, act: impl FnOnce(&mut Sources) -> R) -> R {
        act(&mut self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the preparer shall prepare.
enum Request {
    Map(Arc<LinearMap>),
    /// An image, and the width to measure with.
    Image(Source, u32),
}

/// Takes a map that nothing waits for out of the list, one that the card refuses if there is one.
fn evict(maps: &mut Maps) -> Option<impl Sized + use<>> {
    let idle = |(_, (_, state)): &(&usize, &(_, State<_>))| !matches!(state, State::Wanted);
    let is_ready = |(_, (_, state)): &(&usize, &(_, State<_>))| matches!(state, State::Ready(_));
    let address = *maps.iter().filter(idle).min_by_key(is_ready)?.0;
    maps.remove(&address)
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
    Measured { known: Arc<Known>, wanted: Sender<Request> },
}

impl Policy {
    /// Every job that the card can do. The first job of a map waits until the program is loaded, so
    /// this is for tests and measurements.
    #[must_use]
    pub fn everything(card: &Arc<Card>) -> Self {
        Self(Kind::Everything(Arc::clone(card)))
    }

    /// The jobs that the card finishes earlier than software, as measured. Devices that share a
    /// policy share its measurements.
    #[must_use]
    pub fn measured(card: &Arc<Card>) -> Self {
        let known: Arc<Known> = Arc::default();
        let (wanted, requests) = channel();
        let (card, filled) = (Arc::downgrade(card), Arc::clone(&known));
        let prepare = move || prepare(&card, &filled, &requests);
        if let Err(error) = thread::Builder::new().name("gpu-prepare".to_owned()).spawn(prepare) {
            tracing::warn!("the GPU is not used: cannot start a thread: {error}");
        }
        Self(Kind::Measured { known, wanted })
    }

    /// Whether the device takes a coding job with these inputs. Asks the preparer for a map that it
    /// does not know.
    pub(crate) fn takes(&self, map: &Arc<LinearMap>, input_bytes: u64, direct: bool) -> bool {
        let (known, wanted) = match &self.0 {
            Kind::Everything(card) => return card.program(map).is_ok(),
            Kind::Measured { known, wanted } => (known, wanted),
        };
        if input_bytes < measure::CODE_BYTES_MIN {
            return false;
        }
        let (takes, evicted) = known.with_maps(|maps| match maps.get(&key(map)) {
            Some((_, State::Ready((_, threshold)))) => {
                let least = match direct {
                    true => threshold.direct_bytes,
                    false => threshold.staged_bytes,
                };
                (input_bytes >= least, None)
            }
            Some((_, State::Wanted | State::Refused)) => (false, None),
            None => {
                let is_wanted = |state: &&(_, State<_>)| matches!(state.1, State::Wanted);
                if maps.values().filter(is_wanted).count() >= WANTED_MAX {
                    return (false, None);
                }
                let evicted = if maps.len() < MAPS_MAX { None } else { evict(maps) };
                if wanted.send(Request::Map(Arc::clone(map))).is_ok() {
                    maps.insert(key(map), (Arc::clone(map), State::Wanted));
                }
                (false, evicted)
            }
        });
        // To forget a program may take long, and other threads ask meanwhile.
        drop(evicted);
        takes
    }

    /// Whether the device takes a placement of this many inputs. Asks the preparer for a source
    /// that it does not know, one at a time.
    pub(crate) fn takes_placements(&self, source: &Source, width: u32, inputs: usize) -> bool {
        let (known, wanted) = match &self.0 {
            Kind::Everything(card) => return card.placer(source).is_ok(),
            Kind::Measured { known, wanted } => (known, wanted),
        };
        if inputs < INPUTS_MIN {
            return false;
        }
        known.with_sources(|sources| match sources.get(source) {
            Some(State::Ready((_, least))) => inputs as u64 * u64::from(width) >= *least,
            Some(State::Wanted | State::Refused) => false,
            None => {
                let busy = sources.values().any(|state| matches!(state, State::Wanted));
                let request = Request::Image(source.clone(), width);
                if !busy && wanted.send(request).is_ok() {
                    sources.set(source.clone(), State::Wanted);
                }
                false
            }
        })
    }

    /// The program of a map that the device takes.
    pub(crate) fn program(&self, map: &Arc<LinearMap>) -> Option<Arc<Loaded>> {
        match &self.0 {
            Kind::Everything(card) => card.program(map).ok(),
            Kind::Measured { known, .. } => known.with_maps(|maps| match maps.get(&key(map)) {
                Some((_, State::Ready((loaded, _)))) => Some(Arc::clone(loaded)),
                _ => None,
            }),
        }
    }

    /// The image of a source whose placements the device takes.
    pub(crate) fn placer(&self, source: &Source) -> Option<Arc<Placer>> {
        match &self.0 {
            Kind::Everything(card) => card.placer(source).ok(),
            Kind::Measured { known, .. } => {
                known.with_sources(|sources| match sources.get(source) {
                    Some(State::Ready((placer, _))) => Some(Arc::clone(placer)),
                    _ => None,
                })
            }
        }
    }

    /// The threshold of a map, if it is measured.
    #[must_use]
    pub fn threshold(&self, map: &Arc<LinearMap>) -> Option<Threshold> {
        let Kind::Measured { known, .. } = &self.0 else { return None };
        known.with_maps(|maps| match maps.get(&key(map)) {
            Some((_, State::Ready((_, threshold)))) => Some(*threshold),
            _ => None,
        })
    }

    /// From how many inputs times width on the card takes placements, if that is measured.
    #[must_use]
    pub fn placement_threshold(
        &self,
        map: &Arc<Map>,
        rule: RuleId,
        weights: &Arc<[u32]>,
    ) -> Option<u64> {
        let Kind::Measured { known, .. } = &self.0 else { return None };
        known.with_sources(|sources| match sources.get(&Source::new(map, rule, weights)) {
            Some(State::Ready((_, least))) => Some(*least),
            _ => None,
        })
    }
}

/// The preparer: ends with the last policy or with the card.
fn prepare(card: &Weak<Card>, known: &Known, requests: &Receiver<Request>) {
    for request in requests {
        let Some(card) = card.upgrade() else { break };
        match request {
            Request::Map(map) => {
                let state = measure::map(&card, &map).into();
                known.with_maps(|maps| maps.insert(key(&map), (map, state)));
            }
            Request::Image(source, width) => {
                let state = measure::image(&card, &source, width).into();
                known.with_sources(|sources| sources.set(source, state));
            }
        }
    }
}
