//! `fieldstone gpu selftest`: runs random coding and placement jobs on the card and compares their
//! results with those of the CPU's scalar kernel and of the plain mapper bit by bit.

use std::time::Instant;

use anyhow::bail;
use fieldstone_console::signals::Signals;
use fieldstone_gpu::Card;
use fieldstone_gpu::selftest::{self, Options};
use serde_json::json;

use crate::progress::counting_bar;

/// One of that many jobs is a placement.
const JOBS_PER_PLACEMENT: u64 = 50;

/// Options of `gpu selftest`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The seed of the random maps and jobs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of jobs.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    count: u64,
    /// Jobs with one map. The driver needs some time for each map.
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u64).range(1..))]
    per_map: u64,
    /// Threads, each with its own streams on the card. [default: the number of CPUs, up to 16]
    #[arg(long, short, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// Size of the longest element.
    #[arg(long, value_name = "SIZE", default_value = "32K",
          value_parser = fieldstone_units::parse_size)]
    size: u64,
    /// The number of the card.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `gpu selftest`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let card = Card::open(args.gpu)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        seed: args.seed,
        count: args.count,
        jobs_per_map: args.per_map,
        threads: args.jobs.map_or(cpus.min(16), usize::from),
        element_bytes_max: usize::try_from(args.size)?.clamp(1, 1 << 24),
        jobs_per_placement: JOBS_PER_PLACEMENT,
    };
    let bar = counting_bar("selftest", "jobs", args.count);
    let begun = Instant::now();
    let mut interrupted = false;
    let report = selftest::run(&card, &options, |done| {
        bar.set_position(done);
        interrupted |= signals.arrived();
        !interrupted
    })?;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        let value = json!({
            "card": card.info().name,
            "driver": card.info().driver,
            "seed": args.seed,
            "maps": report.maps,
            "jobs": report.done,
            "placements": report.placements,
            "bytes": report.bytes,
            "not_taken": report.not_taken,
            "failed": report.failed,
            "wrong": report.wrong,
            "seconds": seconds,
        });
        print_line!("{value}");
    } else {
        print_line!(
            "{} jobs with {} maps, {} of them placements, on {}, {} of inputs, in {seconds:.1} s: \
             {} wrong, {} failed, {} not taken",
            report.done,
            report.maps,
            report.placements,
            card.info().name,
            fieldstone_units::size(report.bytes),
            report.wrong,
            report.failed,
            report.not_taken
        );
    }
    if interrupted {
        bail!("interrupted");
    }
    if !report.is_good() {
        bail!("the selftest of seed {} failed:\n  {}", args.seed, report.first.join("\n  "));
    }
    Ok(())
}
