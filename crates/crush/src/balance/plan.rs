//! The proposals of the balancer, in the form that clusters accept.

use std::collections::BTreeMap;
use std::fmt;

use super::Spread;
use super::state::State;
use crate::ItemId;
use crate::osdmap::{OsdMap, PgId, PoolId};

/// The new upmaps of one placement group. Its text form is the `ceph` command that sets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The group.
    pub pg: PgId,
    /// All upmaps of the group, as pairs of (device by CRUSH, device instead). If there are none,
    /// the group needs no upmap any more.
    pub items: Vec<(ItemId, ItemId)>,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.items.is_empty() {
            return write!(f, "ceph osd rm-pg-upmap-items {}", self.pg);
        }
        write!(f, "ceph osd pg-upmap-items {}", self.pg)?;
        self.items.iter().try_for_each(|(from, to)| write!(f, " {} {}", from.0, to.0))
    }
}

/// One pool before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    /// The pool.
    pub pool: PoolId,
    /// The spread now.
    pub before: Spread,
    /// The spread after the plan.
    pub after: Spread,
}

/// A plan of the balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancePlan {
    /// The changes, by placement group.
    pub proposals: Vec<Proposal>,
    /// Shards that move.
    pub moves: usize,
    /// The pools.
    pub pools: Vec<PoolPlan>,
}

impl BalancePlan {
    /// Makes the proposed changes.
    pub fn apply(&self, map: &mut OsdMap) {
        for proposal in &self.proposals {
            match proposal.items.is_empty() {
                true => drop(map.pg_upmap_items.remove(&proposal.pg)),
                false => drop(map.pg_upmap_items.insert(proposal.pg, proposal.items.clone())),
            }
        }
    }
}

pub(super) fn plan(map: &OsdMap, states: &BTreeMap<PoolId, (State, Spread)>) -> BalancePlan {
    let mut plan = BalancePlan::default();
    for (&pool, (state, before)) in states {
        plan.moves += state.moves();
        let after = Spread::of(&state.devices);
        plan.pools.push(PoolPlan { pool, before: before.clone(), after });
        let pgs = map.pools.get(&pool).into_iter().flat_map(|known| known.pgs(pool));
        for pg in pgs.filter(|pg| state.is_changed(pg.seed)) {
            plan.proposals.push(Proposal { pg, items: state.items(pg.seed) });
        }
    }
    plan
}
