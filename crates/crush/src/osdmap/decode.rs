//! Decodes the bytes of an OSDMap, in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};

use super::cursor::OsdMapCursor;
use super::fields::{blocklist, crush, item, items, pairs, profiles, skip_snapshots, table, u32s};
use super::{
    Addresses, DecodeError, Flags, Fsid, OsdInfo, OsdMap, OsdState, PgId, Pool, PoolId, Time,
};
use crate::check::MAX_DEVICES;
use crate::{ItemId, Map, WEIGHT_ONE};

/// The oldest version of the whole with a client and a daemon part. The next version is the first
/// with a checksum.
const OLDEST_WHOLE: u8 = 7;
const CHECKSUM_WHOLE: u8 = 8;
/// The oldest client part with upmaps (Ceph 12).
const OLDEST_CLIENT: u8 = 4;
/// The first client part with 32-bit states.
const WIDE_STATES_CLIENT: u8 = 5;
/// The first client part with `pg_upmap_primaries` (Ceph 18).
pub(super) const PRIMARIES_CLIENT: u8 = 10;
/// The newest daemon part whose fields this crate knows.
const KNOWN_DAEMON: u8 = 12;
/// The first daemon part with the release that is required of OSDs, as a number.
const RELEASE_DAEMON: u8 = 5;
/// The first daemon part with ranges of addresses that are shut out.
const RANGES_DAEMON: u8 = 11;
/// Bytes of the state of a device in the daemon part.
const INFO_LEN: usize = 25;
/// Bytes before the fields of a versioned structure.
pub(super) const HEADER_LEN: usize = 6;

/// Ranges of the file that [`OsdMap::rewrite`] replaces.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldRanges {
    pub(super) whole: Range<usize>,
    pub(super) client_version: u8,
    pub(super) client: Range<usize>,
    /// States and reweights.
    pub(super) osds: Range<usize>,
    /// True if states are single bytes.
    pub(super) narrow_states: bool,
    /// `pg_temp`, `primary_temp`, primary affinities.
    pub(super) temps: Range<usize>,
    /// The CRUSH map with its length.
    pub(super) crush: Range<usize>,
    /// `pg_upmap` and `pg_upmap_items`.
    pub(super) upmaps: Range<usize>,
    /// `pg_upmap_primaries`; empty in versions without.
    pub(super) primaries: Range<usize>,
    /// The checksum, if there is one.
    pub(super) checksum: Option<Range<usize>>,
}

pub(super) fn decode(bytes: &[u8]) -> Result<(OsdMap, FieldRanges), DecodeError> {
    let (map, ranges) = decode_unchecked(bytes)?;
    if let Some(at) = &ranges.checksum {
        let stored = OsdMapCursor::new(&bytes[at.clone()]).u32("the checksum")?;
        let computed = checksum(&[&bytes[..at.start], &bytes[at.end..ranges.whole.end]]);
        if stored != computed {
            return Err(DecodeError::BadChecksum { stored, computed });
        }
    }
    Ok((map, ranges))
}

/// As [`decode`], but without a check of the checksum.
pub(super) fn decode_unchecked(bytes: &[u8]) -> Result<(OsdMap, FieldRanges), DecodeError> {
    let mut file = OsdMapCursor::new(bytes);
    let whole = file.versioned(CHECKSUM_WHOLE, "an OSDMap")?;
    whole.since(OLDEST_WHOLE, "an OSDMap")?;
    let mut r = whole.fields;
    let mut ranges = FieldRanges { whole: 0..file.offset(), ..FieldRanges::default() };
    let mut map = client(&mut r, &mut ranges)?;
    daemon(&mut r, &mut map)?;
    if whole.version >= CHECKSUM_WHOLE {
        let at = r.offset();
        r.u32("the checksum")?;
        ranges.checksum = Some(at..at + 4);
    }
    Ok((map, ranges))
}

/// CRC32C that starts with ones, and is not inverted at the end.
pub(super) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    !(digest.finalize() as u32)
}

fn client(whole: &mut OsdMapCursor<'_>, ranges: &mut FieldRanges) -> Result<OsdMap, DecodeError> {
    let start = whole.offset();
    // Readers of old versions must understand every later version.
    let part = whole.versioned(PRIMARIES_CLIENT, "the client part")?;
    part.since(OLDEST_CLIENT, "the client part")?;
    let (version, mut r) = (part.version, part.fields);
    ranges.client_version = version;
    ranges.client = start..whole.offset();

    let fsid = Fsid(r.uuid("the fsid")?);
    let epoch = r.u32("the epoch")?;
    let created = Time::decode(&mut r)?;
    let modified = Time::decode(&mut r)?;
    let pools = pools(&mut r)?;
    let pool_max = r.i32("the highest pool")?;
    let flags = Flags(r.u32("the flags")?);
    let (states, weights) = osds(&mut r, version, ranges)?;
    let osds = states.len();
    let client_addresses: Vec<Addresses> = (0..r.count(1, "client addresses")?)
        .map(|_| Addresses::decode(&mut r))
        .collect::<Result<_, _>>()?;
    one_per_osd("client addresses", client_addresses.len(), osds)?;
    let temps_start = r.offset();
    let pg_temp = table(&mut r, 4, "pg_temp", |r| items(r, "pg_temp"))?;
    let primary_temp = table(&mut r, 4, "primary_temp", |r| item(r, "primary_temp"))?;
    let mut primary_affinities = u32s(&mut r, "primary affinities")?;
    if !primary_affinities.is_empty() {
        one_per_osd("primary affinities", primary_affinities.len(), osds)?;
    }
    // A list of default values means the same as no list.
    if primary_affinities.iter().all(|&affinity| affinity == WEIGHT_ONE) {
        primary_affinities.clear();
    }
    ranges.temps = temps_start..r.offset();
    let crush = full_crush(&mut r)?;
    ranges.crush = ranges.temps.end..r.offset();
    let erasure_code_profiles = profiles(&mut r, "erasure code profiles")?;
    let upmaps_start = r.offset();
    let pg_upmap = table(&mut r, 4, "pg_upmap", |r| items(r, "pg_upmap"))?;
    let pg_upmap_items = table(&mut r, 4, "pg_upmap_items", pairs)?;
    ranges.upmaps = upmaps_start..r.offset();
    let pg_upmap_primaries = primaries(r, version, ranges)?;
    Ok(OsdMap {
        epoch,
        fsid,
        created,
        modified,
        pools,
        pool_max,
        flags,
        states,
        weights,
        client_addresses,
        primary_affinities,
        pg_temp,
        primary_temp,
        pg_upmap,
        pg_upmap_items,
        pg_upmap_primaries,
        erasure_code_profiles,
        crush,
        infos: Vec::new(),
        blocklist: BTreeMap::new(),
        range_blocklist: BTreeMap::new(),
        require_min_compat_client: 0,
        require_osd_release: 0,
    })
}

/// Refuses a list that must have one entry per device.
fn one_per_osd(what: &'static str, len: usize, osds: usize) -> Result<(), DecodeError> {
    if len == osds { Ok(()) } else { Err(DecodeError::BadLength { what, len, osds }) }
}

/// The daemon part: what clients need of it, up to the ranges of addresses that are shut out.
fn daemon(whole: &mut OsdMapCursor<'_>, map: &mut OsdMap) -> Result<(), DecodeError> {
    let part = whole.versioned(KNOWN_DAEMON, "the daemon part")?;
    let (version, mut r) = (part.version, part.fields);
    skip_addresses(&mut r, "heartbeat addresses")?;
    let infos = r.count(INFO_LEN, "states of OSDs")?;
    map.infos = (0..infos).map(|_| OsdInfo::decode(&mut r)).collect::<Result<_, _>>()?;
    one_per_osd("states in the daemon part", infos, map.states.len())?;
    map.blocklist = blocklist(&mut r)?;
    skip_addresses(&mut r, "cluster addresses")?;
    r.u32("the epoch of a snapshot of the cluster")?;
    r.blob("the name of a snapshot of the cluster")?;
    let uuids = r.count(16, "identities of OSDs")?;
    r.take(16 * uuids, "identities of OSDs")?;
    for _ in 0..r.count(HEADER_LEN, "more states of OSDs")? {
        r.skip_versioned("more states of OSDs")?;
    }
    skip_addresses(&mut r, "heartbeat addresses")?;
    if version >= RELEASE_DAEMON {
        r.take(3 * 4, "the ratios of full OSDs")?;
        map.require_min_compat_client = r.u8("the release that clients must have")?;
        map.require_osd_release = r.u8("the release that OSDs must have")?;
    }
    map.flags = map.flags.for_release(map.require_osd_release);
    if version >= RANGES_DAEMON {
        skip_snapshots(&mut r, "removed snapshots")?;
        for what in ["flags of CRUSH nodes", "flags of device classes"] {
            let count = r.count(8, what)?;
            r.take(8 * count, what)?;
        }
        // A switch and four numbers.
        r.take(1 + 4 * 4, "the stretch settings")?;
        map.range_blocklist = blocklist(&mut r)?;
    }
    Ok(())
}

impl OsdInfo {
    fn decode(r: &mut OsdMapCursor<'_>) -> Result<Self, DecodeError> {
        let what = "the state of an OSD";
        // The structure's version, which is always 1.
        r.u8(what)?;
        Ok(Self {
            last_clean_begin: r.u32(what)?,
            last_clean_end: r.u32(what)?,
            up_from: r.u32(what)?,
            up_thru: r.u32(what)?,
            down_at: r.u32(what)?,
            lost_at: r.u32(what)?,
        })
    }
}

fn skip_addresses(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<(), DecodeError> {
    (0..r.count(1, what)?).try_for_each(|_| Addresses::decode(r).map(drop))
}

/// The pools and their names.
fn pools(r: &mut OsdMapCursor<'_>) -> Result<BTreeMap<PoolId, Pool>, DecodeError> {
    let mut pools = BTreeMap::new();
    for _ in 0..r.count(8 + HEADER_LEN, "pools")? {
        let id = PoolId(r.i64("the number of a pool")?);
        pools.insert(id, Pool::decode(r)?);
    }
    for _ in 0..r.count(8 + 4, "names of pools")? {
        let id = PoolId(r.i64("the number of a pool")?);
        let name = r.string("the name of a pool")?;
        if let Some(pool) = pools.get_mut(&id) {
            pool.name = name;
        }
    }
    Ok(pools)
}

/// The number of devices, their states and reweights.
fn osds(
    r: &mut OsdMapCursor<'_>,
    version: u8,
    ranges: &mut FieldRanges,
) -> Result<(Vec<OsdState>, Vec<u32>), DecodeError> {
    let osds = r.u32("max_osd")?;
    if osds > MAX_DEVICES {
        let (what, offset) = ("max_osd", r.offset());
        let (value, max) = (osds.into(), MAX_DEVICES.into());
        return Err(DecodeError::OutOfBounds { what, offset, value, min: 0, max });
    }
    let osds = osds as usize;
    let start = r.offset();
    ranges.narrow_states = version < WIDE_STATES_CLIENT;
    let states: Vec<OsdState> = if ranges.narrow_states {
        r.blob("states of OSDs")?.iter().map(|&state| OsdState(state.into())).collect()
    } else {
        u32s(r, "states of OSDs")?.into_iter().map(OsdState).collect()
    };
    let weights = u32s(r, "reweights of OSDs")?;
    ranges.osds = start..r.offset();
    one_per_osd("states", states.len(), osds)?;
    one_per_osd("reweights", weights.len(), osds)?;
    Ok((states, weights))
}

/// Skips the fields between the upmap items and `pg_upmap_primaries`, and reads the latter.
fn primaries(
    mut r: OsdMapCursor<'_>,
    version: u8,
    ranges: &mut FieldRanges,
) -> Result<BTreeMap<PgId, ItemId>, DecodeError> {
    ranges.primaries = ranges.client.end..ranges.client.end;
    if version < PRIMARIES_CLIENT {
        return Ok(BTreeMap::new());
    }
    r.u32("the CRUSH map's version")?;
    skip_snapshots(&mut r, "new removed snapshots")?;
    skip_snapshots(&mut r, "new purged snapshots")?;
    r.take(8 + 8, "the times of the last changes")?;
    let start = r.offset();
    let table = table(&mut r, 4, "pg_upmap_primaries", |r| item(r, "pg_upmap_primaries"))?;
    ranges.primaries = start..r.offset();
    Ok(table)
}

/// The CRUSH map, which a full map must have.
fn full_crush(r: &mut OsdMapCursor<'_>) -> Result<Arc<Map>, DecodeError> {
    let (what, offset) = ("the CRUSH map", r.offset());
    crush(r)?.ok_or(DecodeError::Truncated { what, offset, needed: 4, left: 0 })
}
