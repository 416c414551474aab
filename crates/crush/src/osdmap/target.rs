//! The device to which a client sends a request.

use super::{OsdMap, PgId, PlaceError, PoolId, PoolKind};
use crate::{ItemId, OsdId};

/// Where the requests for a placement group go. It holds for one epoch, so a client can keep it for
/// all objects of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgTarget {
    /// The group, with a folded seed.
    pub pg: PgId,
    /// The devices where data should be.
    pub up: Vec<ItemId>,
    /// Their primary.
    pub up_primary: Option<OsdId>,
    /// The devices that have the data. In erasure-coded pools [`ItemId::NONE`] is a hole.
    pub acting: Vec<ItemId>,
    /// Their primary, to which requests go. `None`: no device has the data now, so requests wait.
    pub acting_primary: Option<OsdId>,
    /// Erasure-coded pools: the number of the primary's shard, its position in `acting`. Requests
    /// name it.
    pub shard: Option<u8>,
}

/// Where the requests for an object go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The hash of the object: the seed before folding. Requests name it too.
    pub hash: u32,
    /// The object's group.
    pub pg: PgTarget,
}

impl OsdMap {
    /// The placement group of an object before its seed is folded: the seed is the object's hash.
    /// If `key` is not empty, it is hashed instead of the name.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn locate_unfolded(
        &self,
        pool: PoolId,
        namespace: &str,
        key: &str,
        name: &str,
    ) -> Result<PgId, PlaceError> {
        let known = self.pools.get(&pool).ok_or(PlaceError::NoSuchPool(pool))?;
        Ok(PgId { pool, seed: known.seed(namespace, key, name) })
    }

    /// Where the requests for an object go.
    ///
    /// Pools that cache (`read_tier`, `write_tier`) are not followed: the caller chooses the pool.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn target(
        &self,
        pool: PoolId,
        namespace: &str,
        key: &str,
        name: &str,
    ) -> Result<Target, PlaceError> {
        let unfolded = self.locate_unfolded(pool, namespace, key, name)?;
        Ok(Target { hash: unfolded.seed, pg: self.pg_target(unfolded)? })
    }

    /// Where the requests for a placement group go; its seed may be folded or not.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn pg_target(&self, pg: PgId) -> Result<PgTarget, PlaceError> {
        let pool = self.pools.get(&pg.pool).ok_or(PlaceError::NoSuchPool(pg.pool))?;
        let pg = PgId { seed: pool.fold(pg.seed), ..pg };
        let placement = self.place(pg)?;
        let is_primary = |item: &ItemId| item.osd() == placement.acting_primary;
        let shard = match pool.kind {
            PoolKind::Replicated => None,
            _ => {
                placement.acting_primary.and_then(|_| placement.acting.iter().position(is_primary))
            }
        };
        Ok(PgTarget {
            pg,
            up: placement.up,
            up_primary: placement.up_primary,
            acting: placement.acting,
            acting_primary: placement.acting_primary,
            shard: shard.and_then(|shard| u8::try_from(shard).ok()),
        })
    }
}
