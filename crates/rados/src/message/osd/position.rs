//! The order of objects in a pool (Ceph: `hobject_t` and its bitwise order).
//!
//! A placement group has the objects whose hashes end with the same bits. In the order, the hash
//! counts with its bits reversed, so the objects of a group stand together, and stay so when a
//! group splits. The fields count in this order: behind all objects or not, pool, reversed hash,
//! namespace, key (of an object without a key: its name), name, snapshot. Texts compare as bytes.

use std::cmp::Ordering;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;

use super::locator::text;
use super::{ObjectPosition, OsdBackoff};
use crate::cluster::{ObjectName, SnapId};
use crate::encoding::{DecodeError, Decoder, Encoder};

/// The number of a pool in the first position.
const NO_POOL: PoolId = PoolId(i64::MIN);
/// The newest version of a position.
const VERSION: u8 = 4;

impl ObjectPosition {
    /// The first position, before all objects.
    #[must_use]
    pub fn first() -> Self {
        Self {
            is_max: false,
            pool: NO_POOL,
            hash: 0,
            namespace: String::new(),
            key: String::new(),
            name: String::new(),
            snapshot: SnapId(0),
        }
    }

    /// The position behind all objects.
    #[must_use]
    pub fn last() -> Self {
        Self { is_max: true, ..Self::first() }
    }

    /// The position of an object, whose name or key has this hash.
    #[must_use]
    pub fn of(object: &ObjectName, hash: u32, snapshot: SnapId) -> Self {
        let key = if object.key == object.name { "" } else { &object.key };
        Self {
            is_max: false,
            pool: object.pool,
            hash,
            namespace: object.namespace.as_ref().to_owned(),
            key: key.to_owned(),
            name: object.name.as_ref().to_owned(),
            snapshot,
        }
    }

    /// Reads one: a section with key, name, u64 snapshot, u32 hash, u8 1 behind all objects,
    /// namespace, s64 pool.
    ///
    /// # Errors
    /// The bytes end before, or the version is older than Ceph 0.61.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let section = from.section(VERSION, "a position")?.at_least(VERSION, "a position")?;
        let mut fields = section.fields;
        let mut key = text(&mut fields, "the key of a position")?;
        let name = text(&mut fields, "the name of a position")?;
        let snapshot = SnapId(fields.u64("the snapshot of a position")?);
        let hash = fields.u32("the hash of a position")?;
        let is_max = fields.bool("the end of positions")?;
        let namespace = text(&mut fields, "the namespace of a position")?;
        let pool = PoolId(fields.i64("the pool of a position")?);
        if is_max {
            return Ok(Self::last());
        }
        if key == name {
            key.clear();
        }
        Ok(Self { is_max, pool, hash, namespace, key, name, snapshot })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.section(VERSION, 3, |fields| {
            fields.string(&self.key).string(&self.name).u64(self.snapshot.0).u32(self.hash);
            fields.bool(self.is_max).string(&self.namespace).i64(self.pool.0);
        });
    }

    /// The encoded position.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let texts = self.key.len() + self.name.len() + self.namespace.len();
        let mut into = Encoder::with_capacity(texts + 39);
        self.encode(&mut into);
        into.finish()
    }

    /// The text that places the object.
    fn effective_key(&self) -> &str {
        if self.key.is_empty() { &self.name } else { &self.key }
    }
}

impl Ord for ObjectPosition {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |at: &Self| (at.is_max, at.pool, at.hash.reverse_bits());
        place(self)
            .cmp(&place(other))
            .then_with(|| self.namespace.cmp(&other.namespace))
            .then_with(|| self.effective_key().cmp(other.effective_key()))
            .then_with(|| self.name.cmp(&other.name))
            .then_with(|| self.snapshot.cmp(&other.snapshot))
            // Only to agree with equality: a key that is the name again.
            .then_with(|| self.key.cmp(&other.key))
    }
}

impl PartialOrd for ObjectPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl OsdBackoff {
    /// True if requests on this object are held back. A request's object counts with the snapshot
    /// [`SnapId::HEAD`], whatever it reads.
    #[must_use]
    pub fn holds(&self, object: &ObjectPosition) -> bool {
        *object == self.begin || (self.begin < *object && *object < self.end)
    }
}
