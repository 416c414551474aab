//! The report of a standard run: each case with all contenders, then the ratios and their targets.

use super::case::Case;
use super::compare::{CPU_UNIT, SERVER_CPU_UNIT};
use super::contender::Contender;
use super::measure::Results;
use super::summary::{Summary, summary};
use crate::interleaving::Entrant;
use crate::report::{extent, lines, targets_reached, verdict};
use crate::row::Row;
use crate::table::{Table, number};

/// The report of a standard run.
pub fn report(cases: &[Case], results: &Results, rows: &[Row], setting: &[String]) -> String {
    let mut text = String::new();
    for (index, case) in cases.iter().enumerate() {
        if let Some(table) = case_table(index, results) {
            text.push_str(&format!("{}\n{table}\n", case.name()));
        }
    }
    if !rows.is_empty() {
        text.push_str(
            "ours against theirs: more than 1 is better for us, in speed and in CPU time per I/O \
             (client and server); range over the rounds\n",
        );
        text.push_str(&ratio_table(rows));
        text.push('\n');
    }
    if !results.idle_percent.is_empty() {
        text.push_str("CPU at rest, in % of a core\n");
        text.push_str(&rest_table(results, rows));
        text.push('\n');
    }
    text.push_str(&results.interleaving.missing_text());
    text.push_str(&lines(setting));
    text.push_str(&targets_reached(rows));
    text
}

fn case_table(index: usize, results: &Results) -> Option<String> {
    let mut table = Table::new(&[
        "",
        "IOPS",
        "MB/s",
        "mean us",
        "p50 us",
        "p99 us",
        "client us/IO",
        "server us/IO",
        "deferred",
        "switches/IO",
        "of raw",
    ]);
    let raw = summary(results, index, Contender::RawDisk);
    let mut any = false;
    for contender in Contender::ALL {
        let Some(found) = summary(results, index, contender) else { continue };
        any = true;
        table.row(case_row(contender, &found, raw.as_ref()));
    }
    any.then(|| table.text())
}

fn case_row(contender: Contender, found: &Summary, raw: Option<&Summary>) -> Vec<String> {
    let speeds = &found.speeds;
    let of_raw = raw.and_then(|raw| crate::stats::quotient(speeds.iops, raw.speeds.iops));
    vec![
        contender.name().to_owned(),
        number(Some(speeds.iops)),
        number(Some(speeds.mb_per_second)),
        number(Some(speeds.mean_us)),
        number(Some(speeds.p50_us)),
        number(Some(speeds.p99_us)),
        number(Some(found.client_cpu_us_per_io)),
        number(found.server_cpu_us_per_io),
        number(found.deferred_cpu_us_per_io),
        number(Some(found.switches_per_io)),
        number(of_raw),
    ]
}

/// One line for every comparison of speed, with the costs in CPU time.
fn ratio_table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "",
        "against",
        "unit",
        "ours",
        "theirs",
        "ratio",
        "range",
        "target",
        "",
        "CPU ratio",
        "target",
        "",
    ]);
    let costs = |of: &Row| {
        let same = |row: &&Row| row.case == of.case && row.peer == of.peer && row.unit == CPU_UNIT;
        rows.iter().find(same)
    };
    let is_speed = |row: &&Row| {
        row.target_unit != Some("at most") && ![CPU_UNIT, SERVER_CPU_UNIT].contains(&row.unit)
    };
    for row in rows.iter().filter(is_speed) {
        let costs = costs(row);
        table.row(vec![
            row.case.clone(),
            row.peer.clone().unwrap_or_else(|| "-".to_owned()),
            row.unit.to_owned(),
            number(row.ours),
            number(row.theirs),
            number(row.ratio),
            extent(row),
            target_text(Some(row)),
            verdict(row).to_owned(),
            costs.map_or(String::new(), |costs| number(costs.ratio)),
            target_text(costs),
            costs.map_or("", verdict).to_owned(),
        ]);
    }
    table.text()
}

fn target_text(row: Option<&Row>) -> String {
    let target = row.and_then(|row| row.target);
    target.map_or(String::new(), |target| format!(">= {target}"))
}

fn rest_table(results: &Results, rows: &[Row]) -> String {
    let mut table = Table::new(&["", "at rest", "target", ""]);
    for (contender, percent) in &results.idle_percent {
        let row = rows.iter().find(|row| {
            row.target_unit == Some("at most")
                && row.case.strip_prefix("idle/") == Some(contender.name())
        });
        let target = row.and_then(|row| row.target);
        table.row(vec![
            contender.name().to_owned(),
            number(Some(*percent)),
            target.map_or(String::new(), |target| format!("<= {target}")),
            row.map_or("", verdict).to_owned(),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::nbd::case::standard;
    use crate::nbd::compare::compare;
    use crate::subject::Cell;

    #[test]
    fn a_report_shows_numbers_ratios_verdicts_and_who_is_missing() {
        let mut results = Results::default();
        let cell = |iops: f64| Cell {
            fio: Measured { ios: 10, iops, cpu_s: 1e-4, seconds: 1.0, ..Measured::default() },
            server_cpu_s: 5e-5,
            ..Cell::default()
        };
        let index = 3;
        results.interleaving.cells.insert((index, Contender::Rs), vec![cell(130_000.0)]);
        results.interleaving.cells.insert((index, Contender::NbdkitFile), vec![cell(100_000.0)]);
        results.idle_percent.insert(Contender::Rs, 0.7);
        results.interleaving.missing.push((Contender::QemuNone, "cannot run qemu-nbd".to_owned()));
        let cases = standard();
        let rows = compare(&cases, &results);
        let text = report(&cases, &results, &rows, &["commit abc".to_owned()]);
        let line = |start: &str, word: &str| {
            let mut lines = text.lines().filter(|line| line.trim_start().starts_with(start));
            assert!(lines.any(|line| line.contains(word)), "{start} … {word} is not in\n{text}");
        };
        line("rs:4+2", "130000");
        line("nbdkit-file", "5.00");
        line("4k-randread-qd32/rs:4+2", "1.30");
        line("4k-randread-qd32/rs:4+2", ">= 0.8  pass");
        line("rs:4+2", "<= 0.5  MISS");
        line("not measured: qemu-nbd-none", "cannot run");
        line("commit", "abc");
        line("1 of 2 targets", "reached");
        assert!(!text.contains("4k-randwrite"), "cases without numbers are not shown");
    }
}
