//! Reads and writes pools. A pool is a versioned structure; each release appended fields.

use super::cursor::OsdMapCursor;
use super::fields;
use super::string_hash::StringHash;
use super::writer::Writer;
use super::{DecodeError, MAX_PG_NUM, MAX_POOL_SHARDS, Pool, PoolId, PoolKind, PoolSnapshot, Time};
use crate::RuleId;

/// Newest version of a pool that this crate knows (Ceph 20).
const KNOWN_VERSION: u8 = 32;
/// The oldest with the name of the erasure code profile (Ceph 0.80).
const OLDEST_VERSION: u8 = 14;
/// The first with the set of shards that cannot be primary (Ceph 20).
const NONPRIMARY_VERSION: u8 = 32;
/// The version that is written unless the pool needs a later one (Ceph 16).
const WRITTEN_VERSION: u8 = 29;
/// The least version of a reader that the written form demands.
const WRITTEN_MIN_VERSION: u8 = 5;

impl Pool {
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
        let mut pool = Self::new(kind, size, 0, rule, pg_num);
        (pool.object_hash, pool.pgp_num, pool.pgp_num_target) = (object_hash, pgp_num, pgp_num);
        pool.decode_snapshots(&mut r)?;
        pool.flags = r.u64("the flags of a pool")?;
        r.u32("the replay interval of a pool")?;
        pool.min_size = r.u8("the least size of a pool")?;
        pool.quota_bytes = r.u64("the quotas of a pool")?;
        pool.quota_objects = r.u64("the quotas of a pool")?;
        pool.decode_tiers(&mut r)?;
        fields::strings(&mut r, "the properties of a pool")?;
        r.skip_versioned("the hit set of a pool")?;
        // Hit set period and count.
        r.take(4 + 4, "the cache settings of a pool")?;
        pool.stripe_width_bytes = r.u32("the stripe width of a pool")?;
        // Two targets, two ratios, two ages.
        r.take(8 + 8 + 4 + 4 + 4 + 4, "the cache settings of a pool")?;
        pool.erasure_code_profile = r.string("the erasure code profile of a pool")?;
        pool.decode_settings(version, &mut r)?;
        pool.decode_targets(version, &mut r)?;
        Ok(pool)
    }

    fn decode_snapshots(&mut self, r: &mut OsdMapCursor<'_>) -> Result<(), DecodeError> {
        // Localised groups.
        r.take(4 + 4, "the groups of a pool")?;
        self.last_change = r.u32("the last change of a pool")?;
        self.snap_seq = r.u64("the newest snapshot of a pool")?;
        self.snap_epoch = r.u32("the newest snapshot of a pool")?;
        let what = "a snapshot of a pool";
        for _ in 0..r.count(14, "snapshots of a pool")? {
            let id = r.u64(what)?;
            let mut fields = r.versioned(2, what)?.fields;
            fields.u64(what)?;
            let taken = Time::decode(&mut fields)?;
            let name = fields.string(what)?;
            self.snapshots.insert(id, PoolSnapshot { name, taken });
        }
        let removed = r.count(16, "removed snapshots of a pool")?;
        r.take(16 * removed, "removed snapshots of a pool")?;
        r.u64("the owner of a pool").map(drop)
    }

    fn decode_tiers(&mut self, r: &mut OsdMapCursor<'_>) -> Result<(), DecodeError> {
        let what = "the tiers of a pool";
        let id = |r: &mut OsdMapCursor<'_>| r.i64(what).map(PoolId);
        self.tiers = (0..r.count(8, what)?).map(|_| id(r)).collect::<Result<_, _>>()?;
        let some = |id: PoolId| Some(id).filter(|id| id.0 >= 0);
        self.tier_of = some(id(r)?);
        self.cache_mode = r.u8(what)?;
        self.read_tier = some(id(r)?);
        self.write_tier = some(id(r)?);
        Ok(())
    }

    /// Reads from after the erasure code profile to the applications.
    fn decode_settings(
        &mut self,
        version: u8,
        r: &mut OsdMapCursor<'_>,
    ) -> Result<(), DecodeError> {
        let resend = "last_force_op_resend of a pool";
        if version >= 15 {
            self.last_force_op_resend_preluminous = r.u32(resend)?;
        }
        // Read recency, expected objects, dirty ratio, write recency, two switches, hit set decay
        // and depth: each with the version that brought it.
        for (since, len) in [(16, 4), (17, 8), (19, 4), (20, 4), (21, 1), (22, 1), (23, 8)] {
            if version >= since {
                r.take(len, "the settings of a pool")?;
            }
        }
        if version >= 24 {
            r.skip_versioned("the options of a pool")?;
        }
        self.last_force_op_resend_prenautilus =
            if version >= 25 { r.u32(resend)? } else { self.last_force_op_resend_preluminous };
        if version >= 26 {
            self.applications = fields::profiles(r, "the applications of a pool")?;
        }
        Ok(())
    }

    /// Reads the fields after the applications.
    fn decode_targets(&mut self, version: u8, r: &mut OsdMapCursor<'_>) -> Result<(), DecodeError> {
        if version >= 27 {
            r.take(8, "the time of creation of a pool")?;
        }
        self.last_force_op_resend = self.last_force_op_resend_prenautilus;
        if version >= 28 {
            let what = "the targets of a pool";
            self.pg_num_target = r.u32(what)?;
            self.pgp_num_target = r.u32(what)?;
            self.pg_num_pending = r.u32(what)?;
            // Two epochs that are always 0.
            r.take(4 + 4, what)?;
            self.last_force_op_resend = r.u32("last_force_op_resend of a pool")?;
            r.u8("the autoscale mode of a pool")?;
        }
        if version >= 29 {
            r.skip_versioned("the last merge of a pool")?;
        }
        if version >= NONPRIMARY_VERSION {
            if r.u8("the stretch settings of a pool")? != 0 {
                r.take(4 * 4, "the stretch settings of a pool")?;
            }
            let low = r.varint("the nonprimary shards of a pool")?;
            let high = r.varint("the nonprimary shards of a pool")?;
            self.nonprimary_shards = u128::from(high) << 64 | u128::from(low);
        }
        Ok(())
    }

    /// Writes a pool without its name. Fields that this crate does not keep get the values of a new
    /// pool.
    pub(super) fn encode(&self, out: &mut Writer) {
        let version =
            if self.nonprimary_shards == 0 { WRITTEN_VERSION } else { NONPRIMARY_VERSION };
        out.versioned(version, WRITTEN_MIN_VERSION, |out| {
            out.u8(match self.kind {
                PoolKind::Replicated => 1,
                PoolKind::Erasure => 3,
                PoolKind::Other(other) => other,
            });
            out.u8(self.size);
            out.u8(self.rule.0 as u8);
            out.u8(match self.object_hash {
                StringHash::Linux => 1,
                StringHash::Rjenkins => 2,
                StringHash::Other(other) => other,
            });
            out.u32(self.pg_num);
            out.u32(self.pgp_num);
            self.encode_snapshots(out);
            out.u64(self.flags);
            out.u32(0);
            out.u8(self.min_size);
            out.u64(self.quota_bytes);
            out.u64(self.quota_objects);
            self.encode_tiers(out);
            // No properties, no hit set.
            out.u32(0);
            out.versioned(1, 1, |out| out.u8(0));
            out.zeros(4 + 4);
            out.u32(self.stripe_width_bytes);
            out.zeros(8 + 8 + 4 + 4 + 4 + 4);
            out.string(&self.erasure_code_profile);
            self.encode_settings(out);
            self.encode_targets(out);
            if version >= NONPRIMARY_VERSION {
                out.u8(0);
                out.varint(self.nonprimary_shards as u64);
                out.varint((self.nonprimary_shards >> 64) as u64);
            }
        });
    }

    fn encode_snapshots(&self, out: &mut Writer) {
        out.zeros(4 + 4);
        out.u32(self.last_change);
        out.u64(self.snap_seq);
        out.u32(self.snap_epoch);
        out.list(self.snapshots.iter(), |out, (&id, snapshot)| {
            out.u64(id);
            out.versioned(2, 2, |out| {
                out.u64(id);
                snapshot.taken.encode(out);
                out.string(&snapshot.name);
            });
        });
        // No removed snapshots, no owner.
        out.u32(0);
        out.u64(0);
    }

    fn encode_tiers(&self, out: &mut Writer) {
        let number = |id: Option<PoolId>| id.map_or(-1, |id| id.0);
        out.list(self.tiers.iter(), |out, id| out.i64(id.0));
        out.i64(number(self.tier_of));
        out.u8(self.cache_mode);
        out.i64(number(self.read_tier));
        out.i64(number(self.write_tier));
    }

    fn encode_settings(&self, out: &mut Writer) {
        out.u32(self.last_force_op_resend_preluminous);
        // Read recency, expected objects, dirty ratio, write recency.
        out.zeros(4 + 8 + 4 + 4);
        // Hit sets are named by universal time; no fast reads.
        out.u8(1);
        out.u8(0);
        out.zeros(4 + 4);
        // No options.
        out.versioned(2, 1, |out| out.u32(0));
        out.u32(self.last_force_op_resend_prenautilus);
        out.profiles(&self.applications);
    }

    fn encode_targets(&self, out: &mut Writer) {
        Time::default().encode(out);
        out.u32(self.pg_num_target);
        out.u32(self.pgp_num_target);
        out.u32(self.pg_num_pending);
        out.zeros(4 + 4);
        out.u32(self.last_force_op_resend);
        // The autoscaler is off.
        out.u8(0);
        // The last merge: no group, three epochs, two versions.
        out.versioned(1, 1, |out| {
            out.u8(1);
            out.zeros(8 + 4);
            out.i32(-1);
            out.zeros(3 * 4 + 2 * 12);
        });
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
