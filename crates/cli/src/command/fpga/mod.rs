//! `fieldstone fpga …`: the FPGA device, simulated.

mod info;
mod report;
mod selftest;

use clap::Subcommand;
use fieldstone_bench as bench;

/// Look at the FPGA device, test it.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say what the device is and how it was built.
    Info(info::Args),
    /// Run random jobs of every kind on the device and on the CPU, and compare.
    Selftest(selftest::Args),
    /// Count the cycles of its operations.
    Bench(bench::fpga::Args),
    /// Say what the units take of an FPGA, as Yosys counted, beside the papers' figures.
    Report(report::Args),
}

/// Runs `fpga …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Bench(args) => bench::fpga::run(args),
        Command::Report(args) => report::run(args),
    }
}
