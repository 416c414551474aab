//! `fieldstone sim`: the seeded world.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_sim::{Failure, Options, Outcome, run_many};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A campaign ends early when so many seeds have failed: they will mostly fail alike.
const FAILURES_MAX: usize = 20;

/// Options of `sim`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct Args {
    /// Run one seed and print its trace.
    #[arg(long, value_name = "N", group = "which")]
    seed: Option<u64>,
    /// Run the seeds from A up to, but not including, B.
    #[arg(long, value_name = "A..B", group = "which", value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// Threads. [default: the number of CPUs]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// A list of seeds whose failures are known and not yet mended, one a line, `#` for comments.
    /// They are run, and told of, but do not make the campaign fail.
    #[arg(long, value_name = "FILE", requires = "seeds")]
    open: Option<PathBuf>,
    /// Run every seed, however many fail. [default: stop after 20 failures]
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// Protect the data with this code, for example zigzag:4+2, and not with those that the seeds
    /// draw.
    #[arg(long, value_name = "CODE")]
    code: Option<Profile>,
    /// Print one JSON object per run.
    #[arg(long)]
    json: bool,
}

/// The seeds of a list: the first word of each line that is not a comment.
fn read_open(path: &Path) -> anyhow::Result<BTreeSet<u64>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the list of open seeds {} cannot be read", path.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            line.parse().with_context(|| format!("{}: {line:?} is not a seed", path.display()))
        })
        .collect()
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("write A..B, for example 0..2000")?;
    let number =
        |part: &str| part.parse::<u64>().map_err(|_| format!("{part:?} is not a whole number"));
    let range = number(from)?..number(to)?;
    if range.is_empty() {
        return Err(format!("{text} holds no seed"));
    }
    Ok(range)
}

/// Runs `sim`.
///
/// # Errors
/// When a run fails; the seed that reproduces it is printed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match (args.seed, &args.seeds) {
        (Some(seed), _) => one(seed, args),
        (None, Some(seeds)) => many(seeds.clone(), args),
        (None, None) => bail!("name --seed N or --seeds A..B"),
    }
}

fn one(seed: u64, args: &Args) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let trace = (!args.json).then_some(&mut stdout as &mut dyn std::io::Write);
    let outcome = fieldstone_sim::run(seed, Options { trace, code: args.code });
    drop(stdout);
    if args.json {
        say!("{}", line(&outcome));
    } else {
        say!("{}", sentence(&outcome));
    }
    verdict(&outcome)
}

fn many(seeds: Range<u64>, args: &Args) -> anyhow::Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = args.jobs.unwrap_or(cpus).max(1);
    let bar = seed_bar(seeds.end - seeds.start);
    let start = Instant::now();
    let (mut runs, mut ops, mut virtual_ns) = (0u64, 0u64, 0u64);
    let open = args.open.as_deref().map(read_open).transpose()?.unwrap_or_default();
    let (mut failed, mut still_open) = (Vec::new(), Vec::new());
    run_many(
        seeds.clone(),
        jobs,
        |seed| fieldstone_sim::run(seed, Options { trace: None, code: args.code }),
        |outcome| {
            runs += 1;
            ops += outcome.ops;
            virtual_ns += outcome.virtual_time.0;
            bar.inc(1);
            if args.json {
                say!("{}", line(&outcome));
            }
            if let Some(failure) = &outcome.failure {
                bar.suspend(|| eprintln!("{}", reason(outcome.seed, failure)));
                if open.contains(&outcome.seed) { &mut still_open } else { &mut failed }
                    .push(outcome.seed);
            }
            args.keep_going || failed.len() < FAILURES_MAX
        },
    );
    bar.finish_and_clear();
    if !args.json {
        say!(
            "{runs} seeds, {ops} requests, {:.0} s of virtual time in {:.1} s: {} failed",
            virtual_ns as f64 / 1e9,
            start.elapsed().as_secs_f64(),
            failed.len()
        );
        if !still_open.is_empty() {
            say!("{} more failed that are known and open: {still_open:?}", still_open.len());
        }
        let mended: Vec<_> =
            open.iter().filter(|s| seeds.contains(s) && !still_open.contains(s)).collect();
        if !mended.is_empty() {
            say!("listed as open, but passed: {mended:?}");
        }
    }
    if let Some(seed) = failed.iter().min() {
        let code = args.code.map(|code| format!(" --code {code}")).unwrap_or_default();
        let count = failed.len();
        bail!("{count} seeds failed; see the first with `fieldstone sim --seed {seed}{code}`");
    }
    Ok(())
}

fn seed_bar(count: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(count), target);
    if let Ok(style) =
        ProgressStyle::with_template("[{bar:40}] {pos}/{len} seeds  {per_sec}  ETA {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn sentence(outcome: &Outcome) -> String {
    let mut text = format!(
        "seed {}: {}; {} requests ({} refused), {} events, {:.1} s of virtual time, trace {:016x}",
        outcome.seed,
        outcome.scenario,
        outcome.ops,
        outcome.ops_failed,
        outcome.events,
        outcome.virtual_time.0 as f64 / 1e9,
        outcome.trace_hash
    );
    if let Some(failure) = &outcome.failure {
        text.push('\n');
        text.push_str(&reason(outcome.seed, failure));
    }
    text
}

/// Why a seed failed, in one line.
fn reason(seed: u64, failure: &Failure) -> String {
    format!("seed {seed} FAILED {}", told(failure))
}

fn told(failure: &Failure) -> String {
    let what = failure.what.replace('\n', " ");
    format!("at {:.6} s: {what}", failure.at.0 as f64 / 1e9)
}

fn line(outcome: &Outcome) -> serde_json::Value {
    let faults: serde_json::Map<String, serde_json::Value> =
        outcome.faults.iter().map(|(kind, count)| ((*kind).to_owned(), (*count).into())).collect();
    serde_json::json!({
        "seed": outcome.seed,
        "scenario": outcome.scenario,
        "ops": outcome.ops,
        "ops_failed": outcome.ops_failed,
        "events": outcome.events,
        "virtual_ns": outcome.virtual_time.0,
        "volumes_started": outcome.volumes_started,
        "faults": faults,
        "trace_hash": format!("{:016x}", outcome.trace_hash),
        "failure": outcome.failure.as_ref().map(told),
    })
}

fn verdict(outcome: &Outcome) -> anyhow::Result<()> {
    match &outcome.failure {
        Some(failure) => bail!("seed {} failed {}", outcome.seed, told(failure)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line() {
        let at = fieldstone_block::Nanos(1_500_000_000);
        let failure = Failure { what: "panic: left\nright".to_owned(), at };
        assert_eq!(reason(7, &failure), "seed 7 FAILED at 1.500000 s: panic: left right");
    }

    #[test]
    fn lists_of_open_seeds_may_have_comments_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("open");
        std::fs::write(&file, "# why\n12\n\n7 # lost shard\n").expect("written");
        assert_eq!(read_open(&file).expect("read"), BTreeSet::from([7, 12]));
        std::fs::write(&file, "twelve\n").expect("written");
        assert!(read_open(&file).expect_err("refused").to_string().contains("twelve"));
        assert!(read_open(&folder.path().join("none")).is_err());
    }
}
