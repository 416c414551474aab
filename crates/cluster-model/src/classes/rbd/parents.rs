//! Methods for clones: the parent of an image, and the children of a snapshot.

use std::collections::BTreeSet;

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};
use fieldstone_rados::errno::Errno;

use super::header::{
    DEEP_FLATTEN, LAYERING, OP_CLONE_CHILD, OP_CLONE_PARENT, require, set_op_features,
};
use super::records::{
    Child, Namespace, Parent, Snapshot, decode_child, encode_child, encode_option,
};
use super::snapshots::{all, read_snapshot, write_snapshot};
use super::{
    ENOEXEC, Entry, HEAD, damaged, encoded, forget, input, input_u64, nothing, store, stored,
    stored_or_none, stored_u64,
};
use crate::objects::Execution;

/// The parent is in a namespace, which the old method cannot say.
const EXDEV: Errno = Errno(18);

pub(super) const METHODS: &[Entry] = &[
    ("get_parent", false, get_parent),
    ("set_parent", true, set_parent),
    ("remove_parent", true, |object, _| detach(object, true)),
    ("parent_get", false, parent_get),
    ("parent_overlap_get", false, parent_overlap_get),
    ("parent_attach", true, parent_attach),
    ("parent_detach", true, |object, _| detach(object, false)),
    ("child_attach", true, child_attach),
    ("child_detach", true, child_detach),
    ("children_list", false, children_list),
    ("add_child", true, add_child),
    ("remove_child", true, remove_child),
    ("get_children", false, get_children),
];

fn stored_parent(object: &Execution<'_>) -> Result<Option<Parent>, Errno> {
    stored_or_none(object, "parent", Parent::decode)
}

/// True if the image can have a parent at all.
fn is_layered(object: &Execution<'_>) -> Result<bool, Errno> {
    match require(object, LAYERING) {
        Ok(()) => Ok(true),
        Err(ENOEXEC) => Ok(false),
        Err(error) => Err(error),
    }
}

fn get_parent(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = input_u64(bytes)?;
    object.stat()?;
    let mut parent = Parent::none();
    if is_layered(object)? {
        parent = stored_parent(object)?.unwrap_or_else(Parent::none);
        if !parent.namespace.is_empty() {
            return Err(EXDEV);
        }
        if snap != HEAD {
            let snap = match read_snapshot(object, snap) {
                Err(Errno::ENOENT) => None,
                other => Some(other?),
            };
            match snap.and_then(|snap| snap.parent_overlap) {
                Some(_) if !parent.exists() => return Err(Errno::EINVAL),
                Some(overlap) => parent.overlap = Some(overlap),
                None => parent = Parent::none(),
            }
        }
    }
    Ok(encoded(|into| {
        into.i64(parent.pool).string(&parent.image).u64(parent.snap);
        into.u64(parent.overlap.unwrap_or(0));
    }))
}

fn set_parent(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let parent = input(bytes, |from| {
        let (pool, namespace) = (from.i64("a pool")?, String::new());
        let (image, snap) = (from.string("an image")?, from.u64("a snapshot")?);
        Ok(Parent { pool, namespace, image, snap, overlap: Some(from.u64("an overlap")?) })
    })?;
    attach(object, parent, false)
}

fn parent_get(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    object.stat()?;
    let parent = if is_layered(object)? { stored_parent(object)? } else { None };
    let parent = parent.unwrap_or_else(Parent::none);
    Ok(encoded(|into| parent.encode_spec(into)))
}

fn parent_overlap_get(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = input_u64(bytes)?;
    let mut overlap = None;
    if is_layered(object)? {
        overlap = match snap {
            HEAD => stored_parent(object)?.and_then(|parent| parent.overlap),
            snap => read_snapshot(object, snap)?.parent_overlap,
        };
    }
    Ok(encoded(|into| encode_option(overlap, into)))
}

fn parent_attach(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (parent, again) = input(bytes, |from| {
        let mut parent = Parent::decode_spec(from)?;
        parent.overlap = Some(from.u64("an overlap")?);
        let again = if from.is_empty() { false } else { from.bool("whether it is attached")? };
        Ok((parent, again))
    })?;
    attach(object, parent, again)
}

fn attach(object: &mut Execution<'_>, mut parent: Parent, again: bool) -> Result<Bytes, Errno> {
    object.stat()?;
    require(object, LAYERING)?;
    let overlap = parent.overlap.filter(|&overlap| overlap > 0 && parent.exists());
    let overlap = overlap.ok_or(Errno::EINVAL)?;
    if let Some(present) = stored_parent(object)? {
        let differs = present.overlap.is_some() || !present.is_same_image(&parent);
        if differs && !again {
            return Err(Errno::EEXIST);
        }
    }
    parent.overlap = Some(overlap.min(stored_u64(object, "size")?));
    store(object, "parent", |into| parent.encode(into))?;
    nothing()
}

fn detach(object: &mut Execution<'_>, is_old_method: bool) -> Result<Bytes, Errno> {
    object.stat()?;
    require(object, LAYERING)?;
    let features = stored_u64(object, "features")?;
    let mut parent = stored_parent(object)?.ok_or(Errno::ENOENT)?;
    if is_old_method && !parent.namespace.is_empty() {
        return Err(EXDEV);
    }
    if parent.overlap.is_none() {
        return Err(Errno::ENOENT);
    }
    let mut children = all(object)?;
    children.retain(|snap| snap.parent_overlap.is_some());
    let stays = !children.is_empty() && features & DEEP_FLATTEN == 0;
    if stays {
        // Snapshots still need to know the parent.
        parent.overlap = None;
        store(object, "parent", |into| parent.encode(into))?;
    } else {
        for snap in children {
            write_snapshot(object, &Snapshot { parent_overlap: None, ..snap })?;
        }
        forget(object, "parent")?;
        set_op_features(object, 0, OP_CLONE_CHILD)?;
    }
    nothing()
}

fn children_key(snap: u64) -> String {
    format!("snap_children_{snap:016x}")
}

fn decode_children(from: &mut Decoder) -> Result<BTreeSet<Child>, DecodeError> {
    Ok(from.list(6, "children", decode_child)?.into_iter().collect())
}

fn encode_children(children: &BTreeSet<Child>, into: &mut Encoder) {
    into.list(children.iter(), |into, child| encode_child(child, into));
}

fn snapshot_and_child(bytes: Bytes) -> Result<(u64, Child), Errno> {
    input(bytes, |from| Ok((from.u64("a snapshot")?, decode_child(from)?)))
}

fn child_attach(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (snap, child) = snapshot_and_child(bytes)?;
    let mut record = read_snapshot(object, snap)?;
    if matches!(record.namespace, Namespace::Trash { .. }) {
        return Err(Errno::ENOENT);
    }
    let key = children_key(snap);
    let mut children = stored_or_none(object, &key, decode_children)?.unwrap_or_default();
    if !children.insert(child) {
        return Err(Errno::EEXIST);
    }
    store(object, &key, |into| encode_children(&children, into))?;
    record.children += 1;
    write_snapshot(object, &record)?;
    set_op_features(object, OP_CLONE_PARENT, OP_CLONE_PARENT)?;
    nothing()
}

fn child_detach(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (snap, child) = snapshot_and_child(bytes)?;
    let mut record = read_snapshot(object, snap)?;
    let key = children_key(snap);
    let mut children = stored_or_none(object, &key, decode_children)?.unwrap_or_default();
    if record.children as usize != children.len() {
        return Err(Errno::EINVAL);
    }
    if !children.remove(&child) {
        return Err(Errno::ENOENT);
    }
    if children.is_empty() {
        forget(object, &key)?;
    } else {
        store(object, &key, |into| encode_children(&children, into))?;
    }
    record.children -= 1;
    write_snapshot(object, &record)?;
    let others_have = all(object)?.iter().any(|other| other.id != snap && other.children > 0);
    if record.children == 0 && !others_have {
        set_op_features(object, 0, OP_CLONE_PARENT)?;
    }
    nothing()
}

fn children_list(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let snap = input_u64(bytes)?;
    read_snapshot(object, snap)?;
    let children = stored(object, &children_key(snap), decode_children)?;
    Ok(encoded(|into| encode_children(&children, into)))
}

/// The key of a parent in `rbd_children`: its encoded pool, image and snapshot.
fn parent_key(from: &mut Decoder) -> Result<Bytes, DecodeError> {
    let (pool, image) = (from.u64("a pool")?, from.blob("an image")?);
    let snap = from.u64("a snapshot")?;
    Ok(encoded(|into| {
        into.u64(pool).blob(&image).u64(snap);
    }))
}

fn stored_children(object: &Execution<'_>, key: &Bytes) -> Result<BTreeSet<Bytes>, Errno> {
    let mut value = Decoder::new(object.omap_get(key)?);
    let children = value.list(4, "children", |from| from.blob("a child")).map_err(damaged)?;
    Ok(children.into_iter().collect())
}

fn encoded_children(children: &BTreeSet<Bytes>) -> Bytes {
    encoded(|into| {
        into.list(children.iter(), |into, child| {
            into.blob(child);
        });
    })
}

fn add_child(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (key, child) = input(bytes, |from| Ok((parent_key(from)?, from.blob("a child")?)))?;
    let mut children = match stored_children(object, &key) {
        Err(Errno::ENOENT) => BTreeSet::new(),
        other => other?,
    };
    if !children.insert(child) {
        return Err(Errno::EEXIST);
    }
    object.omap_set(vec![(key, encoded_children(&children))])?;
    nothing()
}

fn remove_child(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (key, child) = input(bytes, |from| Ok((parent_key(from)?, from.blob("a child")?)))?;
    let mut children = stored_children(object, &key)?;
    if !children.remove(&child) {
        return Err(Errno::ENOENT);
    }
    if children.is_empty() {
        object.omap_remove(vec![key])?;
    } else {
        object.omap_set(vec![(key, encoded_children(&children))])?;
    }
    nothing()
}

fn get_children(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let key = input(bytes, parent_key)?;
    Ok(encoded_children(&stored_children(object, &key)?))
}
