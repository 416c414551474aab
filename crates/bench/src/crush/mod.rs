//! `fieldstone crush bench`: our mapper, Ceph's C mapper, and Ceph's tools.
//!
//! The benchmark measures two things: the time of a mapping, compared with the C mapper in the same
//! process (`--libcrush`, a build of Ceph's `src/crush/*.c`); and the time of `crush map` and
//! `crush balance`, compared with `crushtool --test` and `osdmaptool --upmap`, all processes on the
//! same files. Contenders take turns. The report has medians over the rounds.
//!
//! | file | one idea |
//! |---|---|
//! | `case` | maps and rules |
//! | `libcrush` | the C mapper |
//! | `measure` | mappings in this process |
//! | `tools` | whole programs |

mod case;
mod libcrush;
mod measure;
mod tools;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_crush::Kernel;

use self::case::Case;
use self::libcrush::Libcrush;
use self::measure::{Contender, Samples};
use super::choice::{self, Choice};
use super::row::{Better, Row};
use super::stats::median;
use super::table::{Table, number};
use super::{machine, report};

const BENCH: &str = "crush";
const NS: &str = "ns per mapping";

/// Options of `crush bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A shared library with Ceph's C mapper (its src/crush/*.c), for comparison.
    #[arg(long, value_name = "PATH")]
    libcrush: Option<PathBuf>,
    /// Run only these cases, with * for anything. May be repeated.
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<Choice>,
    /// Rounds per contender; the report has medians over the rounds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    rounds: u32,
    /// List the cases, and measure nothing.
    #[arg(long)]
    list: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// The run was interrupted, the library does not exist, or contenders give different results.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cases = case::all();
    let names: Vec<String> =
        cases.iter().map(|case| case.name.clone()).chain(tools::names()).collect();
    if args.list {
        names.iter().for_each(|name| print_line!("{name}"));
        return Ok(());
    }
    for choice in &args.only {
        if !names.iter().any(|name| choice.takes(name, "")) {
            bail!("--only {} takes nothing; --list prints the cases", choice.text());
        }
    }
    let chosen = |name: &str| choice::chosen(&args.only, name, "");
    let signals = Signals::install()?;
    let library = args.libcrush.as_deref().map(load).transpose()?;
    let bar = super::case_bar("crush bench", names.iter().filter(|name| chosen(name)).count());
    let mut report = Report::default();
    for case in cases.iter().filter(|case| chosen(&case.name)) {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        bar.set_message(case.name.clone());
        let samples = measure::measure(case, library.as_ref(), args.rounds)?;
        report.add(case, &samples);
        bar.inc(1);
    }
    let tools = tools::run(&chosen, args.rounds, &signals, &bar)?;
    bar.finish_and_clear();
    if library.is_none() && cases.iter().any(|case| chosen(&case.name)) {
        report.missing.push("the C mapper: name a build of it with --libcrush".to_owned());
    }
    report.print(args, library.as_ref(), tools)
}

fn load(path: &Path) -> anyhow::Result<Libcrush> {
    Libcrush::load(path).with_context(|| format!("cannot use {}", path.display()))
}

/// The results so far.
#[derive(Default)]
struct Report {
    table: Option<Table>,
    rows: Vec<Row>,
    missing: Vec<String>,
}

impl Report {
    fn add(&mut self, case: &Case, samples: &Samples) {
        let found = |contender| median(&samples.ns[contender as usize]);
        let theirs = found(Contender::Libcrush);
        let mut line = vec![case.name.clone(), number(theirs)];
        for (contender, what, target) in [
            (Contender::Batch, "batch", Some(case.batch_target)),
            (Contender::Single, "single", case.single_target),
        ] {
            let name = format!("{}-{what}", case.name);
            let mut row = Row::new(BENCH, name, NS, Better::Less, (found(contender), theirs));
            row.peer = theirs.map(|_| "libcrush".to_owned());
            row.seconds = samples.seconds;
            let row = row.at_least(target);
            line.extend([number(row.ours), number(row.ratio), number(row.target), verdict(&row)]);
            self.rows.push(row);
        }
        let table = self.table.get_or_insert_with(|| {
            Table::new(&[
                "ns per mapping",
                "C mapper",
                "batch",
                "ratio",
                "target",
                "",
                "single",
                "ratio",
                "target",
                "",
            ])
        });
        table.row(line);
    }

    fn print(
        mut self,
        args: &Args,
        library: Option<&Libcrush>,
        tools: tools::ToolResults,
    ) -> anyhow::Result<()> {
        let mut text = String::new();
        if let Some(table) = &self.table {
            text.push_str(&table.text());
        }
        if !tools.rows.is_empty() {
            let heading = ["seconds", "theirs", "ours", "ratio", "target", ""];
            let mut table = Table::new(&heading);
            for row in &tools.rows {
                let theirs =
                    format!("{} {}", row.peer.as_deref().unwrap_or("-"), number(row.theirs));
                let numbers = [number(row.ours), number(row.ratio), number(row.target)];
                let mut line = vec![row.case.clone(), theirs];
                line.extend(numbers);
                line.push(verdict(row));
                table.row(line);
            }
            text.push_str(&table.text());
        }
        self.rows.extend(tools.rows);
        self.missing.extend(tools.missing);
        for what in &self.missing {
            text.push_str(&format!("not measured: {what}\n"));
        }
        text.push_str(&format!("{}\n", report::made_by()));
        text.push_str(&format!(
            "medians of {} interleaved rounds on one core; kernel {}\n",
            args.rounds,
            Kernel::best()
        ));
        if let Some(library) = library {
            text.push_str(&format!("C mapper: {}\n", library.path.display()));
        }
        text.push_str(&report::lines(&machine::describe()));
        text.push_str(&format!("load at the end: {}\n", machine::load()));
        text.push_str(&report::targets_reached(&self.rows));
        report::print(args.json.as_deref(), &text, &self.rows)
    }
}

fn verdict(row: &Row) -> String {
    match row.pass {
        None => String::new(),
        Some(true) => "ok".to_owned(),
        Some(false) => "missed".to_owned(),
    }
}
