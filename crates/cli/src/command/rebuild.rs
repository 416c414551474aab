//! `fieldstone rebuild`: restores missing shards, with a bar.

use std::path::PathBuf;

use crate::control::Request;
use crate::progress::{JobKind, JobOptions, run_job};
use crate::units;

/// Options of `rebuild`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A pool, or one volume of it.
    #[arg(value_name = "DIR[/VOLUME]")]
    target: PathBuf,
    /// Most bytes per second to read; 0 for no limit.
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = units::parse_rate)]
    limit: u64,
    /// Do not wait for the end. Needs a running server.
    #[arg(long)]
    detach: bool,
    /// Print one JSON object per volume at the end.
    #[arg(long)]
    json: bool,
}

/// Runs `rebuild`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    run_job(&JobOptions {
        target: &args.target,
        kind: JobKind::Rebuild,
        limit: args.limit,
        detach: args.detach,
        json: args.json,
        request: |volume, limit| Request::Rebuild { volume, limit },
    })
}
