//! Methods for the snapshots of an image.

use bytes::Bytes;
use fieldstone_rados::encoding::Decoder;
use fieldstone_rados::errno::Errno;

use super::header::{LAYERING, OP_CLONE_CHILD, OP_SNAP_TRASH, require, set_op_features};
use super::records::{Namespace, Parent, Snapshot};
use super::{
    Entry, HEAD, damaged, encoded, forget, input, input_u64, nothing, store, store_u64, stored,
    stored_or_none, stored_u64,
};
use crate::objects::Execution;

const PREFIX: &str = "snapshot_";
/// The largest number of a snapshot.
const MAX_SNAP: u64 = u64::MAX - 2;
const UNPROTECTED: u8 = 0;
const PROTECTED: u8 = 2;

pub(super) const METHODS: &[Entry] = &[
    ("get_snapcontext", false, get_snapcontext),
    ("snapshot_get", false, snapshot_get),
    ("get_snapshot_name", false, get_snapshot_name),
    ("get_snapshot_timestamp", false, get_snapshot_timestamp),
    ("get_snapshot_namespace", false, get_snapshot_namespace),
    ("snapshot_add", true, snapshot_add),
    ("snapshot_rename", true, snapshot_rename),
    ("snapshot_remove", true, snapshot_remove),
    ("snapshot_trash_add", true, snapshot_trash_add),
    ("get_protection_status", false, get_protection_status),
    ("set_protection_status", true, set_protection_status),
    ("snapshot_get_limit", false, snapshot_get_limit),
    ("snapshot_set_limit", true, snapshot_set_limit),
];

pub(super) fn key_of(snap: u64) -> String {
    format!("{PREFIX}{snap:016x}")
}

pub(super) fn read_snapshot(object: &Execution<'_>, snap: u64) -> Result<Snapshot, Errno> {
    stored(object, &key_of(snap), Snapshot::decode)
}

pub(super) fn write_snapshot(object: &mut Execution<'_>, snap: &Snapshot) -> Result<(), Errno> {
    store(object, &key_of(snap.id), |into| snap.encode(into))
}

/// All snapshots, oldest first.
pub(super) fn all(object: &Execution<'_>) -> Result<Vec<Snapshot>, Errno> {
    object
        .omap_with_prefix(PREFIX.as_bytes(), PREFIX.as_bytes())
        .map(|(_, value)| Snapshot::decode(&mut Decoder::new(value.clone())).map_err(damaged))
        .collect()
}

fn get_snapcontext(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let prefix = PREFIX.as_bytes();
    let mut snaps = Vec::new();
    for (key, _) in object.omap_with_prefix(prefix, prefix) {
        let number = std::str::from_utf8(&key[prefix.len()..]).map_err(|_| Errno::EIO)?;
        snaps.push(u64::from_str_radix(number, 16).map_err(|_| Errno::EIO)?);
    }
    let seq = stored_u64(object, "snap_seq")?;
    Ok(encoded(|into| {
        into.u64(seq).list(snaps.into_iter().rev(), |into, snap| {
            into.u64(snap);
        });
    }))
}

/// The snapshot that the input names; the present state is none.
fn named(object: &Execution<'_>, bytes: Bytes) -> Result<Snapshot, Errno> {
    match input_u64(bytes)? {
        HEAD => Err(Errno::EINVAL),
        snap => read_snapshot(object, snap),
    }
}

fn snapshot_get(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = named(object, bytes)?;
    Ok(encoded(|into| snap.encode_info(into)))
}

fn get_snapshot_name(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = named(object, bytes)?;
    Ok(encoded(|into| {
        into.string(&snap.name);
    }))
}

fn get_snapshot_timestamp(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = named(object, bytes)?;
    Ok(encoded(|into| snap.time.encode(into)))
}

fn get_snapshot_namespace(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = named(object, bytes)?;
    Ok(encoded(|into| snap.namespace.encode(into)))
}

fn snapshot_add(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (name, id, namespace) = input(bytes, |from| {
        let (name, id) = (from.string("a name")?, from.u64("a snapshot")?);
        let namespace =
            if from.is_empty() { Some(Namespace::User) } else { Namespace::decode(from)? };
        Ok((name, id, namespace))
    })?;
    let namespace = namespace.filter(|_| id <= MAX_SNAP).ok_or(Errno::EINVAL)?;
    if id < stored_u64(object, "snap_seq")? {
        return Err(Errno::ESTALE);
    }
    let image_bytes = stored_u64(object, "size")?;
    let flags = stored_or_none(object, "flags", |from| from.u64("flags"))?.unwrap_or(0);
    let limit = stored_or_none(object, "snap_limit", |from| from.u64("a limit"))?;
    for (index, other) in all(object)?.iter().enumerate() {
        if index as u64 + 1 >= limit.unwrap_or(u64::MAX) {
            return Err(Errno::EDQUOT);
        }
        if other.id == id || (other.name == name && other.namespace == namespace) {
            return Err(Errno::EEXIST);
        }
    }
    let parent = stored_or_none(object, "parent", Parent::decode)?.filter(Parent::exists);
    let parent_overlap = parent.and_then(|parent| parent.overlap);
    if matches!(namespace, Namespace::Trash { .. }) {
        set_op_features(object, OP_SNAP_TRASH, OP_SNAP_TRASH)?;
    }
    store_u64(object, "snap_seq", id)?;
    let (time, protection, children) = (object.now(), UNPROTECTED, 0);
    let snap = Snapshot {
        id,
        name,
        image_bytes,
        protection,
        flags,
        namespace,
        time,
        children,
        parent_overlap,
    };
    write_snapshot(object, &snap)?;
    nothing()
}

fn snapshot_rename(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (id, name) = input(bytes, |from| Ok((from.u64("a snapshot")?, from.string("a name")?)))?;
    if all(object)?.iter().any(|snap| snap.namespace == Namespace::User && snap.name == name) {
        return Err(Errno::EEXIST);
    }
    let mut snap = read_snapshot(object, id)?;
    if snap.namespace != Namespace::User {
        return Err(Errno::EINVAL);
    }
    snap.name = name;
    write_snapshot(object, &snap)?;
    nothing()
}

fn snapshot_remove(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let id = input_u64(bytes)?;
    let snap = read_snapshot(object, id)?;
    if snap.protection != UNPROTECTED || snap.children > 0 {
        return Err(Errno::EBUSY);
    }
    forget(object, &key_of(id))?;
    let mut others = all(object)?;
    others.retain(|other| other.id != id);
    let has_child_snaps = others.iter().any(|other| other.parent_overlap.is_some());
    let has_trash = others.iter().any(|other| matches!(other.namespace, Namespace::Trash { .. }));
    let parent = stored_or_none(object, "parent", Parent::decode)?.filter(Parent::exists);
    let is_head_child = parent.as_ref().is_some_and(|parent| parent.overlap.is_some());
    if parent.is_some() && !is_head_child && !has_child_snaps {
        forget(object, "parent")?;
    }
    let mut mask = 0;
    if !has_child_snaps && !is_head_child {
        mask |= OP_CLONE_CHILD;
    }
    if !has_trash {
        mask |= OP_SNAP_TRASH;
    }
    set_op_features(object, 0, mask)?;
    nothing()
}

fn snapshot_trash_add(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let id = input_u64(bytes)?;
    let mut snap = read_snapshot(object, id)?;
    if snap.protection != UNPROTECTED {
        return Err(Errno::EBUSY);
    }
    if matches!(snap.namespace, Namespace::Trash { .. }) {
        return Err(Errno::EEXIST);
    }
    set_op_features(object, OP_SNAP_TRASH, OP_SNAP_TRASH)?;
    let kind = snap.namespace.number();
    // A real OSD draws a random UUID. Here the name only has to be another for each snapshot.
    let name = format!("00000000-0000-4000-8000-{id:012x}");
    snap.namespace = Namespace::Trash { name: std::mem::replace(&mut snap.name, name), kind };
    write_snapshot(object, &snap)?;
    nothing()
}

fn get_protection_status(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let id = input_u64(bytes)?;
    object.stat()?;
    if id == HEAD {
        return Err(Errno::EINVAL);
    }
    let snap = read_snapshot(object, id)?;
    if snap.protection > PROTECTED {
        return Err(Errno::EIO);
    }
    Ok(encoded(|into| {
        into.u8(snap.protection);
    }))
}

fn set_protection_status(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (id, protection) = input(bytes, |from| Ok((from.u64("a snapshot")?, from.u8("a state")?)))?;
    object.stat()?;
    require(object, LAYERING)?;
    if id == HEAD || protection > PROTECTED {
        return Err(Errno::EINVAL);
    }
    let snap = read_snapshot(object, id)?;
    write_snapshot(object, &Snapshot { protection, ..snap })?;
    nothing()
}

fn snapshot_get_limit(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let limit = stored_or_none(object, "snap_limit", |from| from.u64("a limit"))?;
    Ok(encoded(|into| {
        into.u64(limit.unwrap_or(u64::MAX));
    }))
}

fn snapshot_set_limit(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let limit = input_u64(bytes)?;
    if limit == u64::MAX {
        forget(object, "snap_limit")?;
    } else if limit < all(object)?.len() as u64 {
        return Err(Errno::ERANGE);
    } else {
        store_u64(object, "snap_limit", limit)?;
    }
    nothing()
}
