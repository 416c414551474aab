//! `fieldstone fpga …`: the FPGA device, simulated.

mod info;
mod report;
mod selftest;

use clap::Subcommand;
use fieldstone_bench as bench;

/// Look at the FPGA device and test it.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Describe the device and its build parameters.
    Info(info::Args),
    /// Run random jobs of every kind on the device and on the CPU, and compare the results.
    Selftest(selftest::Args),
    /// Count the cycles of the device's operations.
    Bench(bench::fpga::Args),
    /// Show the FPGA resources of each unit, as Yosys counted them, next to the papers' figures.
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
