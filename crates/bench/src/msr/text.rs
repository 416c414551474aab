//! The rows and the report.

use std::fmt::Write as _;

use serde_json::json;

use super::case::{Findings, K, Point, SIZES, Who, Work};
use super::{BENCH, explanation, paper};
use crate::row::{Better, Row};
use crate::table::{Table, number};
use fieldstone_units as units;

/// Bytes that a rebuild reads, as a part of the object: half of each of five shards.
const REBUILD_READS: f64 = 5.0 / 8.0;

/// The JSON rows: one per point, and one more where gf-complete did the same work in the same run.
pub fn rows(found: &Findings) -> Vec<Row> {
    let mut rows = Vec::new();
    for point in &found.points {
        rows.push(row_of(point));
        let peer = match point.who {
            Who::CpuOne => Who::GfOne,
            Who::CpuAll => Who::GfAll,
            _ => continue,
        };
        if let Some(theirs) = found.point(point.work, point.object_bytes, peer) {
            let both = (Some(point.gb_per_second), Some(theirs.gb_per_second));
            let mut row = Row::new(BENCH, point.name(), "GB/s", Better::More, both);
            row.peer = Some("gf-complete".to_owned());
            row.seconds = point.seconds + theirs.seconds;
            rows.push(row);
        }
    }
    rows
}

/// The row of a point, with the paper's number if there is one. The paper was not measured here, so
/// `theirs` and `ratio` are null.
fn row_of(point: &Point) -> Row {
    let ours = (Some(point.gb_per_second), None);
    let mut row = Row::new(BENCH, point.name(), "GB/s", Better::More, ours);
    row.seconds = point.seconds;
    row.more = point.more.clone();
    row.more.insert("object_bytes".to_owned(), json!(point.object_bytes));
    if point.work == Work::Rebuild {
        let rate = point.gb_per_second;
        row.more.insert("rebuilt".to_owned(), json!(rate / K as f64));
        row.more.insert("read".to_owned(), json!(rate * REBUILD_READS));
    }
    if let Some(quoted) = paper::quoted(point.work, point.object_bytes, point.who) {
        row.peer = Some(quoted.name.to_owned());
        row.more.insert("paper".to_owned(), json!(quoted.gb_per_second));
        row.more.insert("paper_ref".to_owned(), json!(quoted.reference));
        row.more.insert("paper_derived".to_owned(), json!(quoted.is_derived));
    }
    row
}

/// The report.
pub fn report(found: &Findings, setting: &[String]) -> String {
    let mut text = String::new();
    for work in Work::ALL {
        let _ = writeln!(text, "{}", heading(work));
        text.push_str(&table(found, work));
        text.push('\n');
    }
    text.push_str(&explanations(found));
    for (name, reason) in &found.absent {
        let _ = writeln!(text, "not measured: {name}: {reason}");
    }
    let _ = writeln!(text, "\nThe paper: {}", paper::NAME);
    text.push_str(&paper_table());
    for (statement, place) in paper::STATEMENTS {
        let _ = writeln!(text, "  \"{statement}\" ({place})");
    }
    for derived in paper::derivations() {
        let _ = writeln!(text, "  derived: {derived}");
    }
    let _ = writeln!(text, "  The text does not print the points of Fig. 5, so none is here.");
    let _ = writeln!(text, "  {}.\n", paper::DEFINITION);
    for line in setting {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The heading of a work's table.
pub fn heading(work: Work) -> &'static str {
    match work {
        Work::Encode => "encode, zigzag:4+2: GB of objects per second",
        Work::Rebuild => {
            "rebuild of one data shard, zigzag:4+2: GB of objects per second (a quarter of it is \
             the lost shard)"
        }
    }
}

/// The points of a work, one row per size, with a column for each contender that has points.
pub fn table(found: &Findings, work: Work) -> String {
    let whos: Vec<Who> = Who::ALL.into_iter().filter(|who| found.has(work, *who)).collect();
    let names = whos.iter().map(|who| who.name());
    let mut table = Table::new(&std::iter::once("object").chain(names).collect::<Vec<_>>());
    for object_bytes in SIZES {
        let cell = |who: &Who| {
            let point = found.point(work, object_bytes, *who);
            number(point.map(|point| point.gb_per_second))
        };
        let size = units::size_argument(object_bytes as u64);
        table.row(std::iter::once(size).chain(whos.iter().map(cell)).collect());
    }
    table.text()
}

/// Table I as printed.
pub fn paper_table() -> String {
    let mut table = Table::new(&["Table I, encode, 64MB, # of threads", "GB/s", "LLC hit", "DRAM"]);
    for column in paper::TABLE_I {
        table.row(vec![
            column.threads.to_string(),
            format!("{:.2}", column.gb_per_second),
            column.hit_rate.to_string(),
            format!("{:.2}", column.dram_gb_per_second),
        ]);
    }
    table.text()
}

/// What the contenders are that have points.
pub fn explanations(found: &Findings) -> String {
    let mut text = String::new();
    for who in Who::ALL {
        if Work::ALL.into_iter().any(|work| found.has(work, who)) {
            let _ = writeln!(text, "{}: {}", who.name(), explanation(who));
        }
    }
    if Who::ALL.into_iter().any(|who| who.is_fpga() && found.has(Work::Encode, who)) {
        text.push_str(
            "fpga: one engine behind a port that reads 64 bytes and writes 64 bytes per cycle; the \
             paper's twelve processing units share four channels of DDR4-2400. The model of card \
             memory never refreshes or turns its bus around. An object of 64 MiB is cut in columns \
             into four jobs of 16 MiB, the driver's bound.\n",
        );
    }
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// One point for each of some contenders.
    pub fn found() -> Findings {
        let mut found = Findings::default();
        for work in Work::ALL {
            for object_bytes in SIZES {
                for who in [Who::CpuOne, Who::GfOne, Who::FpgaPaperClock] {
                    let more = serde_json::Map::new();
                    let (gb_per_second, seconds) = (8.0, 0.5);
                    let point = Point { work, object_bytes, who, gb_per_second, seconds, more };
                    found.points.push(point);
                }
            }
        }
        found.absent.push(("GPU".to_owned(), "no GPU: no <card>".to_owned()));
        found
    }

    #[test]
    fn rows_are_unique_and_name_the_papers_numbers() {
        let rows = rows(&found());
        assert_eq!(rows.len(), 2 * SIZES.len() * 4);
        let mut keys: Vec<_> =
            rows.iter().map(|row| (row.case.clone(), row.peer.clone())).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), rows.len());
        for row in &rows {
            let has_paper = row.peer.as_deref().is_some_and(|peer| peer.starts_with("paper"));
            assert_eq!(row.more.contains_key("paper"), has_paper);
            assert_eq!(row.more.contains_key("paper_ref"), has_paper);
            assert!(!has_paper || row.theirs.is_none(), "no paper is measured");
        }
        let papers = rows.iter().filter(|row| row.more.contains_key("paper"));
        let papers: Vec<&str> = papers.map(|row| row.case.as_str()).collect();
        let expected = ["encode/64M/cpu-1", "encode/64M/gf-complete-1", "encode/64M/fpga-300"];
        assert_eq!(papers, expected);
        let peer = rows.iter().find(|row| row.peer.as_deref() == Some("gf-complete"));
        assert_eq!(peer.and_then(|row| row.ratio), Some(1.0));
    }

    #[test]
    fn a_rebuild_has_all_readings_of_throughput() {
        let rows = rows(&found());
        let row = rows.iter().find(|row| row.case == "rebuild/16M/cpu-1").expect("a row");
        assert_eq!(row.ours, Some(8.0));
        assert_eq!((&row.more["rebuilt"], &row.more["read"]), (&json!(2.0), &json!(5.0)));
    }

    #[test]
    fn the_report_has_the_paper_and_what_is_absent() {
        let text = report(&found(), &["made by: x".to_owned()]);
        for part in [
            "not measured: GPU: no GPU: no <card>",
            "10.98",
            "34.0 GB/s",
            "does not print the points of Fig. 5",
            "made by: x",
            "fpga-300: ",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("cpu-all"), "nothing was measured on all cores: {text}");
    }
}
