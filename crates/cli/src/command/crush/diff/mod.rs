//! `fieldstone crush diff OLD NEW`: the data that moves when a map changes.
//!
//! OLD and NEW are two OSDMaps; or an OSDMap and the CRUSH map that is to replace its own, whose
//! new devices count as added, up and in; or two CRUSH maps, with options that describe one pool.
//! With `--mark-out`, they may be the same file: the output shows what moves when that OSD goes
//! out.
//!
//! `--json` prints one object: `pools`, each with `pool`, `name`, `pgs`, `pgs_changed`, `shards`,
//! `moved`, `holes`, `least`, `bytes_per_shard`, `moved_bytes`; `osds`, each with `osd`, `before`,
//! `after`, `received`, `sent` in shards of placement groups, and `received_bytes`, `sent_bytes`;
//! `total`, with the sums of the pools; and `notes`, on pools that only one map has. Bytes are null
//! if the sizes of the pools are not known.

mod report;
mod sides;

use std::path::PathBuf;

use fieldstone_crush::diff::diff_pool;

use self::report::{PoolDiffReport, Report};
use super::cluster::{Assume, Threads};
use fieldstone_units::parse_size;

/// Options of `crush diff`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// An OSDMap, or a CRUSH map (text or binary).
    old: PathBuf,
    /// A later map of the same kind, or the CRUSH map that is to replace the one in OLD.
    new: PathBuf,
    #[command(flatten)]
    pool: sides::PoolOptions,
    /// Bytes of data in a placement group, for example 5G.
    #[arg(long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "pool_bytes")]
    bytes_per_pg: Option<u64>,
    /// Bytes of data in a pool, for example rbd=10T; may be repeated.
    #[arg(long, value_name = "POOL=BYTES", value_parser = pool_bytes)]
    pool_bytes: Vec<(String, u64)>,
    /// Print all OSDs, not only those with the most traffic.
    #[arg(long)]
    osds: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    assume: Assume,
    #[command(flatten)]
    threads: Threads,
}

fn pool_bytes(text: &str) -> Result<(String, u64), String> {
    let (pool, bytes) = text.rsplit_once('=').ok_or("write POOL=BYTES, for example rbd=10T")?;
    Ok((pool.to_owned(), parse_size(bytes)?))
}

/// Runs `crush diff`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut sides = sides::load_both(&args.old, &args.new, &args.pool)?;
    args.assume.apply_up_in(&mut sides.old);
    args.assume.apply(&mut sides.new)?;
    let sizes = sides::Sizes::new(&sides.new, args.bytes_per_pg, &args.pool_bytes)?;
    let mut report = Report::default();
    for (&id, pool) in &sides.new.pools {
        if !sides.old.pools.contains_key(&id) {
            report.notes.push(format!("pool {} is new: nothing of it moves", pool.name));
            continue;
        }
        let diff = diff_pool(&sides.old, &sides.new, id, args.threads.count())?;
        let bytes_per_shard = sizes.bytes_per_shard(&sides.new, id, diff.pgs)?;
        report.pools.push(PoolDiffReport { id, name: pool.name.clone(), diff, bytes_per_shard });
    }
    for (id, pool) in &sides.old.pools {
        if !sides.new.pools.contains_key(id) {
            report.notes.push(format!("pool {} is gone", pool.name));
        }
    }
    if args.json {
        print_line!("{}", report.json());
    } else {
        print_text!("{}", report.text(args.osds));
    }
    Ok(())
}
