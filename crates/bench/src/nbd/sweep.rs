//! The papers' grid: bandwidth, I/Os and latency for every block size and pattern. Like the papers,
//! it reports means over several runs (four by default) with their standard deviations.

use serde_json::json;

use super::case::Case;
use super::contender::Contender;
use super::measure::Results;
use super::summary::{means, summary};
use crate::row::{Better, Row};
use crate::stats::standard_deviation;
use crate::table::{Table, number};

/// The peers of a server of ours. The first one that took part counts.
fn peer(ours: Contender) -> &'static [Contender] {
    match ours {
        Contender::Ram | Contender::RamEmbed => &[Contender::NbdkitMemory],
        Contender::RsDirect | Contender::FileDirect => {
            &[Contender::QemuNone, Contender::NbdkitFile]
        }
        _ => &[Contender::NbdkitFile, Contender::QemuWriteback],
    }
}

/// The rows of a sweep: three for every case and every server of ours.
pub fn rows(cases: &[Case], results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        for contender in Contender::ALL.into_iter().filter(|contender| contender.is_ours()) {
            let Some(ours) = Point::of(results, index, contender) else { continue };
            let mut peers = peer(contender).iter();
            let theirs = peers.find_map(|peer| Some((*peer, Point::of(results, index, *peer)?)));
            let raw = match contender {
                Contender::Ram | Contender::RamEmbed => None,
                _ => Point::of(results, index, Contender::RawDisk),
            };
            for measure in Measure::ALL {
                let numbers = (
                    Some(ours.mean(measure)),
                    theirs.as_ref().map(|(_, theirs)| theirs.mean(measure)),
                );
                let name = format!("sweep/{}/{}", case.name(), contender.name());
                let mut row =
                    Row::new(super::compare::NAME, name, measure.unit(), measure.better(), numbers)
                        .limit(raw.as_ref().map(|raw| raw.mean(measure)));
                row.peer = theirs.as_ref().map(|(peer, _)| peer.name().to_owned());
                row.seconds = ours.seconds + theirs.as_ref().map_or(0.0, |(_, it)| it.seconds);
                row.more.insert("runs".to_owned(), json!(ours.runs));
                row.more.insert("ours_sd".to_owned(), json!(ours.deviation(measure)));
                let theirs_sd = theirs.as_ref().and_then(|(_, theirs)| theirs.deviation(measure));
                row.more.insert("theirs_sd".to_owned(), json!(theirs_sd));
                rows.push(row);
            }
        }
    }
    rows
}

/// The measures of each point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bandwidth.
    Bandwidth,
    /// I/Os per second.
    Ios,
    /// Mean latency.
    Latency,
}

impl Measure {
    /// All measures.
    pub const ALL: [Self; 3] = [Self::Bandwidth, Self::Ios, Self::Latency];

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "MB/s",
            Self::Ios => "IOPS",
            Self::Latency => "us",
        }
    }

    /// The title of an axis.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "throughput (MB/s)",
            Self::Ios => "I/Os per second",
            Self::Latency => "mean latency (us)",
        }
    }

    fn better(self) -> Better {
        match self {
            Self::Latency => Better::Less,
            _ => Better::More,
        }
    }
}

/// One contender at one point of the grid.
#[derive(Clone, Debug)]
pub struct Point {
    means: [f64; 3],
    deviations: [Option<f64>; 3],
    runs: usize,
    seconds: f64,
}

impl Point {
    /// The point, if it was measured.
    pub fn of(results: &Results, case: usize, contender: Contender) -> Option<Self> {
        let cells = results.cells.get(&(case, contender))?;
        let found = summary(results, case, contender)?;
        let latencies: Vec<f64> = cells.iter().map(|cell| cell.fio.mean_us).collect();
        Some(Self {
            means: means(cells)?,
            deviations: [found.mb_per_second_sd, found.iops_sd, standard_deviation(&latencies)],
            runs: found.runs,
            seconds: found.seconds,
        })
    }

    /// Mean over the runs.
    pub fn mean(&self, measure: Measure) -> f64 {
        self.means[measure as usize]
    }

    /// Standard deviation over the runs; `None` for one run.
    pub fn deviation(&self, measure: Measure) -> Option<f64> {
        self.deviations[measure as usize]
    }
}

/// The report of a sweep: a table for every pattern and measure.
pub fn report(cases: &[Case], results: &Results, setting: &[String]) -> String {
    let mut text = String::new();
    for pattern in crate::fio::Pattern::ALL {
        let of: Vec<(usize, &Case)> =
            cases.iter().enumerate().filter(|(_, case)| case.load.pattern == pattern).collect();
        for measure in Measure::ALL {
            if let Some(table) = table(&of, results, measure) {
                text.push_str(&format!(
                    "{}: {}, mean over the runs (standard deviation)\n{table}\n",
                    pattern.name(),
                    measure.title()
                ));
            }
        }
    }
    for (contender, reason) in &results.missing {
        text.push_str(&format!("not measured: {}: {reason}\n", contender.name()));
    }
    for line in setting {
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn table(cases: &[(usize, &Case)], results: &Results, measure: Measure) -> Option<String> {
    let sizes: Vec<String> =
        cases.iter().map(|(_, case)| format!("{}k", case.load.block_bytes >> 10)).collect();
    let heading: Vec<&str> = std::iter::once("").chain(sizes.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heading);
    let mut any = false;
    for contender in Contender::ALL {
        let points: Vec<Option<Point>> =
            cases.iter().map(|(index, _)| Point::of(results, *index, contender)).collect();
        if points.iter().all(Option::is_none) {
            continue;
        }
        any = true;
        let cell = |point: &Option<Point>| match point {
            None => "-".to_owned(),
            Some(point) => {
                let deviation = number(point.deviation(measure));
                format!("{} ({deviation})", number(Some(point.mean(measure))))
            }
        };
        let name = std::iter::once(contender.name().to_owned());
        table.row(name.chain(points.iter().map(cell)).collect());
    }
    any.then(|| table.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::nbd::case::grid;
    use crate::nbd::measure::Cell;

    /// The results of four runs of every case. `scale` makes contenders differ.
    pub fn results() -> Results {
        let mut results = Results::default();
        for index in 0..grid().len() {
            for (contender, scale) in [(Contender::Rs, 2.0), (Contender::NbdkitFile, 1.0)] {
                let cell = |iops: f64| Cell {
                    fio: Measured {
                        ios: 10,
                        iops: iops * scale,
                        bytes_per_second: iops * scale * 4096.0,
                        mean_us: 100.0 / scale,
                        seconds: 1.0,
                        ..Measured::default()
                    },
                    ..Cell::default()
                };
                let cells = [990.0, 1000.0, 1000.0, 1010.0].map(cell).to_vec();
                results.cells.insert((index, contender), cells);
            }
        }
        results
    }

    #[test]
    fn a_sweep_reports_means_and_deviations() {
        let rows = rows(&grid(), &results());
        assert_eq!(rows.len(), 32 * 3);
        let find = |unit: &str| {
            let name = "sweep/4k-randread-qd32/rs:4+2";
            rows.iter().find(|row| row.case == name && row.unit == unit).expect("it is there")
        };
        let ios = find("IOPS");
        assert_eq!((ios.ours, ios.theirs, ios.ratio), (Some(2000.0), Some(1000.0), Some(2.0)));
        assert_eq!((ios.peer.as_deref(), ios.seconds), (Some("nbdkit-file"), 8.0));
        assert_eq!(ios.more["runs"], json!(4));
        // Deviations from the mean are 10, 0, 0, 10: sqrt(200 / 3).
        let deviation = ios.more["theirs_sd"].as_f64().expect("four runs");
        assert!((deviation - (200.0f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!(find("us").ratio, Some(2.0), "half the latency is twice as good");
    }

    #[test]
    fn a_sweep_is_a_table_for_every_pattern_and_measure() {
        let text = report(&grid(), &results(), &["made by: x".to_owned()]);
        assert_eq!(text.matches("standard deviation").count(), 12);
        let line = text.lines().find(|line| line.contains("rs:4+2")).expect("ours is there");
        assert_eq!(line.matches('(').count(), 8, "eight block sizes: {line}");
        assert!(text.contains("2000 (16.3)") && text.ends_with("made by: x\n"));
    }
}
