//! One pool of an OSDMap, with the fields that placement and clients need. The module `pool_bytes`
//! reads and writes it.

use std::collections::BTreeMap;

use super::string_hash::StringHash;
use super::{PgId, PoolId, Time};
use crate::RuleId;
use crate::hash::hash2;

/// How a pool protects its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Copies: the members of a placement group are interchangeable, and close the gap when one
    /// leaves.
    Replicated,
    /// Shards: the position of a member gives its shard's number, and a lost member leaves a hole.
    Erasure,
    /// A number without a meaning. Such a pool is placed like an erasure-coded one.
    Other(u8),
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name; empty if the map has none.
    pub name: String,
    /// How it protects its objects.
    pub kind: PoolKind,
    /// Number of copies, or shards, of an object.
    pub size: u8,
    /// Number of copies or shards that must be up for writes.
    pub min_size: u8,
    /// The CRUSH rule that places it.
    pub rule: RuleId,
    /// The hash that turns names into seeds.
    pub object_hash: StringHash,
    /// Number of placement groups.
    pub pg_num: u32,
    /// Number of groups with a placement of their own; groups above share the placement of a lower
    /// one.
    pub pgp_num: u32,
    /// Flags, with Ceph's bit numbers.
    pub flags: u64,
    /// The erasure code profile; empty for replicated pools.
    pub erasure_code_profile: String,
    /// Bit i: shard i can never be primary. Only pools with the optimisations of Ceph 20 have any.
    pub nonprimary_shards: u128,
    /// The epoch of the pool's last change.
    pub last_change: u32,
    /// Clients send their requests again if the map's epoch is this one: the value for clients that
    /// know Ceph 14 or later.
    pub last_force_op_resend: u32,
    /// The same for clients that know Ceph 12 or 13.
    pub last_force_op_resend_prenautilus: u32,
    /// The same for older clients.
    pub last_force_op_resend_preluminous: u32,
    /// The newest snapshot of the pool, or of its objects.
    pub snap_seq: u64,
    /// The epoch of the newest snapshot.
    pub snap_epoch: u32,
    /// Snapshots of the whole pool, by number.
    pub snapshots: BTreeMap<u64, PoolSnapshot>,
    /// The pool is full at this many bytes; 0 for no limit.
    pub quota_bytes: u64,
    /// The pool is full at this many objects; 0 for no limit.
    pub quota_objects: u64,
    /// The pool that this one caches.
    pub tier_of: Option<PoolId>,
    /// Reads go to this pool instead.
    pub read_tier: Option<PoolId>,
    /// Writes go to this pool instead, also requests that read and write.
    pub write_tier: Option<PoolId>,
    /// The pools that cache this one.
    pub tiers: Vec<PoolId>,
    /// How this pool caches, with Ceph's number; 0 for not at all.
    pub cache_mode: u8,
    /// Erasure-coded pools: bytes of data in a stripe.
    pub stripe_width_bytes: u32,
    /// The number of groups that the monitors steer to.
    pub pg_num_target: u32,
    /// The number of placements that the monitors steer to.
    pub pgp_num_target: u32,
    /// The number of groups after the merge that is being prepared; else `pg_num`.
    pub pg_num_pending: u32,
    /// The applications that use the pool (`rbd`), each with its settings.
    pub applications: BTreeMap<String, BTreeMap<String, String>>,
}

/// A snapshot of a whole pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Its name.
    pub name: String,
    /// When it was taken.
    pub taken: Time,
}

/// Folds a seed into 0..`n` such that growing n moves only the necessary seeds: takes the lowest
/// bits of the seed, and one bit fewer if the result is not below n.
pub(super) fn stable_mod(seed: u32, n: u32) -> u32 {
    let mask = n.checked_next_power_of_two().map_or(u32::MAX, |power| power - 1);
    if seed & mask < n { seed & mask } else { seed & (mask >> 1) }
}

impl Pool {
    /// Seeds are hashed with the pool's number, so that pools do not use the same devices.
    pub const HASHPSPOOL: u64 = 1 << 0;
    /// The pool is full: writes wait or fail.
    pub const FULL: u64 = 1 << 1;
    /// Erasure-coded, and takes writes in the middle of objects.
    pub const EC_OVERWRITES: u64 = 1 << 2;
    /// Its quota is used up. [`Pool::FULL`] is set too.
    pub const FULL_QUOTA: u64 = 1 << 10;
    /// The pool is nearly full.
    pub const NEARFULL: u64 = 1 << 11;
    /// Clients number the snapshots of its objects.
    pub const SELFMANAGED_SNAPS: u64 = 1 << 13;
    /// It has snapshots of the whole pool.
    pub const POOL_SNAPS: u64 = 1 << 14;
    /// Its groups are being created.
    pub const CREATING: u64 = 1 << 15;
    /// All requests of clients fail (Ceph 18 and later).
    pub const EIO: u64 = 1 << 16;
    /// Erasure-coded with the optimisations of Ceph 20.
    pub const EC_OPTIMIZATIONS: u64 = 1 << 19;

    /// A new, nameless pool: with [`Pool::HASHPSPOOL`], no tiers, no snapshots, no quotas.
    #[must_use]
    pub fn new(kind: PoolKind, size: u8, min_size: u8, rule: RuleId, pg_num: u32) -> Self {
        Self {
            name: String::new(),
            kind,
            size,
            min_size,
            rule,
            object_hash: StringHash::Rjenkins,
            pg_num,
            pgp_num: pg_num,
            flags: Self::HASHPSPOOL,
            erasure_code_profile: String::new(),
            nonprimary_shards: 0,
            last_change: 0,
            last_force_op_resend: 0,
            last_force_op_resend_prenautilus: 0,
            last_force_op_resend_preluminous: 0,
            snap_seq: 0,
            snap_epoch: 0,
            snapshots: BTreeMap::new(),
            quota_bytes: 0,
            quota_objects: 0,
            tier_of: None,
            read_tier: None,
            write_tier: None,
            tiers: Vec::new(),
            cache_mode: 0,
            stripe_width_bytes: 0,
            pg_num_target: pg_num,
            pgp_num_target: pg_num,
            pg_num_pending: pg_num,
            applications: BTreeMap::new(),
        }
    }

    /// True if all of these flags are set.
    #[must_use]
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// True if writes must wait or fail: the pool is full, or its quota is used up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.flags & (Self::FULL | Self::FULL_QUOTA) != 0
    }

    /// True if the pool's quota is used up.
    #[must_use]
    pub fn is_over_quota(&self) -> bool {
        self.has(Self::FULL_QUOTA)
    }

    /// True for erasure-coded pools.
    #[must_use]
    pub fn is_erasure_coded(&self) -> bool {
        self.kind == PoolKind::Erasure
    }

    /// True if objects take writes at any offset.
    #[must_use]
    pub fn takes_overwrites(&self) -> bool {
        !self.is_erasure_coded() || self.has(Self::EC_OVERWRITES)
    }

    /// The multiple on which writes must begin and end: the stripe of an erasure-coded pool
    /// without overwrites, else 1.
    #[must_use]
    pub fn alignment_bytes(&self) -> u32 {
        if self.takes_overwrites() { 1 } else { self.stripe_width_bytes.max(1) }
    }

    /// The number of the whole pool's snapshot of that name.
    #[must_use]
    pub fn snapshot_named(&self, name: &str) -> Option<u64> {
        self.snapshots.iter().find(|(_, snapshot)| snapshot.name == name).map(|(&id, _)| id)
    }

    /// True if members of a placement group are interchangeable.
    #[must_use]
    pub fn can_shift(&self) -> bool {
        self.kind == PoolKind::Replicated
    }

    /// The group of an object with this placement seed.
    #[must_use]
    pub fn fold(&self, seed: u32) -> u32 {
        stable_mod(seed, self.pg_num)
    }

    /// The input x of the CRUSH rule for a seed, folded or not.
    #[must_use]
    pub fn x(&self, pool: PoolId, seed: u32) -> u32 {
        let folded = stable_mod(seed, self.pgp_num);
        let pool = pool.0 as u32;
        if !self.has(Self::HASHPSPOOL) { folded.wrapping_add(pool) } else { hash2(folded, pool) }
    }

    /// The placement seed of an object. If `key` is not empty, it is hashed instead of the name.
    #[must_use]
    pub fn seed(&self, namespace: &str, key: &str, name: &str) -> u32 {
        let hashed = if key.is_empty() { name } else { key };
        self.object_hash.seed(namespace.as_bytes(), hashed.as_bytes())
    }

    /// All groups of the pool.
    pub fn pgs(&self, pool: PoolId) -> impl Iterator<Item = PgId> + use<> {
        (0..self.pg_num).map(move |seed| PgId { pool, seed })
    }

    /// True for shards that cannot be primary; false for all shards in pools without optimisations.
    pub(super) fn is_nonprimary(&self, shard: usize) -> bool {
        let optimised = self.has(Self::EC_OPTIMIZATIONS);
        optimised && shard < 128 && self.nonprimary_shards >> shard & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_fold_stably() {
        for n in 1..200_u32 {
            for seed in 0..1000 {
                let folded = stable_mod(seed, n);
                assert!(folded < n);
                let grown = stable_mod(seed, n + 1);
                assert!(grown == folded || grown == n, "{seed} moves between old groups");
            }
        }
        assert_eq!(stable_mod(u32::MAX, 1), 0);
    }
}
