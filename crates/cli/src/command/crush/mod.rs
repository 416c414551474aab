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
    /// Make a binary map, as Ceph's monitors take it, of a text map.
    Compile(compile::Args),
    /// Make a text map of a binary map.
    Decompile(decompile::Args),
    /// Map inputs to devices, and count where they land, as crushtool --test.
    Map(map::Args),
    /// Say where objects and placement groups of a cluster lie, from its OSDMap.
    Place(place::Args),
    /// Say what moves when a map changes.
    Diff(diff::Args),
    /// Propose upmaps that spread placement groups evenly, as osdmaptool --upmap.
    Balance(balance::Args),
    /// Measure mappings beside Ceph's C mapper and tools.
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
