//! `fieldstone gpu …`: an NVIDIA GPU as an engine of codes.

mod info;
mod selftest;

use clap::Subcommand;
use fieldstone_bench as bench;

/// Look at a GPU, test it and measure it.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Describe the card and its driver.
    Info(info::Args),
    /// Run random jobs on the card and on the CPU, and compare the results.
    Selftest(selftest::Args),
    /// Measure the card, and compare it with its own copy, its link, and the CPU.
    Bench(bench::gpu::Args),
}

/// Runs `gpu …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Info(args) => info::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Bench(args) => bench::gpu::run(args),
    }
}
