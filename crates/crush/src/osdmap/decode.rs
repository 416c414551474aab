//! Decodes the bytes of an OSDMap, in order.

use std::collections::BTreeMap;
use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

use super::cursor::OsdMapCursor;
use super::{DecodeError, ErasureProfile, Fsid, OsdMap, OsdState, PgId, Pool, PoolId};
use crate::check::MAX_DEVICES;
use crate::{ItemId, Map, WEIGHT_ONE, binary};

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
/// Bytes of a placement group.
const PG_LEN: usize = 17;
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
    let map = client(&mut r, &mut ranges)?;
    r.skip_versioned("the daemon part")?;
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
    r.take(8 + 8, "the times of creation and change")?;
    let pools = pools(&mut r)?;
    r.take(4 + 4, "the highest pool and the flags")?;
    let (states, weights) = osds(&mut r, version, ranges)?;
    for _ in 0..r.count(1, "client addresses")? {
        address(&mut r)?;
    }
    let temps_start = r.offset();
    let pg_temp = table(&mut r, 4, "pg_temp", |r| items(r, "pg_temp"))?;
    let primary_temp = table(&mut r, 4, "primary_temp", |r| item(r, "primary_temp"))?;
    let mut primary_affinities = u32s(&mut r, "primary affinities")?;
    if !primary_affinities.is_empty() && primary_affinities.len() != states.len() {
        let (len, osds) = (primary_affinities.len(), states.len());
        return Err(DecodeError::BadLength { what: "primary affinities", len, osds });
    }
    // A list of default values means the same as no list.
    if primary_affinities.iter().all(|&affinity| affinity == WEIGHT_ONE) {
        primary_affinities.clear();
    }
    ranges.temps = temps_start..r.offset();
    let crush = crush(&mut r)?;
    ranges.crush = ranges.temps.end..r.offset();
    let erasure_code_profiles = profiles(&mut r)?;
    let upmaps_start = r.offset();
    let pg_upmap = table(&mut r, 4, "pg_upmap", |r| items(r, "pg_upmap"))?;
    let pg_upmap_items = table(&mut r, 4, "pg_upmap_items", pairs)?;
    ranges.upmaps = upmaps_start..r.offset();
    let pg_upmap_primaries = primaries(r, version, ranges)?;
    Ok(OsdMap {
        epoch,
        fsid,
        pools,
        states,
        weights,
        primary_affinities,
        pg_temp,
        primary_temp,
        pg_upmap,
        pg_upmap_items,
        pg_upmap_primaries,
        erasure_code_profiles,
        crush,
    })
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
    for (what, len) in [("states", states.len()), ("reweights", weights.len())] {
        if len != osds {
            return Err(DecodeError::BadLength { what, len, osds });
        }
    }
    Ok((states, weights))
}

/// The erasure code profiles, each a table of strings.
fn profiles(r: &mut OsdMapCursor<'_>) -> Result<BTreeMap<String, ErasureProfile>, DecodeError> {
    let what = "erasure code profiles";
    let mut profiles = BTreeMap::new();
    for _ in 0..r.count(8, what)? {
        let name = r.string(what)?;
        let mut profile = ErasureProfile::new();
        for _ in 0..r.count(8, what)? {
            let key = r.string(what)?;
            profile.insert(key, r.string(what)?);
        }
        profiles.insert(name, profile);
    }
    Ok(profiles)
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
    for what in ["new removed snapshots", "new purged snapshots"] {
        for _ in 0..r.count(12, what)? {
            r.i64(what)?;
            let intervals = r.count(16, what)?;
            r.take(16 * intervals, what)?;
        }
    }
    r.take(8 + 8, "the times of the last changes")?;
    let start = r.offset();
    let table = table(&mut r, 4, "pg_upmap_primaries", |r| item(r, "pg_upmap_primaries"))?;
    ranges.primaries = start..r.offset();
    Ok(table)
}

/// The CRUSH map, which has its own length.
fn crush(r: &mut OsdMapCursor<'_>) -> Result<Map, DecodeError> {
    let blob = r.blob("the CRUSH map")?;
    let offset = r.offset() - blob.len();
    binary::decode(blob).map_err(|error| DecodeError::Crush { offset, error })
}

fn u32s(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<Vec<u32>, DecodeError> {
    (0..r.count(4, what)?).map(|_| r.u32(what)).collect()
}

fn item(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<ItemId, DecodeError> {
    r.i32(what).map(ItemId)
}

fn items(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<Vec<ItemId>, DecodeError> {
    (0..r.count(4, what)?).map(|_| item(r, what)).collect()
}

fn pairs(r: &mut OsdMapCursor<'_>) -> Result<Vec<(ItemId, ItemId)>, DecodeError> {
    let what = "pg_upmap_items";
    (0..r.count(8, what)?).map(|_| Ok((item(r, what)?, item(r, what)?))).collect()
}

/// A table by placement group, with values of at least `min_len` bytes.
fn table<T>(
    r: &mut OsdMapCursor<'_>,
    min_len: usize,
    what: &'static str,
    value: impl Fn(&mut OsdMapCursor<'_>) -> Result<T, DecodeError>,
) -> Result<BTreeMap<PgId, T>, DecodeError> {
    let mut table = BTreeMap::new();
    for _ in 0..r.count(PG_LEN + min_len, what)? {
        // The version of the group's own structure, which is always 1.
        r.u8(what)?;
        let pool = PoolId(r.i64(what)?);
        let seed = r.u32(what)?;
        r.i32(what)?;
        table.insert(PgId { pool, seed }, value(r)?);
    }
    Ok(table)
}

/// Skips the addresses of one daemon: a list of addresses, or a single address of an older form.
fn address(r: &mut OsdMapCursor<'_>) -> Result<(), DecodeError> {
    let what = "client addresses";
    match r.u8(what)? {
        2 => {
            for _ in 0..r.count(1, what)? {
                let marker = r.u8(what)?;
                single_address(r, marker)?;
            }
            Ok(())
        }
        marker => single_address(r, marker),
    }
}

/// Skips an address after its first byte: versioned, or the kernel's `sockaddr_storage`.
fn single_address(r: &mut OsdMapCursor<'_>, marker: u8) -> Result<(), DecodeError> {
    let what = "client addresses";
    if marker == 1 {
        return r.skip_versioned(what);
    }
    // Rest of the type, nonce, socket address.
    r.take(3 + 4 + 128, what).map(drop)
}
