//! The pairs that are compared, their targets, and the rows of a run.

use serde_json::json;

use super::contender::{Cell, Contender};
use super::place::PlaceKind;
use super::run::{OPEN, Results};
use super::summary::{Summary, summary};
use crate::case::Case;
use crate::interleaving::Entrant;
use crate::report::add_extent;
use crate::row::{Better, Row};
use crate::stats::quotient;
use crate::usage::Usage;

/// Name of this benchmark.
pub const NAME: &str = "rbd";

/// Pairs of a client of ours and a peer.
const PAIRS: [(Contender, Contender); 10] = [
    (Contender::Embed, Contender::Librbd),
    (Contender::EmbedCallback, Contender::Librbd),
    (Contender::EmbedCallback, Contender::LibrbdCallback),
    (Contender::EmbedCores, Contender::Librbd),
    (Contender::EmbedCores, Contender::Embed),
    (Contender::Nbd, Contender::Librbd),
    (Contender::Nbd, Contender::RbdNbd),
    (Contender::Rados, Contender::Librados),
    (Contender::RadosCores, Contender::Librados),
    (Contender::RadosCores, Contender::Rados),
];

/// A number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// I/Os per second.
    Iops,
    /// Mean latency.
    Mean,
    /// Latency that 1 % of the I/Os exceed.
    P99,
    /// CPU time of the client.
    Client,
    /// CPU time of client and fio.
    WithFio,
    /// Context switches of the client.
    Switches,
    /// Context switches of client and fio.
    WithFioSwitches,
    /// CPU time of the OSDs.
    Osd,
}

impl Measure {
    /// All measures.
    pub const ALL: [Self; 8] = [
        Self::Iops,
        Self::Mean,
        Self::P99,
        Self::Client,
        Self::WithFio,
        Self::Switches,
        Self::WithFioSwitches,
        Self::Osd,
    ];

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Mean => "us mean latency",
            Self::P99 => "us p99 latency",
            Self::Client => "us of client CPU per I/O",
            Self::WithFio => "us of client and fio CPU per I/O",
            Self::Switches => "context switches per I/O",
            Self::WithFioSwitches => "context switches of client and fio per I/O",
            Self::Osd => "us of OSD CPU per I/O",
        }
    }

    fn better(self) -> Better {
        match self {
            Self::Iops => Better::More,
            _ => Better::Less,
        }
    }

    /// The number of a contender. `None` if it has no such number.
    pub fn of(self, found: &Summary) -> Option<f64> {
        match self {
            Self::Iops => Some(found.speeds.iops),
            Self::Mean => Some(found.speeds.mean_us),
            Self::P99 => Some(found.speeds.p99_us),
            Self::Client => Some(found.client_us_per_io),
            Self::WithFio => found.with_fio_us_per_io,
            Self::Switches => Some(found.switches_per_io),
            Self::WithFioSwitches => found.with_fio_switches_per_io,
            Self::Osd => found.osd_us_per_io,
        }
    }

    /// The number of a peer in a comparison: librbd in fio's process is its client and fio at once.
    fn of_peer(self, found: &Summary) -> Option<f64> {
        match self {
            Self::WithFio => found.with_fio_us_per_io.or(Some(found.client_us_per_io)),
            Self::WithFioSwitches => found.with_fio_switches_per_io.or(Some(found.switches_per_io)),
            _ => self.of(found),
        }
    }

    /// True if the numbers of both count the same work. librbd's client is fio's whole process. The
    /// cost of a server alone would leave fio out on one side.
    fn is_comparable(self, ours: Contender, peer: Contender) -> bool {
        let is_half = ours.has_server() != peer.has_server();
        !(is_half && matches!(self, Self::Client | Self::Switches))
    }

    /// The ratio within a round; more than 1 is better for us.
    fn ratio(self, ours: &Cell, theirs: &Cell) -> Option<f64> {
        let per_io = |cell: &Cell, value: f64| value / cell.speed.ios as f64;
        let less = |ours_value: f64, theirs_value: f64| {
            quotient(per_io(theirs, theirs_value), per_io(ours, ours_value))
        };
        let all = |cell: &Cell| cell.client.plus(&cell.fio);
        match self {
            Self::Iops => quotient(ours.speed.iops, theirs.speed.iops),
            Self::Mean => quotient(theirs.speed.mean_us, ours.speed.mean_us),
            Self::P99 => quotient(theirs.speed.p99_us, ours.speed.p99_us),
            Self::Client => less(ours.client.cpu_s(), theirs.client.cpu_s()),
            Self::WithFio => less(all(ours).cpu_s(), all(theirs).cpu_s()),
            Self::Switches => less(ours.client.switches, theirs.client.switches),
            Self::WithFioSwitches => less(all(ours).switches, all(theirs).switches),
            Self::Osd => less(ours.osd_cpu_s?, theirs.osd_cpu_s?),
        }
    }
}

/// A target of the project.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    /// The least ratio.
    Ratio(f64),
    /// The largest number of ours.
    AtMost(f64),
}

/// The target of a comparison. `None` without a target.
///
/// librbd's process is fio's. So a client in the process of its load is compared by that process,
/// and one behind a server by server and fio together.
fn target(
    kind: PlaceKind,
    case: &Case,
    (ours, theirs): (Contender, Contender),
    measure: Measure,
) -> Option<Target> {
    let is_small = case.load.block_bytes == 4 << 10;
    let depth = case.load.depth;
    match (ours, theirs, measure) {
        _ if !is_small => None,
        (Contender::Embed, Contender::Librbd, Measure::Client)
        | (Contender::Nbd, Contender::Librbd, Measure::WithFio) => match depth {
            1 => Some(Target::Ratio(2.0)),
            _ => Some(Target::Ratio(4.0)),
        },
        (Contender::Embed, Contender::Librbd, Measure::Switches)
        | (Contender::Nbd, Contender::Librbd, Measure::WithFioSwitches)
            if depth > 1 =>
        {
            Some(Target::AtMost(0.3))
        }
        (Contender::Embed | Contender::Nbd, Contender::Librbd, Measure::Mean)
            if depth == 1 && kind == PlaceKind::Cluster =>
        {
            Some(Target::Ratio(1.0 / 0.8))
        }
        (Contender::Rados, Contender::Librados, Measure::Iops)
            if depth > 1 && kind == PlaceKind::Null =>
        {
            Some(Target::Ratio(3.0))
        }
        (Contender::RadosCores, Contender::Rados, Measure::Iops)
        | (Contender::EmbedCores, Contender::Embed, Measure::Iops)
            if depth > 1 && kind == PlaceKind::Null =>
        {
            Some(Target::Ratio(1.7))
        }
        _ => None,
    }
}

fn with_target(row: Row, target: Option<Target>) -> Row {
    match target {
        None => row.at_least(None),
        Some(Target::Ratio(least)) => row.at_least(Some(least)),
        Some(Target::AtMost(most)) => row.at_most(most),
    }
}

/// All rows of a place. `cpus` is the number of CPUs of this machine.
pub fn compare(kind: PlaceKind, cases: &[Case], results: &Results, cpus: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        for contender in Contender::ALL.into_iter().filter(|contender| contender.is_ours()) {
            let Some(ours) = summary(results, index, contender) else { continue };
            let peers: Vec<(Contender, Summary)> = PAIRS
                .into_iter()
                .filter(|(ours, _)| *ours == contender)
                .filter_map(|(_, peer)| Some((peer, summary(results, index, peer)?)))
                .collect();
            let place = Comparison { kind, case, index, contender, ours, cpus };
            if peers.is_empty() {
                rows.extend(place.rows(results, None));
            }
            for peer in &peers {
                rows.extend(place.rows(results, Some(peer)));
            }
        }
    }
    rows.extend(openings(kind, results));
    rows
}

struct Comparison<'a> {
    kind: PlaceKind,
    case: &'a Case,
    index: usize,
    contender: Contender,
    ours: Summary,
    cpus: usize,
}

impl Comparison<'_> {
    /// One row for each measure that our client has.
    fn rows(&self, results: &Results, peer: Option<&(Contender, Summary)>) -> Vec<Row> {
        let measures = Measure::ALL.into_iter().filter(|measure| measure.of(&self.ours).is_some());
        measures.map(|measure| self.row(results, peer, measure)).collect()
    }

    fn row(&self, results: &Results, peer: Option<&(Contender, Summary)>, measure: Measure) -> Row {
        let alike = peer.filter(|(peer, _)| measure.is_comparable(self.contender, *peer));
        let theirs = alike.and_then(|(_, theirs)| measure.of_peer(theirs));
        let numbers = (measure.of(&self.ours), theirs);
        let name = format!("{}{}/{}", self.kind.prefix(), self.case.name(), self.contender.name());
        let limit = match (measure, self.kind) {
            (Measure::Iops, PlaceKind::Cluster) => self.ours.bound_iops(self.cpus),
            _ => None,
        };
        let wanted = peer
            .and_then(|(peer, _)| target(self.kind, self.case, (self.contender, *peer), measure));
        let row = Row::new(NAME, name, measure.unit(), measure.better(), numbers).limit(limit);
        let mut row = with_target(row, wanted);
        let seconds = |summary: &Summary| summary.speeds.seconds;
        row.seconds = seconds(&self.ours) + peer.map_or(0.0, |(_, theirs)| seconds(theirs));
        if let Some((peer, _)) = peer {
            row.peer = Some(peer.name().to_owned());
            let pair = (self.contender, *peer);
            let ratio = |ours: &Cell, theirs: &Cell| measure.ratio(ours, theirs);
            if alike.is_some() {
                add_extent(&mut row, results.interleaving.ratio_range(self.index, pair, ratio));
            }
        }
        if measure == Measure::Iops {
            row.more.insert("ours_detail".to_owned(), json!(self.ours));
            row.more.insert("theirs_detail".to_owned(), json!(peer.map(|(_, theirs)| theirs)));
        }
        row
    }
}

/// The rows of opening and closing an image.
fn openings(kind: PlaceKind, results: &Results) -> Vec<Row> {
    let of = |contender| Usage::median(results.openings.get(&contender)?);
    let Some(ours) = of(Contender::Embed) else { return Vec::new() };
    let theirs = of(Contender::Librbd);
    let row = |unit, value: fn(&Usage) -> f64, target| {
        let numbers = (Some(value(&ours)), theirs.as_ref().map(value));
        let name = format!("{}{OPEN}/{}", kind.prefix(), Contender::Embed.name());
        let mut row = Row::new(NAME, name, unit, Better::Less, numbers).at_least(target);
        row.peer = theirs.map(|_| Contender::Librbd.name().to_owned());
        row
    };
    vec![
        row("ms of client CPU", |usage| usage.cpu_s() * 1e3, Some(5.0)),
        row("context switches", |usage| usage.switches, None),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fio::Measured;
    use crate::rbd::run::cases;

    fn cell(iops: f64, cpu_us: f64, switches: f64) -> Cell {
        Cell {
            speed: Measured {
                ios: 1000,
                iops,
                mean_us: 1e6 / iops,
                p99_us: 2e6 / iops,
                seconds: 1.0,
                ..Measured::default()
            },
            client: Usage { user_s: cpu_us / 1e3, system_s: 0.0, switches: switches * 1000.0 },
            fio: Usage::default(),
            osd_cpu_s: Some(0.05),
        }
    }

    fn results() -> Results {
        let mut results = Results::default();
        for index in 0..cases().len() {
            let mut add = |contender, cell: Cell| {
                results.interleaving.cells.insert((index, contender), vec![cell; 2]);
            };
            add(Contender::Librbd, cell(10_000.0, 40.0, 2.0));
            add(Contender::Embed, cell(15_000.0, 9.0, 0.2));
            add(Contender::EmbedCores, cell(24_000.0, 10.0, 0.2));
            add(Contender::Nbd, cell(11_000.0, 25.0, 0.5));
            add(Contender::Librados, cell(50_000.0, 12.0, 0.6));
            add(Contender::Rados, cell(100_000.0, 5.0, 0.1));
            add(Contender::RadosCores, cell(180_000.0, 5.0, 0.1));
        }
        let usage = |user_s, switches| Usage { user_s, system_s: 0.0, switches };
        results.openings.insert(Contender::Librbd, vec![usage(0.15, 700.0); 3]);
        results.openings.insert(Contender::Embed, vec![usage(0.01, 50.0); 3]);
        results
    }

    fn find<'a>(rows: &'a [Row], case: &str, peer: &str, unit: &str) -> &'a Row {
        let mut found = rows.iter().filter(|row| {
            row.case == case && row.peer.as_deref() == Some(peer) && row.unit == unit
        });
        let row = found.next().unwrap_or_else(|| panic!("{case} {peer} {unit} is missing"));
        assert!(found.next().is_none(), "case, unit and peer are unique");
        row
    }

    #[test]
    fn every_comparison_is_made_once_and_has_its_target() {
        let rows = compare(PlaceKind::Cluster, &cases(), &results(), 2);
        let keys: BTreeSet<_> = rows.iter().map(|row| (&row.case, row.unit, &row.peer)).collect();
        assert_eq!(keys.len(), rows.len());
        let cpu = Measure::Client.unit();
        let row = find(&rows, "4k-randread-qd32/embed", "librbd", cpu);
        assert_eq!((row.target, row.pass), (Some(4.0), Some(true)));
        let row = find(&rows, "4k-randwrite-qd1/embed", "librbd", cpu);
        assert_eq!((row.target, row.pass), (Some(2.0), Some(true)));
        let row = find(&rows, "128k-randread-qd16/embed", "librbd", cpu);
        assert_eq!((row.target, row.pass), (None, None));
        let row = find(&rows, "4k-randread-qd32/embed", "librbd", Measure::Switches.unit());
        assert_eq!(
            (row.target, row.target_unit, row.pass),
            (Some(0.3), Some("at most"), Some(true))
        );
        let row = find(&rows, "4k-randread-qd1/embed", "librbd", Measure::Mean.unit());
        assert_eq!((row.target, row.pass), (Some(1.25), Some(true)));
        let row = find(&rows, "4k-randread-qd1/nbd", "librbd", Measure::Mean.unit());
        assert_eq!(row.pass, Some(false));
        let row = find(&rows, "4k-randread-qd1/embed", "librbd", "IOPS");
        assert_eq!((row.ratio, row.target, row.limit), (Some(1.5), None, Some(40_000.0)));
        assert_eq!(row.more.get("ratio_max"), Some(&json!(1.5)));
        assert!(row.more.contains_key("ours_detail") && row.seconds == 4.0);
        let row = find(&rows, "open/embed", "librbd", "ms of client CPU");
        assert_eq!((row.target, row.pass), (Some(5.0), Some(true)));
        assert_eq!(find(&rows, "open/embed", "librbd", "context switches").ratio, Some(14.0));
    }

    #[test]
    fn the_null_cluster_has_targets_of_its_own() {
        let rows = compare(PlaceKind::Null, &cases(), &results(), 2);
        let row = find(&rows, "null/4k-randread-qd32/rados", "librados", "IOPS");
        assert_eq!((row.target, row.pass, row.limit), (Some(3.0), Some(false), None));
        let row = find(&rows, "null/4k-randwrite-qd32/rados-cores", "rados", "IOPS");
        assert_eq!((row.target, row.pass), (Some(1.7), Some(true)));
        let row = find(&rows, "null/4k-randread-qd32/embed-cores", "embed", "IOPS");
        assert_eq!((row.target, row.pass), (Some(1.7), Some(false)));
        let row = find(&rows, "null/4k-randread-qd1/embed", "librbd", Measure::Mean.unit());
        assert_eq!(row.target, None, "no cluster waits so little");
    }

    #[test]
    fn fio_behind_a_server_is_compared_with_fio_around_librbd() {
        let mut results = results();
        let mut served = cell(11_000.0, 9.0, 0.1);
        served.fio = Usage { user_s: 0.031, system_s: 0.0, switches: 300.0 };
        results.interleaving.cells.insert((2, Contender::Nbd), vec![served; 2]);
        let rows = compare(PlaceKind::Cluster, &cases(), &results, 2);
        let row = find(&rows, "4k-randread-qd32/nbd", "librbd", Measure::WithFio.unit());
        assert_eq!((row.ours, row.theirs), (Some(40.0), Some(40.0)));
        assert_eq!((row.target, row.pass), (Some(4.0), Some(false)), "librbd's process is fio's");
        let row = find(&rows, "4k-randread-qd32/nbd", "librbd", Measure::WithFioSwitches.unit());
        assert_eq!((row.ours, row.theirs), (Some(0.4), Some(2.0)));
        assert_eq!((row.target, row.pass), (Some(0.3), Some(false)));
        for measure in [Measure::Client, Measure::Switches] {
            let row = find(&rows, "4k-randread-qd32/nbd", "librbd", measure.unit());
            assert_eq!((row.target, row.pass), (None, None), "the server is half of the path");
            let compared = (row.theirs, row.ratio, row.more.get("ratio_max"));
            assert_eq!(compared, (None, None, None), "{measure:?}: fio is in librbd's number");
            let row = find(&rows, "4k-randread-qd32/embed", "librbd", measure.unit());
            assert!(row.theirs.is_some() && row.target.is_some());
        }
        let embed =
            |row: &&Row| row.case.ends_with("/embed") && row.unit == Measure::WithFio.unit();
        assert_eq!(rows.iter().find(embed).map(|row| &row.case), None);
    }

    #[test]
    fn without_peers_our_numbers_remain() {
        let mut results = results();
        results.interleaving.cells.retain(|(_, contender), _| *contender == Contender::Embed);
        results.openings.clear();
        let rows = compare(PlaceKind::Cluster, &cases(), &results, 2);
        assert_eq!(rows.len(), 6 * 6);
        assert!(rows.iter().all(|row| row.peer.is_none() && row.pass != Some(false)));
    }
}
