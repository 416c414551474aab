//! The papers' grid: bandwidth, I/Os and latency for every block size and pattern. Like the papers,
//! it reports means over several runs (four by default) with their standard deviations.

use serde_json::json;

use super::case::Case;
use super::contender::Contender;
use super::measure::Results;
use crate::interleaving::Entrant;
use crate::report::lines;
use crate::row::Row;
use crate::speeds::{Measure, Speeds};
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
            let Some(ours) = point(results, index, contender) else { continue };
            let mut peers = peer(contender).iter();
            let theirs = peers.find_map(|peer| Some((*peer, point(results, index, *peer)?)));
            let raw = match contender {
                Contender::Ram | Contender::RamEmbed => None,
                _ => point(results, index, Contender::RawDisk),
            };
            for measure in Measure::ALL {
                let numbers = (
                    Some(measure.of(&ours)),
                    theirs.as_ref().map(|(_, theirs)| measure.of(theirs)),
                );
                let name = format!("sweep/{}/{}", case.name(), contender.name());
                let mut row =
                    Row::new(super::compare::NAME, name, measure.unit(), measure.better(), numbers)
                        .limit(raw.as_ref().map(|raw| measure.of(raw)));
                row.peer = theirs.as_ref().map(|(peer, _)| peer.name().to_owned());
                row.seconds = ours.seconds + theirs.as_ref().map_or(0.0, |(_, it)| it.seconds);
                row.more.insert("runs".to_owned(), json!(ours.runs));
                row.more.insert("ours_sd".to_owned(), json!(measure.deviation(&ours)));
                let theirs_sd = theirs.as_ref().and_then(|(_, theirs)| measure.deviation(theirs));
                row.more.insert("theirs_sd".to_owned(), json!(theirs_sd));
                rows.push(row);
            }
        }
    }
    rows
}

/// Means over the runs of one contender at one point of the grid, if it was measured.
pub fn point(results: &Results, case: usize, contender: Contender) -> Option<Speeds> {
    Speeds::means(results.interleaving.rounds(case, contender)?.iter().map(|cell| &cell.fio))
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
    text.push_str(&results.interleaving.missing_text());
    text.push_str(&lines(setting));
    text
}

fn table(cases: &[(usize, &Case)], results: &Results, measure: Measure) -> Option<String> {
    let sizes: Vec<String> =
        cases.iter().map(|(_, case)| format!("{}k", case.load.block_bytes >> 10)).collect();
    let heading: Vec<&str> = std::iter::once("").chain(sizes.iter().map(String::as_str)).collect();
    let mut table = Table::new(&heading);
    let mut any = false;
    for contender in Contender::ALL {
        let points: Vec<Option<Speeds>> =
            cases.iter().map(|(index, _)| point(results, *index, contender)).collect();
        if points.iter().all(Option::is_none) {
            continue;
        }
        any = true;
        let cell = |point: &Option<Speeds>| match point {
            None => "-".to_owned(),
            Some(point) => {
                let deviation = number(measure.deviation(point));
                format!("{} ({deviation})", number(Some(measure.of(point))))
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
    use crate::subject::Cell;

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
                results.interleaving.cells.insert((index, contender), cells);
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
