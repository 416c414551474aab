//! Options about the state of a cluster that several subcommands share.

use std::thread;

use anyhow::bail;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{OsdMap, PoolId};

/// The default number of threads is at most this. More threads do not help.
const MAX_THREADS: usize = 16;

/// Assumptions about a cluster that override its OSDMap.
#[derive(clap::Args, Debug)]
pub struct Assume {
    /// Assume that all OSDs are up and fully in.
    #[arg(long)]
    pub mark_up_in: bool,
    /// Assume that this OSD is out; in a comparison, only in the new map. May be repeated.
    #[arg(long, value_name = "OSD")]
    pub mark_out: Vec<u32>,
}

impl Assume {
    /// Applies the assumptions to a map; in a comparison, to the new one.
    pub fn apply(&self, map: &mut OsdMap) -> anyhow::Result<()> {
        self.apply_up_in(map);
        for &osd in &self.mark_out {
            if osd as usize >= map.weights.len() {
                bail!("--mark-out {osd}: the map has {} OSDs", map.weights.len());
            }
            map.mark_out(OsdId(osd));
        }
        Ok(())
    }

    /// Applies the assumptions to the old map of a comparison: all but `mark_out`.
    pub fn apply_up_in(&self, map: &mut OsdMap) {
        if self.mark_up_in {
            map.mark_all_up_in();
        }
    }
}

/// The number of threads that map placement groups.
#[derive(clap::Args, Debug)]
pub struct Threads {
    /// Threads that map placement groups. [default: the number of CPUs, up to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Threads {
    /// The number of threads.
    pub fn count(&self) -> usize {
        let cpus = || thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        self.threads.map_or_else(cpus, usize::from)
    }
}

/// The pools with these names or numbers; all pools if `names` is empty.
pub fn pools(map: &OsdMap, names: &[String]) -> anyhow::Result<Vec<PoolId>> {
    if names.is_empty() {
        return Ok(map.pools.keys().copied().collect());
    }
    names.iter().map(|name| pool(map, name)).collect()
}

/// The pool with this name or number.
pub fn pool(map: &OsdMap, name: &str) -> anyhow::Result<PoolId> {
    let numbered = || name.parse().ok().map(PoolId).filter(|id| map.pools.contains_key(id));
    let known = || map.pools.values().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
    match map.pool_named(name).or_else(numbered) {
        Some(id) => Ok(id),
        None => bail!("no pool {name}; the map has {}", known()),
    }
}
