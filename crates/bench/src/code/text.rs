//! A run as text: one table for each kind of work, state of the caches and number of cores.

use super::case::{CacheState, Case, Cores};
use super::compare::{LIMIT, limit, medians};
use super::contender::Contender;
use super::measure::{Cell, Results};
use crate::row::Row;
use crate::stats::quotient;
use crate::table::{Table, number};

/// The report of a run.
pub fn report(cases: &[Case], results: &Results, rows: &[Row], setting: &[String]) -> String {
    let mut text = String::new();
    let cells: Vec<(&Case, &Cell)> =
        results.cells.iter().map(|(&index, cell)| (&cases[index], cell)).collect();
    let same = |a: &(&Case, &Cell), b: &(&Case, &Cell)| {
        (a.0.work, a.0.cache, a.0.cores) == (b.0.work, b.0.cache, b.0.cores)
    };
    for group in cells.chunk_by(same) {
        if let Some((case, _)) = group.first() {
            text.push_str(&format!("{}\n{}\n", title(case), table(group, rows)));
        }
    }
    let missed: Vec<&Row> = rows.iter().filter(|row| row.pass == Some(false)).collect();
    for row in &missed {
        text.push_str(&format!(
            "missed: {} against {}: {} of {} GB/s, {} instead of {}; the limit is {} GB/s\n",
            row.case,
            row.peer.as_deref().unwrap_or("-"),
            number(row.ours),
            number(row.theirs),
            number(row.ratio),
            number(row.target),
            number(row.limit),
        ));
    }
    for (what, reason) in &results.missing {
        text.push_str(&format!("not measured: {what}: {reason}\n"));
    }
    for line in setting {
        text.push_str(line);
        text.push('\n');
    }
    let verdicts = rows.iter().filter(|row| row.pass.is_some()).count();
    text.push_str(&format!("{} of {verdicts} targets reached\n", verdicts - missed.len()));
    text
}

fn title(case: &Case) -> String {
    let cache = match case.cache {
        CacheState::Hot => "hot: the same stripe again and again",
        CacheState::Cold => "cold: every stripe comes from memory",
    };
    let cores = match case.cores {
        Cores::One => "one core",
        Cores::All => "all cores",
    };
    format!("{}, {cores}, {cache}; GB/s of data", case.work.name())
}

fn table(group: &[(&Case, &Cell)], rows: &[Row]) -> String {
    let present =
        |contender: &Contender| group.iter().any(|(_, cell)| cell.contains_key(contender));
    let others = [
        Contender::OursStreaming,
        Contender::OursRs,
        Contender::Isal,
        Contender::Jerasure,
        Contender::GfComplete,
    ];
    let others: Vec<Contender> = others.into_iter().filter(present).collect();
    let mut heading = vec!["", "ours", "cycles/B"];
    for other in &others {
        heading.extend([other.name(), "ratio"]);
    }
    heading.extend(["limit", "of limit", "target", ""]);
    let mut table = Table::new(&heading);
    for (case, cell) in group {
        let speed = |contender| medians(cell, contender).map(|found| found.gb_per_second);
        let ours = medians(cell, Contender::Ours);
        let own = ours.map(|found| found.gb_per_second);
        let name = case.name();
        let mut line =
            vec![name.clone(), number(own), number(ours.and_then(|found| found.cycles_per_byte))];
        let over = |theirs: Option<f64>| {
            number(own.zip(theirs).and_then(|(ours, theirs)| quotient(ours, theirs)))
        };
        for other in &others {
            line.extend([number(speed(*other)), over(speed(*other))]);
        }
        let limit = limit(cell).map(|found| found.gb_per_second);
        line.extend([number(limit), over(limit)]);
        let bounded: Vec<&Row> =
            rows.iter().filter(|row| row.case == name && row.target.is_some()).collect();
        let of = |row: &&Row| {
            let least = number(row.target);
            if row.peer.as_deref() == Some(LIMIT) {
                format!("limit >= {least}")
            } else {
                format!(">= {least}")
            }
        };
        line.push(bounded.iter().map(of).collect::<Vec<_>>().join(", "));
        line.push(match bounded.iter().filter(|row| row.pass == Some(false)).count() {
            _ if bounded.is_empty() => String::new(),
            0 => "pass".to_owned(),
            _ => "MISS".to_owned(),
        });
        table.row(line);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::super::case::all;
    use super::super::compare::compare;
    use super::super::measure::Sample;
    use super::*;

    #[test]
    fn a_report_shows_numbers_verdicts_and_what_is_missing() {
        let cases = all();
        let mut results = Results::default();
        let sample =
            |gb: f64| vec![Sample { bytes: gb * 1e9, seconds: 1.0, cycles_per_byte: 2.6 / gb }];
        let cell = |ours: f64| {
            Cell::from([
                (Contender::Ours, sample(ours)),
                (Contender::Isal, sample(50.0)),
                (Contender::LimitPlain, sample(100.0)),
            ])
        };
        results.cells.insert(0, cell(60.0));
        results.cells.insert(1, cell(52.0));
        results.missing.push(("jerasure".to_owned(), "cannot load it".to_owned()));
        let rows = compare(&cases, &results);
        let text = report(&cases, &results, &rows, &["commit abc".to_owned()]);
        let line = |start: &str| {
            let found = text.lines().find(|line| line.trim_start().starts_with(start));
            found.unwrap_or_else(|| panic!("no line {start} in\n{text}"))
        };
        assert!(line("encode-cauchy-4+2-4K-hot-one").ends_with(">= 1.10  pass"), "{text}");
        assert!(line("encode-cauchy-6+3-4K-hot-one").contains("1.04"), "{text}");
        assert!(line("encode-cauchy-6+3-4K-hot-one").ends_with("MISS"), "{text}");
        assert!(line("missed: ").contains("limit is 100"), "{text}");
        assert!(line("not measured: jerasure").contains("cannot load"));
        assert_eq!(line("commit"), "commit abc");
        assert!(line("1 of 2 targets").contains("reached"));
    }
}
