//! The pairs that are compared, their targets, and the rows of a run.

use serde_json::{Map, Value, json};

use super::case::Case;
use super::contender::Contender;
use super::measure::Results;
use super::summary::{Summary, summary};
use crate::fio::Pattern;
use crate::interleaving::Entrant;
use crate::report::add_extent;
use crate::row::{Better, Row};
use crate::speeds::Measure;
use crate::stats::quotient;
use crate::subject::Cell;

/// Name of this benchmark.
pub const NAME: &str = "nbd";

/// Unit of the CPU time of client and server together.
pub const CPU_UNIT: &str = "us of CPU per I/O";

/// Unit of the CPU time of the server alone.
pub const SERVER_CPU_UNIT: &str = "us of server CPU per I/O";

/// Largest part of a core that a server of ours may take at rest, in per cent.
const IDLE_PERCENT_MAX: f64 = 0.5;

/// Pairs of a server of ours and a peer.
const PAIRS: [(Contender, Contender); 16] = [
    (Contender::Ram, Contender::NbdkitMemory),
    (Contender::Rs, Contender::NbdkitFile),
    (Contender::Rs, Contender::QemuWriteback),
    (Contender::Rs, Contender::RawDisk),
    (Contender::File, Contender::NbdkitFile),
    (Contender::File, Contender::QemuWriteback),
    (Contender::FileDirect, Contender::QemuNone),
    (Contender::FileDirect, Contender::RawDisk),
    (Contender::Copies, Contender::NbdkitFile),
    (Contender::Copies, Contender::RawDisk),
    (Contender::RsDirect, Contender::QemuNone),
    (Contender::RsDirect, Contender::RawDisk),
    (Contender::RamEmbed, Contender::Ram),
    (Contender::FileEmbed, Contender::File),
    (Contender::FileEmbed, Contender::NbdkitFile),
    (Contender::RsEmbed, Contender::Rs),
];

/// The target of a pair: the least ratio. `None` without a target.
fn target(ours: Contender, theirs: Contender, pattern: Pattern) -> Option<f64> {
    match (ours, theirs, pattern) {
        (Contender::Ram, Contender::NbdkitMemory, _) => Some(1.0),
        (Contender::File, Contender::NbdkitFile | Contender::QemuWriteback, _) => Some(1.0),
        (Contender::FileDirect, Contender::QemuNone, _) => Some(1.0),
        (Contender::Rs, Contender::NbdkitFile, Pattern::RandomRead) => Some(0.8),
        (Contender::Rs, Contender::NbdkitFile, Pattern::RandomWrite) => Some(1.5),
        (Contender::RsDirect, Contender::QemuNone, Pattern::RandomRead | Pattern::RandomWrite) => {
            Some(1.3)
        }
        (Contender::Rs | Contender::RsDirect, Contender::RawDisk, Pattern::SequentialRead) => {
            Some(0.8)
        }
        (Contender::Rs | Contender::RsDirect, Contender::RawDisk, Pattern::SequentialWrite) => {
            Some(0.5)
        }
        _ => None,
    }
}

/// All rows of a run.
pub fn compare(cases: &[Case], results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        for contender in Contender::ALL.into_iter().filter(|contender| contender.is_ours()) {
            let Some(ours) = summary(results, index, contender) else { continue };
            let limit = match contender {
                // The data is on no disk.
                Contender::Ram | Contender::RamEmbed => None,
                _ => {
                    summary(results, index, Contender::RawDisk).map(|raw| raw.speeds.headline(case))
                }
            };
            let comparison = Comparison { case, index, contender, ours, limit };
            let peers: Vec<(Contender, Summary)> = PAIRS
                .into_iter()
                .filter(|(ours, _)| *ours == contender)
                .filter_map(|(_, peer)| Some((peer, summary(results, index, peer)?)))
                .collect();
            if peers.is_empty() {
                rows.push(comparison.speed(results, None));
            }
            for (peer, theirs) in &peers {
                rows.push(comparison.speed(results, Some((*peer, theirs))));
                if *peer != Contender::RawDisk {
                    rows.extend(comparison.costs(*peer, theirs));
                }
            }
        }
    }
    rows.extend(idle(results));
    rows
}

struct Comparison<'a> {
    case: &'a Case,
    index: usize,
    contender: Contender,
    ours: Summary,
    limit: Option<f64>,
}

impl Comparison<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.case.name(), self.contender.name())
    }

    fn speed(&self, results: &Results, peer: Option<(Contender, &Summary)>) -> Row {
        let theirs = peer.map(|(_, theirs)| theirs);
        let headline = |summary: &Summary| summary.speeds.headline(self.case);
        let numbers = (Some(headline(&self.ours)), theirs.map(headline));
        let unit = Measure::headline(self.case).unit();
        let target =
            peer.and_then(|(peer, _)| target(self.contender, peer, self.case.load.pattern));
        let mut row = Row::new(NAME, self.name(), unit, Better::More, numbers)
            .limit(self.limit)
            .at_least(target);
        row.seconds = self.ours.speeds.seconds + theirs.map_or(0.0, |theirs| theirs.speeds.seconds);
        row.more = details(self.contender, &self.ours, theirs);
        if let Some((peer, _)) = peer {
            row.peer = Some(peer.name().to_owned());
            let iops = |ours: &Cell, theirs: &Cell| quotient(ours.fio.iops, theirs.fio.iops);
            let pair = (self.contender, peer);
            add_extent(&mut row, results.interleaving.ratio_range(self.index, pair, iops));
        }
        row
    }

    fn costs(&self, peer: Contender, theirs: &Summary) -> Vec<Row> {
        let pair = |value: fn(&Summary) -> Option<f64>| (value(&self.ours), value(theirs));
        let all = pair(|summary| Some(summary.cpu_us_per_io()));
        let server = pair(|summary| summary.server_cpu_us_per_io);
        let target = match (self.contender, peer) {
            (Contender::Ram, Contender::NbdkitMemory) => Some(1.0),
            _ => None,
        };
        let row = |(unit, numbers, target)| {
            let mut row = Row::new(NAME, self.name(), unit, Better::Less, numbers).at_least(target);
            row.peer = Some(peer.name().to_owned());
            row.seconds = self.ours.speeds.seconds + theirs.speeds.seconds;
            row
        };
        let costs = [(CPU_UNIT, all, target), (SERVER_CPU_UNIT, server, None)];
        // A store inside the client's process has no server.
        costs.into_iter().filter(|(_, numbers, _)| numbers.0.is_some()).map(row).collect()
    }
}

fn details(contender: Contender, ours: &Summary, theirs: Option<&Summary>) -> Map<String, Value> {
    let mut more = Map::new();
    more.insert("caches".to_owned(), json!(contender.caches()));
    more.insert("ours_detail".to_owned(), json!(ours));
    more.insert("theirs_detail".to_owned(), json!(theirs));
    more
}

fn idle(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (contender, ours) in &results.idle_percent {
        if !contender.is_ours() {
            continue;
        }
        let peers = PAIRS.into_iter().filter(|(ours, _)| ours == contender);
        let peer = peers.map(|(_, peer)| peer).find(|peer| results.idle_percent.contains_key(peer));
        let theirs = peer.and_then(|peer| results.idle_percent.get(&peer).copied());
        let numbers = (Some(*ours), theirs);
        let name = format!("idle/{}", contender.name());
        let mut row =
            Row::new(NAME, name, "% of a core", Better::Less, numbers).at_most(IDLE_PERCENT_MAX);
        row.peer = peer.map(|peer| peer.name().to_owned());
        row.seconds = 3.0;
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fio::Measured;
    use crate::nbd::case::standard;

    /// The contenders of a run in order of speed: the first one does 1000 I/Os per second, the next
    /// one 2000, and so on.
    const BY_SPEED: [Contender; 11] = [
        Contender::Ram,
        Contender::NbdkitMemory,
        Contender::Copies,
        Contender::Rs,
        Contender::NbdkitFile,
        Contender::QemuWriteback,
        Contender::RsDirect,
        Contender::QemuNone,
        Contender::RawDisk,
        Contender::File,
        Contender::FileDirect,
    ];

    fn results(without: &[Contender]) -> Results {
        let mut results = Results::default();
        for index in 0..standard().len() {
            for (place, contender) in BY_SPEED.into_iter().enumerate() {
                if without.contains(&contender) {
                    continue;
                }
                let iops = 1000.0 * (place + 1) as f64;
                let fio = Measured {
                    ios: 1000,
                    iops,
                    bytes_per_second: iops * 4096.0,
                    cpu_s: 0.001,
                    seconds: 1.0,
                    ..Measured::default()
                };
                let cell = Cell { fio, server_cpu_s: 0.002, ..Cell::default() };
                results.interleaving.cells.insert((index, contender), vec![cell; 2]);
                results.idle_percent.insert(contender, 0.2);
            }
        }
        results
    }

    #[test]
    fn a_full_run_makes_every_comparison_once() {
        let rows = compare(&standard(), &results(&[]));
        let keys: BTreeSet<_> = rows.iter().map(|row| (&row.case, row.unit, &row.peer)).collect();
        assert_eq!(keys.len(), rows.len(), "case, unit and peer are unique");
        // 12 pairs in 6 cases; 8 pairs have a server as the peer and also compare two costs; 6 rows
        // at rest.
        assert_eq!(rows.len(), 6 * (12 + 8 * 2) + 6);
        let find = |case: &str, peer: &str, unit: &str| {
            let found = rows.iter().find(|row| {
                row.case == case && row.peer.as_deref() == Some(peer) && row.unit == unit
            });
            found.expect("the comparison is made")
        };
        let row = find("4k-randread-qd32/rs:4+2", "nbdkit-file", "IOPS");
        assert_eq!((row.ours, row.theirs, row.ratio), (Some(4000.0), Some(5000.0), Some(0.8)));
        assert_eq!((row.target, row.pass, row.limit), (Some(0.8), Some(true), Some(9000.0)));
        assert_eq!(row.seconds, 4.0);
        let row = find("4k-randwrite-qd32/rs:4+2", "nbdkit-file", "IOPS");
        assert_eq!((row.target, row.pass), (Some(1.5), Some(false)));
        let row = find("4k-randwrite-qd1/rs:4+2-direct", "qemu-nbd-none", "IOPS");
        assert_eq!((row.target, row.pass), (Some(1.3), Some(false)));
        let row = find("128k-write-qd8/rs:4+2-direct", "raw-disk", "MB/s");
        assert_eq!((row.target, row.pass), (Some(0.5), Some(true)));
        let row = find("128k-read-qd8/rs:4+2", "raw-disk", "MB/s");
        assert_eq!((row.target, row.pass), (Some(0.8), Some(false)));
        let row = find("4k-randread-qd1/ram", "nbdkit-memory", "us of CPU per I/O");
        assert_eq!((row.ours, row.ratio, row.pass), (Some(3.0), Some(1.0), Some(true)));
        let row = find("idle/ram", "nbdkit-memory", "% of a core");
        assert_eq!((row.ours, row.target, row.pass), (Some(0.2), Some(0.5), Some(true)));
    }

    #[test]
    fn a_missing_peer_leaves_a_row_without_a_ratio() {
        let rows = compare(&standard(), &results(&[Contender::NbdkitMemory, Contender::RawDisk]));
        let ram: Vec<_> = rows.iter().filter(|row| row.case == "4k-randread-qd1/ram").collect();
        assert_eq!(ram.len(), 1);
        let row = ram[0];
        assert_eq!((row.ours, &row.peer, row.theirs), (Some(1000.0), &None, None));
        assert_eq!((row.ratio, row.pass, row.limit), (None, None, None));
    }
}
