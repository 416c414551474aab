//! Spreading placement groups evenly, by upmaps.
//!
//! CRUSH spreads shards at random. With 20 shards per device on average, some devices get 10 and
//! some 35, and the fullest device decides how much the cluster can hold. *Upmaps* are exceptions
//! in the OSDMap that move single shards to other devices. This module proposes upmaps.
//!
//! **Goal.** Every device has its share of the pool's shards by weight, within `deviation` shards.
//! The plan uses as few moves as possible, because every move is data on the network. Each pool is
//! balanced separately, because pools differ in the size of their groups. The pool with the
//! greatest deviation comes first.
//!
//! **Method.** The balancer maps all groups once. Then it repeats one move while some device
//! deviates by more than the limit. The device with the greatest deviation either gives a shard to
//! the emptiest device that may have it, or gets one from the fullest device that may give it.
//! Devices are kept ordered by deviation, so a move costs microseconds for a cluster of any size.
//! Where it helps as well, the balancer removes an upmap of the map instead of adding one.
//!
//! **Legal moves** obey the rule. A shard moves only to a device that is up and in, that the same
//! part of the rule reaches, and that lies in a failure domain without another member of the group.
//! The balancer does not change groups whose whole membership an administrator has fixed
//! (`pg_upmap`), nor a member that `pg_upmap_primaries` names.

mod plan;
mod spread;
mod state;

use std::collections::BTreeMap;

pub use plan::{BalancePlan, PoolPlan, Proposal};
pub use spread::{DeviceSpread, Spread};
use thiserror::Error;

use crate::RuleId;
use crate::osdmap::{OsdMap, Pool, PoolId};
use crate::reach::Reach;
use state::State;

/// The limits of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceLimits {
    /// Most shards to move.
    pub max_moves: usize,
    /// Shards by which a device may deviate from its share; at least 1.
    pub deviation: u32,
}

/// Why a pool cannot be balanced.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BalanceError {
    /// No pool of that number.
    #[error("the OSDMap has no pool {}", .0.0)]
    NoSuchPool(PoolId),
    /// The pool's rule is not in the CRUSH map.
    #[error("pool {} uses rule {}, which is not in the CRUSH map", .pool.0, .rule.0)]
    NoSuchRule {
        /// The pool.
        pool: PoolId,
        /// Its rule.
        rule: RuleId,
    },
    /// The rule does not define which devices can replace each other.
    #[error("rule {} of pool {} is too irregular to balance: {why}", .rule.0, .pool.0)]
    Irregular {
        /// The pool.
        pool: PoolId,
        /// Its rule.
        rule: RuleId,
        /// The irregularity.
        why: String,
    },
}

/// Checks whether a pool can be balanced.
///
/// # Errors
/// The reason why the pool cannot be balanced.
pub fn check(map: &OsdMap, pool: PoolId) -> Result<(), BalanceError> {
    reach_of(map, pool).map(drop)
}

fn reach_of(map: &OsdMap, id: PoolId) -> Result<(&Pool, Reach), BalanceError> {
    let pool = map.pools.get(&id).ok_or(BalanceError::NoSuchPool(id))?;
    let missing = BalanceError::NoSuchRule { pool: id, rule: pool.rule };
    let (_, rule) = map.crush.rules().find(|&(rule, _)| rule == pool.rule).ok_or(missing)?;
    match Reach::new(&map.crush, rule) {
        Ok(reach) => Ok((pool, reach)),
        Err(why) => Err(BalanceError::Irregular { pool: id, rule: pool.rule, why }),
    }
}

/// Proposes upmaps for some pools, with `threads` threads that map placement groups.
///
/// # Errors
/// A pool that cannot be balanced.
pub fn balance(
    map: &OsdMap,
    pools: &[PoolId],
    limits: BalanceLimits,
    threads: usize,
) -> Result<BalancePlan, BalanceError> {
    let mut states = BTreeMap::new();
    for &id in pools {
        let (pool, reach) = reach_of(map, id)?;
        let state = State::new(map, id, pool, &reach, limits.deviation.max(1), threads);
        let before = Spread::of(&state.devices);
        states.insert(id, (state, before));
    }
    let mut moves = 0;
    while moves < limits.max_moves {
        let worst = states.values_mut().filter_map(|(state, _)| Some((state.worst()?, state)));
        if let Some((_, state)) = worst.max_by_key(|&(deviation, _)| deviation) {
            moves += usize::from(state.step());
        } else if !states.values_mut().any(|(state, _)| state.renew()) {
            // No move has happened since, so devices that had no helpful move still have none.
            break;
        }
    }
    Ok(plan::plan(map, &states))
}
