//! The JSON lines of the benchmarks, one per row. Scripts outside this repository rely on the
//! fields.
//!
//! `bench`, `case` and `unit` name the measurement; `ours`, `peer` and `theirs` are the two numbers
//! and the peer's name; `ratio` says how much better `ours` is (above 1 is better for every unit);
//! `limit` is the limit of the machine and `of_limit` our part of it; `seconds` is the time
//! measured for both numbers; `commit` is the source; `target`, `target_unit` and `pass` are the
//! target and whether it was reached. A value that does not exist is `null`, never left out. A
//! benchmark may add its own fields.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// The commit that this program was built from. It ends with `-dirty` if tracked sources had
/// changed, and is `unknown` outside a repository.
pub const COMMIT: &str = env!("FIELDSTONE_COMMIT");

/// The better direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More is better: throughputs.
    More,
    /// Less is better: costs and times.
    Less,
}

/// One row. The order of the fields is the order in the file.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// The name of the case. `case`, `unit` and `peer` together are unique within one run.
    pub case: String,
    /// Unit of `ours`, `theirs` and `limit`.
    pub unit: &'static str,
    /// Our number.
    pub ours: Option<f64>,
    /// The name of the peer.
    pub peer: Option<String>,
    /// The peer's number.
    pub theirs: Option<f64>,
    /// How much better our number is: above 1 is better.
    pub ratio: Option<f64>,
    /// The limit of the machine.
    pub limit: Option<f64>,
    /// Our number divided by the limit.
    pub of_limit: Option<f64>,
    /// Time measured for both numbers, in seconds.
    pub seconds: f64,
    /// The source: see [`COMMIT`].
    pub commit: &'static str,
    /// The target: the least `ratio`, or with `target_unit` "at most" the largest `ours`.
    pub target: Option<f64>,
    /// The number that `target` bounds: "ratio" or "at most" (`ours`); null without a target.
    pub target_unit: Option<&'static str>,
    /// True if the target was reached; null without a target or a number.
    pub pass: Option<bool>,
    /// The benchmark's own fields.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Row {
    /// A row with the numbers of a comparison and their ratio.
    pub fn new(
        bench: &'static str,
        case: String,
        unit: &'static str,
        better: Better,
        (ours, theirs): (Option<f64>, Option<f64>),
    ) -> Self {
        let ratio = ours.zip(theirs).and_then(|(ours, theirs)| match better {
            Better::More => super::stats::quotient(ours, theirs),
            Better::Less => super::stats::quotient(theirs, ours),
        });
        Self {
            bench,
            case,
            unit,
            ours,
            peer: None,
            theirs,
            ratio,
            limit: None,
            of_limit: None,
            seconds: 0.0,
            commit: COMMIT,
            target: None,
            target_unit: None,
            pass: None,
            more: serde_json::Map::new(),
        }
    }

    /// Adds the limit.
    pub fn limit(mut self, limit: Option<f64>) -> Self {
        self.limit = limit;
        self.of_limit =
            self.ours.zip(limit).and_then(|(ours, limit)| super::stats::quotient(ours, limit));
        self
    }

    /// Adds a target: the least ratio.
    pub fn at_least(mut self, target: Option<f64>) -> Self {
        self.target = target;
        self.target_unit = target.map(|_| "ratio");
        self.pass = target.zip(self.ratio).map(|(target, ratio)| ratio >= target);
        self
    }

    /// Adds a target: the largest number of ours.
    pub fn at_most(mut self, target: f64) -> Self {
        self.target = Some(target);
        self.target_unit = Some("at most");
        self.pass = self.ours.map(|ours| ours <= target);
        self
    }
}

/// Writes rows as JSON lines; `-` is stdout.
pub fn write(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let mut out: Box<dyn Write> = if path == Path::new("-") {
        Box::new(std::io::stdout().lock())
    } else {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Box::new(BufWriter::new(file))
    };
    for row in rows {
        serde_json::to_writer(&mut out, row)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields on which scripts outside this repository rely.
    const CONTRACT: [&str; 11] = [
        "bench", "case", "unit", "ours", "peer", "theirs", "ratio", "limit", "of_limit", "seconds",
        "commit",
    ];

    #[test]
    fn every_field_of_the_contract_is_there_even_when_empty() {
        let full = Row {
            peer: Some("nbdkit-file".to_owned()),
            seconds: 18.0,
            ..Row::new("nbd", "rs/4k".to_owned(), "IOPS", Better::More, (Some(30.0), Some(20.0)))
        };
        let empty = Row::new("nbd", "rs/4k".to_owned(), "IOPS", Better::More, (None, None));
        for row in [full.limit(Some(60.0)).at_least(Some(1.4)), empty.limit(None).at_least(None)] {
            let text = serde_json::to_string(&row).expect("a row is JSON");
            assert!(!text.contains('\n'));
            let value: serde_json::Value = serde_json::from_str(&text).expect("it reads back");
            for field in CONTRACT {
                assert!(value.get(field).is_some(), "{field} is missing in {text}");
            }
            assert!(value["bench"].is_string() && value["case"].is_string());
            assert!(value["unit"].is_string() && value["commit"].is_string());
            assert!(value["seconds"].is_number());
            for field in ["ours", "theirs", "ratio", "limit", "of_limit"] {
                assert!(value[field].is_number() || value[field].is_null(), "{field} in {text}");
            }
        }
    }

    #[test]
    fn better_is_above_one_whatever_the_unit() {
        let row = |better, ours, theirs| {
            Row::new("nbd", String::new(), "x", better, (Some(ours), Some(theirs)))
        };
        assert_eq!(row(Better::More, 30.0, 20.0).ratio, Some(1.5));
        assert_eq!(row(Better::Less, 20.0, 30.0).ratio, Some(1.5));
        assert_eq!(row(Better::Less, 0.0, 30.0).ratio, None, "not a number, so not a ratio");
        assert_eq!(row(Better::More, 30.0, 20.0).at_least(Some(1.5)).pass, Some(true));
        assert_eq!(row(Better::More, 30.0, 20.0).at_least(Some(1.6)).pass, Some(false));
        assert_eq!(row(Better::More, 30.0, 20.0).at_least(None).pass, None);
        assert_eq!(row(Better::Less, 0.4, 0.0).at_most(0.5).pass, Some(true));
        assert_eq!(row(Better::Less, 0.6, 0.0).at_most(0.5).pass, Some(false));
        assert_eq!(row(Better::More, 30.0, 20.0).limit(Some(60.0)).of_limit, Some(0.5));
    }

    #[test]
    fn lines_go_to_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.json");
        let rows = vec![Row::new("nbd", "a".to_owned(), "x", Better::More, (None, None)); 3];
        write(&path, &rows).expect("the file is written");
        let text = std::fs::read_to_string(&path).expect("the file reads");
        assert_eq!(text.lines().count(), 3);
    }
}
