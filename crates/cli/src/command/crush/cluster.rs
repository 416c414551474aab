//! Options about the state of a cluster that several subcommands share.

use std::thread;

use anyhow::bail;
use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{OsdMap, PoolId};

/// More threads than this do not help.
const MAX_THREADS: usize = 16;

/// What to assume of a cluster, whatever its OSDMap says.
#[derive(clap::Args, Debug)]
pub struct Assume {
    /// Assume that all OSDs are up and fully in.
    #[arg(long)]
    pub mark_up_in: bool,
    /// Assume that this OSD is out (in a comparison: of the new map only); may be repeated.
    #[arg(long, value_name = "OSD")]
    pub mark_out: Vec<u32>,
}

impl Assume {
    /// Changes the map so.
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

    /// Changes the old map of two so.
    pub fn apply_up_in(&self, map: &mut OsdMap) {
        if self.mark_up_in {
            map.mark_all_up_in();
        }
    }
}

/// How many threads map placement groups.
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

/// The pools of these names or numbers; all of them if there are none.
pub fn pools(map: &OsdMap, names: &[String]) -> anyhow::Result<Vec<PoolId>> {
    if names.is_empty() {
        return Ok(map.pools.keys().copied().collect());
    }
    names.iter().map(|name| pool(map, name)).collect()
}

/// The pool of that name or number.
pub fn pool(map: &OsdMap, name: &str) -> anyhow::Result<PoolId> {
    let numbered = || name.parse().ok().map(PoolId).filter(|id| map.pools.contains_key(id));
    let known = || map.pools.values().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
    match map.pool_named(name).or_else(numbered) {
        Some(id) => Ok(id),
        None => bail!("no pool {name}; the map has {}", known()),
    }
}
