//! The two clusters to compare, made from the contents of the files.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use fieldstone_crush::osdmap::{MAX_PG_NUM, OsdMap, Pool, PoolId, PoolKind};
use fieldstone_crush::{Map, RuleId, RuleKind};

use super::super::cluster;
use super::super::file::shown;
use super::super::load::{Loaded, load};

/// Options that describe a pool. All but `--data-shards` are for two CRUSH maps.
#[derive(clap::Args, Debug)]
pub struct PoolOptions {
    /// Between two CRUSH maps: the pool's rule.
    #[arg(long, value_name = "RULE")]
    rule: Option<u32>,
    /// Between two CRUSH maps: copies or shards of an object.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    num_rep: Option<u8>,
    /// Between two CRUSH maps: placement groups of the pool. [default: 1024]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=MAX_PG_NUM as i64))]
    pgs: Option<u32>,
    /// Between two CRUSH maps: the number of the pool. [default: 1]
    #[arg(long, value_name = "POOL")]
    pool_id: Option<i64>,
    /// Shards of an object that hold data, in erasure-coded pools whose profile is not known.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=255))]
    data_shards: Option<u32>,
}

/// The two clusters.
pub struct Sides {
    pub old: OsdMap,
    pub new: OsdMap,
}

/// Loads both sides.
pub fn load_both(old: &Path, new: &Path, options: &PoolOptions) -> anyhow::Result<Sides> {
    let described = options.rule.is_some()
        || options.num_rep.is_some()
        || options.pgs.is_some()
        || options.pool_id.is_some();
    let mut sides = match (load(old)?, load(new)?) {
        (Loaded::Crush(old), Loaded::Crush(new)) => of_crush(*old, *new, options)?,
        _ if described => {
            bail!(
                "--rule, --num-rep, --pgs and --pool-id are for two CRUSH maps; OSDMaps have pools"
            )
        }
        (Loaded::Cluster(old), Loaded::Cluster(new)) => Sides { old: *old, new: *new },
        (Loaded::Cluster(old), Loaded::Crush(crush)) => {
            let new = old.clone().with_crush(*crush);
            Sides { old: *old, new }
        }
        (Loaded::Crush(_), Loaded::Cluster(_)) => bail!(
            "{} is a CRUSH map and {} an OSDMap; give them the other way round, or take the CRUSH \
             map out of the OSDMap with `osdmaptool --export-crush`",
            shown(old),
            shown(new)
        ),
    };
    if let Some(k) = options.data_shards {
        for side in [&mut sides.old, &mut sides.new] {
            let names: Vec<String> =
                side.pools.values().map(|pool| pool.erasure_code_profile.clone()).collect();
            for name in names {
                let profile = side.erasure_code_profiles.entry(name).or_default();
                profile.entry("k".to_owned()).or_insert_with(|| k.to_string());
            }
        }
    }
    Ok(sides)
}

/// Makes two clusters with one pool.
fn of_crush(old: Map, new: Map, options: &PoolOptions) -> anyhow::Result<Sides> {
    let rule = RuleId(options.rule.context("two CRUSH maps need --rule")?);
    let size = options.num_rep.context("two CRUSH maps need --num-rep")?;
    let kind = |map: &Map, which: &str| -> anyhow::Result<PoolKind> {
        let found = map.rules().find(|&(id, _)| id == rule);
        let (_, found) =
            found.with_context(|| format!("the {which} map has no rule {}", rule.0))?;
        Ok(match found.kind {
            RuleKind::Erasure | RuleKind::MsrIndep => PoolKind::Erasure,
            _ => PoolKind::Replicated,
        })
    };
    kind(&old, "old")?;
    let id = PoolId(options.pool_id.unwrap_or(1));
    let pgs = options.pgs.unwrap_or(1024);
    let pool = Pool {
        name: format!("rule {}", rule.0),
        ..Pool::new(kind(&new, "new")?, size, 1, rule, pgs)
    };
    let pools = BTreeMap::from([(id, pool)]);
    Ok(Sides { old: OsdMap::of_crush(old, pools.clone()), new: OsdMap::of_crush(new, pools) })
}

/// The amount of data in pools, as far as it is known.
pub struct Sizes {
    per_pg: Option<u64>,
    pools: BTreeMap<PoolId, u64>,
}

impl Sizes {
    /// Reads the options. `map` has the names and numbers of the pools.
    pub fn new(map: &OsdMap, per_pg: Option<u64>, pools: &[(String, u64)]) -> anyhow::Result<Self> {
        let mut sizes = BTreeMap::new();
        for (name, bytes) in pools {
            let twice = sizes.insert(cluster::pool(map, name)?, *bytes).is_some();
            ensure!(!twice, "--pool-bytes {name} is given twice");
        }
        Ok(Self { per_pg, pools: sizes })
    }

    /// Bytes of a shard in one of the `pgs` placement groups of a pool: all data of the group for a
    /// copy, else a k-th of it. `None` if the size of the pool is not known.
    pub fn bytes_per_shard(
        &self,
        map: &OsdMap,
        id: PoolId,
        pgs: u64,
    ) -> anyhow::Result<Option<f64>> {
        let of_pool = self.pools.get(&id).map(|&bytes| bytes as f64 / pgs as f64);
        let Some(bytes) = self.per_pg.map(|bytes| bytes as f64).or(of_pool) else {
            return Ok(None);
        };
        let pool = &map.pools[&id];
        let k = map.data_shards(pool).with_context(|| {
            format!(
                "pool {} is erasure-coded and its k is not known; give --data-shards",
                pool.name
            )
        })?;
        Ok(Some(bytes / f64::from(k)))
    }
}
