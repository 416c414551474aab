//! One run from its seed, and many runs over several threads.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use fieldstone_block::Nanos;
use fieldstone_codes::Profile;
use fieldstone_proto::{Encode, Strategy};

use crate::actor::Cast;
use crate::conditions::Chosen;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::world::{Failure, World};

/// The options of a run.
#[derive(Default)]
pub struct Options<'a> {
    /// The writer for the trace.
    pub trace: Option<&'a mut dyn Write>,
    /// The code that protects the data, in place of the one that the seed draws.
    pub code: Option<Profile>,
    /// All volumes are thin, and none grows. The worlds of older seeds were like this.
    pub thin: bool,
    /// How nodes get the journal, in place of the way that the seed draws.
    pub replicate: Option<Strategy>,
    /// Who makes parity, in place of the way that the seed draws.
    pub encode: Option<Encode>,
    /// Conditions that each run has, or none, in place of those that the seed draws.
    pub conditions: Chosen,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The scenario, in one line.
    pub scenario: String,
    /// Number of block requests.
    pub ops: u64,
    /// Number of requests that got a permitted error.
    pub ops_failed: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time of the run.
    pub virtual_time: Nanos,
    /// Number of volume processes started.
    pub volumes_started: u32,
    /// Faults injected, by kind.
    pub faults: Vec<(&'static str, u64)>,
    /// Records of journals that nodes passed on to each other, and records that a volume sent to a
    /// node itself because no other node had reached it.
    pub relays: [u64; 2],
    /// Pieces of parity shards that data nodes passed on, and those that a volume sent to a node
    /// itself because the data node had not reached it.
    pub carried: [u64; 2],
    /// Pieces of parity shards that nodes made, and those that a volume made itself because a node
    /// did not get all contributions.
    pub parities: [u64; 2],
    /// Requests that nodes passed on within the process of the volumes, to a node in a process of
    /// its own, and from one such node to another.
    pub links: [u64; 3],
    /// Fragments of writes that nodes passed on.
    pub fragments: u64,
    /// The counters of the devices' layers, summed over all volume processes: the layer, the
    /// counter, and its value.
    pub layers: Vec<(&'static str, &'static str, u64)>,
    /// Hash of the trace: equal for equal runs.
    pub trace_hash: u64,
    /// The first failure, if there is one.
    pub failure: Option<Failure>,
}

/// Runs a scenario with these actors.
pub fn run_cast<'a, C: Cast>(scenario: Scenario, cast: &'a C, options: Options<'a>) -> Outcome {
    let (seed, summary) = (scenario.seed, scenario.summary());
    let mut world = World::new(scenario, cast, Trace::new(options.trace));
    // A panic of an actor is a finding like any other, with its time.
    let result = catch_unwind(AssertUnwindSafe(|| world.play()));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        world.panicked(text);
    }
    world.outcome(seed, summary)
}

/// Runs `seeds` on `threads` threads. `progress` gets each outcome as it comes, in any order, and
/// says whether to go on.
pub fn run_many(
    seeds: std::ops::Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Outcome + Sync,
    mut progress: impl FnMut(Outcome) -> bool,
) {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (sender, next, stop, run) = (sender.clone(), &next, &stop, &run);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || sender.send(run(seed)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for outcome in receiver {
            if !progress(outcome) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
}
