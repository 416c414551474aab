//! The rows: each point of a figure with our number, librbd's, and the paper's.
//!
//! The librbd of a row has the caches that ours has ([`Who::peer`]). Gains are of our client of
//! Ceph alone ([`Who::has_gain`]).
//!
//! `paper` is the paper's number of the set-up that the figure is of (`paper_of`), or null with
//! `paper_note`, because the text of the paper does not print it. Where the figure is of the
//! hardware, `paper_software` is the paper's software at the same point, if that is printed.
//! `differs` is what is not as in the paper.

use serde_json::{Value, json};

use super::case::{Mode, name};
use super::contender::Who;
use super::cores::{CoreCase, PATTERNS, Scaling};
use super::figure::{Figure, Grid};
use super::grid::Part;
use super::paper::{Number, Of, Paper, Point, Quantity};
use super::stages::{Breakdown, Breakdowns, PaperStage};
use crate::case::Case;
use crate::fio::Measured;
use crate::interleaving::{Entrant, Results};
use crate::report::add_extent;
use crate::row::{Better, Row};
use crate::speeds::{Measure, Speeds};
use crate::stats::{mean, quotient};

/// What is said where the text of the paper has no number.
pub const NOT_PRINTED: &str = "the text of the paper prints no number for this point";

/// The means of a contender in a case.
pub fn speeds(results: &Results<Who, Measured>, case: usize, who: Who) -> Option<Speeds> {
    Speeds::means(results.rounds(case, who)?)
}

/// True if a figure shows this quantity of the contender.
pub fn shows(quantity: Quantity, who: Who) -> bool {
    who.has_gain() || !is_gain(quantity)
}

/// The number of a contender for a quantity. `librbd` is its peer.
pub fn value(quantity: Quantity, ours: &Speeds, librbd: Option<&Speeds>) -> Option<f64> {
    let over = |measure: Measure| quotient(measure.of(ours), measure.of(librbd?));
    match quantity {
        Quantity::Throughput => Some(ours.mb_per_second),
        Quantity::Iops => Some(ours.iops),
        Quantity::Latency => Some(ours.mean_us),
        Quantity::Deviation => ours.mb_per_second_sd,
        Quantity::ThroughputGain => over(Measure::Bandwidth),
        Quantity::IopsGain => over(Measure::Ios),
        Quantity::Share => None,
    }
}

fn deviation(quantity: Quantity, speeds: &Speeds) -> Option<f64> {
    match quantity {
        Quantity::Throughput => speeds.mb_per_second_sd,
        Quantity::Iops => speeds.iops_sd,
        Quantity::Latency => speeds.mean_us_sd,
        _ => None,
    }
}

fn better(quantity: Quantity) -> Better {
    match quantity {
        Quantity::Latency | Quantity::Deviation | Quantity::Share => Better::Less,
        _ => Better::More,
    }
}

/// True for quantities that compare with librbd already.
pub fn is_gain(quantity: Quantity) -> bool {
    matches!(quantity, Quantity::ThroughputGain | Quantity::IopsGain)
}

/// The rows of a grid.
pub fn of_grid(figure: &Figure, grid: &Grid, part: &Part, paper: &Paper, code: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, case) in part.cases.iter().enumerate() {
        if !grid.sizes.contains(&case.load.block_bytes) {
            continue;
        }
        for who in Who::ALL {
            let Some(peer) = who.peer() else { continue };
            let Some(ours) = speeds(&part.results, index, who) else { continue };
            let librbd = speeds(&part.results, index, peer);
            for quantity in grid.quantities.iter().filter(|quantity| shows(**quantity, who)) {
                let theirs = librbd.as_ref().filter(|_| !is_gain(*quantity));
                let numbers = (
                    value(*quantity, &ours, librbd.as_ref()),
                    theirs.and_then(|theirs| value(*quantity, theirs, None)),
                );
                let title = format!("{}/{}", name(part.mode, case), who.name());
                let unit = quantity.unit();
                let mut row = Row::new(figure.name, title, unit, better(*quantity), numbers);
                row.peer = theirs.map(|_| peer.name().to_owned());
                row.seconds = ours.seconds + librbd.as_ref().map_or(0.0, |it| it.seconds);
                add(&mut row, "runs", json!(ours.runs));
                add(&mut row, "ours_sd", json!(deviation(*quantity, &ours)));
                add(&mut row, "theirs_sd", json!(theirs.and_then(|it| deviation(*quantity, it))));
                if theirs.is_some() {
                    let ratio = |ours: &Measured, theirs: &Measured| {
                        let one = |it: &Measured| value(*quantity, &Speeds::means([it])?, None);
                        match better(*quantity) {
                            Better::More => quotient(one(ours)?, one(theirs)?),
                            Better::Less => quotient(one(theirs)?, one(ours)?),
                        }
                    };
                    let pair = (who, peer);
                    add_extent(&mut row, part.results.ratio_range(index, pair, ratio));
                }
                add_place(&mut row, figure, who, part.mode, code);
                add_paper(&mut row, paper, *quantity, grid.of, point(part.mode, case));
                rows.push(row);
            }
        }
    }
    rows
}

/// The point of a case.
pub fn point(mode: Mode, case: &Case) -> Point {
    Point { mode, pattern: case.load.pattern, block_bytes: case.load.block_bytes }
}

fn add(row: &mut Row, name: &str, value: Value) {
    row.more.insert(name.to_owned(), value);
}

/// The figure, what protects the data, and what is not as in the paper.
fn add_place(row: &mut Row, figure: &Figure, who: Who, mode: Mode, code: &str) {
    add(row, "figure", json!(figure.title));
    let protection = match (who.needs_cluster(), mode) {
        (true, Mode::Replication) => "the pool of the cluster",
        (true, Mode::Ec) => "the data pool of the cluster",
        (false, Mode::Replication) => "copies:3",
        (false, Mode::Ec) => code,
    };
    add(row, "protection", json!(protection));
    add(row, "differs", json!(who.differs()));
}

fn add_paper(row: &mut Row, paper: &Paper, quantity: Quantity, of: Of, point: Point) {
    add_number(row, paper.number(quantity, of, point), of);
    if of == Of::Hardware {
        let software = paper.number(quantity, Of::Software, point);
        add(row, "paper_software", json!(software.as_ref().map(|number| number.value)));
        add(row, "paper_software_ref", json!(software.map(|number| number.place)));
    }
}

fn add_number(row: &mut Row, number: Option<Number>, of: Of) {
    add(row, "paper", json!(number.as_ref().map(|number| number.value)));
    add(row, "paper_ref", json!(number.as_ref().map(|number| &number.place)));
    add(row, "paper_of", json!(of.name()));
    match number {
        None => add(row, "paper_note", json!(NOT_PRINTED)),
        Some(number) => {
            add(row, "paper_printed", json!(number.printed));
            add(row, "paper_sd", json!(number.deviation));
            add(row, "paper_derived", json!(number.is_derived));
        }
    }
}

/// The mean of a stage over the rounds of a case: its part in per cent, and its time.
pub fn stage(cells: &[Breakdown], stage: PaperStage) -> Option<(f64, f64)> {
    let shares: Option<Vec<f64>> = cells.iter().map(|cell| cell.share(stage)).collect();
    let times: Vec<f64> =
        cells.iter().filter_map(|cell| cell.stages_us.get(&stage).copied()).collect();
    Some((mean(&shares?)?, mean(&times)?))
}

/// All rounds of all patterns of a contender: the paper prints means over the patterns.
pub fn all_patterns(found: &Breakdowns, who: Who) -> Vec<Breakdown> {
    let cases = 0..found.cases.len();
    cases.filter_map(|case| found.results.rounds(case, who)).flatten().cloned().collect()
}

/// The name of the case that is the mean over the patterns.
const ALL_PATTERNS: &str = "rep-4k-mean-qd1";

/// The rows of the stages: for each pattern, and for their mean, which the paper prints.
pub fn of_stages(figure: &Figure, found: &Breakdowns, paper: &Paper) -> Vec<Row> {
    let mut rows = Vec::new();
    for who in super::stages::CONTENDERS {
        let patterns = found.cases.iter().enumerate().filter_map(|(index, case)| {
            let cells = found.results.rounds(index, who)?.to_vec();
            Some((name(Mode::Replication, case), cells, false))
        });
        let mut cases: Vec<(String, Vec<Breakdown>, bool)> = patterns.collect();
        if !cases.is_empty() {
            cases.push((ALL_PATTERNS.to_owned(), all_patterns(found, who), true));
        }
        for (case, cells, is_mean) in &cases {
            for part in PaperStage::ALL {
                let Some((share, us)) = stage(cells, part) else { continue };
                let title = format!("{case}/{}/{}", who.name(), part.name());
                let numbers = (Some(share), None);
                let unit = Quantity::Share.unit();
                let mut row = Row::new(figure.name, title, unit, Better::Less, numbers);
                row.seconds = cells.iter().map(|cell| cell.seconds).sum();
                add(&mut row, "ours_us", json!(us));
                add(&mut row, "here", json!(part.here()));
                if part == PaperStage::UserSpace {
                    add(&mut row, "ours_parts_us", json!(server_parts(cells)));
                }
                add_place(&mut row, figure, who, Mode::Replication, "");
                let number = if *is_mean { paper.stage(part.name()) } else { None };
                add_number(&mut row, number, Of::Software);
                rows.push(row);
            }
        }
    }
    rows
}

/// The mean time of each interval of our server but the waiting for storage.
pub fn server_parts(cells: &[Breakdown]) -> std::collections::BTreeMap<String, f64> {
    let mut names: Vec<&String> = cells.iter().flat_map(|cell| cell.server_us.keys()).collect();
    names.sort();
    names.dedup();
    let mean_of = |name: &String| {
        let each: Vec<f64> =
            cells.iter().map(|cell| cell.server_us.get(name).copied().unwrap_or(0.0)).collect();
        Some((name.clone(), mean(&each)?))
    };
    names.into_iter().filter(|name| *name != "nodes").filter_map(mean_of).collect()
}

/// The rows of the cores: each number of cores, and the best one, which the paper prints.
pub fn of_cores(figure: &Figure, found: &Scaling, paper: &Paper) -> Vec<Row> {
    let mut rows = Vec::new();
    let of = |index: usize, who| speeds(&found.results, index, who);
    for who in super::cores::CONTENDERS {
        let Some(peer) = who.peer() else { continue };
        for pattern in PATTERNS {
            let mut best: Option<(f64, CoreCase)> = None;
            let of_pattern = |case: &CoreCase| case.case.load.pattern == pattern;
            let cases = found.cases.iter().enumerate().filter(|(_, case)| of_pattern(case));
            let row_of = |title: String, numbers, seconds: f64| {
                let unit = Quantity::Throughput.unit();
                let mut row = Row::new(figure.name, title, unit, Better::More, numbers);
                row.seconds = seconds;
                add_place(&mut row, figure, who, Mode::Replication, "");
                row
            };
            for (index, case) in cases {
                let Some(ours) = of(index, who) else { continue };
                let librbd = of(index, peer);
                let theirs = librbd.as_ref().map(|it| it.mb_per_second);
                let seconds = ours.seconds + librbd.as_ref().map_or(0.0, |it| it.seconds);
                let title = format!("{}/{}", case.name(), who.name());
                let numbers = (Some(ours.mb_per_second), theirs);
                let mut row = row_of(title, numbers, seconds);
                row.peer = theirs.map(|_| peer.name().to_owned());
                add(&mut row, "cores", json!(case.cores));
                add(&mut row, "ours_sd", json!(ours.mb_per_second_sd));
                add_number(&mut row, None, Of::Software);
                rows.push(row);
                if best.is_none_or(|(most, _)| ours.mb_per_second > most) {
                    best = Some((ours.mb_per_second, *case));
                }
            }
            let Some((most, case)) = best else { continue };
            let title = format!("{}-best/{}", name(Mode::Replication, &case.case), who.name());
            let mut row = row_of(title, (Some(most), None), 0.0);
            add(&mut row, "cores", json!(case.cores));
            add_number(&mut row, paper.best_of_cores(pattern), Of::Software);
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
pub mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::deliba2::case::{ALL_SIZES, cases};
    use crate::deliba2::figure::{Content, FIGURES, of_name};

    /// A run in which each contender has its own speed. `librbd` does 1,000 I/Os per second,
    /// `librbd-cache` 2,000, and so on.
    pub fn part(mode: Mode, with_cluster: bool) -> Part {
        let cases = cases(&ALL_SIZES, 1);
        let mut results = Results::default();
        for (index, case) in cases.iter().enumerate() {
            for (place, who) in Who::ALL.into_iter().rev().enumerate() {
                if who.needs_cluster() && !with_cluster {
                    continue;
                }
                let iops = 1000.0 * (place + 1) as f64;
                let cell = |iops: f64| Measured {
                    ios: 100,
                    iops,
                    bytes_per_second: iops * case.load.block_bytes as f64,
                    mean_us: 1e6 / iops,
                    seconds: 0.5,
                    ..Measured::default()
                };
                results.cells.insert((index, who), vec![cell(iops - 1.0), cell(iops + 1.0)]);
            }
        }
        let commands = BTreeMap::from([(Who::OwnNbd, vec!["fieldstone serve".to_owned()])]);
        Part { mode, cases, results, commands }
    }

    fn paper() -> Paper {
        Paper::read().expect("the file is good")
    }

    fn rows_of(name: &str, mode: Mode, with_cluster: bool) -> Vec<Row> {
        let figure = of_name(name)[0];
        let Content::Grid(grid) = figure.content else { panic!("{name} is a grid") };
        of_grid(figure, &grid, &part(mode, with_cluster), &paper(), "rs:4+2")
    }

    fn find<'a>(rows: &'a [Row], case: &str, unit: &str) -> &'a Row {
        let mut found = rows.iter().filter(|row| row.case == case && row.unit == unit);
        let row = found.next().unwrap_or_else(|| panic!("{case} {unit} is missing"));
        assert!(found.next().is_none(), "{case} {unit} is unique");
        row
    }

    #[test]
    fn every_row_of_every_grid_is_unique_and_says_what_differs() {
        for figure in FIGURES {
            let Content::Grid(grid) = figure.content else { continue };
            let mut keys = BTreeSet::new();
            for mode in grid.modes {
                let part = part(*mode, true);
                for row in of_grid(&figure, &grid, &part, &paper(), "rs:4+2") {
                    let is_gain = row.unit.starts_with("times");
                    assert_eq!(row.theirs.is_some(), !is_gain, "{}", row.case);
                    let differs = row.more["differs"].to_string();
                    for word in ["read-ahead", "rbd_cache"] {
                        assert!(differs.contains(word), "{}: {word}", row.case);
                    }
                    let is_own = row.case.contains("/own-");
                    assert!(!(is_gain && is_own), "{}: a gain over other storage", row.case);
                    let peer = if is_own { "librbd-cache" } else { "librbd" };
                    assert_eq!(row.peer.as_deref(), (!is_gain).then_some(peer), "{}", row.case);
                    assert_eq!(row.more["paper"].is_null(), row.more.contains_key("paper_note"));
                    assert!(row.ours.is_some() && row.bench == figure.name);
                    assert!(keys.insert((row.case, row.unit, row.peer)), "{}", figure.name);
                }
            }
            let cases = grid.modes.len() * grid.sizes.len() * 4;
            let gains = grid.quantities.iter().filter(|quantity| is_gain(**quantity)).count();
            let rows = 4 * (grid.quantities.len() - gains) + 2 * gains;
            assert_eq!(keys.len(), cases * rows, "{}", figure.name);
        }
    }

    #[test]
    fn printed_numbers_stand_beside_ours() {
        let rows = rows_of("deliba2-table1", Mode::Replication, true);
        let row = find(&rows, "rep-16k-read-qd1/own-nbd", "MB/s");
        assert_eq!(row.more["paper"], json!(68.0));
        assert_eq!(row.more["paper_ref"], json!("DeLiBA-2, Table 1"));
        assert_eq!(
            (&row.more["paper_of"], row.peer.as_deref()),
            (&json!("software"), Some("librbd-cache"))
        );
        assert_eq!(row.ratio, Some(2.5), "librbd-cache does 2000, own-nbd 5000");
        let rows = rows_of("deliba2-table3", Mode::Ec, true);
        let row = find(&rows, "ec-4k-randread-qd1/ceph-nbd", "us");
        assert_eq!((&row.more["paper"], &row.more["paper_software"]), (&json!(82.0), &json!(95.0)));
        assert_eq!(
            (&row.more["paper_sd"], &row.more["paper_derived"]),
            (&json!(0.696), &json!(false))
        );
        assert!((row.ratio.expect("both") - 3.0).abs() < 1e-3, "a third of librbd's latency");
        assert_eq!(row.more["protection"], json!("the data pool of the cluster"));
    }

    #[test]
    fn points_that_are_not_printed_are_null() {
        let rows = rows_of("deliba2-fig4", Mode::Replication, true);
        let row = find(&rows, "rep-64k-read-qd1/own-embed", "MB/s");
        assert_eq!(
            (&row.more["paper"], &row.more["paper_note"]),
            (&Value::Null, &json!(NOT_PRINTED))
        );
        let row = find(&rows, "rep-512k-read-qd1/own-embed", "MB/s");
        assert_eq!(row.more["paper"], json!(750.0));
        let printed = rows.iter().filter(|row| !row.more["paper"].is_null()).count();
        // 750 MB/s, 9,000 IOPS, and the latencies of two sizes and four patterns; four contenders.
        assert_eq!(printed, (2 + 2 * 4) * 4);
    }

    #[test]
    fn without_a_cluster_there_is_no_peer_and_no_gain() {
        let rows = rows_of("deliba2-fig4", Mode::Replication, false);
        assert_eq!(rows.len(), 5 * 4 * 3 * 2);
        assert!(rows.iter().all(|row| row.peer.is_none() && row.ratio.is_none()));
        let rows = rows_of("deliba2-fig13", Mode::Replication, false);
        assert!(rows.is_empty(), "a gain needs librbd, and our client on the same cluster");
        let rows = rows_of("deliba2-fig13", Mode::Replication, true);
        let row = find(&rows, "rep-4k-write-qd1/ceph-embed", Quantity::ThroughputGain.unit());
        assert_eq!((row.ours, &row.more["paper"]), (Some(4.0), &json!(2.81)));
        let row = find(&rows, "rep-16k-read-qd1/ceph-embed", Quantity::ThroughputGain.unit());
        assert_eq!(row.more["paper_derived"], json!(true));
    }

    #[test]
    fn deviations_are_those_of_the_runs() {
        let rows = rows_of("deliba2-table5", Mode::Ec, true);
        let row = find(&rows, "ec-4k-randwrite-qd1/own-nbd", Quantity::Deviation.unit());
        let expected = 2f64.sqrt() * 4096.0 / 1e6;
        assert!((row.ours.expect("two runs") - expected).abs() < 1e-9);
        assert_eq!(
            (&row.more["paper"], &row.more["paper_printed"]),
            (&json!(0.812), &json!(".812"))
        );
    }

    /// A breakdown of 100 us by all contenders.
    pub fn breakdowns() -> Breakdowns {
        let cases: Vec<Case> = crate::deliba2::case::PATTERNS
            .into_iter()
            .map(|pattern| Case::new(pattern, 4 << 10, 1))
            .collect();
        let stages = [10.0, 50.0, 15.0, 25.0];
        let cell = Breakdown {
            total_us: 100.0,
            stages_us: PaperStage::ALL.into_iter().zip(stages).collect(),
            server_us: BTreeMap::from([("nodes".to_owned(), 25.0), ("cache".to_owned(), 15.0)]),
            seconds: 0.5,
        };
        let mut results = Results::default();
        for index in 0..cases.len() {
            results.cells.insert((index, Who::OwnNbd), vec![cell.clone(); 2]);
        }
        Breakdowns { cases, results }
    }

    #[test]
    fn each_stage_of_the_paper_is_a_row() {
        let rows = of_stages(of_name("deliba2-fig6")[0], &breakdowns(), &paper());
        assert_eq!(rows.len(), (4 + 1) * 4);
        let row = find(&rows, "rep-4k-mean-qd1/own-nbd/kernel", "% of the latency");
        assert_eq!((row.ours, &row.more["paper"]), (Some(50.0), &json!(47.25)));
        assert!(
            row.more["here"].as_str().is_some_and(|text| text.contains("no kernel NBD client"))
        );
        let row = find(&rows, "rep-4k-read-qd1/own-nbd/user-space", "% of the latency");
        assert_eq!((&row.more["paper"], &row.more["ours_us"]), (&Value::Null, &json!(15.0)));
        assert_eq!(row.more["ours_parts_us"], json!({"cache": 15.0}));
    }

    /// Two cores with twice the speed of one.
    pub fn scaling() -> Scaling {
        let cases = crate::deliba2::cores::cases(2);
        let mut results = Results::default();
        for (index, case) in cases.iter().enumerate() {
            for (who, mb) in [(Who::OwnNbd, 100.0), (Who::LibrbdCache, 50.0)] {
                let bytes_per_second = mb * 1e6 * f64::from(case.cores);
                let cell = Measured { bytes_per_second, seconds: 0.5, ..Measured::default() };
                results.cells.insert((index, who), vec![cell]);
            }
        }
        Scaling { cases, results }
    }

    #[test]
    fn cores_have_rows_and_the_best_has_the_papers_number() {
        let rows = of_cores(of_name("deliba2-fig7")[0], &scaling(), &paper());
        assert_eq!(rows.len(), 2 * (2 + 1));
        let row = find(&rows, "rep-4k-read-qd64-cores2/own-nbd", "MB/s");
        assert_eq!((row.ours, row.theirs, row.ratio), (Some(200.0), Some(100.0), Some(2.0)));
        assert!(row.more["paper"].is_null());
        let row = find(&rows, "rep-4k-write-qd64-best/own-nbd", "MB/s");
        assert_eq!((row.ours, &row.more["cores"]), (Some(200.0), &json!(2)));
        assert_eq!(row.more["paper"], json!(30.0));
    }
}
