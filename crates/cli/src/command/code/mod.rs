//! `fieldstone code …`: the erasure codes on their own, without pools and volumes.

mod decode;
mod encode;
mod engines;
mod info;
mod repair;
mod verify;

use std::path::PathBuf;

use clap::Subcommand;
use fieldstone_bench as bench;
use fieldstone_files::{Folder, MANIFEST_FILE, MAX_JOBS, ManifestState, ShardState, default_jobs};

/// Work with the codes.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make shards of a file: DIR/shard.0 to DIR/shard.N-1, and a manifest.
    Encode(encode::Args),
    /// Make the file again, from any K good shards.
    Decode(decode::Args),
    /// Rebuild missing shards with as few reads as the code allows, or check all shards and mend
    /// them.
    Repair(repair::Args),
    /// Check every block of every shard, and the parities.
    Verify(verify::Args),
    /// Describe an encoding, or a code.
    Info(info::Args),
    /// Measure the codes, compared with other libraries and with the limit of memory.
    Bench(bench::code::Args),
}

/// Runs `code …`.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Encode(args) => encode::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Repair(args) => repair::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Info(args) => info::run(args),
        Command::Bench(args) => bench::code::run(args),
    }
}

/// The number of threads.
#[derive(clap::Args, Debug)]
struct ThreadCount {
    /// Number of threads. Each holds one stripe in memory. [default: the number of CPUs, up to 8]
    #[arg(long = "jobs", short = 'j', value_name = "J",
          value_parser = clap::value_parser!(u16).range(1..=MAX_JOBS as i64))]
    jobs: Option<u16>,
}

impl ThreadCount {
    fn count(&self) -> usize {
        self.jobs.map_or_else(default_jobs, usize::from)
    }
}

/// The options of all commands that work on an encoding.
#[derive(clap::Args, Debug)]
struct Common {
    /// The folder with the shards.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    jobs: ThreadCount,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The flaws of an encoding that are known without reading units, one line each.
fn troubles(folder: &Folder) -> Vec<String> {
    let manifest = match &folder.manifest {
        ManifestState::Good => None,
        ManifestState::Missing => Some(format!("{MANIFEST_FILE}: missing")),
        ManifestState::Damaged(why) => Some(format!("{MANIFEST_FILE}: damaged: {why}")),
        ManifestState::NotRegular(found) => {
            Some(format!("{MANIFEST_FILE}: is {found} and no regular file"))
        }
    };
    let shards = folder.shards.iter().enumerate().filter(|(_, found)| !found.is_good());
    let shards = shards.map(|(shard, found)| match found.state {
        ShardState::Misnamed => {
            let (found, right) = (found.path.display(), fieldstone_files::shard_name(shard));
            format!("shard.{shard}: lies in {found}; rename that to {right}")
        }
        _ => format!("shard.{shard}: {}", found.state),
    });
    manifest.into_iter().chain(shards).collect()
}

/// A number with its noun: `1 shard`, `2 shards`.
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
