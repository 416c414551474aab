//! Readers of fields that full maps and increments share.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cursor::OsdMapCursor;
use super::{Address, DecodeError, ErasureProfile, PgId, PoolId, Time};
use crate::check::MAX_DEVICES;
use crate::{ItemId, Map, OsdId, binary};

/// Bytes of a placement group.
pub(super) const PG_LEN: usize = 17;
/// Bytes of the shortest entry of a blocklist: an address and a time.
const MIN_BLOCKLIST_LEN: usize = 19 + 8;

pub(super) fn u32s(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<Vec<u32>, DecodeError> {
    (0..r.count(4, what)?).map(|_| r.u32(what)).collect()
}

pub(super) fn item(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<ItemId, DecodeError> {
    r.i32(what).map(ItemId)
}

pub(super) fn items(
    r: &mut OsdMapCursor<'_>,
    what: &'static str,
) -> Result<Vec<ItemId>, DecodeError> {
    (0..r.count(4, what)?).map(|_| item(r, what)).collect()
}

pub(super) fn pairs(r: &mut OsdMapCursor<'_>) -> Result<Vec<(ItemId, ItemId)>, DecodeError> {
    let what = "pg_upmap_items";
    (0..r.count(8, what)?).map(|_| Ok((item(r, what)?, item(r, what)?))).collect()
}

pub(super) fn pg(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<PgId, DecodeError> {
    // The version of the group's own structure, which is always 1.
    r.u8(what)?;
    let pool = PoolId(r.i64(what)?);
    let seed = r.u32(what)?;
    r.i32(what)?;
    Ok(PgId { pool, seed })
}

/// A table by placement group, with values of at least `min_len` bytes.
pub(super) fn table<T>(
    r: &mut OsdMapCursor<'_>,
    min_len: usize,
    what: &'static str,
    value: impl Fn(&mut OsdMapCursor<'_>) -> Result<T, DecodeError>,
) -> Result<BTreeMap<PgId, T>, DecodeError> {
    (0..r.count(PG_LEN + min_len, what)?).map(|_| Ok((pg(r, what)?, value(r)?))).collect()
}

/// The number of a device.
pub(super) fn osd(r: &mut OsdMapCursor<'_>, what: &'static str) -> Result<OsdId, DecodeError> {
    let value = r.u32(what)?;
    if value < MAX_DEVICES {
        return Ok(OsdId(value));
    }
    let (offset, max) = (r.offset(), u64::from(MAX_DEVICES) - 1);
    Err(DecodeError::OutOfBounds { what, offset, value: value.into(), min: 0, max })
}

/// A table by device, with values of at least `min_len` bytes.
pub(super) fn by_osd<T>(
    r: &mut OsdMapCursor<'_>,
    min_len: usize,
    what: &'static str,
    value: impl Fn(&mut OsdMapCursor<'_>) -> Result<T, DecodeError>,
) -> Result<BTreeMap<OsdId, T>, DecodeError> {
    (0..r.count(4 + min_len, what)?).map(|_| Ok((osd(r, what)?, value(r)?))).collect()
}

/// A table of strings.
pub(super) fn strings(
    r: &mut OsdMapCursor<'_>,
    what: &'static str,
) -> Result<BTreeMap<String, String>, DecodeError> {
    (0..r.count(8, what)?).map(|_| Ok((r.string(what)?, r.string(what)?))).collect()
}

/// A table of tables of strings: erasure code profiles, applications.
pub(super) fn profiles(
    r: &mut OsdMapCursor<'_>,
    what: &'static str,
) -> Result<BTreeMap<String, ErasureProfile>, DecodeError> {
    (0..r.count(8, what)?).map(|_| Ok((r.string(what)?, strings(r, what)?))).collect()
}

/// Addresses with the ends of their bans.
pub(super) fn blocklist(r: &mut OsdMapCursor<'_>) -> Result<BTreeMap<Address, Time>, DecodeError> {
    let count = r.count(MIN_BLOCKLIST_LEN, "the blocklist")?;
    (0..count).map(|_| Ok((Address::decode(r)?, Time::decode(r)?))).collect()
}

/// Skips removed or purged snapshots: by pool, a list of ranges.
pub(super) fn skip_snapshots(
    r: &mut OsdMapCursor<'_>,
    what: &'static str,
) -> Result<(), DecodeError> {
    for _ in 0..r.count(12, what)? {
        r.i64(what)?;
        let intervals = r.count(16, what)?;
        r.take(16 * intervals, what)?;
    }
    Ok(())
}

/// A CRUSH map of its own length; `None` if there are no bytes.
pub(super) fn crush(r: &mut OsdMapCursor<'_>) -> Result<Option<Arc<Map>>, DecodeError> {
    let blob = r.blob("the CRUSH map")?;
    if blob.is_empty() {
        return Ok(None);
    }
    let offset = r.offset() - blob.len();
    let map = binary::decode(blob).map_err(|error| DecodeError::Crush { offset, error })?;
    Ok(Some(Arc::new(map)))
}
