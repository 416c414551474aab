//! `fieldstone fpga …`: the FPGA device, simulated.

mod info;
mod selftest;

use clap::Subcommand;

/// Look at the FPGA device, test it.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say what the device is and how it was built.
    Info(info::Args),
    /// Run random jobs of every kind on the device and on the CPU, and compare.
    Selftest(selftest::Args),
}

/// Runs `fpga …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Selftest(args) => selftest::run(args),
    }
}
