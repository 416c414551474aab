//! What the objecter reads in a map of the cluster, and what it remembers of it.
//!
//! The objecter asks a map few questions; [`ClusterMap`] has them. So tests use maps that are
//! quicker to make and to change than a real one.
//!
//! **When does a request have to be sent again?** The OSD throws away requests that it got before
//! it became the primary, before the group was split, and before the pool's "force resend" epoch.
//! So the client compares the group of each request in each epoch ([`Target::must_move`]). A change
//! of the other members does not matter to requests: the primary keeps what it has. It matters to
//! watches: they are renewed in each new *interval* ([`Interval`]).

use std::rc::Rc;

use fieldstone_crush::osdmap::{PgId, PoolId};
use fieldstone_crush::{ItemId, OsdId};

use crate::cluster::ObjectName;
use crate::encoding::Addresses;
use crate::message::osd::ShardedPg;

/// The questions that the objecter asks a map.
pub trait ClusterMap {
    /// Counts the changes of the map.
    fn epoch(&self) -> u32;
    /// Reads have to wait.
    fn pauses_reads(&self) -> bool;
    /// Writes have to wait, for another reason than [`ClusterMap::is_full`].
    fn pauses_writes(&self) -> bool;
    /// The cluster is full.
    fn is_full(&self) -> bool;
    /// A pool; `None` if there is none.
    fn pool(&self, pool: PoolId) -> Option<PoolRules>;
    /// The placement seed of an object, not folded; `None` if there is no such pool.
    fn hash(&self, object: &ObjectName) -> Option<u32>;
    /// Where a group is; `None` if there is no such group.
    fn place(&self, pg: PgId) -> Option<Interval>;
    /// The addresses of an OSD; `None` unless it is up.
    fn addresses(&self, osd: OsdId) -> Option<Addresses>;
}

/// What requests have to know of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRules {
    /// The number of groups.
    pub pg_num: u32,
    /// All members of a group have the same bytes, and any of them may answer a read.
    pub is_replicated: bool,
    /// Writes have to wait, or fail.
    pub is_full: bool,
    /// All requests fail with `EIO`.
    pub fails: bool,
    /// In this epoch, all requests are sent again.
    pub resend_epoch: u32,
    /// Reads go to this pool instead.
    pub read_tier: Option<PoolId>,
    /// Writes go to this pool instead.
    pub write_tier: Option<PoolId>,
}

/// Where a group is, and all else whose change begins a new interval of its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The members that have the data, in order.
    pub acting: Vec<ItemId>,
    /// The member that takes requests.
    pub acting_primary: Option<OsdId>,
    /// The members that should have the data.
    pub up: Vec<ItemId>,
    /// The first of them.
    pub up_primary: Option<OsdId>,
    /// The shard of `acting_primary` in an erasure-coded pool, otherwise -1.
    pub shard: i8,
    /// Copies or shards of the pool, and the least number for writes.
    pub sizes: (u8, u8),
    /// Groups of the pool, and the number after the merge that is being prepared.
    pub pg_nums: (u32, u32),
}

/// A group in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub pg: ShardedPg,
    pub interval: Interval,
    pub rules: PoolRules,
}

impl Group {
    /// The position of the primary.
    fn rank(&self) -> Option<usize> {
        let primary = self.interval.acting_primary?;
        self.interval.acting.iter().position(|item| item.osd() == Some(primary))
    }
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The pool: that of the object, or its cache.
    pub pool: PoolId,
    /// The seed, not folded.
    pub hash: u32,
    pub group: Rc<Group>,
    /// The OSD: the primary or, for some reads, another member. `None`: no OSD can take it.
    pub osd: Option<OsdId>,
    /// `osd` was selected among all members.
    pub chose_replica: bool,
}

impl Target {
    /// True if a request that went to `self` has to be sent again, to `new`, in epoch `epoch`.
    pub fn must_move(&self, new: &Target, epoch: u32) -> bool {
        let (old, next) = (&self.group.interval, &new.group.interval);
        self.pool != new.pool
            || old.acting_primary != next.acting_primary
            || self.group.rank() != new.group.rank()
            || self.group.pg.shard != new.group.pg.shard
            || (self.chose_replica && old.acting != next.acting)
            || splits_or_merges(self.group.pg.pg.seed, old.pg_nums.0, next.pg_nums.0)
            || (epoch != 0 && new.group.rules.resend_epoch == epoch)
    }
}

/// Folds a seed into 0..`n`, as pools do.
pub(super) fn fold(seed: u32, n: u32) -> u32 {
    let mask = n.max(1).next_power_of_two() - 1;
    if seed & mask < n { seed & mask } else { seed & (mask >> 1) }
}

/// True if the group `seed` gives objects to new groups when the number of groups goes from `old`
/// to `new`, or takes part in a merge.
pub(super) fn splits_or_merges(seed: u32, old: u32, new: u32) -> bool {
    if old == new {
        return false;
    }
    let (fewer, more) = (old.min(new), old.max(new));
    if seed >= fewer {
        // Only when groups are removed: this one is merged into another.
        return true;
    }
    // Groups that fold to `seed` have its lowest bits.
    let step = fewer.next_power_of_two().max(2) / 2;
    let lowest = u64::from(seed % step);
    (lowest..u64::from(more))
        .step_by(step as usize)
        .any(|other| other >= u64::from(fewer) && fold(other as u32, fewer) == seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: a group splits if a new seed folds to it, and merges if it goes or takes.
    fn by_definition(seed: u32, old: u32, new: u32) -> bool {
        let splits = (old..new).any(|other| fold(other, old) == seed);
        let takes = (new..old).any(|other| fold(other, new) == seed);
        splits || takes || (seed >= new && seed < old)
    }

    #[test]
    fn splits_and_merges_are_those_of_folding() {
        for old in 1..70 {
            for new in 1..140 {
                for seed in 0..old {
                    let expected = by_definition(seed, old, new);
                    assert_eq!(splits_or_merges(seed, old, new), expected, "{seed} {old} {new}");
                }
            }
        }
    }
}
