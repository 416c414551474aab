//! `fieldstone sim`: seeded simulations.

use std::io::IsTerminal;
use std::ops::Range;
use std::time::Instant;

use anyhow::bail;
use fieldstone_codes::Profile;
use fieldstone_proto::{Encode, Strategy};
use fieldstone_sim::{Chosen, Condition, Failure, Options, Outcome, run_many};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A campaign ends early after this many failed seeds, because most of them fail in the same way.
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
    /// Number of threads. [default: the number of CPUs]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Run every seed, no matter how many fail. [default: stop after 20 failures]
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// Protect the data with this code, for example zigzag:4+2, instead of the codes that the seeds
    /// choose.
    #[arg(long, value_name = "CODE")]
    code: Option<Profile>,
    /// Make all volumes thin and grow none, as the worlds of older seeds did.
    #[arg(long)]
    thin: bool,
    /// Replicate the journal in this way, instead of the ways that the seeds choose: flat, ring,
    /// tree or primary.
    #[arg(long, value_name = "WAY")]
    replicate: Option<Strategy>,
    /// Who makes the parity of new segments, instead of the ways that the seeds choose: client or
    /// stream.
    #[arg(long, value_name = "WAY")]
    encode: Option<Encode>,
    /// Give each run these conditions, where the seeds choose otherwise: clock (the time of day
    /// jumps), keys (the pool's secret is replaced), places (nodes run in processes of their own),
    /// pieces (shards go to the disk in short pieces), clients (volumes have no secret of the
    /// pool), copies (five copies of the data), stranger (a stranger speaks to the nodes), replays
    /// (a stranger sends requests of present writers once more; no seed chooses this).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    with: Vec<Condition>,
    /// Give no run these conditions. The worlds of older seeds had none of them.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    without: Vec<Condition>,
    /// Print one JSON object per run.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn options(&self) -> Options<'_> {
        let Self { code, thin, replicate, encode, .. } = *self;
        let conditions = Chosen { with: self.with.clone(), without: self.without.clone() };
        Options { trace: None, code, thin, replicate, encode, conditions }
    }
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
/// A run fails. The message names a seed that reproduces the failure.
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
    let outcome = fieldstone_sim::run(seed, Options { trace, ..args.options() });
    drop(stdout);
    if args.json {
        print_line!("{}", line(&outcome));
    } else {
        print_line!("{}", sentence(&outcome));
    }
    verdict(&outcome)
}

fn many(seeds: Range<u64>, args: &Args) -> anyhow::Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = args.jobs.unwrap_or(cpus).max(1);
    let bar = seed_bar(seeds.end - seeds.start);
    let start = Instant::now();
    let (mut runs, mut ops, mut virtual_ns) = (0u64, 0u64, 0u64);
    let mut failed = Vec::new();
    run_many(
        seeds,
        jobs,
        |seed| fieldstone_sim::run(seed, args.options()),
        |outcome| {
            runs += 1;
            ops += outcome.ops;
            virtual_ns += outcome.virtual_time.0;
            bar.inc(1);
            if args.json {
                print_line!("{}", line(&outcome));
            }
            if let Some(failure) = &outcome.failure {
                bar.suspend(|| eprint_line!("{}", reason(outcome.seed, failure)));
                failed.push(outcome.seed);
            }
            args.keep_going || failed.len() < FAILURES_MAX
        },
    );
    bar.finish_and_clear();
    if !args.json {
        print_line!(
            "{runs} seeds, {ops} requests, {:.0} s of virtual time in {:.1} s: {} failed",
            virtual_ns as f64 / 1e9,
            start.elapsed().as_secs_f64(),
            failed.len()
        );
    }
    if let Some(seed) = failed.iter().min() {
        let code = args.code.map(|code| format!(" --code {code}")).unwrap_or_default();
        let count = failed.len();
        let thin = if args.thin { " --thin" } else { "" };
        let replicate = args.replicate.map(|way| format!(" --replicate {way}")).unwrap_or_default();
        let encode = args.encode.map(|way| format!(" --encode {way}")).unwrap_or_default();
        let list = |option: &str, conditions: &[Condition]| {
            let names: Vec<&str> = conditions.iter().map(|condition| condition.name()).collect();
            if names.is_empty() { String::new() } else { format!(" {option} {}", names.join(",")) }
        };
        let with = format!("{}{}", list("--with", &args.with), list("--without", &args.without));
        bail!(
            "{count} seeds failed; see the first with `fieldstone sim --seed \
             {seed}{code}{thin}{replicate}{encode}{with}`"
        );
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

/// The reason for the failure of a seed, in one line.
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
        "records_relayed": outcome.relays[0],
        "records_sent_again": outcome.relays[1],
        "parities_relayed": outcome.carried[0],
        "parities_sent_again": outcome.carried[1],
        "parities_streamed": outcome.parities[0],
        "parities_coded_again": outcome.parities[1],
        "fragments_relayed": outcome.fragments,
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
}
