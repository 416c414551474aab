//! Runs the cases. In the rounds of a case, the contenders take turns with short samples.
//!
//! A sample is a few executions of one contender: about one millisecond, three on all cores. So
//! disturbances of a shared machine (its clock, memory traffic of others) affect all contenders of
//! a round alike. Each round begins with another contender. Every worker is a pinned thread with
//! its own stripes. Workers start a sample together; the sample ends when the last worker is done.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::case::{CacheState, Case, Cores};
use super::contender::{Contender, Peers, PreparedCase};
use super::memory::{Region, Stripe, WorkerRegion};
use crate::choice::{Choice, chosen};

/// The intended length of a sample. Starting several workers together takes longer.
const SAMPLE_ONE: Duration = Duration::from_micros(1000);
const SAMPLE_ALL: Duration = Duration::from_micros(3000);

/// The result of a contender in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Data of all workers.
    pub bytes: f64,
    /// Time from the first start to the last end.
    pub seconds: f64,
    /// Ticks of the time stamp counter per byte of a worker's data (mean of the workers); 0 without
    /// a counter.
    pub cycles_per_byte: f64,
}

impl Sample {
    /// Throughput in 10^9 bytes per second.
    pub fn gb_per_second(&self) -> f64 {
        self.bytes / self.seconds / 1e9
    }
}

/// The samples of a case, one per round.
pub type Cell = BTreeMap<Contender, Vec<Sample>>;

/// The results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// The cells, by index in the list of cases.
    pub cells: BTreeMap<usize, Cell>,
    /// The names of cases and peers that could not be measured, and the reasons.
    pub missing: Vec<(String, String)>,
}

/// The configuration of a run.
pub struct RunConfig<'a> {
    /// The cases.
    pub cases: &'a [Case],
    /// The choices among cases and contenders.
    pub choices: &'a [Choice],
    /// Rounds.
    pub rounds: u32,
    /// The cores that this process may use.
    pub cores: Vec<usize>,
}

/// Runs the cases of the configuration.
///
/// # Errors
/// The run was interrupted, or contenders compute different bytes.
pub fn measure(
    config: &RunConfig<'_>,
    peers: &Peers,
    region: &Region,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Results> {
    let mut results = Results::default();
    for (index, case) in config.cases.iter().enumerate() {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        let name = case.name();
        bar.set_message(name.clone());
        let mut prepared = PreparedCase::new(case, peers);
        prepared
            .contenders
            .retain(|(contender, _)| chosen(config.choices, &name, contender.name()));
        if !prepared.contenders.is_empty() {
            match cell(config, case, &prepared, region) {
                Ok(Some(cell)) => drop(results.cells.insert(index, cell)),
                Ok(None) => {
                    results.missing.push((name, "the stripes need more --memory".to_owned()));
                }
                Err(error) => return Err(error.context(name)),
            }
        }
        bar.inc(1);
    }
    Ok(results)
}

/// Measures one case. `None` if the stripes do not fit.
fn cell(
    config: &RunConfig<'_>,
    case: &Case,
    prepared: &PreparedCase,
    region: &Region,
) -> anyhow::Result<Option<Cell>> {
    // Use the last core, because the first one serves most interrupts.
    let cores = match case.cores {
        Cores::One => &config.cores[config.cores.len() - 1..],
        Cores::All => &config.cores[..],
    };
    // With fewer stripes, a stripe would still be in a cache at its next turn.
    let (least, most) = match case.cache {
        CacheState::Hot => (1, 1),
        CacheState::Cold => (4, usize::MAX),
    };
    let parts = region.parts(cores.len());
    let fits = |part: &WorkerRegion| part.stripes(&prepared.lengths, least).len() == least;
    let Some(first) = parts.first().filter(|part| fits(part)) else { return Ok(None) };
    let Some(mut stripe) = first.stripes(&prepared.lengths, 1).pop() else { return Ok(None) };
    prepared.verify(&mut stripe)?;
    let team = Team {
        prepared,
        start: Barrier::new(cores.len() + 1),
        end: Barrier::new(cores.len() + 1),
        turn: AtomicUsize::new(0),
        repeats: AtomicUsize::new(0),
        done: Mutex::new(Vec::new()),
    };
    std::thread::scope(|scope| {
        for (&core, part) in cores.iter().zip(parts) {
            let team = &team;
            scope.spawn(move || {
                let stripes = part.stripes(&team.prepared.lengths, most);
                team.work(core, &stripes);
            });
        }
        let cell = team.rounds(config.rounds, case.cores);
        team.dismiss();
        cell.map(Some)
    })
}

/// One worker's sample.
#[derive(Clone, Copy)]
struct Done {
    start: Instant,
    end: Instant,
    cycles: u64,
    pinned: bool,
}

struct Team<'a> {
    prepared: &'a PreparedCase,
    start: Barrier,
    end: Barrier,
    /// The index of the contender. A number beyond the last one ends the work.
    turn: AtomicUsize,
    repeats: AtomicUsize,
    done: Mutex<Vec<Done>>,
}

impl Team<'_> {
    /// The loop of a worker.
    fn work(&self, core: usize, stripes: &[Stripe]) {
        let pinned = pin(core);
        let mut stripes = stripes.iter().cycle();
        loop {
            self.start.wait();
            let turn = self.turn.load(Ordering::Acquire);
            let Some((_, run)) = self.prepared.contenders.get(turn) else { return };
            let repeats = self.repeats.load(Ordering::Acquire);
            let (start, cycles) = (Instant::now(), ticks());
            stripes.by_ref().take(repeats).for_each(run);
            let (cycles, end) = (ticks().wrapping_sub(cycles), Instant::now());
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push(Done { start, end, cycles, pinned });
            drop(done);
            self.end.wait();
        }
    }

    fn dismiss(&self) {
        self.turn.store(usize::MAX, Ordering::Release);
        self.start.wait();
    }

    fn sample(&self, turn: usize, repeats: usize) -> anyhow::Result<Sample> {
        self.turn.store(turn, Ordering::Release);
        self.repeats.store(repeats, Ordering::Release);
        self.start.wait();
        self.end.wait();
        let done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let (first, last) = (done.iter().map(|d| d.start).min(), done.iter().map(|d| d.end).max());
        let (first, last) = first.zip(last).context("there are workers")?;
        if done.iter().any(|done| !done.pinned) {
            bail!("the system does not let a thread be pinned to its core");
        }
        let bytes = (self.prepared.data_bytes * repeats) as f64;
        let cycles: u64 = done.iter().map(|done| done.cycles).sum();
        Ok(Sample {
            bytes: bytes * done.len() as f64,
            seconds: (last - first).as_secs_f64(),
            cycles_per_byte: cycles as f64 / done.len() as f64 / bytes,
        })
    }

    fn rounds(&self, rounds: u32, cores: Cores) -> anyhow::Result<Cell> {
        let aim = match cores {
            Cores::One => SAMPLE_ONE,
            Cores::All => SAMPLE_ALL,
        };
        let contenders = &self.prepared.contenders;
        let mut repeats = Vec::new();
        for turn in 0..contenders.len() {
            // The first execution runs with cold code and tables, so it does not count.
            self.sample(turn, 1)?;
            let mut count = 1;
            let mut took = self.sample(turn, count)?.seconds;
            while took < aim.as_secs_f64() / 4.0 {
                count *= 4;
                took = self.sample(turn, count)?.seconds;
            }
            repeats.push(((count as f64 * aim.as_secs_f64() / took) as usize).max(1));
        }
        let mut cell = Cell::new();
        for round in 0..rounds as usize {
            for place in 0..contenders.len() {
                let turn = (place + round) % contenders.len();
                let sample = self.sample(turn, repeats[turn])?;
                cell.entry(contenders[turn].0).or_default().push(sample);
            }
        }
        Ok(cell)
    }
}

/// The time stamp counter. Its rate does not depend on the clock of the core. 0 without a counter.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a counter and touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Pins this thread to a core. Returns false if the system refuses.
fn pin(core: usize) -> bool {
    // SAFETY: a set of zero bits is valid, the core came from a set of this size, and the set lives
    // as long as the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// The cores that this process may use.
///
/// # Errors
/// The system does not give the set of cores.
pub fn allowed_cores() -> anyhow::Result<Vec<usize>> {
    // SAFETY: as for `pin`; the call fills the set.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &raw mut set) != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot see the cores allowed");
        }
        set
    };
    let most = libc::CPU_SETSIZE as usize;
    let allowed = |core: &usize| {
        // SAFETY: the set is filled, and the numbers are inside it.
        unsafe { libc::CPU_ISSET(*core, &set) }
    };
    let cores: Vec<usize> = (0..most).filter(allowed).collect();
    anyhow::ensure!(!cores.is_empty(), "no core is allowed");
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::super::case::{Kind, Workload};
    use super::*;

    #[test]
    fn everyone_chosen_has_a_sample_in_every_round() {
        let region = Region::map(8 << 20).expect("8 MiB");
        let peers = Peers::default();
        for cores in [Cores::One, Cores::All] {
            let work = Workload::Encode(Kind::Cauchy);
            let case = Case { work, k: 4, m: 2, shard_bytes: 4096, cache: CacheState::Cold, cores };
            let prepared = PreparedCase::new(&case, &peers);
            let allowed = allowed_cores().expect("the system tells");
            let config = RunConfig { cases: &[case], choices: &[], rounds: 3, cores: allowed };
            let found =
                cell(&config, &case, &prepared, &region).expect("it runs").expect("it fits");
            assert_eq!(found.len(), 4);
            for samples in found.values() {
                assert_eq!(samples.len(), 3);
                // A test cannot check the rate: the machine may pause during a sample.
                let mut rates = samples.iter().map(Sample::gb_per_second);
                assert!(rates.all(|rate| rate.is_finite() && rate > 0.0), "{samples:?}");
                assert!(!cfg!(target_arch = "x86_64") || samples[0].cycles_per_byte > 0.0);
            }
            let large = Case { shard_bytes: 1 << 20, ..case };
            let prepared = PreparedCase::new(&large, &peers);
            assert!(
                cell(&config, &large, &prepared, &region).expect("no error").is_none(),
                "no room"
            );
        }
    }
}
