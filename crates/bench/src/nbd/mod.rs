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
//! | `client` | who makes the accesses: fio, or this program with the device in its process |
//! | `measure` | the rounds of a run |
//! | `summary` | medians of rounds |
//! | `compare` | pairs, targets, rows |
//! | `text` | the report of a standard run |
//! | `sweep` | the rows and the report of the papers' grid |
//! | `draw` | both kinds of runs as a page |

mod case;
mod client;
mod compare;
mod contender;
mod draw;
mod measure;
mod summary;
mod sweep;
mod text;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_console::stderr;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::contender::{Contender, Setup};
use self::measure::{Results, RunConfig};
use super::choice::Choice;
use super::{fio, machine, row};
use fieldstone_units as units;

/// Options of `bench nbd`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of nbd")]
pub struct Options {
    /// Size of each device.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::parse_size)]
    size: u64,
    /// The folder in which the run makes its own folder for all files and removes it at the end. It
    /// must be on the file system to be measured. [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Length of one cell, in seconds. [default: 3, with --sweep 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    runtime: Option<f64>,
    /// Rounds; the report has medians over the rounds, with --sweep means. [default: 3, with
    /// --sweep 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Run only these: CASE, CONTENDER or CASE/CONTENDER, with * for anything. May be repeated.
    #[arg(long, value_name = "CHOICE", value_delimiter = ',')]
    only: Vec<Choice>,
    /// Cores of our servers.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    cores: u16,
    /// Run the papers' grid instead: 4 KiB to 512 KiB, sequential and random, read and write.
    #[arg(long)]
    sweep: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds between 0.1 and 3600".to_owned()),
    }
}

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
    let options = &args.nbd;
    check(options)?;
    let signals = Signals::install()?;
    let client = fio::version()?;
    let cases = if options.sweep { case::grid() } else { case::standard() };
    let contenders: &[Contender] =
        if options.sweep && options.only.is_empty() { &SWEEPERS } else { &Contender::ALL };
    let config = RunConfig {
        cases: &cases,
        choices: &options.only,
        contenders,
        rounds: options.rounds.unwrap_or(if options.sweep { 4 } else { 3 }),
        seconds: options.runtime.unwrap_or(if options.sweep { 1.0 } else { 3.0 }),
        rest: !options.sweep,
    };
    let folder = RunFolder::make(options.dir.as_deref())?;
    let setup = folder.setup(options)?;
    check_space(&config, &setup)?;
    let machine = machine::describe();
    let bar = progress_bar();
    let results = measure::measure(&config, &setup, &signals, &bar);
    bar.finish_and_clear();
    let results = results?;
    let setting = setting(&config, options, &[machine, vec![client]].concat(), &results);
    report(args, &config, &results, &setting)
}

fn check(options: &Options) -> anyhow::Result<()> {
    const SMALLEST: u64 = 16 << 20;
    if options.size < SMALLEST || !options.size.is_multiple_of(1 << 20) {
        bail!("--size must be a multiple of 1M and at least 16M");
    }
    let cases = if options.sweep { case::grid() } else { case::standard() };
    for choice in &options.only {
        let met = |case: &case::Case| {
            Contender::ALL.iter().any(|contender| choice.takes(&case.name(), contender.name()))
        };
        if !cases.iter().any(met) {
            let cases: Vec<String> = cases.iter().map(case::Case::name).collect();
            let contenders = Contender::ALL.map(Contender::name);
            bail!(
                "--only {} takes nothing; the cases are {}; the contenders are {}",
                choice.text(),
                cases.join(" "),
                contenders.join(" ")
            );
        }
    }
    Ok(())
}

fn check_space(config: &RunConfig<'_>, setup: &Setup) -> anyhow::Result<()> {
    let wanted = config.wanted();
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
fn report(
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
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => stderr::print(format_args!("{text}")),
        _ => print_text!("{text}"),
    }
    if let Some(path) = &args.json {
        row::write(path, &rows)?;
    }
    if let Some(path) = &args.html {
        let page = if args.nbd.sweep {
            draw::sweep_page(config.cases, results, setting)
        } else {
            draw::standard_page(config.cases, results, setting)
        };
        fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some((contender, _)) = results.missing.iter().find(|(who, _)| who.is_ours()) {
        bail!("{} could not be measured to the end; see above", contender.name());
    }
    Ok(())
}

/// The conditions of the run, in lines.
fn setting(
    config: &RunConfig<'_>,
    options: &Options,
    machine: &[String],
    results: &Results,
) -> Vec<String> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let made_by = format!("made by: fieldstone {} (commit {})", command.join(" "), row::COMMIT);
    let rounds = format!(
        "{} of {} interleaved rounds of {} s per cell, devices of {}",
        if options.sweep { "means" } else { "medians" },
        config.rounds,
        config.seconds,
        units::size(options.size)
    );
    let mut lines = vec![made_by, rounds];
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

fn progress_bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let template = "bench nbd [{bar:32}] {pos}/{len}  ETA {eta}  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// The folder of a run. Dropping this removes it.
struct RunFolder {
    files: PathBuf,
    sockets: PathBuf,
}

impl RunFolder {
    fn make(dir: Option<&Path>) -> anyhow::Result<Self> {
        /// The system allows 107 bytes for the path of a socket. This is the room for the socket's
        /// name.
        const ROOM_FOR_NAMES: usize = 40;
        let name = format!("fieldstone-bench-{}", std::process::id());
        let parent = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let parent = parent
            .canonicalize()
            .with_context(|| format!("cannot find the folder {}", parent.display()))?;
        if parent.display().to_string().contains(char::is_whitespace) {
            bail!("{}: name a folder without blanks in its path", parent.display());
        }
        let files = parent.join(&name);
        let sockets = if files.as_os_str().len() + ROOM_FOR_NAMES < 107 {
            files.clone()
        } else {
            std::env::temp_dir().join(&name)
        };
        let folder = Self { files, sockets };
        for path in [&folder.files, &folder.sockets] {
            fs::create_dir_all(path)
                .with_context(|| format!("cannot make the folder {}", path.display()))?;
        }
        Ok(folder)
    }

    fn setup(&self, options: &Options) -> anyhow::Result<Setup> {
        Ok(Setup {
            folder: self.files.clone(),
            sockets: self.sockets.clone(),
            size_bytes: options.size,
            cores: options.cores,
            program: std::env::current_exe().context("cannot find this program's file")?,
        })
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        for path in [&self.files, &self.sockets] {
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    eprint_line!("fieldstone: cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_away() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = RunFolder::make(Some(parent.path())).expect("it is made");
        let path = folder.files.clone();
        fs::write(path.join("x"), "y").expect("it is a folder");
        drop(folder);
        assert!(!path.exists());
        assert!(RunFolder::make(Some(Path::new("/no/such/folder"))).is_err());
    }

    #[test]
    fn run_times_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "4000", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
