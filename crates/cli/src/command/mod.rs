//! The command line: one file per subcommand.

pub mod accelerator;
pub mod ceph;
pub mod code;
pub mod crush;
pub mod fpga;
pub mod gpu;
pub mod maintenance;
pub mod node;
pub mod nodes;
pub mod pool;
pub mod quickstart;
pub mod rados;
pub mod rbd;
pub mod serve;
pub mod sim;
pub mod status;
pub mod top;
pub mod volume;

use clap::{Parser, Subcommand};
use fieldstone_bench as bench;

use self::maintenance::Maintenance;

/// Protected block storage: erasure-coded or replicated volumes over NBD.
#[derive(Parser, Debug)]
#[command(name = "fieldstone", version, propagate_version = true, max_term_width = 100)]
pub struct Options {
    /// Log more to stderr; repeat for more detail.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show everything in one minute: six nodes, a volume, two nodes killed, a rebuild.
    Quickstart(quickstart::Args),
    /// Make a pool of storage nodes.
    #[command(subcommand)]
    Pool(pool::Command),
    /// Make, list, grow and remove volumes.
    #[command(subcommand)]
    Volume(volume::Command),
    /// Serve volumes and other stores as block devices over NBD.
    Serve(serve::Args),
    /// Run one storage node as its own process.
    Node(node::Args),
    /// Show nodes, space, protection and latencies.
    Status(status::Args),
    /// Watch a running server.
    Top(top::Args),
    /// Restore missing shards.
    Rebuild(maintenance::Args),
    /// Check every stored shard, and repair damaged ones.
    Scrub(maintenance::Args),
    /// Run seeded simulations of a pool: virtual time, and a network and disks with faults.
    Sim(sim::Args),
    /// Use the erasure codes on their own.
    #[command(subcommand)]
    Code(code::Command),
    /// Use the placement on its own: CRUSH maps, in Ceph's formats.
    #[command(subcommand)]
    Crush(crush::Command),
    /// Work with objects of a Ceph cluster.
    Rados(rados::Args),
    /// Work with images of a Ceph cluster.
    Rbd(rbd::Args),
    /// Use the FPGA device on its own.
    #[command(subcommand)]
    Fpga(fpga::Command),
    /// Use an NVIDIA GPU on its own.
    #[command(subcommand)]
    Gpu(gpu::Command),
    /// Run a benchmark.
    Bench(bench::Args),
}

impl Command {
    /// True for commands that log no warnings by default: `sim` causes faults on purpose, and their
    /// warnings are expected.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Sim(_))
    }

    /// Runs the subcommand.
    ///
    /// # Errors
    /// The error says what happened, to which thing, and what to do.
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Quickstart(args) => quickstart::run(args),
            Self::Pool(command) => pool::run(command),
            Self::Volume(command) => volume::run(command),
            Self::Serve(args) => serve::run(args),
            Self::Node(args) => node::run(args),
            Self::Status(args) => status::run(args),
            Self::Top(args) => top::run(args),
            Self::Rebuild(args) => maintenance::run(Maintenance::Rebuild, args),
            Self::Scrub(args) => maintenance::run(Maintenance::Scrub, args),
            Self::Sim(args) => sim::run(args),
            Self::Code(command) => code::run(command),
            Self::Crush(command) => crush::run(command),
            Self::Rados(args) => rados::run(args),
            Self::Rbd(args) => rbd::run(args),
            Self::Fpga(command) => fpga::run(command),
            Self::Gpu(command) => gpu::run(command),
            Self::Bench(args) => bench::run(args),
        }
    }
}
