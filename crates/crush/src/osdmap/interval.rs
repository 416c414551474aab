//! Intervals: the times during which the same devices serve a placement group in the same way.

use super::pool::stable_mod;
use super::{Flags, OsdMap, PgId, PgTarget, PlaceError, Pool};

/// How a placement group is served in one epoch. Requests that were sent in one interval, and not
/// answered in it, are sent again in the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The devices.
    pub target: PgTarget,
    /// The seed of the group before folding. It names the objects through splits and merges.
    pub seed: u32,
    /// Number of copies or shards.
    pub size: u8,
    /// Number of copies or shards that must be up for writes.
    pub min_size: u8,
    /// Number of groups of the pool.
    pub pg_num: u32,
    /// Number of groups after the merge that is being prepared.
    pub pg_num_pending: u32,
    /// The pool's epoch at which all requests are sent again.
    pub last_force_op_resend: u32,
    /// The flags of the cluster that matter: order of objects, deletions during recovery.
    pub flags: u32,
    /// The pool uses the optimisations of Ceph 20 for erasure codes.
    pub ec_optimizations: bool,
}

impl OsdMap {
    /// The interval of a placement group in this epoch. Give the unfolded seed of an object
    /// ([`OsdMap::locate_unfolded`]) to follow it through splits and merges.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn interval(&self, pg: PgId) -> Result<Interval, PlaceError> {
        let target = self.pg_target(pg)?;
        let pool = self.pools.get(&pg.pool).ok_or(PlaceError::NoSuchPool(pg.pool))?;
        Ok(Interval {
            target,
            seed: pg.seed,
            size: pool.size,
            min_size: pool.min_size,
            pg_num: pool.pg_num,
            pg_num_pending: pool.pg_num_pending,
            last_force_op_resend: pool.last_force_op_resend,
            flags: self.flags.0 & (Flags::SORTBITWISE | Flags::RECOVERY_DELETES),
            ec_optimizations: pool.has(Pool::EC_OPTIMIZATIONS),
        })
    }
}

impl Interval {
    /// True if a request that was sent in the interval `old` has to be sent again in this one, of a
    /// later epoch. Both must be of the same seed.
    ///
    /// Growth of a pool counts only if it splits this group, and a merge, prepared or done, only if
    /// this group takes part.
    #[must_use]
    pub fn is_new_since(&self, old: &Self) -> bool {
        let serving = |i: &Self| (i.size, i.min_size, i.flags, i.ec_optimizations);
        let (now, before) = (&self.target, &old.target);
        if serving(self) != serving(old)
            || self.last_force_op_resend != old.last_force_op_resend
            || (now.acting_primary, now.up_primary) != (before.acting_primary, before.up_primary)
            || now.acting != before.acting
            || now.up != before.up
        {
            return true;
        }
        // The group in which the request was sent.
        let seed = stable_mod(old.seed, old.pg_num.max(1));
        let merges =
            |from, to| pg_is_merge_source(seed, from, to) || pg_is_merge_target(seed, from, to);
        pg_is_split(seed, old.pg_num, self.pg_num)
            || merges(old.pg_num, self.pg_num)
            || merges(old.pg_num_pending, self.pg_num_pending)
            || merges(self.pg_num_pending, old.pg_num_pending)
    }
}

/// True if group `seed` gives objects to new groups when a pool grows from `old_pg_num` to
/// `new_pg_num` groups.
#[must_use]
pub fn pg_is_split(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    if seed >= old_pg_num || new_pg_num <= old_pg_num {
        return false;
    }
    // The children of a group differ from it by bits at and above the highest bit of the old
    // number. Among the candidates from the old number on, every second one or more is a child.
    let step = 1_u64 << old_pg_num.ilog2();
    let (old, residue) = (u64::from(old_pg_num), u64::from(seed) % step);
    let first = residue + (old - residue).div_ceil(step) * step;
    let is_child =
        |child: u64| child < u64::from(new_pg_num) && stable_mod(child as u32, old_pg_num) == seed;
    is_child(first) || is_child(first + step)
}

/// True if group `seed` goes up in another one when a pool shrinks from `old_pg_num` to
/// `new_pg_num` groups.
#[must_use]
pub fn pg_is_merge_source(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    seed < old_pg_num && seed >= new_pg_num
}

/// True if group `seed` takes in others when a pool shrinks from `old_pg_num` to `new_pg_num`
/// groups.
#[must_use]
pub fn pg_is_merge_target(seed: u32, old_pg_num: u32, new_pg_num: u32) -> bool {
    pg_is_split(seed, new_pg_num, old_pg_num)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_those_that_folding_shows() {
        for old in 1..70 {
            for new in 1..140 {
                for seed in 0..old {
                    // Objects leave the group: some new group folds to it by the old number.
                    let moves = (old..new).any(|child| stable_mod(child, old) == seed);
                    assert_eq!(pg_is_split(seed, old, new), moves, "{seed}: {old} to {new}");
                    assert_eq!(pg_is_merge_target(seed, new, old), moves);
                    assert_eq!(pg_is_merge_source(seed, old, new), seed >= new);
                }
            }
        }
        assert!(!pg_is_split(5, 5, 10) && !pg_is_split(0, 0, 10));
        assert!(pg_is_split(0, 1, u32::MAX) && !pg_is_split(7, u32::MAX, u32::MAX));
    }
}
