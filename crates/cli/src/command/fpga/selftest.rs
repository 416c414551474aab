//! `fieldstone fpga selftest`: runs random jobs on the device and on the CPU and compares them bit
//! by bit.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use fieldstone_console::signals::Signals;
use fieldstone_fpga::FpgaDevice;
use fieldstone_fpga::flight::DeviceOperation;
use fieldstone_fpga::selftest::{self, Options};
use fieldstone_fpga::simulated;

use crate::progress::counting_bar;

/// Options of `fpga selftest`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The seed of the random jobs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of jobs.
    #[arg(long, value_name = "N", default_value_t = 200)]
    count: u64,
    /// Jobs in flight.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    depth: u16,
    /// Approximate size of the largest input of a job.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "32K",
        value_parser = fieldstone_units::parse_size
    )]
    size: u64,
    /// Wait for interrupts instead of polling for completions.
    #[arg(long)]
    interrupts: bool,
    /// Write waves to this file, in FST (for GTKWave or Surfer).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs `fpga selftest`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let signals = Signals::install()?;
    let running = simulated::start(args.trace.as_deref())?;
    let mut device = FpgaDevice::open(&running.card, args.interrupts)?;
    let options = Options {
        seed: args.seed,
        count: args.count,
        depth: usize::from(args.depth),
        max_bytes: usize::try_from(args.size)?.min(fieldstone_fpga::bounds::MAX_JOB_BYTES / 2),
    };
    let bar = counting_bar("selftest", "jobs", args.count);
    let begun = Instant::now();
    let mut interrupted = false;
    let report = selftest::run(&mut device, &options, |done| {
        bar.set_position(done);
        interrupted = signals.arrived();
        !interrupted
    });
    bar.finish_and_clear();
    print_line!(
        "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "kind",
        "jobs",
        "device",
        "CPU",
        "failed",
        "wrong",
        "cycles/job"
    );
    let operations = [DeviceOperation::Code, DeviceOperation::Place, DeviceOperation::Checksum];
    for ((name, kind), operation) in report.kinds().into_iter().zip(operations) {
        let cycles = device.cycles(operation);
        let average = cycles.total.checked_div(cycles.count).unwrap_or(0);
        let cpu = kind.not_taken + kind.given_back;
        print_line!(
            "{name:<10} {:>8} {:>8} {cpu:>8} {:>8} {:>8} {average:>12}",
            kind.jobs,
            kind.done,
            kind.failed,
            kind.wrong
        );
    }
    let swaps = running.card.partition().swaps;
    print_line!("the partition was changed {swaps} times; {} resets", device.resets());
    drop(device);
    let (cycles, seconds) = running.speed();
    let per_second = cycles as f64 / seconds.max(1e-9);
    print_line!(
        "{cycles} cycles in {:.1} s, {per_second:.0} cycles per second of simulation",
        begun.elapsed().as_secs_f64()
    );
    if interrupted {
        bail!("interrupted");
    }
    if !report.first.is_empty() {
        bail!("the selftest of seed {} failed:\n  {}", args.seed, report.first.join("\n  "));
    }
    if !report.is_good() {
        bail!(
            "nothing was wrong, but the device did not do jobs of every kind: try more of them \
             (--count {} was not enough with seed {})",
            args.count,
            args.seed
        );
    }
    Ok(())
}
