//! `fieldstone code verify`: checks an encoding.

use std::path::Path;
use std::time::Instant;

use anyhow::bail;
use fieldstone_files::{Findings, Folder, verify};
use serde::Serialize;

use super::{Common, count, troubles};
use crate::progress::with_bytes_bar;
use fieldstone_units as units;

/// Options of `code verify`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct Report<'a> {
    job: &'static str,
    dir: &'a Path,
    code: String,
    stripes: u64,
    clean: bool,
    restorable: bool,
    troubles: Vec<String>,
    bad_units: Vec<ShardReport>,
    inconsistent_stripes: u64,
    lost_stripes: u64,
    read_bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct ShardReport {
    shard: usize,
    count: u64,
    first: Vec<UnitReport>,
}

#[derive(Serialize)]
struct UnitReport {
    stripe: u64,
    offset: u64,
    what: String,
}

/// Runs `code verify`.
///
/// # Errors
/// The encoding has a flaw, or cannot be read.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = Folder::open(&args.common.dir)?;
    let encoding = &folder.encoding;
    let started = Instant::now();
    let findings = with_bytes_bar("verify", Some(encoding.file_bytes), |progress| {
        verify(&folder, args.common.jobs.count(), progress)
    })?;
    let elapsed = started.elapsed();
    let troubles = troubles(&folder);
    let clean = troubles.is_empty() && findings.is_clean();
    let restorable = findings.lost_stripes == 0;
    if args.common.json {
        let report = Report {
            job: "verify",
            dir: &args.common.dir,
            code: encoding.striping.profile().to_string(),
            stripes: encoding.stripes(),
            clean,
            restorable,
            troubles,
            bad_units: bad_units(&findings),
            inconsistent_stripes: findings.inconsistent.count,
            lost_stripes: findings.lost_stripes,
            read_bytes: findings.read_bytes,
            seconds: elapsed.as_secs_f64(),
        };
        print_line!("{}", serde_json::to_string(&report)?);
    } else {
        troubles.iter().for_each(|trouble| print_line!("{trouble}"));
        print_findings(&findings);
        let (read, rate) = (findings.read_bytes, units::rate(findings.read_bytes, elapsed));
        print_line!("verified {} of {} at {rate}", units::size(read), encoding.striping.profile());
    }
    let dir = args.common.dir.display();
    if !restorable {
        let stripes = count(findings.lost_stripes, "stripe");
        bail!("{dir} cannot be restored: {stripes} have too few good shards");
    }
    if findings.inconsistent.count > 0 {
        bail!(
            "the shards of {dir} contradict each other; encode the file again if it still exists"
        );
    }
    if !clean {
        let word = units::shell_word(&dir);
        bail!("{dir} is damaged, and nothing is lost; `fieldstone code repair {word}` mends");
    }
    Ok(())
}

fn bad_units(findings: &Findings) -> Vec<ShardReport> {
    let bad = findings.bad_units.iter().enumerate().filter(|(_, bad)| bad.count > 0);
    bad.map(|(shard, bad)| {
        let unit = |unit: &fieldstone_files::BadUnit| UnitReport {
            stripe: unit.stripe,
            offset: unit.offset,
            what: unit.flaw.to_string(),
        };
        ShardReport { shard, count: bad.count, first: bad.first.iter().map(unit).collect() }
    })
    .collect()
}

fn print_findings(findings: &Findings) {
    for ShardReport { shard, count: units, first } in bad_units(findings) {
        for unit in &first {
            print_line!(
                "shard.{shard}: stripe {}, byte {}: {}",
                unit.stripe,
                unit.offset,
                unit.what
            );
        }
        let more = units - first.len() as u64;
        if more > 0 {
            print_line!("shard.{shard}: and {} more", count(more, "bad unit"));
        }
    }
    let inconsistent = &findings.inconsistent;
    for (stripe, shard) in &inconsistent.first {
        match shard {
            Some(shard) => print_line!("stripe {stripe}: shard {shard} contradicts all others"),
            None => print_line!("stripe {stripe}: the parities are not those of the data"),
        }
    }
    let more = inconsistent.count - inconsistent.first.len() as u64;
    if more > 0 {
        print_line!("and {} more", count(more, "inconsistent stripe"));
    }
}
