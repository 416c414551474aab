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
//! **From epoch to epoch.** Every change of the cluster makes a new map, with the next epoch. A
//! client gets one full map, then [`Incremental`]s: [`OsdMap::apply`] makes the next map out of the
//! present one, in place. Its cost follows the size of the change: tables that do not change are
//! neither copied nor visited, and the CRUSH map is shared ([`Arc`]) with every clone of the map.
//! An increment that does not fit is refused, and leaves the map as it was.
//!
//! An increment carries two checksums: of itself, which [`Incremental::decode`] verifies, and of
//! the full map that results. The second one cannot be verified here: it is the checksum of the
//! bytes that the monitors would write, and those contain much that a client does not keep
//! (addresses of heartbeats, removed snapshots, settings of caches). A client that suspects its map
//! asks for a full one.
//!
//! **When to send again.** A request is answered by the members of its group in one [`Interval`].
//! If a new map starts another interval for the group, the request is sent again.
//!
//! **Layout.** Little-endian, Ceph 12 and later; the module `cursor` explains "versioned".
//! [`Incremental`] describes its own.
//!
//! | part | layout |
//! |---|---|
//! | whole | versioned: client part, daemon part, u32 checksum, nothing |
//! | client part | versioned: 16 bytes fsid, u32 epoch, two times of 8 bytes, pools (s64 number, versioned pool), their names, s32 highest number, u32 flags, s32 OSDs, states (u32), reweights (u32), addresses, `pg_temp`, `primary_temp`, primary affinities (u32), CRUSH map (u32 length), erasure code profiles, `pg_upmap`, `pg_upmap_items`, more that is passed over, from version 10 on `pg_upmap_primaries` |
//! | daemon part | versioned: heartbeat addresses, states (u8 1, six epochs), blocklist (address, time), cluster addresses, u32 and string of a snapshot, identities (16 bytes), more states (versioned), heartbeat addresses, three ratios (f32), u8 release that clients must have, u8 release that OSDs must have, removed snapshots, two tables of flags, 17 bytes of stretch settings, from version 11 on blocked ranges (address, time) |
//! | checksum | CRC32C of all other bytes, begun with ones, not inverted at the end |
//!
//! A list is a u32 count and its elements. A placement group is u8 1, s64 pool, u32 seed, s32 -1.
//!
//! **Hostile bytes** give errors. The decoder accepts a count only if the bytes left can hold that
//! many elements.

mod address;
mod apply;
mod cursor;
mod decode;
mod encode;
mod error;
mod fields;
mod flags;
mod incremental;
mod interval;
mod place;
mod pool;
mod pool_bytes;
mod string_hash;
mod target;
mod write;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

pub use address::{Address, AddressKind, Addresses, Time};
pub use error::{ApplyError, DecodeError, PlaceError};
pub use flags::Flags;
pub use incremental::Incremental;
pub use interval::{Interval, pg_is_merge_source, pg_is_merge_target, pg_is_split};
pub use place::{Placement, PoolPlacement};
pub use pool::{Pool, PoolKind, PoolSnapshot};
pub use string_hash::StringHash;
pub use target::{PgTarget, Target};

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

/// The state of one device: flags, with Ceph's bit numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdState(pub u32);

impl OsdState {
    /// The device exists.
    pub const EXISTS: u32 = 1 << 0;
    /// Its daemon runs.
    pub const UP: u32 = 1 << 1;
    /// It was marked out by the monitors.
    pub const AUTOOUT: u32 = 1 << 2;
    /// It has never been in.
    pub const NEW: u32 = 1 << 3;
    /// It is full.
    pub const FULL: u32 = 1 << 4;
    /// It is nearly full.
    pub const NEARFULL: u32 = 1 << 5;
    /// It was destroyed, and keeps its number for a successor.
    pub const DESTROYED: u32 = 1 << 7;
    /// Its daemon was stopped on purpose.
    pub const STOP: u32 = 1 << 12;

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

/// The life of one device, as epochs; 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdInfo {
    /// Begin of the last interval that ended with an orderly stop.
    pub last_clean_begin: u32,
    /// End of that interval.
    pub last_clean_end: u32,
    /// When it last came up.
    pub up_from: u32,
    /// Until when it was surely up, if later than `up_from`.
    pub up_thru: u32,
    /// When it last went down.
    pub down_at: u32,
    /// When its data were last given up.
    pub lost_at: u32,
}

/// The parts of an OSDMap that clients need. Devices in its tables may not exist; [`ItemId::NONE`]
/// is a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdMap {
    /// Counts the changes of the cluster's map.
    pub epoch: u32,
    /// The cluster.
    pub fsid: Fsid,
    /// When the cluster was made.
    pub created: Time,
    /// When this epoch began.
    pub modified: Time,
    /// The highest number that a pool ever had; -1 without pools.
    pub pool_max: i32,
    /// Flags of the whole cluster: paused, full and so on.
    pub flags: Flags,
    /// The addresses for clients of the devices' daemons, by number. As `infos`, there are as many
    /// as `states`.
    pub client_addresses: Vec<Addresses>,
    /// The lives of the devices, by number.
    pub infos: Vec<OsdInfo>,
    /// Clients that are shut out, with the ends of their bans. Port and nonce 0 stand for all
    /// clients at an IP address.
    pub blocklist: BTreeMap<Address, Time>,
    /// Ranges of addresses that are shut out.
    pub range_blocklist: BTreeMap<Address, Time>,
    /// The release that clients must have; 0 or 255 for none.
    pub require_min_compat_client: u8,
    /// The release that OSDs must have: 16 for Ceph 16; 0 or 255 for none.
    pub require_osd_release: u8,
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
    /// The CRUSH map, shared with the maps of other epochs.
    pub crush: Arc<Map>,
}

impl OsdMap {
    /// Reads a full map as `ceph osd getmap` and osdmaptool write it, and verifies the checksum.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode::decode(bytes).map(|(map, _)| map)
    }

    /// The full map as a monitor of Ceph 16 would write it; osdmaptool and all later releases read
    /// it. What this crate does not keep gets the values of a new cluster. For models of clusters;
    /// [`OsdMap::rewrite`] changes a file and loses nothing.
    ///
    /// Two tables need later releases: `pg_upmap_primaries`, and `nonprimary_shards` of pools.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode::full(self)
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

    /// A cluster with only a CRUSH map and pools: all devices of the map are up and in, but have no
    /// addresses.
    #[must_use]
    pub fn of_crush(crush: Map, pools: BTreeMap<PoolId, Pool>) -> Self {
        let osds = crush.max_devices() as usize;
        Self {
            epoch: 0,
            fsid: Fsid([0; 16]),
            created: Time::default(),
            modified: Time::default(),
            pool_max: pools.keys().next_back().map_or(-1, |id| id.0 as i32),
            pools,
            flags: Flags(Flags::SORTBITWISE),
            states: vec![OsdState(OsdState::EXISTS | OsdState::UP); osds],
            weights: vec![WEIGHT_ONE; osds],
            client_addresses: vec![Addresses::default(); osds],
            infos: vec![OsdInfo::default(); osds],
            blocklist: BTreeMap::new(),
            range_blocklist: BTreeMap::new(),
            require_min_compat_client: 0,
            require_osd_release: 0,
            primary_affinities: Vec::new(),
            pg_temp: BTreeMap::new(),
            primary_temp: BTreeMap::new(),
            pg_upmap: BTreeMap::new(),
            pg_upmap_items: BTreeMap::new(),
            pg_upmap_primaries: BTreeMap::new(),
            erasure_code_profiles: BTreeMap::new(),
            crush: Arc::new(crush),
        }
    }

    /// The same cluster with another CRUSH map. Devices of that map that do not exist yet become up
    /// and in, as if they had been added.
    #[must_use]
    pub fn with_crush(mut self, crush: Map) -> Self {
        self.resize_osds(self.states.len().max(crush.max_devices() as usize));
        for osd in crush.buckets().flat_map(|bucket| &bucket.items).filter_map(|item| item.osd()) {
            let osd = osd.0 as usize;
            if !self.states[osd].exists() {
                self.states[osd] = OsdState(OsdState::EXISTS | OsdState::UP);
                self.weights[osd] = WEIGHT_ONE;
            }
        }
        Self { crush: Arc::new(crush), ..self }
    }

    /// Makes room for `osds` devices. New ones do not exist; the last ones go if there are more.
    pub fn resize_osds(&mut self, osds: usize) {
        self.states.resize(osds, OsdState::default());
        self.weights.resize(osds, 0);
        self.client_addresses.resize(osds, Addresses::default());
        self.infos.resize(osds, OsdInfo::default());
        if !self.primary_affinities.is_empty() {
            self.primary_affinities.resize(osds, WEIGHT_ONE);
            self.drop_default_affinities();
        }
    }

    /// Affinities that are all 1.0 are not stored.
    fn drop_default_affinities(&mut self) {
        if self.primary_affinities.iter().all(|&affinity| affinity == WEIGHT_ONE) {
            self.primary_affinities.clear();
        }
    }

    /// Sets the primary affinity of a device of the map, 16.16.
    fn set_primary_affinity(&mut self, osd: OsdId, affinity: u32) {
        if self.primary_affinities.is_empty() {
            if affinity == WEIGHT_ONE {
                return;
            }
            self.primary_affinities = vec![WEIGHT_ONE; self.states.len()];
        }
        self.primary_affinities[osd.0 as usize] = affinity;
        self.drop_default_affinities();
    }

    /// The addresses at which a device's daemon serves clients; `None` for a device that is not up.
    #[must_use]
    pub fn addresses(&self, osd: OsdId) -> Option<&Addresses> {
        self.client_addresses.get(osd.0 as usize).filter(|_| self.is_up(ItemId(osd.0 as i32)))
    }

    /// True if the client at this address is shut out: itself, all of its IP address, or a range
    /// around it. The kind of the address does not count.
    #[must_use]
    pub fn is_blocklisted(&self, address: &Address) -> bool {
        let Some(socket) = address.socket else { return false };
        if self.blocklist.is_empty() && self.range_blocklist.is_empty() {
            return false;
        }
        let listed = |socket, nonce| {
            [AddressKind::Any, AddressKind::Legacy]
                .iter()
                .any(|&kind| self.blocklist.contains_key(&Address { kind, nonce, socket }))
        };
        let whole_host = SocketAddr::new(socket.ip(), 0);
        listed(Some(socket), address.nonce)
            || listed(Some(whole_host), 0)
            || self.range_blocklist.keys().any(|range| range.range_contains(address))
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
