//! A run as text: one table for each part and work.

use fieldstone_gpu::driver::CardInfo;
use fieldstone_units as units;
use serde_json::Value;

use super::case::{Part, TARGET_BYTES_MIN};
use super::rows::{Done, LINK, SOFTWARE, crossover, is_host};
use crate::row::Row;
use crate::table::{Table, number};

/// The report of a run.
pub fn report(
    cases: &[Done],
    rows: &[Row],
    missing: &[(String, String)],
    info: &CardInfo,
    setting: &[String],
) -> String {
    let mut text = format!(
        "{}, driver {}, compute capability {}, {} multiprocessors at up to {} MHz, {} of memory, \
         {} of cache\n\n",
        info.name,
        info.driver,
        info.capability,
        info.multiprocessors,
        info.clock_khz / 1000,
        units::size(info.memory_bytes),
        units::size(info.cache_bytes),
    );
    let same = |a: &Done, b: &Done| (a.case.part, a.case.work) == (b.case.part, b.case.work);
    for group in cases.chunk_by(same) {
        if let Some(first) = group.first() {
            let table = match first.case.part {
                Part::Card => card_table(group, rows),
                Part::Host => host_table(group, rows),
                Part::Method => method_table(group, rows),
            };
            text.push_str(&format!("{}\n{table}", title(first)));
            crossovers(group).iter().for_each(|line| text.push_str(line));
            text.push('\n');
        }
    }
    for row in rows.iter().filter(|row| row.pass == Some(false)) {
        text.push_str(&format!(
            "missed: {} against {}: {} of {} GB/s, {} instead of {}\n",
            row.case,
            row.peer.as_deref().unwrap_or("-"),
            number(row.ours),
            number(row.theirs),
            number(row.ratio),
            number(row.target),
        ));
    }
    for (what, reason) in missing {
        text.push_str(&format!("not measured: {what}: {reason}\n"));
    }
    setting.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    let verdicts: Vec<bool> = rows.iter().filter_map(|row| row.pass).collect();
    let reached = verdicts.iter().filter(|pass| **pass).count();
    text.push_str(&format!("{reached} of {} targets reached\n", verdicts.len()));
    text
}

fn title(done: &Done) -> String {
    let work = done.case.work.name();
    let least = units::size_argument(TARGET_BYTES_MIN);
    match done.case.part {
        Part::Card => format!(
            "{work}, data on the card; GB/s of bytes read and written, beside the card's copy of \
             as many bytes; targets from {least} on"
        ),
        Part::Host => format!(
            "{work}, data in the host's memory; GB/s of object bytes, beside the copies alone and \
             one core of the CPU; targets from {least} on"
        ),
        Part::Method => {
            format!("{work}, each method alone, data on the card; GB/s of bytes read and written")
        }
    }
}

fn of_case<'a>(rows: &'a [Row], done: &Done) -> impl Iterator<Item = &'a Row> {
    let name = done.case.name();
    rows.iter().filter(move |row| row.case == name)
}

fn extra(row: &Row, name: &str) -> String {
    row.more.get(name).map_or_else(String::new, |value| match value {
        Value::Number(found) if found.is_f64() => number(found.as_f64()),
        other => other.to_string(),
    })
}

/// The target and the verdict of a row.
fn verdict(row: &Row) -> [String; 2] {
    let target = row.target.map_or_else(String::new, |_| format!(">= {}", number(row.target)));
    let verdict = row.pass.map_or("", |pass| if pass { "pass" } else { "MISS" });
    [target, verdict.to_owned()]
}

fn card_table(group: &[Done], rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "",
        "ours",
        "copy",
        "ratio",
        "of limit",
        "object GB/s",
        "us",
        "registers",
        "target",
        "",
    ]);
    for row in group.iter().flat_map(|done| of_case(rows, done)) {
        let mut line = vec![row.case.clone()];
        line.extend([row.ours, row.theirs, row.ratio, row.of_limit].map(number));
        line.extend(["object_gbs", "us", "registers"].map(|name| extra(row, name)));
        line.extend(verdict(row));
        table.row(line);
    }
    table.text()
}

fn host_table(group: &[Done], rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "",
        "ours",
        "link",
        "ratio",
        "one core",
        "ratio",
        "us",
        "in flight",
        "target",
        "",
    ]);
    for done in group {
        let find = |peer: &str| of_case(rows, done).find(|row| row.peer.as_deref() == Some(peer));
        let (Some(link), Some(software)) = (find(LINK), find(SOFTWARE)) else { continue };
        let mut line = vec![link.case.clone()];
        line.extend([link.ours, link.theirs, link.ratio].map(number));
        line.extend([software.theirs, software.ratio].map(number));
        line.extend(["us", "in_flight"].map(|name| extra(link, name)));
        line.extend(verdict(link));
        table.row(line);
    }
    table.text()
}

fn method_table(group: &[Done], rows: &[Row]) -> String {
    let mut table =
        Table::new(&["", "method", "alone", "registers", "chosen", "registers", "ratio"]);
    for row in group.iter().flat_map(|done| of_case(rows, done)) {
        table.row(vec![
            row.case.clone(),
            row.peer.clone().unwrap_or_default(),
            number(row.theirs),
            extra(row, "their_registers"),
            number(row.ours),
            extra(row, "registers"),
            number(row.ratio),
        ]);
    }
    table.text()
}

/// One line for each code: the size from which on the card is faster than one core.
fn crossovers(group: &[Done]) -> Vec<String> {
    let measured: Vec<&Done> = group.iter().filter(|done| is_host(done)).collect();
    let same = |a: &&Done, b: &&Done| a.case.code == b.case.code;
    let line = |cases: &[&Done]| {
        let first = cases.first()?;
        let (work, code) = (first.case.work.name(), first.case.code);
        Some(match crossover(cases) {
            Some(bytes) => format!(
                "  {work} {code}: the card is faster than one core from objects of {} on\n",
                units::size_argument(bytes)
            ),
            None => format!("  {work} {code}: one core is faster with the largest object\n"),
        })
    };
    measured.chunk_by(same).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::case::{Case, Codings, Work};
    use super::super::rows::{Numbers, rows};
    use super::super::{host, on_card};
    use super::*;

    fn info() -> CardInfo {
        CardInfo {
            name: "a card".to_owned(),
            driver: "1.2".to_owned(),
            interface: "13.0".to_owned(),
            capability: "9.0".to_owned(),
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_bytes: 80 << 30,
            cache_bytes: 50 << 20,
            shared_bytes_max: 227 << 10,
        }
    }

    fn done(part: Part, object_bytes: u64, numbers: Numbers) -> Done {
        let case = Case { part, work: Work::Encode, code: "rs:4+2", object_bytes };
        let coding = Codings::default().get(&case).expect("a map");
        Done { case, sizes: coding.sizes(object_bytes), numbers }
    }

    /// A program that takes `ours` microseconds, and a copy that takes `copy`.
    fn on_card(copy: f64, programs: &[f64]) -> on_card::Times {
        let times = |us: f64| vec![us / 1e6; 3];
        let programs = programs.iter().copied().map(times).collect();
        on_card::Times { copy: times(copy), programs, seconds: 1.0 }
    }

    fn in_host(device: f64, link: f64, software: f64) -> Numbers {
        let times = |us: f64| vec![us / 1e6; 3];
        let (device, link, software) = (times(device), times(link), times(software));
        Numbers::Host(host::Times { device, link, software, in_flight: 8, seconds: 1.0 })
    }

    fn cases() -> Vec<Done> {
        let programs = vec![("chosen", 40), ("planes", 64), ("horner", 32)];
        vec![
            done(Part::Card, 1 << 20, Numbers::Card(on_card(1.0, &[2.0]), 40)),
            done(Part::Card, 16 << 20, Numbers::Card(on_card(10.0, &[12.0]), 40)),
            done(Part::Card, 64 << 20, Numbers::Card(on_card(40.0, &[80.0]), 40)),
            done(Part::Host, 64 << 10, in_host(20.0, 10.0, 10.0)),
            done(Part::Host, 1 << 20, in_host(60.0, 40.0, 100.0)),
            done(Part::Host, 16 << 20, in_host(700.0, 650.0, 2000.0)),
            done(
                Part::Method,
                256 << 20,
                Numbers::Methods(on_card(200.0, &[210.0, 420.0, 210.0]), programs),
            ),
        ]
    }

    #[test]
    fn rows_are_unique_and_carry_their_targets() {
        let rows = rows(&cases(), &info());
        let mut keys: Vec<_> = rows.iter().map(|row| (&row.case, row.unit, &row.peer)).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), rows.len());
        assert_eq!(rows.len(), 3 + 3 * 2 + 2);
        let targets: Vec<_> = rows.iter().map(|row| (row.target, row.pass)).collect();
        assert_eq!(targets[0], (None, None), "a small object");
        assert_eq!(targets[1], (Some(0.8), Some(true)));
        assert_eq!(targets[2], (Some(0.8), Some(false)));
        assert_eq!(targets[7], (Some(0.9), Some(true)));
        assert_eq!(targets[8], (None, None), "software has no target");
        // 1.5 MiB in 2 us. The limit is the copy of the largest object: 384 MiB in 200 us.
        let near = |value: Option<f64>, expected: f64| {
            assert!((value.expect("a number") / expected - 1.0).abs() < 1e-9, "{value:?}");
        };
        near(rows[0].ours, 1.5 * 1.048_576e6 / 2e3);
        near(rows[0].ratio, 0.5);
        near(rows[0].limit, 384.0 * 1.048_576e6 / 200e3);
        near(rows[0].more["us"].as_f64(), 2.0);
        near(rows[0].more["object_gbs"].as_f64(), 1.048_576e6 / 2e3);
        assert_eq!(rows[0].more["registers"], 40);
        assert_eq!(rows[0].more["card"], "a card");
        near(rows[9].ratio, 2.0);
        assert_eq!(
            (rows[9].peer.as_deref(), &rows[9].more["their_registers"]),
            (Some("planes"), &64.into())
        );
    }

    #[test]
    fn the_report_says_who_wins_and_what_is_missing() {
        let cases = cases();
        let rows = rows(&cases, &info());
        let missing = [("host".to_owned(), "no memory".to_owned())];
        let text = report(&cases, &rows, &missing, &info(), &["made by: x".to_owned()]);
        let line = |start: &str| {
            let found = text.lines().find(|line| line.trim_start().starts_with(start));
            found.unwrap_or_else(|| panic!("no line {start} in\n{text}"))
        };
        assert!(line("a card, driver 1.2").contains("132 multiprocessors"), "{text}");
        assert!(line("card-encode-rs:4+2-16M").ends_with(">= 0.80  pass"), "{text}");
        assert!(line("card-encode-rs:4+2-64M").ends_with(">= 0.80  MISS"), "{text}");
        assert!(line("encode rs:4+2: ").ends_with("from objects of 1M on"), "{text}");
        assert!(line("missed: ").contains("card-encode-rs:4+2-64M against copy"), "{text}");
        assert!(line("not measured: host").ends_with("no memory"), "{text}");
        assert!(line("2 of 3 targets").ends_with("reached"), "{text}");
        let slow = done(Part::Host, 1 << 30, in_host(2.0, 1.0, 1.0));
        let crossing = crossovers(&[cases[5].clone(), slow]);
        assert!(crossing[0].contains("one core is faster"), "{crossing:?}");
    }
}
