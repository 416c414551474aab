//! `fieldstone crush …`: CRUSH maps on their own, without a cluster.

mod compile;
mod decompile;
mod file;
mod load;
mod map;

use clap::Subcommand;

/// Work with CRUSH maps.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a binary map, as Ceph's monitors take it, of a text map.
    Compile(compile::Args),
    /// Make a text map of a binary map.
    Decompile(decompile::Args),
    /// Map inputs to devices, and count where they land, as crushtool --test.
    Map(map::Args),
}

/// Runs `crush …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Compile(args) => compile::run(args),
        Command::Decompile(args) => decompile::run(args),
        Command::Map(args) => map::run(args),
    }
}
