//! `fieldstone code repair`: rebuilds lost shards.

use std::path::Path;
use std::time::Instant;

use fieldstone_files::{Folder, Repaired, Scope, repair_with};
use serde::Serialize;

use super::engines::{EngineReport, Engines};
use super::{Common, count};
use crate::progress::with_bytes_bar;
use fieldstone_units as units;

/// Options of `code repair`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Read every block of every shard, and mend damaged ones, even if shards are missing. Without
    /// this option, the command does that only if no shard is missing.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Report<'a> {
    job: &'static str,
    dir: &'a Path,
    code: String,
    rebuilt_shards: &'a [usize],
    named_shards: &'a [usize],
    mended_units: u64,
    rebuilt_manifest: bool,
    read_everything: bool,
    read_bytes: u64,
    read_checksum_bytes: u64,
    reed_solomon_bytes: u64,
    written_bytes: u64,
    #[serde(flatten)]
    engines: EngineReport,
    seconds: f64,
}

/// Runs `code repair`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = Folder::open_to_change(&args.common.dir)?;
    let (code, file_bytes) = (folder.encoding.striping.profile(), folder.encoding.file_bytes);
    let scope = if args.all { Scope::All } else { Scope::Lost };
    let mut coders = args.engines.coders(&args.common.jobs)?;
    let started = Instant::now();
    let repaired = with_bytes_bar("repair", Some(file_bytes), |progress| {
        repair_with(&folder, scope, &mut coders, progress)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let mended_units = repaired.mended_units.iter().sum();
    if args.common.json {
        let report = Report {
            job: "repair",
            dir: &args.common.dir,
            code: code.to_string(),
            rebuilt_shards: &repaired.rebuilt_shards,
            named_shards: &repaired.named_shards,
            mended_units,
            rebuilt_manifest: repaired.rebuilt_manifest,
            read_everything: repaired.read_everything,
            read_bytes: repaired.read_bytes,
            read_checksum_bytes: repaired.read_record_bytes,
            reed_solomon_bytes: repaired.reed_solomon_bytes,
            written_bytes: repaired.written_bytes,
            engines: args.engines.report(&coders),
            seconds,
        };
        print_line!("{}", serde_json::to_string(&report)?);
    } else {
        print_outcome(&repaired, mended_units);
        if let Some(line) = args.engines.line(&coders) {
            print_line!("{line}");
        }
    }
    Ok(())
}

fn print_outcome(repaired: &Repaired, mended_units: u64) {
    let (rebuilt, named) = (&repaired.rebuilt_shards, &repaired.named_shards);
    for (what, shards) in [("rebuilt", rebuilt), ("finished", named)] {
        if !shards.is_empty() {
            let names: Vec<String> = shards.iter().map(|shard| format!("shard.{shard}")).collect();
            print_line!("{what} {}", names.join(", "));
        }
    }
    for (shard, units) in repaired.mended_units.iter().enumerate().filter(|(_, units)| **units > 0)
    {
        print_line!("mended {} of shard.{shard}", count(*units, "unit"));
    }
    if repaired.rebuilt_manifest {
        print_line!("made the manifest anew");
    }
    let read = units::size(repaired.read_bytes);
    let written = units::size(repaired.written_bytes);
    if repaired.read_everything {
        print_line!("read everything, {read}; wrote {written}");
        let changed_shards = !rebuilt.is_empty() || !named.is_empty();
        if !changed_shards && mended_units == 0 && !repaired.rebuilt_manifest {
            print_line!("there was nothing to repair");
        }
        return;
    }
    let (bytes, rs_bytes) = (repaired.read_bytes, repaired.reed_solomon_bytes);
    let share = 100.0 * bytes as f64 / rs_bytes.max(1) as f64;
    let rs = units::size(rs_bytes);
    print_line!(
        "read {read}, {share:.1} % of the {rs} that Reed-Solomon would have; wrote {written}"
    );
    print_line!("what was not read was not checked: `code verify` does, and `code repair --all`");
}
