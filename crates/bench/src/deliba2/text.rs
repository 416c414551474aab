//! The report: for each figure a table of our numbers, librbd's and the paper's.

use std::fmt::Write as _;

use super::case::{Mode, PATTERNS, paper_name};
use super::contender::Who;
use super::cores::{self, Scaling};
use super::figure::{Content, Figure, Grid};
use super::grid::Part;
use super::paper::{self, Of, Paper, Quantity};
use super::rows::{NOT_PRINTED, all_patterns, is_gain, point, shows, speeds, stage, value};
use super::stages::{self, Breakdowns, PaperStage};
use crate::fio::Pattern;
use crate::interleaving::Entrant;
use crate::report::lines;
use crate::table::{Table, number};

/// What a run has measured.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The grids, one for each mode.
    pub parts: Vec<Part>,
    /// Where the latency goes.
    pub stages: Option<Breakdowns>,
    /// Speeds over cores.
    pub cores: Option<Scaling>,
    /// What was not measured, and why.
    pub absent: Vec<String>,
}

impl Found {
    /// The grid of a mode.
    pub fn part(&self, mode: Mode) -> Option<&Part> {
        self.parts.iter().find(|part| part.mode == mode)
    }

    /// The contenders that have left, and the reasons.
    pub fn missing(&self) -> Vec<(Who, String)> {
        let grids = self.parts.iter().map(|part| &part.results.missing);
        let stages = self.stages.iter().map(|found| &found.results.missing);
        let cores = self.cores.iter().map(|found| &found.results.missing);
        grids.chain(stages).chain(cores).flatten().cloned().collect()
    }

    /// Those that were measured anywhere, in the order of the report.
    pub fn present(&self) -> Vec<Who> {
        let is_there = |who: &Who| {
            let grids = self.parts.iter().flat_map(|part| part.results.cells.keys());
            let stages = self.stages.iter().flat_map(|found| found.results.cells.keys());
            let cores = self.cores.iter().flat_map(|found| found.results.cells.keys());
            grids.chain(stages).chain(cores).any(|(_, there)| there == who)
        };
        Who::ALL.into_iter().filter(is_there).collect()
    }
}

/// The report of a run.
pub fn report(figures: &[&Figure], found: &Found, paper: &Paper, setting: &[String]) -> String {
    let mut text = String::new();
    for figure in figures {
        let _ =
            writeln!(text, "{} ({}): {}\n", figure.title.to_uppercase(), figure.name, figure.about);
        text.push_str(&of_figure(figure, found, paper));
    }
    for who in found.present() {
        let _ = writeln!(text, "{}: {}", who.name(), who.about());
    }
    for (who, reason) in found.missing() {
        let _ = writeln!(text, "not measured to the end: {}: {reason}", who.name());
    }
    text.push_str(&lines(&found.absent));
    let _ = writeln!(text, "\nWhat differs from the paper:");
    for line in differences(&found.present()) {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "\nThe paper's words:");
    for (statement, place) in paper::STATEMENTS {
        let _ = writeln!(text, "  \"{statement}\" ({place})");
    }
    let _ = writeln!(text, "  A dash in a column of the paper: {NOT_PRINTED}.");
    let _ = writeln!(text, "  {}.\n", paper::DEPTH_REASON);
    text.push_str(&lines(setting));
    text
}

/// What differs from the paper's set-up, each once.
pub fn differences(present: &[Who]) -> Vec<&'static str> {
    let mut all: Vec<&'static str> = Vec::new();
    for line in present.iter().flat_map(|who| who.differs()) {
        if !all.contains(&line) {
            all.push(line);
        }
    }
    all
}

fn of_figure(figure: &Figure, found: &Found, paper: &Paper) -> String {
    let mut text = String::new();
    match figure.content {
        Content::Grid(grid) => {
            for part in grid.modes.iter().filter_map(|mode| found.part(*mode)) {
                for quantity in grid.quantities {
                    let table = grid_table(&grid, part, *quantity, paper);
                    let title = quantity.title();
                    let _ = writeln!(text, "{}: {title}\n{table}", part.mode.title());
                }
            }
        }
        Content::Stages => {
            if let Some(found) = &found.stages {
                let _ = writeln!(text, "{}", stage_table(found, paper));
            }
        }
        Content::Cores => {
            if let Some(found) = &found.cores {
                let _ = writeln!(text, "{}", core_table(found, paper));
            }
        }
    }
    text
}

/// One line for each pattern and size.
fn grid_table(grid: &Grid, part: &Part, quantity: Quantity, paper: &Paper) -> String {
    let is_gain = is_gain(quantity);
    let present = |who: &Who| part.results.cells.keys().any(|(_, there)| there == who);
    let whos: Vec<Who> =
        Who::ALL.into_iter().filter(|who| present(who) && shows(quantity, *who)).collect();
    let mut heading = vec![""];
    heading.extend(whos.iter().map(|who| who.name()));
    let sets: &[Of] = match (grid.of, is_gain) {
        (Of::Hardware, false) => &[Of::Software, Of::Hardware],
        (Of::Hardware, true) => &[Of::Hardware],
        (Of::Software, _) => &[Of::Software],
    };
    heading.extend(sets.iter().map(|of| match of {
        Of::Software => "paper: software",
        Of::Hardware => "paper: DeLiBA-2",
    }));
    let mut table = Table::new(&heading);
    for (index, case) in part.cases.iter().enumerate() {
        if !grid.sizes.contains(&case.load.block_bytes) {
            continue;
        }
        let ours = |who: &Who| {
            let found = speeds(&part.results, index, *who);
            let librbd = who.peer().and_then(|peer| speeds(&part.results, index, peer));
            number(found.and_then(|found| value(quantity, &found, librbd.as_ref())))
        };
        let quoted = |of: &Of| {
            let found = paper.number(quantity, *of, point(part.mode, case));
            found.map_or("-".to_owned(), |found| {
                let mark = if found.is_derived { " (derived)" } else { "" };
                format!("{}{mark}", number(Some(found.value)))
            })
        };
        let name = format!("{} {}k", paper_name(case.load.pattern), case.load.block_bytes >> 10);
        let cells = whos.iter().map(ours).chain(sets.iter().map(quoted));
        table.row(std::iter::once(name).chain(cells).collect());
    }
    table.text()
}

/// One line for each stage, with the patterns as columns.
fn stage_table(found: &Breakdowns, paper: &Paper) -> String {
    let mut text = String::new();
    for who in stages::CONTENDERS {
        let all = all_patterns(found, who);
        if all.is_empty() {
            continue;
        }
        let mut heading = vec!["% of the latency (us)"];
        heading.extend(PATTERNS.map(paper_name));
        heading.extend(["mean", "paper: mean"]);
        let mut table = Table::new(&heading);
        for part in PaperStage::ALL {
            let cell = |found: Option<(f64, f64)>| match found {
                None => "-".to_owned(),
                Some((share, us)) => format!("{} ({})", number(Some(share)), number(Some(us))),
            };
            let of_case = |index: usize| {
                cell(found.results.rounds(index, who).and_then(|cells| stage(cells, part)))
            };
            let quoted = paper.stage(part.name()).map(|found| found.value);
            let mut row = vec![part.name().to_owned()];
            row.extend((0..found.cases.len()).map(of_case));
            row.extend([cell(stage(&all, part)), number(quoted)]);
            table.row(row);
        }
        let _ =
            writeln!(text, "{}, 4 KiB, one in flight, replication\n{}", who.name(), table.text());
        let parts = super::rows::server_parts(&all);
        let parts = parts.iter().map(|(name, us)| format!("{name} {} us", number(Some(*us))));
        let _ = writeln!(
            text,
            "  user-space of {}: {}\n",
            who.name(),
            parts.collect::<Vec<_>>().join(", ")
        );
    }
    for part in PaperStage::ALL {
        let _ = writeln!(text, "  {} here: {}", part.name(), part.here());
    }
    text
}

/// One line for each pattern and number of cores.
fn core_table(found: &Scaling, paper: &Paper) -> String {
    let present = |who: &Who| found.results.cells.keys().any(|(_, there)| there == who);
    let whos: Vec<Who> = cores::CONTENDERS.into_iter().filter(present).collect();
    let mut heading = vec!["MB/s"];
    heading.extend(whos.iter().map(|who| who.name()));
    heading.push("paper: best");
    let mut table = Table::new(&heading);
    let mut last: Option<Pattern> = None;
    for (index, case) in found.cases.iter().enumerate() {
        let pattern = case.case.load.pattern;
        let ours = |who: &Who| {
            let speeds = speeds(&found.results, index, *who);
            number(speeds.map(|speeds| speeds.mb_per_second))
        };
        // The paper prints one number for a pattern: that of the best number of cores.
        let quoted = match last == Some(pattern) {
            true => String::new(),
            false => number(paper.best_of_cores(pattern).map(|found| found.value)),
        };
        last = Some(pattern);
        let mut row = vec![format!("{}, {} cores", paper_name(pattern), case.cores)];
        row.extend(whos.iter().map(ours));
        row.push(quoted);
        table.row(row);
    }
    table.text()
}

#[cfg(test)]
pub mod tests {
    use super::super::figure::{ALL, of_name};
    use super::super::rows::tests::{breakdowns, part, scaling};
    use super::*;

    /// A run of everything.
    pub fn found(with_cluster: bool) -> Found {
        Found {
            parts: Mode::ALL.map(|mode| part(mode, with_cluster)).to_vec(),
            stages: Some(breakdowns()),
            cores: Some(scaling()),
            absent: vec!["not measured: <nothing> is absent".to_owned()],
        }
    }

    #[test]
    fn the_report_has_every_figure_and_the_papers_numbers() {
        let paper = Paper::read().expect("the file is good");
        let text = report(&of_name(ALL), &found(true), &paper, &["made by: x".to_owned()]);
        for part in [
            "FIG. 4 (deliba2-fig4)",
            "TABLE 5 (deliba2-table5)",
            "paper: DeLiBA-2",
            "1.78 (derived)",
            "50.0 (50.0)",
            "47.2",
            "user-space of own-nbd: cache 15.0 us",
            "kernel here: no kernel NBD client",
            "not measured: <nothing>",
            "no FPGA",
            "0.6 in flight",
            "made by: x",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let line = |start: &str| text.lines().find(|line| line.trim_start().starts_with(start));
        let table1 = text.split("TABLE 1").nth(1).expect("it is there");
        let row = table1.lines().find(|line| line.contains("seq-read 16k")).expect("a line");
        assert!(row.trim_end().ends_with(" 68.0"), "{row}");
        assert!(line("seq-read, 2 cores").is_some_and(|row| row.contains("200")));
        assert!(line("seq-read, 1 cores").is_some_and(|row| row.trim_end().ends_with("45.0")));
    }

    #[test]
    fn without_a_cluster_there_is_a_report_too() {
        let paper = Paper::read().expect("the file is good");
        let text = report(&of_name("deliba2-fig4"), &found(false), &paper, &[]);
        assert!(!text.contains("ceph-nbd") && text.contains("own-nbd"), "{text}");
        assert!(!text.contains("FIG. 5"), "only what was asked for");
        let nothing = report(&of_name("deliba2-fig6"), &Found::default(), &paper, &[]);
        assert!(nothing.contains("FIG. 6"));
    }
}
