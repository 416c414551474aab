//! OSDMaps: the pools and devices of a Ceph cluster. From an OSDMap, every client computes where an
//! object lies. `ceph osd getmap -o FILE` gives one.
//!
//! **From name to devices.** Every step is part of the contract between clients and cluster:
//!
//! 1. The object's name (or its locator key, with its namespace) is hashed to a *seed*.
//! 2. The seed is folded to the number of a *placement group* ([`Pool::fold`]).
//! 3. The seed, folded by `pgp_num` and mixed with the pool's number, is the x of the pool's CRUSH
//!    rule ([`Pool::x`]). The rule gives the *raw* devices. Devices that do not exist are dropped.
//! 4. *Upmaps* replace members: all of a group (`pg_upmap`), one by another (`pg_upmap_items`), or
//!    the first (`pg_upmap_primaries`). An upmap to a device that is out does not count.
//! 5. Devices that are down are dropped: the *up* set. Its primary is the first member, unless
//!    *primary affinities* select another.
//! 6. While data moves, `pg_temp` and `primary_temp` name the devices that have it: the *acting*
//!    set, to which clients talk. Otherwise the acting set is the up set.
//!
//! To *drop* a member of a replicated group means to close the gap. In an erasure-coded group, the
//! position gives the shard's number, so a hole stays ([`ItemId::NONE`]).
//!
//! **Layout.** Little-endian, Ceph 12 and later; the module `cursor` explains "versioned".
//!
//! | part | layout |
//! |---|---|
//! | whole | versioned: client part, daemon part, u32 checksum, nothing |
//! | client part | versioned: 16 bytes fsid, u32 epoch, two times of 8 bytes, pools (s64 number, versioned pool), their names, s32 highest number, u32 flags, s32 OSDs, states (u32), reweights (u32), addresses, `pg_temp`, `primary_temp`, primary affinities (u32), CRUSH map (u32 length), erasure code profiles, `pg_upmap`, `pg_upmap_items`, more that is passed over, from version 10 on `pg_upmap_primaries` |
//! | daemon part | versioned, passed over |
//! | checksum | CRC32C of all other bytes, begun with ones, not inverted at the end |
//!
//! A list is a u32 count and its elements. A placement group is u8 1, s64 pool, u32 seed, s32 -1.
//!
//! **Hostile bytes** give errors. The decoder accepts a count only if the bytes left can hold that
//! many elements.

mod cursor;
mod decode;
mod error;
mod place;
mod pool;
mod string_hash;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use error::{DecodeError, PlaceError};
pub use place::{Placement, PoolPlacement};
pub use pool::{Pool, PoolKind};
pub use string_hash::StringHash;

use crate::{ItemId, Map, OsdId, WEIGHT_ONE};

/// Most placement groups of a pool; far beyond every real one.
pub const MAX_PG_NUM: u32 = 1 << 22;
/// Most shards of all placement groups of a pool.
pub const MAX_POOL_SHARDS: u64 = 1 << 26;

/// The number of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub i64);

/// A placement group; written `POOL.SEED` with the seed in hexadecimal, as Ceph does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgId {
    /// Its pool.
    pub pool: PoolId,
    /// Its number in the pool.
    pub seed: u32,
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool.0, self.seed)
    }
}

impl FromStr for PgId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a placement group; write POOL.SEED, e.g. 3.1f");
        let (pool, seed) = text.split_once('.').ok_or_else(wrong)?;
        let pool = PoolId(pool.parse().map_err(|_| wrong())?);
        Ok(Self { pool, seed: u32::from_str_radix(seed, 16).map_err(|_| wrong())? })
    }
}

/// The number of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fsid(pub [u8; 16]);

impl fmt::Display for Fsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The parameters of an erasure code, as in `ceph osd erasure-code-profile`.
pub type ErasureProfile = BTreeMap<String, String>;

/// The state of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsdState(pub u32);

impl OsdState {
    /// The device exists.
    pub const EXISTS: u32 = 1 << 0;
    /// Its daemon runs.
    pub const UP: u32 = 1 << 1;

    /// True for a device that exists.
    #[must_use]
    pub fn exists(self) -> bool {
        self.0 & Self::EXISTS != 0
    }

    /// True for a device that exists and whose daemon runs.
    #[must_use]
    pub fn is_up(self) -> bool {
        self.exists() && self.0 & Self::UP != 0
    }
}

/// The parts of an OSDMap that give the place of data. Devices in its tables may not exist;
/// [`ItemId::NONE`] is a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdMap {
    /// Counts the changes of the cluster's map.
    pub epoch: u32,
    /// The cluster.
    pub fsid: Fsid,
    /// The pools.
    pub pools: BTreeMap<PoolId, Pool>,
    /// States of the devices, by number.
    pub states: Vec<OsdState>,
    /// 16.16 reweights of the devices, by number: 0 is out. There are as many as `states`.
    pub weights: Vec<u32>,
    /// 16.16 chances of the devices to be primary where they could be. There are as many as
    /// `states`, or none: then all are 1.0.
    pub primary_affinities: Vec<u32>,
    /// The devices of groups whose data has not moved yet. The keys of this and all other tables
    /// are folded.
    pub pg_temp: BTreeMap<PgId, Vec<ItemId>>,
    /// The primary of such groups.
    pub primary_temp: BTreeMap<PgId, ItemId>,
    /// Members of groups, instead of those by CRUSH.
    pub pg_upmap: BTreeMap<PgId, Vec<ItemId>>,
    /// Members to replace, each with its replacement.
    pub pg_upmap_items: BTreeMap<PgId, Vec<(ItemId, ItemId)>>,
    /// The member that comes first (Ceph 18 and later).
    pub pg_upmap_primaries: BTreeMap<PgId, ItemId>,
    /// Erasure code profiles by name: `k`, `m`, `plugin` and so on.
    pub erasure_code_profiles: BTreeMap<String, ErasureProfile>,
    /// The CRUSH map.
    pub crush: Map,
}

impl OsdMap {
    /// Reads a full map as `ceph osd getmap` and osdmaptool write it, and verifies the checksum.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode::decode(bytes).map(|(map, _)| map)
    }

    /// The bytes of a map with a corrected checksum; `None` if there is any other error. For tests
    /// that damage maps on purpose.
    #[must_use]
    pub fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
        write::seal(bytes)
    }

    /// True if the bytes begin as an OSDMap does (a CRUSH map, binary or text, does not).
    #[must_use]
    pub fn recognises(bytes: &[u8]) -> bool {
        matches!(bytes, [7..=31, 1..=8, ..])
    }

    /// The file that `self` was decoded from, with the tables of `self`: states, reweights,
    /// affinities, `pg_temp`, `primary_temp`, all upmaps, and the CRUSH map if it changed. The rest
    /// stays as in `original`, also pools and epoch.
    ///
    /// # Errors
    /// `original` is no OSDMap, or its version has no room for a table.
    pub fn rewrite(&self, original: &[u8]) -> Result<Vec<u8>, DecodeError> {
        write::rewrite(self, original)
    }

    /// A cluster with only a CRUSH map and pools: all devices of the map are up and in.
    #[must_use]
    pub fn of_crush(crush: Map, pools: BTreeMap<PoolId, Pool>) -> Self {
        let osds = crush.max_devices() as usize;
        Self {
            epoch: 0,
            fsid: Fsid([0; 16]),
            pools,
            states: vec![OsdState(OsdState::EXISTS | OsdState::UP); osds],
            weights: vec![WEIGHT_ONE; osds],
            primary_affinities: Vec::new(),
            pg_temp: BTreeMap::new(),
            primary_temp: BTreeMap::new(),
            pg_upmap: BTreeMap::new(),
            pg_upmap_items: BTreeMap::new(),
            pg_upmap_primaries: BTreeMap::new(),
            erasure_code_profiles: BTreeMap::new(),
            crush,
        }
    }

    /// The same cluster with another CRUSH map. Devices of that map that do not exist yet become up
    /// and in, as if they had been added.
    #[must_use]
    pub fn with_crush(mut self, crush: Map) -> Self {
        let osds = self.states.len().max(crush.max_devices() as usize);
        self.states.resize(osds, OsdState(0));
        self.weights.resize(osds, 0);
        if !self.primary_affinities.is_empty() {
            self.primary_affinities.resize(osds, WEIGHT_ONE);
        }
        for osd in crush.buckets().flat_map(|bucket| &bucket.items).filter_map(|item| item.osd()) {
            let osd = osd.0 as usize;
            if !self.states[osd].exists() {
                self.states[osd] = OsdState(OsdState::EXISTS | OsdState::UP);
                self.weights[osd] = WEIGHT_ONE;
            }
        }
        Self { crush, ..self }
    }

    /// The number of data shards of an object: k of an erasure code, 1 for copies. `None` if the
    /// profile does not give it.
    #[must_use]
    pub fn data_shards(&self, pool: &Pool) -> Option<u32> {
        match pool.kind {
            PoolKind::Replicated => Some(1),
            _ => {
                let profile = self.erasure_code_profiles.get(&pool.erasure_code_profile)?;
                profile.get("k")?.parse().ok().filter(|&k| k > 0)
            }
        }
    }

    /// The pool called `name`.
    #[must_use]
    pub fn pool_named(&self, name: &str) -> Option<PoolId> {
        self.pools.iter().find(|(_, pool)| pool.name == name).map(|(&id, _)| id)
    }

    /// The state of a device that exists.
    #[must_use]
    pub fn state(&self, item: ItemId) -> Option<OsdState> {
        let osd = item.osd()?;
        self.states.get(osd.0 as usize).copied().filter(|state| state.exists())
    }

    /// True for a device that is up.
    #[must_use]
    pub fn is_up(&self, item: ItemId) -> bool {
        self.state(item).is_some_and(OsdState::is_up)
    }

    /// The reweight of a device; 0 for a device that the map does not have.
    #[must_use]
    pub fn weight(&self, osd: OsdId) -> u32 {
        self.weights.get(osd.0 as usize).copied().unwrap_or(0)
    }

    /// The primary affinity of a device.
    #[must_use]
    pub fn primary_affinity(&self, osd: OsdId) -> u32 {
        self.primary_affinities.get(osd.0 as usize).copied().unwrap_or(WEIGHT_ONE)
    }

    /// Makes every device up and fully in, to compute where data would lie then.
    pub fn mark_all_up_in(&mut self) {
        self.states.iter_mut().for_each(|state| state.0 |= OsdState::EXISTS | OsdState::UP);
        self.weights.fill(WEIGHT_ONE);
    }

    /// Takes a device out, so that all of its data must move.
    pub fn mark_out(&mut self, osd: OsdId) {
        if let Some(weight) = self.weights.get_mut(osd.0 as usize) {
            *weight = 0;
        }
    }
}
