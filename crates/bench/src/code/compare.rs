//! The targets, and the rows of a run.

use serde_json::json;

use super::case::{CacheState, Case, Cores, Kind, Workload};
use super::contender::Contender;
use super::measure::{Cell, Results, Sample};
use crate::row::{Better, Row};
use crate::stats::{median, quotient};

/// Name of this benchmark.
pub const NAME: &str = "code";

/// The unit of all rows: bytes of data, not of traffic.
pub const UNIT: &str = "GB/s";

/// The name of the peer in rows that compare with the limit of memory.
pub const LIMIT: &str = "limit";

/// The peers of our engine, in the order of the rows.
const PEERS: [Contender; 4] =
    [Contender::Isal, Contender::Jerasure, Contender::GfComplete, Contender::OursRs];

/// The target of a comparison: the least ratio.
pub fn target(case: &Case, peer: Contender) -> Option<f64> {
    let hot_one = case.cache == CacheState::Hot && case.cores == Cores::One;
    let large = case.shard_bytes >= 1 << 20;
    match (case.work, peer) {
        (Workload::Encode(_), Contender::Isal) if hot_one && large => Some(1.0),
        (Workload::Encode(Kind::Ones), Contender::Isal) if hot_one => Some(1.35),
        (Workload::Encode(_), Contender::Isal) if hot_one => Some(1.1),
        (Workload::DecodeOne | Workload::DecodeMany, Contender::Isal) if hot_one => Some(1.1),
        (Workload::Update(_), Contender::Isal) if hot_one => Some(1.2),
        (Workload::Zigzag, Contender::GfComplete) if is_large_zigzag(case, Cores::All) => Some(3.1),
        (Workload::Rebuild, Contender::Isal) if is_large_zigzag(case, Cores::One) => Some(1.5),
        _ => None,
    }
}

/// The target of a comparison with the limit: the least part of the limit.
fn limit_target(case: &Case) -> Option<f64> {
    let hot_one = case.cache == CacheState::Hot && case.cores == Cores::One;
    match case.work {
        Workload::Encode(_) if hot_one && case.shard_bytes >= 1 << 20 => Some(0.9),
        Workload::Zigzag if is_large_zigzag(case, Cores::One) => Some(0.85),
        _ => None,
    }
}

/// True for objects of 16 and 64 MiB that are cold.
fn is_large_zigzag(case: &Case, cores: Cores) -> bool {
    case.cache == CacheState::Cold && case.cores == cores && case.shard_bytes * case.k >= 16 << 20
}

/// Medians of one contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Medians {
    /// Data per second.
    pub gb_per_second: f64,
    /// Ticks of the time stamp counter per byte of data; `None` if the CPU has none.
    pub cycles_per_byte: Option<f64>,
    /// Time of all samples.
    pub seconds: f64,
}

/// The medians of a contender in a cell.
pub fn medians(cell: &Cell, contender: Contender) -> Option<Medians> {
    let samples = cell.get(&contender)?;
    let of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
    Some(Medians {
        gb_per_second: of(Sample::gb_per_second)?,
        cycles_per_byte: of(|sample| sample.cycles_per_byte).filter(|&cycles| cycles > 0.0),
        seconds: samples.iter().map(|sample| sample.seconds).sum(),
    })
}

/// The faster of the two limits.
pub fn limit(cell: &Cell) -> Option<Medians> {
    let limits = [Contender::LimitPlain, Contender::LimitStreaming];
    let found = limits.into_iter().filter_map(|limit| medians(cell, limit));
    found.max_by(|a, b| a.gb_per_second.total_cmp(&b.gb_per_second))
}

/// The first and third quartile of the ratios within each round.
fn quartiles(cell: &Cell, peer: Contender) -> Option<(f64, f64)> {
    let (ours, theirs) = (cell.get(&Contender::Ours)?, cell.get(&peer)?);
    let ratio =
        |(ours, theirs): (&Sample, &Sample)| quotient(ours.gb_per_second(), theirs.gb_per_second());
    let mut ratios: Vec<f64> = ours.iter().zip(theirs).filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    Some((*ratios.get(ratios.len() / 4)?, *ratios.get(ratios.len() * 3 / 4)?))
}

/// All rows of a run.
pub fn compare(cases: &[Case], results: &Results) -> Vec<Row> {
    results.cells.iter().flat_map(|(&index, cell)| rows(&cases[index], cell)).collect()
}

fn rows(case: &Case, cell: &Cell) -> Vec<Row> {
    let ours = medians(cell, Contender::Ours);
    let limit = limit(cell);
    let row = |name: Option<&str>, theirs: Option<Medians>, target: Option<f64>| {
        let speed = |found: Option<Medians>| found.map(|found| found.gb_per_second);
        let numbers = (speed(ours), speed(theirs));
        let mut row = Row::new(NAME, case.name(), UNIT, Better::More, numbers)
            .limit(speed(limit))
            .at_least(target);
        row.peer = name.map(str::to_owned);
        row.seconds = [ours, theirs].into_iter().flatten().map(|found| found.seconds).sum();
        let cycles = |found: Option<Medians>| json!(found.and_then(|found| found.cycles_per_byte));
        row.more.insert("ours_cycles_per_byte".to_owned(), cycles(ours));
        row.more.insert("theirs_cycles_per_byte".to_owned(), cycles(theirs));
        row
    };
    let mut rows = Vec::new();
    for peer in PEERS {
        let Some(theirs) = medians(cell, peer) else { continue };
        let mut row = row(Some(peer.name()), Some(theirs), target(case, peer));
        if let Some((low, high)) = quartiles(cell, peer) {
            row.more.insert("ratio_p25".to_owned(), json!(low));
            row.more.insert("ratio_p75".to_owned(), json!(high));
        }
        rows.push(row);
    }
    if let Some(streaming) = medians(cell, Contender::OursStreaming) {
        rows.push(row(Some(Contender::OursStreaming.name()), Some(streaming), None));
    }
    if limit.is_some() {
        rows.push(row(Some(LIMIT), limit, limit_target(case)));
    }
    if rows.is_empty() && ours.is_some() {
        rows.push(row(None, None, None));
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::case::all;
    use super::*;

    /// A run in which the contender at index `n` reaches `n + 1` GB/s.
    fn results(without: &[Contender]) -> Results {
        let mut results = Results::default();
        for index in 0..all().len() {
            let mut cell = Cell::new();
            for (place, contender) in Contender::ALL.into_iter().enumerate() {
                if !without.contains(&contender) {
                    let sample = Sample {
                        bytes: 1e9 * (place + 1) as f64,
                        seconds: 1.0,
                        cycles_per_byte: 0.5,
                    };
                    cell.insert(contender, vec![sample; 3]);
                }
            }
            results.cells.insert(index, cell);
        }
        results
    }

    #[test]
    fn rows_are_unique_and_carry_the_targets_of_their_case() {
        let cases = all();
        let rows = compare(&cases, &results(&[]));
        let keys: BTreeSet<_> = rows.iter().map(|row| (&row.case, row.unit, &row.peer)).collect();
        assert_eq!(keys.len(), rows.len(), "case, unit and peer are unique");
        let find = |case: &str, peer: &str| {
            let mut rows = rows.iter();
            let row = rows.find(|row| row.case == case && row.peer.as_deref() == Some(peer));
            row.unwrap_or_else(|| panic!("{case} {peer} is not there"))
        };
        let row = find("encode-cauchy-8+3-64K-hot-one", "isa-l");
        assert_eq!((row.ours, row.theirs, row.ratio), (Some(1.0), Some(4.0), Some(0.25)));
        assert_eq!((row.target, row.pass, row.limit), (Some(1.1), Some(false), Some(8.0)));
        assert_eq!((row.seconds, row.of_limit), (6.0, Some(0.125)));
        for (case, peer, target) in [
            ("encode-ones-8+3-4K-hot-one", "isa-l", Some(1.35)),
            ("encode-random-8+3-1M-hot-one", "isa-l", Some(1.0)),
            ("encode-random-8+3-1M-hot-one", "limit", Some(0.9)),
            ("encode-random-8+3-64K-hot-one", "limit", None),
            ("encode-cauchy-8+3-64K-hot-all", "isa-l", None),
            ("decode-m-10+4-64K-hot-one", "isa-l", Some(1.1)),
            ("update-cauchy-8+3-4K-hot-one", "isa-l", Some(1.2)),
            ("zigzag-4+2-16M-cold-one", "limit", Some(0.85)),
            ("zigzag-4+2-1M-cold-one", "limit", None),
            ("zigzag-4+2-64M-cold-all", "gf-complete", Some(3.1)),
            ("rebuild-4+2-64M-cold-one", "isa-l", Some(1.5)),
        ] {
            assert_eq!(find(case, peer).target, target, "{case} {peer}");
        }
    }

    #[test]
    fn without_peers_and_limits_ours_still_has_a_row() {
        let others: Vec<_> =
            Contender::ALL.into_iter().filter(|who| *who != Contender::Ours).collect();
        let rows = compare(&all(), &results(&others));
        assert_eq!(rows.len(), all().len());
        let row = &rows[0];
        assert_eq!((row.ours, &row.peer, row.theirs, row.ratio), (Some(1.0), &None, None, None));
    }
}
