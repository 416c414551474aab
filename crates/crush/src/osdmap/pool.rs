//! One pool of an OSDMap, with the fields that placement needs.

use super::cursor::OsdMapCursor;
use super::string_hash::StringHash;
use super::{DecodeError, MAX_PG_NUM, MAX_POOL_SHARDS, PgId, PoolId};
use crate::RuleId;
use crate::hash::hash2;

/// Newest version of a pool that this crate knows (Ceph 20).
const KNOWN_VERSION: u8 = 32;
/// The oldest with the name of the erasure code profile (Ceph 0.80).
const OLDEST_VERSION: u8 = 14;
/// The first with the set of shards that cannot be primary (Ceph 20).
const NONPRIMARY_VERSION: u8 = 32;
/// Seeds are hashed with the pool's number, so that pools do not use the same devices.
const FLAG_HASHPSPOOL: u64 = 1 << 0;
/// Erasure-coded with the optimisations of Ceph 20.
const FLAG_EC_OPTIMIZATIONS: u64 = 1 << 19;

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
}

/// Folds a seed into 0..`n` such that growing n moves only the necessary seeds: takes the lowest
/// bits of the seed, and one bit fewer if the result is not below n.
pub(super) fn stable_mod(seed: u32, n: u32) -> u32 {
    let mask = n.next_power_of_two() - 1;
    if seed & mask < n { seed & mask } else { seed & (mask >> 1) }
}

impl Pool {
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
        if self.flags & FLAG_HASHPSPOOL == 0 {
            folded.wrapping_add(pool)
        } else {
            hash2(folded, pool)
        }
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
        let optimised = self.flags & FLAG_EC_OPTIMIZATIONS != 0;
        optimised && shard < 128 && self.nonprimary_shards >> shard & 1 != 0
    }

    /// Reads a pool; its name comes later in the map.
    pub(super) fn decode(cursor: &mut OsdMapCursor<'_>) -> Result<Self, DecodeError> {
        let pool = cursor.versioned(KNOWN_VERSION, "a pool")?;
        pool.since(OLDEST_VERSION, "a pool")?;
        let (version, mut r) = (pool.version, pool.fields);
        let kind = match r.u8("the type of a pool")? {
            1 => PoolKind::Replicated,
            3 => PoolKind::Erasure,
            other => PoolKind::Other(other),
        };
        let size = r.u8("the size of a pool")?;
        let rule = RuleId(r.u8("the rule of a pool")?.into());
        let object_hash = StringHash::from_number(r.u8("the hash of a pool")?);
        let pg_num = pg_count(&mut r, "pg_num of a pool")?;
        let shards = u64::from(pg_num) * u64::from(size);
        if shards > MAX_POOL_SHARDS {
            let (what, offset) = ("the number of shards of a pool", r.offset());
            let (value, max) = (shards, MAX_POOL_SHARDS);
            return Err(DecodeError::OutOfBounds { what, offset, value, min: 0, max });
        }
        let pgp_num = pg_count(&mut r, "pgp_num of a pool")?;
        // Localised groups, last_change, snap_seq, snap_epoch.
        r.take(4 + 4 + 4 + 8 + 4, "snapshot numbers of a pool")?;
        for _ in 0..r.count(14, "snapshots of a pool")? {
            r.u64("a snapshot of a pool")?;
            r.skip_versioned("a snapshot of a pool")?;
        }
        let removed = r.count(16, "removed snapshots of a pool")?;
        r.take(16 * removed, "removed snapshots of a pool")?;
        r.u64("the owner of a pool")?;
        let flags = r.u64("the flags of a pool")?;
        r.u32("the replay interval of a pool")?;
        let min_size = r.u8("the least size of a pool")?;
        // Quotas in bytes and objects.
        r.take(8 + 8, "the quotas of a pool")?;
        let tiers = r.count(8, "the tiers of a pool")?;
        r.take(8 * tiers, "the tiers of a pool")?;
        // tier_of, cache mode, read and write tier.
        r.take(8 + 1 + 8 + 8, "the tiers of a pool")?;
        for _ in 0..r.count(8, "the properties of a pool")? {
            r.blob("a property of a pool")?;
            r.blob("a property of a pool")?;
        }
        r.skip_versioned("the hit set of a pool")?;
        // Hit set period and count, stripe width, two targets, two ratios, two ages.
        r.take(4 + 4 + 4 + 8 + 8 + 4 + 4 + 4 + 4, "the cache settings of a pool")?;
        let erasure_code_profile = r.string("the erasure code profile of a pool")?;
        let nonprimary_shards =
            if version >= NONPRIMARY_VERSION { nonprimary_shards(r)? } else { 0 };
        Ok(Self {
            name: String::new(),
            kind,
            size,
            min_size,
            rule,
            object_hash,
            pg_num,
            pgp_num,
            flags,
            erasure_code_profile,
            nonprimary_shards,
        })
    }
}

fn pg_count(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<u32, DecodeError> {
    let value = r.u32(what)?;
    if (1..=MAX_PG_NUM).contains(&value) {
        return Ok(value);
    }
    let (offset, value) = (r.offset(), value.into());
    Err(DecodeError::OutOfBounds { what, offset, value, min: 1, max: MAX_PG_NUM.into() })
}

/// Reads from after the erasure code profile to the last known field, in a pool of version 32 or
/// later.
fn nonprimary_shards(mut r: OsdMapCursor<'_>) -> Result<u128, DecodeError> {
    // last_force_op_resend, read recency, expected objects, dirty ratio, write recency, two
    // switches, hit set decay and depth.
    r.take(4 + 4 + 8 + 4 + 4 + 1 + 1 + 4 + 4, "the settings of a pool")?;
    r.skip_versioned("the options of a pool")?;
    r.u32("last_force_op_resend of a pool")?;
    for _ in 0..r.count(8, "the applications of a pool")? {
        r.blob("an application of a pool")?;
        for _ in 0..r.count(8, "the settings of an application of a pool")? {
            r.blob("a setting of an application of a pool")?;
            r.blob("a setting of an application of a pool")?;
        }
    }
    // Time of creation, three targets for pg_num and pgp_num, three epochs, autoscale mode.
    r.take(8 + 3 * 4 + 3 * 4 + 1, "the targets of a pool")?;
    r.skip_versioned("the last merge of a pool")?;
    if r.u8("the stretch settings of a pool")? != 0 {
        r.take(4 * 4, "the stretch settings of a pool")?;
    }
    let low = r.varint("the nonprimary shards of a pool")?;
    let high = r.varint("the nonprimary shards of a pool")?;
    Ok(u128::from(high) << 64 | u128::from(low))
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
