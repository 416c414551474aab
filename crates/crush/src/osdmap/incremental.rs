//! Increments: the change of the map from one epoch to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cursor::OsdMapCursor;
use super::fields::{self, by_osd, crush, item, items, pairs, pg, profiles, skip_snapshots, table};
use super::{
    Address, Addresses, DecodeError, ErasureProfile, Fsid, OsdMap, PgId, Pool, PoolId, Time,
    decode, encode,
};
use crate::check::MAX_DEVICES;
use crate::{ItemId, Map, OsdId};

/// The oldest version of the whole with a client and a daemon part. The next version is the first
/// with checksums.
const OLDEST_WHOLE: u8 = 7;
const CHECKSUM_WHOLE: u8 = 8;
/// The oldest client part with 32-bit states (Ceph 12).
const OLDEST_CLIENT: u8 = 5;
/// The first client part with removed and purged snapshots.
const SNAPSHOTS_CLIENT: u8 = 6;
/// The first client part with the times of the last changes.
const TIMES_CLIENT: u8 = 8;
/// The first client part with `pg_upmap_primaries` (Ceph 18).
pub(super) const PRIMARIES_CLIENT: u8 = 9;
/// The newest daemon part whose fields this crate knows.
const KNOWN_DAEMON: u8 = 12;
/// The oldest daemon part with the required releases as numbers (Ceph 12).
const OLDEST_DAEMON: u8 = 6;
/// The first daemon part with blocked ranges.
pub(super) const RANGES_DAEMON: u8 = 11;
/// The fewest bytes of a versioned structure.
const HEADER_LEN: usize = 6;
/// A release from here on means "not changed".
const NO_RELEASE: u8 = 0x80;

/// A change of the map: what clients need of it. Every table has only the entries that change.
///
/// **Layout**, Ceph 12 and later; the essay of [`osdmap`](super) explains the elements.
///
/// | part | layout |
/// |---|---|
/// | whole | versioned: client part, daemon part, u32 checksum of all other bytes, u32 checksum of the full map that results |
/// | client part | versioned: 16 bytes fsid, u32 epoch, time, s64 highest pool (-1: not changed), s32 flags (-1), full map (u32 length, mostly 0), CRUSH map (u32 length, 0), s32 OSDs (-1), pools, their names, removed pools (s64), addresses by OSD (s32), states to flip (u32) by OSD, reweights (u32) by OSD, `pg_temp` (empty: remove), `primary_temp` (-1: remove), primary affinities (u32) by OSD, erasure code profiles, names of removed ones, new and removed `pg_upmap`, new and removed `pg_upmap_items`, removed snapshots, purged snapshots, two times, from version 9 on new and removed `pg_upmap_primaries` |
/// | daemon part | versioned: heartbeat addresses by OSD, `up_thru` (u32) by OSD, clean intervals (2 u32) by OSD, lost OSDs (s32, u32), new (address, time) and removed (address) blocked clients, cluster addresses by OSD, string, identities (16 bytes) by OSD, more states (versioned) by OSD, heartbeat addresses by OSD, u64 features, three ratios (f32), two releases (u8, from 128 on: not changed), two tables of flags, 18 bytes of stretch settings, from version 11 on new and removed blocked ranges |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incremental {
    /// The cluster.
    pub fsid: Fsid,
    /// The epoch to which this leads.
    pub epoch: u32,
    /// When that epoch began.
    pub modified: Time,
    /// The highest number that a pool ever had.
    pub new_pool_max: Option<i64>,
    /// Flags of the whole cluster.
    pub new_flags: Option<u32>,
    /// The whole next map. If there is one, nothing else of this increment counts.
    pub full: Option<Box<OsdMap>>,
    /// The CRUSH map.
    pub crush: Option<Arc<Map>>,
    /// The number of devices that the map has room for.
    pub new_max_osd: Option<u32>,
    /// Pools that are new or changed. Their names are in `new_pool_names`.
    pub new_pools: BTreeMap<PoolId, Pool>,
    /// Names of pools that are new or renamed.
    pub new_pool_names: BTreeMap<PoolId, String>,
    /// Pools that were removed.
    pub old_pools: BTreeSet<PoolId>,
    /// Devices that came up, with the addresses of their daemons.
    pub new_up_client: BTreeMap<OsdId, Addresses>,
    /// Flags of states to flip; 0 means [`OsdState::UP`](super::OsdState::UP).
    pub new_state: BTreeMap<OsdId, u32>,
    /// Reweights.
    pub new_weight: BTreeMap<OsdId, u32>,
    /// Entries of `pg_temp`; an empty one is removed.
    pub new_pg_temp: BTreeMap<PgId, Vec<ItemId>>,
    /// Entries of `primary_temp`; item -1 removes one.
    pub new_primary_temp: BTreeMap<PgId, ItemId>,
    /// Primary affinities.
    pub new_primary_affinity: BTreeMap<OsdId, u32>,
    /// Erasure code profiles that are new or changed.
    pub new_erasure_code_profiles: BTreeMap<String, ErasureProfile>,
    /// Erasure code profiles that were removed.
    pub old_erasure_code_profiles: Vec<String>,
    /// Entries of `pg_upmap`.
    pub new_pg_upmap: BTreeMap<PgId, Vec<ItemId>>,
    /// Entries of `pg_upmap` that were removed.
    pub old_pg_upmap: BTreeSet<PgId>,
    /// Entries of `pg_upmap_items`.
    pub new_pg_upmap_items: BTreeMap<PgId, Vec<(ItemId, ItemId)>>,
    /// Entries of `pg_upmap_items` that were removed.
    pub old_pg_upmap_items: BTreeSet<PgId>,
    /// Entries of `pg_upmap_primaries` (Ceph 18 and later).
    pub new_pg_upmap_primaries: BTreeMap<PgId, ItemId>,
    /// Entries of `pg_upmap_primaries` that were removed.
    pub old_pg_upmap_primaries: BTreeSet<PgId>,
    /// Epochs until which devices were surely up.
    pub new_up_thru: BTreeMap<OsdId, u32>,
    /// Intervals that ended with an orderly stop: begin and end.
    pub new_last_clean_interval: BTreeMap<OsdId, (u32, u32)>,
    /// Epochs at which the data of devices were given up.
    pub new_lost: BTreeMap<OsdId, u32>,
    /// Clients that are shut out, with the ends of their bans.
    pub new_blocklist: BTreeMap<Address, Time>,
    /// Clients that are no longer shut out.
    pub old_blocklist: Vec<Address>,
    /// Ranges of addresses that are shut out.
    pub new_range_blocklist: BTreeMap<Address, Time>,
    /// Ranges of addresses that are no longer shut out.
    pub old_range_blocklist: Vec<Address>,
    /// The release that clients must have.
    pub new_require_min_compat_client: Option<u8>,
    /// The release that OSDs must have.
    pub new_require_osd_release: Option<u8>,
    /// The checksum of the full map that results, as the monitors write it. It covers fields that
    /// this crate does not keep, so it cannot be verified.
    pub full_checksum: u32,
}

impl Incremental {
    /// An increment that changes nothing but the epoch.
    #[must_use]
    pub fn new(fsid: Fsid, epoch: u32) -> Self {
        Self {
            fsid,
            epoch,
            modified: Time::default(),
            new_pool_max: None,
            new_flags: None,
            full: None,
            crush: None,
            new_max_osd: None,
            new_pools: BTreeMap::new(),
            new_pool_names: BTreeMap::new(),
            old_pools: BTreeSet::new(),
            new_up_client: BTreeMap::new(),
            new_state: BTreeMap::new(),
            new_weight: BTreeMap::new(),
            new_pg_temp: BTreeMap::new(),
            new_primary_temp: BTreeMap::new(),
            new_primary_affinity: BTreeMap::new(),
            new_erasure_code_profiles: BTreeMap::new(),
            old_erasure_code_profiles: Vec::new(),
            new_pg_upmap: BTreeMap::new(),
            old_pg_upmap: BTreeSet::new(),
            new_pg_upmap_items: BTreeMap::new(),
            old_pg_upmap_items: BTreeSet::new(),
            new_pg_upmap_primaries: BTreeMap::new(),
            old_pg_upmap_primaries: BTreeSet::new(),
            new_up_thru: BTreeMap::new(),
            new_last_clean_interval: BTreeMap::new(),
            new_lost: BTreeMap::new(),
            new_blocklist: BTreeMap::new(),
            old_blocklist: Vec::new(),
            new_range_blocklist: BTreeMap::new(),
            old_range_blocklist: Vec::new(),
            new_require_min_compat_client: None,
            new_require_osd_release: None,
            full_checksum: 0,
        }
    }

    /// Reads an increment as monitors send it, and verifies its own checksum.
    ///
    /// # Errors
    /// The error, with its offset.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (increment, checksum) = decode_unchecked(bytes)?;
        if let Some(checksum) = checksum {
            let stored = OsdMapCursor::new(&bytes[checksum.at..]).u32("the checksum")?;
            let computed = checksum.of(bytes);
            if stored != computed {
                return Err(DecodeError::BadIncrementChecksum { stored, computed });
            }
        }
        Ok(increment)
    }

    /// The increment as a monitor of Ceph 16 would write it. What this crate does not keep does not
    /// change.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode::increment(self)
    }

    /// The bytes of an increment with a corrected checksum; `None` if there is any other error. For
    /// tests that damage increments on purpose.
    #[must_use]
    pub fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
        let (_, checksum) = decode_unchecked(bytes).ok()?;
        let mut sealed = bytes.to_vec();
        if let Some(checksum) = checksum {
            let computed = checksum.of(bytes).to_le_bytes();
            sealed[checksum.at..checksum.at + 4].copy_from_slice(&computed);
        }
        Some(sealed)
    }
}

/// Where an increment has its own checksum.
struct Checksum {
    at: usize,
    /// End of the increment.
    end: usize,
}

impl Checksum {
    /// The checksum of the increment in `bytes`.
    fn of(&self, bytes: &[u8]) -> u32 {
        decode::checksum(&[&bytes[..self.at], &bytes[self.at + 4..self.end]])
    }
}

fn decode_unchecked(bytes: &[u8]) -> Result<(Incremental, Option<Checksum>), DecodeError> {
    let mut file = OsdMapCursor::new(bytes);
    let whole = file.versioned(CHECKSUM_WHOLE, "an increment of an OSDMap")?;
    whole.since(OLDEST_WHOLE, "an increment of an OSDMap")?;
    let mut r = whole.fields;
    let mut increment = client(&mut r)?;
    daemon(&mut r, &mut increment)?;
    let mut checksum = None;
    if whole.version >= CHECKSUM_WHOLE {
        checksum = Some(Checksum { at: r.offset(), end: file.offset() });
        r.u32("the checksum")?;
        increment.full_checksum = r.u32("the checksum of the full map")?;
    }
    Ok((increment, checksum))
}

fn client(whole: &mut OsdMapCursor<'_>) -> Result<Incremental, DecodeError> {
    let part = whole.versioned(PRIMARIES_CLIENT, "the client part")?;
    part.since(OLDEST_CLIENT, "the client part")?;
    let (version, mut r) = (part.version, part.fields);
    let fsid = Fsid(r.uuid("the fsid")?);
    let mut new = Incremental::new(fsid, r.u32("the epoch")?);
    new.modified = Time::decode(&mut r)?;
    new.new_pool_max = Some(r.i64("the highest pool")?).filter(|&max| max != -1);
    new.new_flags = u32::try_from(r.i32("the flags")?).ok();
    let full = r.blob("the full map")?;
    if !full.is_empty() {
        let offset = r.offset() - full.len();
        let inside = |error| DecodeError::FullMap { offset, error: Box::new(error) };
        new.full = Some(Box::new(OsdMap::decode(full).map_err(inside)?));
    }
    new.crush = crush(&mut r)?;
    new.new_max_osd = max_osd(&mut r)?;
    pools(&mut r, &mut new)?;
    new.new_up_client = by_osd(&mut r, 1, "client addresses", Addresses::decode)?;
    new.new_state = by_osd(&mut r, 4, "states", |r| r.u32("states"))?;
    new.new_weight = by_osd(&mut r, 4, "reweights", |r| r.u32("reweights"))?;
    new.new_pg_temp = table(&mut r, 4, "pg_temp", |r| items(r, "pg_temp"))?;
    new.new_primary_temp = table(&mut r, 4, "primary_temp", |r| item(r, "primary_temp"))?;
    let what = "primary affinities";
    new.new_primary_affinity = by_osd(&mut r, 4, what, |r| r.u32(what))?;
    let what = "erasure code profiles";
    new.new_erasure_code_profiles = profiles(&mut r, what)?;
    new.old_erasure_code_profiles =
        (0..r.count(4, what)?).map(|_| r.string(what)).collect::<Result<_, _>>()?;
    new.new_pg_upmap = table(&mut r, 4, "pg_upmap", |r| items(r, "pg_upmap"))?;
    new.old_pg_upmap = pgs(&mut r, "pg_upmap")?;
    new.new_pg_upmap_items = table(&mut r, 4, "pg_upmap_items", pairs)?;
    new.old_pg_upmap_items = pgs(&mut r, "pg_upmap_items")?;
    if version >= SNAPSHOTS_CLIENT {
        skip_snapshots(&mut r, "new removed snapshots")?;
        skip_snapshots(&mut r, "new purged snapshots")?;
    }
    if version >= TIMES_CLIENT {
        r.take(8 + 8, "the times of the last changes")?;
    }
    if version >= PRIMARIES_CLIENT {
        let what = "pg_upmap_primaries";
        new.new_pg_upmap_primaries = table(&mut r, 4, what, |r| item(r, what))?;
        new.old_pg_upmap_primaries = pgs(&mut r, what)?;
    }
    Ok(new)
}

fn max_osd(r: &mut OsdMapCursor<'_>) -> Result<Option<u32>, DecodeError> {
    let value = u32::try_from(r.i32("max_osd")?).ok();
    match value {
        Some(value) if value > MAX_DEVICES => {
            let (what, offset, max) = ("max_osd", r.offset(), MAX_DEVICES.into());
            Err(DecodeError::OutOfBounds { what, offset, value: value.into(), min: 0, max })
        }
        value => Ok(value),
    }
}

fn pools(r: &mut OsdMapCursor<'_>, new: &mut Incremental) -> Result<(), DecodeError> {
    let id = |r: &mut OsdMapCursor<'_>| r.i64("the number of a pool").map(PoolId);
    for _ in 0..r.count(8 + HEADER_LEN, "pools")? {
        new.new_pools.insert(id(r)?, Pool::decode(r)?);
    }
    for _ in 0..r.count(8 + 4, "names of pools")? {
        new.new_pool_names.insert(id(r)?, r.string("the name of a pool")?);
    }
    new.old_pools =
        (0..r.count(8, "removed pools")?).map(|_| id(r)).collect::<Result<_, DecodeError>>()?;
    Ok(())
}

fn pgs(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<BTreeSet<PgId>, DecodeError> {
    (0..r.count(fields::PG_LEN, what)?).map(|_| pg(r, what)).collect()
}

/// The daemon part: what clients need of it, up to the blocked ranges.
fn daemon(whole: &mut OsdMapCursor<'_>, new: &mut Incremental) -> Result<(), DecodeError> {
    let part = whole.versioned(KNOWN_DAEMON, "the daemon part")?;
    part.since(OLDEST_DAEMON, "the daemon part")?;
    let (version, mut r) = (part.version, part.fields);
    let addresses =
        |r: &mut OsdMapCursor<'_>, what| by_osd(r, 1, what, Addresses::decode).map(drop);
    addresses(&mut r, "heartbeat addresses")?;
    new.new_up_thru = by_osd(&mut r, 4, "up_thru", |r| r.u32("up_thru"))?;
    let what = "clean intervals";
    new.new_last_clean_interval = by_osd(&mut r, 8, what, |r| Ok((r.u32(what)?, r.u32(what)?)))?;
    new.new_lost = by_osd(&mut r, 4, "lost OSDs", |r| r.u32("lost OSDs"))?;
    new.new_blocklist = fields::blocklist(&mut r)?;
    new.old_blocklist = unblocked(&mut r)?;
    addresses(&mut r, "cluster addresses")?;
    r.blob("the name of a snapshot of the cluster")?;
    let what = "identities of OSDs";
    by_osd(&mut r, 16, what, |r| r.uuid(what))?;
    let what = "more states of OSDs";
    by_osd(&mut r, HEADER_LEN, what, |r| r.skip_versioned(what))?;
    addresses(&mut r, "heartbeat addresses")?;
    r.take(8 + 3 * 4, "the features and ratios")?;
    let changed = |release: u8| Some(release).filter(|&release| release < NO_RELEASE);
    // For clients, 0 also means "not changed".
    let min_client = r.u8("the release that clients must have")?;
    new.new_require_min_compat_client = changed(min_client).filter(|&release| release != 0);
    new.new_require_osd_release = changed(r.u8("the release that OSDs must have")?);
    if version >= RANGES_DAEMON {
        for what in ["flags of CRUSH nodes", "flags of device classes"] {
            let count = r.count(8, what)?;
            r.take(8 * count, what)?;
        }
        // Two switches and four numbers.
        r.take(1 + 4 * 4 + 1, "the stretch settings")?;
        new.new_range_blocklist = fields::blocklist(&mut r)?;
        new.old_range_blocklist = unblocked(&mut r)?;
    }
    Ok(())
}

/// Addresses that are no longer blocked.
fn unblocked(r: &mut OsdMapCursor<'_>) -> Result<Vec<Address>, DecodeError> {
    (0..r.count(1, "the blocklist")?).map(|_| Address::decode(r)).collect()
}
