//! The report of a run: at each place every case with all contenders, then the ratios and their
//! targets.

use super::compare::Measure;
use super::contender::Contender;
use super::place::PlaceKind;
use super::run::{OPEN, Results};
use super::summary::{Summary, summary};
use crate::case::Case;
use crate::interleaving::Entrant;
use crate::report::{extent, lines, targets_reached, verdict};
use crate::row::Row;
use crate::stats::quotient;
use crate::table::{Table, number};
use crate::usage::Usage;

/// What was measured at a place.
pub struct Part<'a> {
    /// The kind of the place.
    pub kind: PlaceKind,
    /// The results.
    pub results: &'a Results,
    /// The rows.
    pub rows: Vec<Row>,
    /// Lines about the place.
    pub about: Vec<String>,
}

/// The report of a run. `cpus` is the number of CPUs of this machine.
pub fn report(cases: &[Case], parts: &[Part<'_>], setting: &[String], cpus: usize) -> String {
    let mut text = String::new();
    for part in parts {
        text.push_str(&place(cases, part, cpus));
    }
    text.push_str(&lines(setting));
    text.push_str(&targets_reached(parts.iter().flat_map(|part| &part.rows)));
    text
}

fn place(cases: &[Case], part: &Part<'_>, cpus: usize) -> String {
    let title = part.kind.title().to_uppercase();
    let mut text = format!("{title}\n");
    text.push_str(&lines(&part.about));
    text.push('\n');
    for (index, case) in cases.iter().enumerate() {
        if let Some(table) = case_table(index, part, cpus) {
            text.push_str(&format!("{}\n{table}\n", case.name()));
        }
    }
    if part.kind == PlaceKind::Cluster {
        text.push_str(&bounds(cases, part.results, cpus));
    }
    if let Some(table) = open_table(part.results) {
        text.push_str(&format!("{OPEN}: connect, open the image, close it\n{table}\n"));
    }
    if !part.rows.is_empty() {
        text.push_str("ours against theirs: more than 1 is better for us; range over the rounds\n");
        text.push_str(&ratio_table(&part.rows));
        text.push('\n');
    }
    text.push_str(&part.results.interleaving.missing_text());
    for (contender, usage) in &part.results.start_ups {
        text.push_str(&format!(
            "taken away for the start of {}: {:.1} ms of CPU, {:.0} context switches\n",
            contender.name(),
            usage.cpu_s() * 1e3,
            usage.switches
        ));
    }
    for (contender, line) in &part.results.commands {
        text.push_str(&format!("  {}: {line}\n", contender.name()));
    }
    text.push('\n');
    text
}

fn case_table(index: usize, part: &Part<'_>, cpus: usize) -> Option<String> {
    let mut table = Table::new(&[
        "",
        "IOPS",
        "mean us",
        "p99 us",
        "client us/IO",
        "user",
        "sys",
        "switches/IO",
        "with fio us/IO",
        "with fio switches/IO",
        "OSD us/IO",
        "bound IOPS",
    ]);
    let mut any = false;
    for contender in Contender::ALL {
        let Some(found) = summary(part.results, index, contender) else { continue };
        any = true;
        let bound = match part.kind {
            PlaceKind::Cluster => found.bound_iops(cpus),
            PlaceKind::Null => None,
        };
        table.row(case_row(contender, &found, bound));
    }
    any.then(|| table.text())
}

fn case_row(contender: Contender, found: &Summary, bound: Option<f64>) -> Vec<String> {
    vec![
        contender.name().to_owned(),
        number(Some(found.speeds.iops)),
        number(Some(found.speeds.mean_us)),
        number(Some(found.speeds.p99_us)),
        number(Some(found.client_us_per_io)),
        number(Some(found.client_user_us_per_io)),
        number(Some(found.client_system_us_per_io)),
        number(Some(found.switches_per_io)),
        found.with_fio_us_per_io.map_or(String::new(), |us| number(Some(us))),
        found.with_fio_switches_per_io.map_or(String::new(), |all| number(Some(all))),
        number(found.osd_us_per_io),
        bound.map_or(String::new(), |iops| number(Some(iops))),
    ]
}

/// How far the OSDs let IOPS rise, as a text.
fn bounds(cases: &[Case], results: &Results, cpus: usize) -> String {
    let mut lines = String::new();
    for (index, case) in cases.iter().enumerate() {
        let Some(librbd) = summary(results, index, Contender::Librbd) else { continue };
        let most = librbd.bound_iops(cpus).and_then(|bound| quotient(bound, librbd.speeds.iops));
        if let Some(most) = most {
            lines.push_str(&format!("  {}: at most {most:.1} of librbd's IOPS\n", case.name()));
        }
    }
    if lines.is_empty() {
        return "no OSD of this cluster was found on this machine, so its CPU time is not known\n\n"
            .to_owned();
    }
    format!(
        "the OSDs run on the {cpus} CPUs of the clients; if a client cost no CPU time at all, they \
         would allow\n{lines}\n"
    )
}

fn open_table(results: &Results) -> Option<String> {
    let mut table = Table::new(&["", "CPU ms", "user", "sys", "switches", "runs"]);
    for (contender, all) in &results.openings {
        let usage = Usage::median(all)?;
        table.row(vec![
            contender.name().to_owned(),
            number(Some(usage.cpu_s() * 1e3)),
            number(Some(usage.user_s * 1e3)),
            number(Some(usage.system_s * 1e3)),
            number(Some(usage.switches)),
            all.len().to_string(),
        ]);
    }
    (!results.openings.is_empty()).then(|| table.text())
}

/// One line for every comparison.
fn ratio_table(rows: &[Row]) -> String {
    let heading = ["", "against", "unit", "ours", "theirs", "ratio", "range", "target", ""];
    let mut table = Table::new(&heading);
    for row in rows.iter().filter(|row| row.unit != Measure::P99.unit() || row.pass.is_some()) {
        let bound = match (row.target, row.target_unit) {
            (Some(target), Some("at most")) => format!("ours <= {target}"),
            (Some(target), _) => format!("ratio >= {target}"),
            (None, _) => String::new(),
        };
        table.row(vec![
            row.case.clone(),
            row.peer.clone().unwrap_or_else(|| "-".to_owned()),
            row.unit.to_owned(),
            number(row.ours),
            number(row.theirs),
            number(row.ratio),
            extent(row),
            bound,
            verdict(row).to_owned(),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::rbd::compare::compare;
    use crate::rbd::contender::Cell;
    use crate::rbd::run::cases;

    #[test]
    fn a_report_shows_numbers_ratios_verdicts_bounds_and_who_is_missing() {
        let mut results = Results::default();
        let cell = |iops: f64, user_s: f64| Cell {
            speed: Measured { ios: 1000, iops, mean_us: 50.0, seconds: 1.0, ..Measured::default() },
            client: Usage { user_s, system_s: 0.0, switches: 250.0 },
            osd_cpu_s: Some(0.05),
            ..Cell::default()
        };
        results.interleaving.cells.insert((2, Contender::Librbd), vec![cell(20_000.0, 0.03)]);
        results.interleaving.cells.insert((2, Contender::Embed), vec![cell(30_000.0, 0.01)]);
        results.interleaving.missing.push((Contender::RbdNbd, "there is no /dev/nbd0".to_owned()));
        let opened = Usage { user_s: 0.1, system_s: 0.05, switches: 700.0 };
        results.openings.insert(Contender::Librbd, vec![opened; 2]);
        results.start_ups.insert(Contender::Librbd, opened);
        let cases = cases();
        let rows = compare(PlaceKind::Cluster, &cases, &results, 2);
        let about = vec!["pool rep".to_owned()];
        let part = Part { kind: PlaceKind::Cluster, results: &results, rows, about };
        let text = report(&cases, &[part], &["commit abc".to_owned()], 2);
        let line = |start: &str, word: &str| {
            let mut lines = text.lines().filter(|line| line.trim_start().starts_with(start));
            assert!(lines.any(|line| line.contains(word)), "{start} … {word} is not in\n{text}");
        };
        line("THE CLUSTER", "");
        line("pool rep", "");
        line("embed", "10.0");
        line("librbd", "40000");
        line("4k-randread-qd32:", "at most 2.0 of librbd's");
        line("4k-randread-qd32/embed", "ratio >= 4  MISS");
        line("4k-randread-qd32/embed", "ours <= 0.3  pass");
        line("librbd", "150");
        line("not measured: rbd-nbd", "/dev/nbd0");
        line("taken away", "150.0 ms");
        line("commit", "abc");
        line("1 of 2 targets", "reached");
        assert!(!text.contains("128k"), "cases without numbers are not shown");
    }
}
