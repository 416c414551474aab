//! `fieldstone bench nbd`: our servers, their peers and the raw disk, with the same client.
//!
//! The benchmark shows the gain or loss of a user who serves a device from here instead of from
//! `nbdkit` or `qemu-nbd`: I/Os, bandwidth, latency, and their cost in CPU time on both sides.
//! Ratios compare contenders that took turns on the same machine. Absolute numbers of one machine
//! say little about another. `docs/benchmarks.md` explains the columns and the reasons that make
//! the numbers invalid.
//!
//! | file | one idea |
//! |---|---|
//! | `case` | the loads: the standard ones, the papers' grid |
//! | `contender` | the contenders, and the commands that start them |
//! | `measure` | the rounds of a run |
//! | `summary` | medians of rounds |
//! | `compare` | pairs, targets, rows |
//! | `text` | the report of a standard run |
//! | `sweep` | the rows and the report of the papers' grid |
//! | `draw` | both kinds of runs as a page |

mod case;
mod compare;
mod contender;
mod draw;
mod measure;
mod summary;
mod sweep;
mod text;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;

use self::contender::{Contender, Setup};
use self::measure::{Results, RunConfig};
use super::folder::RunFolder;
use super::interleaving::{Entrant, Schedule};
use super::options::LoadOptions;
use super::{case_bar, choice, fio, machine, report};
use fieldstone_units as units;

/// Options of `bench nbd`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of nbd")]
#[group(id = "nbd")]
pub struct Options {
    /// Run the papers' grid instead: 4 KiB to 512 KiB, sequential and random, read and write.
    #[arg(long)]
    sweep: bool,
}

/// Size of each device without `--size`.
const SIZE_BYTES: u64 = 1 << 30;

/// The contenders of a sweep without `--only`. With all contenders, a sweep would take most of an
/// hour.
const SWEEPERS: [Contender; 5] = [
    Contender::Ram,
    Contender::NbdkitMemory,
    Contender::Rs,
    Contender::NbdkitFile,
    Contender::RsDirect,
];

/// Runs the benchmark.
pub fn run(args: &super::Args) -> anyhow::Result<()> {
    let (options, sweep) = (&args.shared, args.nbd.sweep);
    check(options, sweep)?;
    let signals = Signals::install()?;
    let client = fio::version()?;
    let cases = if sweep { case::grid() } else { case::standard() };
    let contenders: &[Contender] =
        if sweep && options.only.is_empty() { &SWEEPERS } else { &Contender::ALL };
    let config = RunConfig {
        cases: &cases,
        schedule: Schedule {
            cases: cases.iter().map(case::Case::name).collect(),
            choices: &options.only,
            contenders,
            rounds: options.rounds.unwrap_or(if sweep { 4 } else { 3 }),
        },
        seconds: options.runtime.unwrap_or(if sweep { 1.0 } else { 3.0 }),
        rest: !sweep,
    };
    let folder = RunFolder::make(options.dir.as_deref())?;
    let setup = setup(&folder, options)?;
    check_space(&config, &setup)?;
    let machine = machine::describe();
    let bar = case_bar("bench nbd", 0);
    let results = measure::measure(&config, &setup, &signals, &bar);
    bar.finish_and_clear();
    let results = results?;
    let setting = setting(&config, options, sweep, &[machine, vec![client]].concat(), &results);
    tell(args, &config, &results, &setting)
}

fn check(options: &LoadOptions, sweep: bool) -> anyhow::Result<()> {
    const SMALLEST: u64 = 16 << 20;
    let size_bytes = options.size.unwrap_or(SIZE_BYTES);
    if size_bytes < SMALLEST || !size_bytes.is_multiple_of(1 << 20) {
        bail!("--size must be a multiple of 1M and at least 16M");
    }
    let cases = if sweep { case::grid() } else { case::standard() };
    let cases: Vec<String> = cases.iter().map(case::Case::name).collect();
    choice::check(&options.only, &cases, &Contender::ALL.map(Entrant::name))
}

fn check_space(config: &RunConfig<'_>, setup: &Setup) -> anyhow::Result<()> {
    let wanted = config.schedule.wanted();
    let needed: u64 = wanted.iter().map(|who| who.disk_bytes(setup.size_bytes)).sum();
    let free = fieldstone_host::free_bytes(&setup.folder)
        .with_context(|| format!("cannot learn the free space of {}", setup.folder.display()))?;
    if needed > free {
        bail!(
            "this run may take {} in {}, and {} are free; use a smaller --size, or --only",
            units::size(needed),
            setup.folder.display(),
            units::size(free)
        );
    }
    Ok(())
}

/// Prints the report, writes rows and page, and fails if a server of ours failed.
fn tell(
    args: &super::Args,
    config: &RunConfig<'_>,
    results: &Results,
    setting: &[String],
) -> anyhow::Result<()> {
    let (rows, text) = if args.nbd.sweep {
        (sweep::rows(config.cases, results), sweep::report(config.cases, results, setting))
    } else {
        let found = compare::compare(config.cases, results);
        let text = text::report(config.cases, results, &found, setting);
        (found, text)
    };
    report::publish(args, &text, &rows, || match args.nbd.sweep {
        true => draw::sweep_page(config.cases, results, setting),
        false => draw::standard_page(config.cases, results, setting),
    })?;
    report::fail_if_ours_is_missing(&results.interleaving.missing)
}

/// The conditions of the run, in lines.
fn setting(
    config: &RunConfig<'_>,
    options: &LoadOptions,
    sweep: bool,
    machine: &[String],
    results: &Results,
) -> Vec<String> {
    let rounds = format!(
        "{} of {} interleaved rounds of {} s per cell, devices of {}",
        if sweep { "means" } else { "medians" },
        config.schedule.rounds,
        config.seconds,
        units::size(options.size.unwrap_or(SIZE_BYTES))
    );
    let mut lines = vec![report::made_by(), rounds];
    lines.extend_from_slice(machine);
    lines.push(format!("load at the end: {}", machine::load()));
    for (contender, commands) in &results.commands {
        for command in commands {
            lines.push(format!("  {}: {command}", contender.name()));
        }
        lines.push(format!("  {}: caches: {}", contender.name(), contender.caches()));
    }
    lines
}

fn setup(folder: &RunFolder, options: &LoadOptions) -> anyhow::Result<Setup> {
    Ok(Setup {
        folder: folder.files.clone(),
        sockets: folder.sockets.clone(),
        size_bytes: options.size.unwrap_or(SIZE_BYTES),
        cores: options.cores(),
        program: std::env::current_exe().context("cannot find this program's file")?,
    })
}
