//! `fieldstone crush …`: CRUSH maps, and what they do.

mod load;
mod map;

use clap::Subcommand;

/// Work with CRUSH maps.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Map inputs to devices, and count where they land: `crushtool --test`.
    Map(map::Args),
}

/// Runs `crush …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Map(args) => map::run(args),
    }
}
