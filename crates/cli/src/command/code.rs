//! `fieldstone code …`: the erasure codes on their own, without pools and volumes.

use clap::Subcommand;

use crate::bench;

/// Work with the codes.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure the codes against other libraries and against what memory allows.
    Bench(bench::code::Args),
}

/// Runs `code …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Bench(args) => bench::code::run(args),
    }
}
