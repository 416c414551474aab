//! The CPU: our software, and beside it the paper's method with gf-complete where that is
//! installed, with the samples and the cold memory of `code bench`.

use fieldstone_console::signals::Signals;
use fieldstone_gf::Kernel;
use serde_json::Map;

use super::case::{Findings, K, Point, SIZES, Who, Work};
use crate::choice::Choice;
use crate::code::case::{CacheState, Case, Cores, Workload};
use crate::code::contender::{Contender, Peers};
use crate::code::jerasure::Jerasure;
use crate::code::measure::{self, RunConfig, Sample};
use crate::code::memory::Region;
use crate::{code, stats};

/// Rounds of a few milliseconds; points are medians over them.
pub const ROUNDS: u32 = 15;
/// The region of all cold objects: this much at least, if the machine has it.
const REGION_BYTES: usize = 2 << 30;
/// A region is a multiple of this.
const REGION_UNIT_BYTES: usize = 2 << 20;
/// Objects that a core needs so that none of them is in a cache at its next turn, and two parities
/// or more of each: 8 times the largest object.
const OBJECTS_PER_CORE: usize = 8;

/// Measures both works of all sizes on one core and on all.
///
/// # Errors
/// The run was interrupted, or gf-complete computes other bytes than our software.
pub fn measure(signals: &Signals, found: &mut Findings) -> anyhow::Result<()> {
    let cases = cases();
    let cores = measure::allowed_cores()?;
    let region_bytes = region_bytes(cores.len(), available_bytes());
    let region = match Region::map(region_bytes) {
        Ok(region) => region,
        Err(error) => {
            found.absent.push(("CPU".to_owned(), format!("{error:#}")));
            return Ok(());
        }
    };
    let peers = peers(found);
    let ours = [Contender::Ours, Contender::GfComplete].map(|who| who.name().parse::<Choice>());
    let choices: Vec<Choice> = ours.into_iter().filter_map(Result::ok).collect();
    found.notes.push(format!(
        "cpu: medians of {ROUNDS} rounds, kernel {}, {} cores, objects cold in {} of memory",
        Kernel::best(),
        cores.len(),
        fieldstone_units::size(region_bytes as u64)
    ));
    let config = RunConfig { cases: &cases, choices: &choices, rounds: ROUNDS, cores };
    let bar = super::super::case_bar("bench msr-throughput, CPU", cases.len());
    let results = measure::measure(&config, &peers, &region, signals, &bar);
    bar.finish_and_clear();
    let results = results?;
    for (name, _) in results.missing {
        let reason = "there is too little free memory to keep objects of this size cold";
        found.absent.push((name, reason.to_owned()));
    }
    for (index, cell) in results.cells {
        let Some(case) = cases.get(index) else { continue };
        let points = cell.into_iter().filter_map(|(who, samples)| point(case, who, &samples));
        found.points.extend(points);
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for work in [Workload::Zigzag, Workload::Rebuild] {
        for object_bytes in SIZES {
            for cores in [Cores::One, Cores::All] {
                let shard_bytes = object_bytes / K;
                let cache = CacheState::Cold;
                cases.push(Case { work, k: K, m: 2, shard_bytes, cache, cores });
            }
        }
    }
    cases
}

/// gf-complete, if it is installed.
fn peers(found: &mut Findings) -> Peers {
    let jerasure = Jerasure::load(code::JERASURE.as_ref());
    if let Err(error) = &jerasure {
        found.absent.push(("gf-complete".to_owned(), format!("{error:#}")));
    }
    Peers { isal: None, jerasure: jerasure.ok() }
}

fn point(case: &Case, contender: Contender, samples: &[Sample]) -> Option<Point> {
    let who = match (contender, case.cores) {
        (Contender::Ours, Cores::One) => Who::CpuOne,
        (Contender::Ours, Cores::All) => Who::CpuAll,
        (Contender::GfComplete, Cores::One) => Who::GfOne,
        (Contender::GfComplete, Cores::All) => Who::GfAll,
        _ => return None,
    };
    // A rebuild of `code bench` counts the lost shard.
    let (work, objects_over_counted) = match case.work {
        Workload::Zigzag => (Work::Encode, 1.0),
        Workload::Rebuild => (Work::Rebuild, K as f64),
        _ => return None,
    };
    let rates: Vec<f64> = samples.iter().map(Sample::gb_per_second).collect();
    Some(Point {
        work,
        object_bytes: case.shard_bytes * K,
        who,
        gb_per_second: stats::median(&rates)? * objects_over_counted,
        seconds: samples.iter().map(|sample| sample.seconds).sum(),
        more: Map::new(),
    })
}

/// The region for so many cores: at most half of the memory that is free.
fn region_bytes(cores: usize, available: u64) -> usize {
    let largest = SIZES.into_iter().max().unwrap_or(0);
    let wanted = REGION_BYTES.max(cores.saturating_mul(OBJECTS_PER_CORE * largest));
    let half = usize::try_from(available / 2).unwrap_or(usize::MAX);
    let units = wanted.min(half) / REGION_UNIT_BYTES;
    units.max(8) * REGION_UNIT_BYTES
}

/// Memory that is free, in bytes; the least region's if the system does not say.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(2 * REGION_BYTES as u64, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_fit_into_memory() {
        assert_eq!(region_bytes(1, 64 << 30), 2 << 30);
        assert_eq!(region_bytes(64, 512 << 30), 32 << 30);
        assert_eq!(region_bytes(64, 16 << 30), 8 << 30);
        assert_eq!(region_bytes(2, 0), 16 << 20);
        assert!(region_bytes(2, (3 << 30) + 4097).is_multiple_of(REGION_UNIT_BYTES));
        assert!(available_bytes() > 0);
    }

    #[test]
    fn a_rebuild_counts_the_object() {
        let sample = Sample { bytes: 1e9, seconds: 0.5, cycles_per_byte: 0.0 };
        for case in cases() {
            let point = point(&case, Contender::Ours, &[sample; 3]).expect("ours is a point");
            let expected = if point.work == Work::Encode { 2.0 } else { 8.0 };
            assert_eq!(point.gb_per_second, expected);
            assert!(SIZES.contains(&point.object_bytes));
        }
        assert_eq!(cases().len(), 28);
    }
}
