//! `fieldstone code bench`: our codes, other libraries, and the limit of memory.
//!
//! The benchmark shows whether one table-driven engine is as fast as libraries that were written
//! for one code. All contenders run in this process, the libraries through their C interfaces, and
//! take turns every few milliseconds. Ratios within one round are meaningful even on a shared
//! machine; absolute numbers hardly are. `docs/benchmarks.md` explains the columns and the reasons
//! that make the numbers invalid.
//!
//! | file | one idea |
//! |---|---|
//! | `case` | the cases |
//! | `contender` | the contenders of a case, and the check of their bytes |
//! | `isal`, `jerasure` | the peers |
//! | `limit` | the loads and stores of a code, with only XOR |
//! | `memory` | stripes, hot and cold |
//! | `measure` | the rounds and samples of a run |
//! | `compare` | targets and rows |
//! | `text` | the report |

pub(crate) mod case;
mod compare;
pub(crate) mod contender;
mod isal;
pub(crate) mod jerasure;

mod limit;
pub(crate) mod measure;
pub(crate) mod memory;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_gf::Kernel;

use self::case::Case;
use self::contender::{Contender, Peers};
use self::isal::Isal;
use self::jerasure::Jerasure;
use self::measure::{Results, RunConfig};
use self::memory::Region;
use super::choice::Choice;
use super::{machine, report};
use fieldstone_units as units;

/// The file name of the system's ISA-L.
const ISAL: &str = "libisal.so.2";
/// The file name of the system's Jerasure.
pub(crate) const JERASURE: &str = "libJerasure.so.2";

/// Options of `code bench`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write the rows to this file as JSON, one per line; - for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these: CASE, CONTENDER or CASE/CONTENDER, with * for anything. May be repeated.
    #[arg(long, value_name = "CHOICE", value_delimiter = ',')]
    only: Vec<Choice>,
    /// Rounds of a few milliseconds per contender; the report has medians over the rounds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    rounds: u32,
    /// Memory for the stripes of cold cases, shared by all cores. It must be much larger than the
    /// caches.
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = units::parse_size)]
    memory: u64,
    /// The shared library of ISA-L, for example a build of its current source. [default:
    /// libisal.so.2 of the system]
    #[arg(long, value_name = "PATH")]
    isal: Option<PathBuf>,
    /// The shared library of Jerasure, with gf-complete behind it. [default: libJerasure.so.2 of
    /// the system]
    #[arg(long, value_name = "PATH")]
    jerasure: Option<PathBuf>,
    /// List the cases, and measure nothing.
    #[arg(long)]
    list: bool,
}

/// Runs the benchmark.
///
/// # Errors
/// The run was interrupted, a library named on the command line does not exist, or contenders
/// compute different bytes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cases = case::all();
    if args.list {
        cases.iter().for_each(|case| print_line!("{}", case.name()));
        return Ok(());
    }
    check(args, &cases)?;
    let signals = Signals::install()?;
    let mut missing = Vec::new();
    let peers = Peers {
        isal: peer("isa-l", args.isal.as_deref(), ISAL, Isal::load, &mut missing)?,
        jerasure: peer(
            "jerasure",
            args.jerasure.as_deref(),
            JERASURE,
            Jerasure::load,
            &mut missing,
        )?,
    };
    let machine = machine::describe();
    let region = Region::map(usize::try_from(args.memory)?)?;
    let chosen: Vec<Case> = cases
        .into_iter()
        .filter(|case| {
            let name = case.name();
            Contender::ALL.iter().any(|who| super::choice::chosen(&args.only, &name, who.name()))
        })
        .collect();
    let config = RunConfig {
        cases: &chosen,
        choices: &args.only,
        rounds: args.rounds,
        cores: measure::allowed_cores()?,
    };
    let bar = super::case_bar("code bench", chosen.len());
    let results = measure::measure(&config, &peers, &region, &signals, &bar);
    bar.finish_and_clear();
    let mut results = results?;
    results.missing.splice(0..0, missing);
    tell(args, &config, &peers, &machine, &results)
}

fn check(args: &Args, cases: &[Case]) -> anyhow::Result<()> {
    const UNIT: u64 = 2 << 20;
    if args.memory < 8 * UNIT || !args.memory.is_multiple_of(UNIT) {
        bail!("--memory must be a multiple of 2M and at least 16M");
    }
    for choice in &args.only {
        let met = |case: &Case| {
            let name = case.name();
            Contender::ALL.iter().any(|contender| choice.takes(&name, contender.name()))
        };
        if !cases.iter().any(met) {
            bail!(
                "--only {} takes nothing; --list prints the cases; the contenders are {}",
                choice.text(),
                Contender::ALL.map(Contender::name).join(" ")
            );
        }
    }
    Ok(())
}

/// Loads a peer from the given path, or else the system's. A given path must exist.
fn peer<T>(
    name: &str,
    given: Option<&Path>,
    usual: &str,
    load: impl Fn(&Path) -> anyhow::Result<T>,
    missing: &mut Vec<(String, String)>,
) -> anyhow::Result<Option<T>> {
    if let Some(path) = given {
        return load(path).with_context(|| format!("cannot use {}", path.display())).map(Some);
    }
    match load(Path::new(usual)) {
        Ok(peer) => Ok(Some(peer)),
        Err(error) => {
            missing.push((name.to_owned(), format!("{error:#}")));
            Ok(None)
        }
    }
}

/// Prints the report and writes the rows.
fn tell(
    args: &Args,
    config: &RunConfig<'_>,
    peers: &Peers,
    machine: &[String],
    results: &Results,
) -> anyhow::Result<()> {
    let rows = compare::compare(config.cases, results);
    let mut setting = vec![
        report::made_by(),
        format!(
            "medians of {} interleaved rounds; kernel {}; {} cores; memory {}",
            config.rounds,
            Kernel::best(),
            config.cores.len(),
            units::size(args.memory)
        ),
    ];
    setting.extend_from_slice(machine);
    if let Some(isal) = &peers.isal {
        setting.push(format!("isa-l: {}", isal.path.display()));
    }
    if let Some(jerasure) = &peers.jerasure {
        setting.push(format!("jerasure and gf-complete: {}", jerasure.path.display()));
    }
    setting.push(format!("load at the end: {}", machine::load()));
    let text = text::report(config.cases, results, &rows, &setting);
    report::print(args.json.as_deref(), &text, &rows)
}
