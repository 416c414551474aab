//! `fieldstone crush …`: CRUSH maps and OSDMaps, without a cluster.

mod balance;
mod cluster;
mod compile;
mod decompile;
mod diff;
mod file;
mod load;
mod map;
mod place;

use clap::Subcommand;
use fieldstone_bench as bench;

/// Work with CRUSH maps.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a binary map, for Ceph's monitors, of a text map.
    Compile(compile::Args),
    /// Make a text map of a binary map.
    Decompile(decompile::Args),
    /// Map inputs to devices and count the mappings of each device, like crushtool --test.
    Map(map::Args),
    /// Show the OSDs of a cluster's objects and placement groups, from its OSDMap.
    Place(place::Args),
    /// Show the data that moves when a map changes.
    Diff(diff::Args),
    /// Propose upmaps that spread placement groups evenly, like osdmaptool --upmap.
    Balance(balance::Args),
    /// Measure mappings, compared with Ceph's C mapper and tools.
    Bench(bench::crush::Args),
}

/// Runs `crush …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Compile(args) => compile::run(args),
        Command::Decompile(args) => decompile::run(args),
        Command::Map(args) => map::run(args),
        Command::Place(args) => place::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Balance(args) => balance::run(args),
        Command::Bench(args) => bench::crush::run(args),
    }
}
