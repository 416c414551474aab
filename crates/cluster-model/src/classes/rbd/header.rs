//! Methods of headers: size, features, flags, layout, times; and of `rbd_id` objects.

use bytes::Bytes;
use fieldstone_rados::encoding::{Decoder, Time};
use fieldstone_rados::errno::Errno;

use super::records::{Parent, Snapshot};
use super::snapshots::{key_of, read_snapshot, write_snapshot};
use super::{
    ENOEXEC, Entry, HEAD, encoded, forget, input, input_u64, is_valid_id, nothing, store,
    store_u64, stored, stored_or_none, stored_u64,
};
use crate::objects::Execution;

/// The image may have a parent.
pub(super) const LAYERING: u64 = 1;
const STRIPING: u64 = 1 << 1;
pub(super) const DEEP_FLATTEN: u64 = 1 << 5;
const DATA_POOL: u64 = 1 << 7;
const OPERATIONS: u64 = 1 << 8;
const MIGRATING: u64 = 1 << 9;
const NON_PRIMARY: u64 = 1 << 10;
const DIRTY_CACHE: u64 = 1 << 11;
/// All features.
const ALL: u64 = (1 << 12) - 1;
/// A client that does not know them can not even read.
const INCOMPATIBLE: u64 = LAYERING | STRIPING | DATA_POOL | DIRTY_CACHE;
/// A client that does not know them can not write: all but the two that only tools set.
const WRITE_INCOMPATIBLE: u64 = ALL;
/// Set by the class itself.
const INTERNAL: u64 = OPERATIONS | MIGRATING;
/// May be enabled on an image that exists: lock, object map, fast diff, journal, and two more.
const MUTABLE: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | NON_PRIMARY | DIRTY_CACHE;
/// May be disabled on an image that exists, and not be enabled.
const DISABLE_ONLY: u64 = DEEP_FLATTEN;
/// An operation feature: the image is a clone of the second format.
pub(super) const OP_CLONE_CHILD: u64 = 1 << 1;
/// An operation feature: the image has clones of the second format.
pub(super) const OP_CLONE_PARENT: u64 = 1;
/// An operation feature: the image has deleted snapshots that clones use.
pub(super) const OP_SNAP_TRASH: u64 = 1 << 3;

const ENOSYS: Errno = Errno(38);

pub(super) const METHODS: &[Entry] = &[
    ("create", true, create),
    ("get_features", false, get_features),
    ("set_features", true, set_features),
    ("get_all_features", false, |_, _| {
        Ok(encoded(|into| {
            into.u64(ALL);
        }))
    }),
    ("get_size", false, get_size),
    ("set_size", true, set_size),
    ("get_object_prefix", false, get_object_prefix),
    ("get_data_pool", false, get_data_pool),
    ("get_stripe_unit_count", false, get_stripe_unit_count),
    ("set_stripe_unit_count", true, set_stripe_unit_count),
    ("get_create_timestamp", false, |object, _| get_time(object, "create_timestamp")),
    ("get_access_timestamp", false, |object, _| get_time(object, "access_timestamp")),
    ("get_modify_timestamp", false, |object, _| get_time(object, "modify_timestamp")),
    ("set_access_timestamp", true, |object, _| set_time(object, "access_timestamp")),
    ("set_modify_timestamp", true, |object, _| set_time(object, "modify_timestamp")),
    ("get_flags", false, get_flags),
    ("set_flags", true, set_flags),
    ("op_features_get", false, op_features_get),
    ("op_features_set", true, op_features_set),
    ("copyup", true, copyup),
    ("sparse_copyup", true, sparse_copyup),
    ("assert_snapc_seq", true, assert_snapc_seq),
    ("get_id", false, get_id),
    ("set_id", true, set_id),
];

pub(super) fn require(object: &Execution<'_>, feature: u64) -> Result<(), Errno> {
    let features = stored_or_none(object, "features", |from| from.u64("features"))?;
    match features {
        Some(features) if features & feature == feature => Ok(()),
        _ => Err(ENOEXEC),
    }
}

pub(super) fn set_op_features(
    object: &mut Execution<'_>,
    wanted: u64,
    mask: u64,
) -> Result<(), Errno> {
    let features = stored_u64(object, "features")?;
    let before = stored_or_none(object, "op_features", |from| from.u64("features"))?.unwrap_or(0);
    let after = before & !mask | wanted & mask;
    if after == before {
        return Ok(());
    }
    if after == 0 {
        forget(object, "op_features")?;
    } else {
        store_u64(object, "op_features", after)?;
    }
    let new = if after == 0 { features & !OPERATIONS } else { features | OPERATIONS };
    if new != features {
        store_u64(object, "features", new)?;
    }
    Ok(())
}

fn create(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (size, order, features, prefix, data_pool) = input(bytes, |from| {
        let (size, order) = (from.u64("a size")?, from.u8("an order")?);
        let (features, prefix) = (from.u64("features")?, from.blob("a prefix")?);
        let data_pool = if from.is_empty() { -1 } else { from.i64("a pool")? };
        Ok((size, order, features, prefix, data_pool))
    })?;
    if features & !ALL != 0 {
        return Err(ENOSYS);
    }
    if prefix.is_empty() {
        return Err(Errno::EINVAL);
    }
    if object.omap_get(b"object_prefix").is_ok() {
        return Err(Errno::EEXIST);
    }
    if features & OPERATIONS != 0 || (features & DATA_POOL != 0) != (data_pool != -1) {
        return Err(Errno::EINVAL);
    }
    let now = object.now();
    let time = encoded(|into| now.encode(into));
    let mut entries = vec![
        (
            "size",
            encoded(|into| {
                into.u64(size);
            }),
        ),
        (
            "order",
            encoded(|into| {
                into.u8(order);
            }),
        ),
        (
            "features",
            encoded(|into| {
                into.u64(features);
            }),
        ),
        (
            "object_prefix",
            encoded(|into| {
                into.blob(&prefix);
            }),
        ),
        (
            "snap_seq",
            encoded(|into| {
                into.u64(0);
            }),
        ),
        ("create_timestamp", time.clone()),
        ("access_timestamp", time.clone()),
        ("modify_timestamp", time),
    ];
    if data_pool != -1 {
        entries.push((
            "data_pool_id",
            encoded(|into| {
                into.i64(data_pool);
            }),
        ));
    }
    let entries =
        entries.into_iter().map(|(key, value)| (Bytes::from_static(key.as_bytes()), value));
    object.omap_set(entries.collect())?;
    nothing()
}

fn get_features(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let read_only = input(bytes, |from| {
        from.u64("a snapshot")?;
        if from.is_empty() { Ok(false) } else { from.bool("whether to read only") }
    })?;
    let features = stored_u64(object, "features")?;
    let incompatible = features & if read_only { INCOMPATIBLE } else { WRITE_INCOMPATIBLE };
    Ok(encoded(|into| {
        into.u64(features).u64(incompatible);
    }))
}

fn set_features(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (features, mask) = input(bytes, |from| Ok((from.u64("features")?, from.u64("a mask")?)))?;
    let before = stored_or_none(object, "features", |from| from.u64("features"))?.unwrap_or(0);
    if mask & INTERNAL != 0 {
        return Err(Errno::EINVAL);
    }
    let mask = mask & ALL;
    let (enabled, disabled) = (features & mask, !features & mask);
    if enabled & !MUTABLE != 0 || disabled & !(MUTABLE | DISABLE_ONLY) != 0 {
        return Err(Errno::EINVAL);
    }
    store_u64(object, "features", before & !mask | features & mask)?;
    nothing()
}

fn get_size(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = input_u64(bytes)?;
    let order = stored(object, "order", |from| from.u8("an order"))?;
    let size = match snap {
        HEAD => stored_u64(object, "size")?,
        snap => read_snapshot(object, snap)?.image_bytes,
    };
    Ok(encoded(|into| {
        into.u8(order).u64(size);
    }))
}

fn set_size(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let size = input_u64(bytes)?;
    let before = stored_u64(object, "size")?;
    store_u64(object, "size", size)?;
    if size < before {
        let parent = stored_or_none(object, "parent", Parent::decode)?.filter(Parent::exists);
        if let Some(mut parent) = parent.filter(|parent| parent.overlap.unwrap_or(0) > size) {
            parent.overlap = Some(size);
            store(object, "parent", |into| parent.encode(into))?;
        }
    }
    nothing()
}

fn get_object_prefix(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let prefix = stored(object, "object_prefix", |from| from.blob("a prefix"))?;
    Ok(encoded(|into| {
        into.blob(&prefix);
    }))
}

fn get_data_pool(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let pool = stored_or_none(object, "data_pool_id", |from| from.i64("a pool"))?.unwrap_or(-1);
    Ok(encoded(|into| {
        into.i64(pool);
    }))
}

fn get_stripe_unit_count(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    object.stat()?;
    require(object, STRIPING)?;
    let unit = match stored_or_none(object, "stripe_unit", |from| from.u64("a unit"))? {
        Some(unit) => unit,
        None => 1 << stored(object, "order", |from| from.u8("an order"))?.min(63),
    };
    let count = stored_or_none(object, "stripe_count", |from| from.u64("a count"))?.unwrap_or(1);
    Ok(encoded(|into| {
        into.u64(unit).u64(count);
    }))
}

fn set_stripe_unit_count(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (unit, count) = input(bytes, |from| Ok((from.u64("a unit")?, from.u64("a count")?)))?;
    if unit == 0 || count == 0 {
        return Err(Errno::EINVAL);
    }
    object.stat()?;
    require(object, STRIPING)?;
    let object_bytes = 1_u64 << stored(object, "order", |from| from.u8("an order"))?.min(63);
    if !object_bytes.is_multiple_of(unit) {
        return Err(Errno::EINVAL);
    }
    store_u64(object, "stripe_unit", unit)?;
    store_u64(object, "stripe_count", count)?;
    nothing()
}

fn get_time(object: &Execution<'_>, key: &str) -> Result<Bytes, Errno> {
    let time = stored_or_none(object, key, Time::decode)?.unwrap_or_default();
    Ok(encoded(|into| time.encode(into)))
}

fn set_time(object: &mut Execution<'_>, key: &str) -> Result<Bytes, Errno> {
    object.stat()?;
    let now = object.now();
    store(object, key, |into| now.encode(into))?;
    nothing()
}

fn get_flags(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let flags = match input_u64(bytes)? {
        HEAD => stored_or_none(object, "flags", |from| from.u64("flags"))?.unwrap_or(0),
        snap => read_snapshot(object, snap)?.flags,
    };
    Ok(encoded(|into| {
        into.u64(flags);
    }))
}

fn set_flags(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (flags, mask, snap) = input(bytes, |from| {
        let (flags, mask) = (from.u64("flags")?, from.u64("a mask")?);
        let snap = if from.is_empty() { HEAD } else { from.u64("a snapshot")? };
        Ok((flags, mask, snap))
    })?;
    let merged = |before: u64| before & !mask | flags & mask;
    if snap == HEAD {
        let before = stored_or_none(object, "flags", |from| from.u64("flags"))?.unwrap_or(0);
        store_u64(object, "flags", merged(before))?;
    } else {
        let snapshot = stored(object, &key_of(snap), Snapshot::decode)?;
        let flags = merged(snapshot.flags);
        write_snapshot(object, &Snapshot { flags, ..snapshot })?;
    }
    nothing()
}

fn op_features_get(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let features = stored_or_none(object, "op_features", |from| from.u64("features"))?;
    Ok(encoded(|into| {
        into.u64(features.unwrap_or(0));
    }))
}

fn op_features_set(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (features, mask) = input(bytes, |from| Ok((from.u64("features")?, from.u64("a mask")?)))?;
    if mask & !0xf != 0 {
        return Err(Errno::EINVAL);
    }
    set_op_features(object, features, mask)?;
    nothing()
}

/// Writes data of the parent, unless the object exists.
fn copyup(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    if object.stat().is_err() {
        object.write(0, bytes)?;
    }
    nothing()
}

fn sparse_copyup(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (extents, data) = input(bytes, |from| {
        let extents =
            from.list(16, "extents", |from| Ok((from.u64("an offset")?, from.u64("a length")?)))?;
        Ok((extents, from.blob("data")?))
    })?;
    if object.stat().is_ok() {
        return nothing();
    }
    if extents.is_empty() {
        object.create(true)?;
    }
    let mut data = Decoder::new(data);
    for (offset, len) in extents {
        let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
        let piece = data.bytes(len, "the data of an extent").map_err(|_| Errno::EINVAL)?;
        object.write(offset, piece)?;
    }
    nothing()
}

fn assert_snapc_seq(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (seq, state) = input(bytes, |from| Ok((from.u64("a snapshot")?, from.u8("a state")?)))?;
    let is_newer = object.snap_seq().is_none_or(|known| seq > known.0);
    match (state, is_newer) {
        (0, true) | (1, false) => nothing(),
        (0 | 1, _) => Err(Errno::ERANGE),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn get_id(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let (size, _) = object.stat()?;
    if size == 0 {
        return Err(Errno::ENOENT);
    }
    let id = Decoder::new(object.bytes(0, size)).blob("an id").map_err(|_| Errno::EIO)?;
    Ok(encoded(|into| {
        into.blob(&id);
    }))
}

fn set_id(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (size, _) = object.stat()?;
    let id = input(bytes, |from| from.string("an id"))?;
    if !is_valid_id(&id) {
        return Err(Errno::EINVAL);
    }
    if size != 0 {
        return Err(Errno::EEXIST);
    }
    object.write(
        0,
        encoded(|into| {
            into.string(&id);
        }),
    )?;
    nothing()
}
