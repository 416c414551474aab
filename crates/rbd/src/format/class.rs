//! Calls of the OSDs' class `rbd`: what goes in, and what comes out.
//!
//! A function named as a method appends its call to a request. A function `decode_…` reads the
//! answer. Snapshots are named by their number, and [`SnapId::HEAD`] is the present state.
//! (Ceph: `src/cls/rbd`.)

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{SnapContext, SnapId};
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder, Time};
use fieldstone_rados::op::ObjectOps;

use super::{Features, ObjectMap, ObjectState};

/// The name of the class.
pub const CLASS: &str = "rbd";

/// The result of reading an answer.
pub type Decoded<T> = Result<T, DecodeError>;

/// A snapshot of another image, as a parent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParentSpec {
    /// The pool; negative for no parent.
    pub pool: PoolId,
    /// The namespace.
    pub namespace: String,
    /// The id of the image.
    pub image: String,
    /// The snapshot.
    pub snapshot: SnapId,
}

/// A clone of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChildSpec {
    /// The pool.
    pub pool: PoolId,
    /// The namespace.
    pub namespace: String,
    /// The id of the image.
    pub image: String,
}

/// Who made a snapshot, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// A user.
    User,
    /// A snapshot of a group of images.
    Group,
    /// A deleted snapshot that clones keep alive; with its old name.
    Trash(String),
    /// Mirroring.
    Mirror,
    /// Another kind, by number.
    Other(u32),
}

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The number.
    pub id: SnapId,
    /// The kind.
    pub kind: SnapshotKind,
    /// The name.
    pub name: String,
    /// The size of the image then.
    pub size_bytes: u64,
    /// When it was made.
    pub created: Time,
    /// The number of clones of format 2.
    pub children: u32,
}

/// Whether a snapshot may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// It may.
    Unprotected,
    /// Protection is being lifted.
    Unprotecting,
    /// It may not: it may have clones.
    Protected,
}

fn input(fields: impl FnOnce(&mut Encoder)) -> Bytes {
    let mut into = Encoder::new();
    fields(&mut into);
    into.finish()
}

macro_rules! queries {
    ($($name:ident $(($($arg:ident: $type:ty => $put:expr),*))?, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub fn $name(ops: &mut ObjectOps $(, $($arg: $type),*)?) {
                #[allow(unused_mut)]
                let mut into = Encoder::new();
                $($({ let put: fn(&mut Encoder, $type) = $put; put(&mut into, $arg); })*)?
                ops.query(CLASS, stringify!($name), into.finish());
            }
        )*
    };
}

macro_rules! calls {
    ($($name:ident $(($($arg:ident: $type:ty => $put:expr),*))?, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub fn $name(ops: &mut ObjectOps $(, $($arg: $type),*)?) {
                #[allow(unused_mut)]
                let mut into = Encoder::new();
                $($({ let put: fn(&mut Encoder, $type) = $put; put(&mut into, $arg); })*)?
                ops.call(CLASS, stringify!($name), into.finish());
            }
        )*
    };
}

fn put_snap(into: &mut Encoder, snap: SnapId) {
    into.u64(snap.0);
}

fn put_u64(into: &mut Encoder, value: u64) {
    into.u64(value);
}

fn put_text(into: &mut Encoder, text: &str) {
    into.string(text);
}

fn put_features(into: &mut Encoder, features: Features) {
    into.u64(features.0);
}

fn put_state(into: &mut Encoder, state: ObjectState) {
    into.u8(state as u8);
}

queries! {
    get_size(snap: SnapId => put_snap), "Size and order. Answer: [`decode_size`].";
    get_object_prefix, "The prefix of data objects. Answer: [`decode_text`].";
    get_features(
        snap: SnapId => put_snap,
        read_only: bool => |into, value| { into.bool(value); }
    ), "The features. Answer: [`decode_features`].";
    get_flags(snap: SnapId => put_snap), "The flags. Answer: [`decode_u64`].";
    get_snapcontext, "The snapshots. Answer: [`decode_snap_context`].";
    get_stripe_unit_count,
        "Stripe unit and count. `ENOEXEC` without the feature. Answer: [`decode_stripes`].";
    get_data_pool, "The pool of data objects, or -1. Answer: [`decode_i64`].";
    get_create_timestamp, "When the image was made. Answer: [`decode_time`].";
    get_access_timestamp, "When it was last read, roughly. Answer: [`decode_time`].";
    get_modify_timestamp, "When it was last changed, roughly. Answer: [`decode_time`].";
    parent_get, "The parent. Answer: [`decode_parent`].";
    parent_overlap_get(snap: SnapId => put_snap),
        "How many bytes the image has in common with its parent. Answer: [`decode_overlap`].";
    get_parent(snap: SnapId => put_snap),
        "Parent and overlap, of old clusters. Answer: [`decode_old_parent`].";
    snapshot_get(snap: SnapId => put_snap), "A snapshot. Answer: [`decode_snapshot`].";
    get_snapshot_name(snap: SnapId => put_snap), "A snapshot's name. Answer: [`decode_text`].";
    get_protection_status(snap: SnapId => put_snap),
        "Whether a snapshot is protected. Answer: [`decode_protection`].";
    children_list(snap: SnapId => put_snap),
        "Clones of a snapshot, of format 2. `ENOENT` if there are none. Answer: \
         [`decode_children`].";
    op_features_get, "Features of operations. Answer: [`decode_u64`].";
    metadata_list(after: &str => put_text, max: u64 => put_u64),
        "Settings behind a key. Answer: [`decode_metadata`].";
    get_id, "On `rbd_id.NAME`: the id. Answer: [`decode_text`].";
    dir_get_id(name: &str => put_text), "The id of a name. Answer: [`decode_text`].";
    dir_get_name(id: &str => put_text), "The name of an id. Answer: [`decode_text`].";
    dir_list(after: &str => put_text, max: u64 => put_u64),
        "Images behind a name. Answer: [`decode_directory`].";
    object_map_load, "The object map. Answer: [`ObjectMap::decode`].";
    mirror_image_get(id: &str => put_text),
        "On `rbd_mirroring`: how an image is mirrored; `ENOENT` if it is not.";
    dir_state_assert(state: u8 => |into, value| { into.u8(value); }),
        "Fails unless the directory is in this state: 0 is usual.";
    image_group_get, "The group of an image. Answer: [`decode_group`].";
}

calls! {
    set_id(id: &str => put_text), "On `rbd_id.NAME`: sets the id.";
    set_size(size_bytes: u64 => put_u64),
        "Sets the size. A smaller size also cuts the overlap with the parent.";
    parent_detach, "Forgets the parent.";
    remove_parent, "Forgets the parent, of old clusters.";
    snapshot_remove(snap: SnapId => put_snap), "Removes a snapshot from the header.";
    snapshot_rename(snap: SnapId => put_snap, name: &str => put_text), "Renames a snapshot.";
    set_stripe_unit_count(unit: u64 => put_u64, count: u64 => put_u64), "Sets the striping.";
    set_features(features: Features => put_features, mask: Features => put_features),
        "Sets the features in `mask`.";
    set_flags(flags: u64 => put_u64, mask: u64 => put_u64, snap: SnapId => put_snap),
        "Sets the flags in `mask`.";
    op_features_set(features: u64 => put_u64, mask: u64 => put_u64),
        "Sets the operation features in `mask`.";
    dir_add_image(name: &str => put_text, id: &str => put_text),
        "Adds an image. `EEXIST` if there is one.";
    dir_remove_image(name: &str => put_text, id: &str => put_text), "Removes an image.";
    dir_rename_image(from: &str => put_text, to: &str => put_text, id: &str => put_text),
        "Renames an image.";
    object_map_resize(objects: u64 => put_u64, state: ObjectState => put_state),
        "Sets the number of objects. Objects that are cut off must be in this state.";
    object_map_snap_add, "After a snapshot: what exists has not changed.";
    set_access_timestamp, "The image is read.";
    set_modify_timestamp, "The image is changed.";
}

/// Makes a header.
pub fn create(
    ops: &mut ObjectOps,
    size_bytes: u64,
    order: u8,
    features: Features,
    prefix: &str,
    data_pool: Option<PoolId>,
) {
    let fields = input(|into| {
        into.u64(size_bytes).u8(order).u64(features.0).string(prefix);
        into.i64(data_pool.map_or(-1, |pool| pool.0));
    });
    ops.call(CLASS, "create", fields);
}

/// Writes data into an object that does not exist; nothing happens if it does.
pub fn copyup(ops: &mut ObjectOps, data: Bytes) {
    ops.call(CLASS, "copyup", data);
}

/// Adds a snapshot of a user. `ESTALE` if there is a newer one, `EEXIST` if the name is taken.
pub fn snapshot_add(ops: &mut ObjectOps, snap: SnapId, name: &str) {
    let fields = input(|into| {
        into.string(name).u64(snap.0).section(1, 1, |kind| {
            kind.u32(0);
        });
    });
    ops.call(CLASS, "snapshot_add", fields);
}

/// Protects a snapshot, or lifts the protection.
pub fn set_protection_status(ops: &mut ObjectOps, snap: SnapId, protection: Protection) {
    let fields = input(|into| {
        into.u64(snap.0).u8(protection as u8);
    });
    ops.call(CLASS, "set_protection_status", fields);
}

/// Sets the parent. `EEXIST` if there is one.
pub fn parent_attach(ops: &mut ObjectOps, parent: &ParentSpec, overlap_bytes: u64) {
    let fields = input(|into| {
        parent.encode(into);
        into.u64(overlap_bytes).bool(false);
    });
    ops.call(CLASS, "parent_attach", fields);
}

/// Sets the parent, of old clusters.
pub fn set_parent(ops: &mut ObjectOps, parent: &ParentSpec, overlap_bytes: u64) {
    let fields = input(|into| {
        parent.encode_old(into);
        into.u64(overlap_bytes);
    });
    ops.call(CLASS, "set_parent", fields);
}

/// On the parent's header: adds a clone of format 2.
pub fn child_attach(ops: &mut ObjectOps, snap: SnapId, child: &ChildSpec) {
    ops.call(CLASS, "child_attach", child_input(snap, child));
}

/// On the parent's header: removes a clone of format 2.
pub fn child_detach(ops: &mut ObjectOps, snap: SnapId, child: &ChildSpec) {
    ops.call(CLASS, "child_detach", child_input(snap, child));
}

fn child_input(snap: SnapId, child: &ChildSpec) -> Bytes {
    input(|into| {
        into.u64(snap.0);
        child.encode(into);
    })
}

/// On `rbd_children`: adds a clone of format 1.
pub fn add_child(ops: &mut ObjectOps, parent: &ParentSpec, child: &str) {
    ops.call(CLASS, "add_child", old_child_input(parent, child));
}

/// On `rbd_children`: removes a clone of format 1.
pub fn remove_child(ops: &mut ObjectOps, parent: &ParentSpec, child: &str) {
    ops.call(CLASS, "remove_child", old_child_input(parent, child));
}

fn old_child_input(parent: &ParentSpec, child: &str) -> Bytes {
    input(|into| {
        parent.encode_old(into);
        into.string(child);
    })
}

/// On `rbd_children`: clones of format 1. `ENOENT` if there are none. Answer: [`decode_texts`].
pub fn get_children(ops: &mut ObjectOps, parent: &ParentSpec) {
    ops.query(CLASS, "get_children", input(|into| parent.encode_old(into)));
}

/// Changes the states of objects `first..end`: of all, or of those in the state `from`.
pub fn object_map_update(
    ops: &mut ObjectOps,
    first: u64,
    end: u64,
    to: ObjectState,
    from: Option<ObjectState>,
) {
    let fields = input(|into| {
        into.u64(first).u64(end).u8(to as u8).bool(from.is_some());
        if let Some(from) = from {
            into.u8(from as u8);
        }
    });
    ops.call(CLASS, "object_map_update", fields);
}

/// Replaces the object map.
pub fn object_map_save(ops: &mut ObjectOps, map: &ObjectMap) {
    ops.call(CLASS, "object_map_save", map.encode_input());
}

/// On the map of the next snapshot: the snapshot before it, with this map, is removed.
pub fn object_map_snap_remove(ops: &mut ObjectOps, map: &ObjectMap) {
    ops.call(CLASS, "object_map_snap_remove", map.encode_input());
}

impl ParentSpec {
    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.section(1, 1, |into| {
            into.i64(self.pool.0).string(&self.namespace).string(&self.image).u64(self.snapshot.0);
        });
    }

    /// Writes it as old calls have it, without the namespace.
    fn encode_old(&self, into: &mut Encoder) {
        into.i64(self.pool.0).string(&self.image).u64(self.snapshot.0);
    }
}

impl ChildSpec {
    /// Writes it, in version 2.
    pub fn encode(&self, into: &mut Encoder) {
        into.section(2, 1, |into| {
            into.i64(self.pool.0).string(&self.image).string(&self.namespace);
        });
    }

    /// Reads one. Version 1 has no namespace.
    fn decode(from: &mut Decoder) -> Decoded<Self> {
        let section = from.section(2, "a child")?;
        let mut fields = section.fields;
        let pool = PoolId(fields.i64("the pool of a child")?);
        let image = fields.string("the id of a child")?;
        let namespace = match section.version {
            0 | 1 => String::new(),
            _ => fields.string("the namespace of a child")?,
        };
        Ok(Self { pool, namespace, image })
    }
}

/// Order and size.
///
/// # Errors
/// The bytes are no such answer. So for all functions that follow.
pub fn decode_size(bytes: &Bytes) -> Decoded<(u8, u64)> {
    let mut from = Decoder::new(bytes.clone());
    Ok((from.u8("the order of an image")?, from.u64("the size of an image")?))
}

/// A text.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_text(bytes: &Bytes) -> Decoded<String> {
    Decoder::new(bytes.clone()).string("a text")
}

/// A list of texts.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_texts(bytes: &Bytes) -> Decoded<Vec<String>> {
    Decoder::new(bytes.clone()).list(4, "texts", |from| from.string("a text"))
}

/// A number.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_u64(bytes: &Bytes) -> Decoded<u64> {
    Decoder::new(bytes.clone()).u64("a number")
}

/// A signed number.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_i64(bytes: &Bytes) -> Decoded<i64> {
    Decoder::new(bytes.clone()).i64("a number")
}

/// A time.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_time(bytes: &Bytes) -> Decoded<Time> {
    Time::decode(&mut Decoder::new(bytes.clone()))
}

/// The features, and those of them that a client must know.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_features(bytes: &Bytes) -> Decoded<(Features, Features)> {
    let mut from = Decoder::new(bytes.clone());
    let all = Features(from.u64("the features")?);
    Ok((all, Features(from.u64("the incompatible features")?)))
}

/// Stripe unit and count.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_stripes(bytes: &Bytes) -> Decoded<(u64, u64)> {
    let mut from = Decoder::new(bytes.clone());
    Ok((from.u64("the stripe unit")?, from.u64("the stripe count")?))
}

/// The snapshots, newest first.
///
/// # Errors
/// See [`decode_size`]. The snapshots must be in order, and none newer than the first number.
pub fn decode_snap_context(bytes: &Bytes) -> Decoded<SnapContext> {
    let what = "the snapshots of an image";
    let mut from = Decoder::new(bytes.clone());
    let seq = SnapId(from.u64(what)?);
    let snaps = from.list(8, what, |from| from.u64(what).map(SnapId))?;
    let ordered = snaps.windows(2).all(|pair| pair[0] > pair[1]);
    if !ordered || snaps.first().is_some_and(|&newest| newest > seq) {
        return Err(Decoder::refused(0, seq.0, what));
    }
    Ok(SnapContext { seq, snaps })
}

/// The parent; `None` if there is none.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_parent(bytes: &Bytes) -> Decoded<Option<ParentSpec>> {
    let mut fields = Decoder::new(bytes.clone()).section(1, "a parent")?.fields;
    let parent = ParentSpec {
        pool: PoolId(fields.i64("the pool of a parent")?),
        namespace: fields.string("the namespace of a parent")?,
        image: fields.string("the id of a parent")?,
        snapshot: SnapId(fields.u64("the snapshot of a parent")?),
    };
    Ok((parent.pool.0 >= 0).then_some(parent))
}

/// The overlap with the parent; `None` if there is no parent.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_overlap(bytes: &Bytes) -> Decoded<Option<u64>> {
    let mut from = Decoder::new(bytes.clone());
    from.bool("the overlap with a parent")?.then(|| from.u64("the overlap")).transpose()
}

/// Parent and overlap, as old clusters answer.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_old_parent(bytes: &Bytes) -> Decoded<Option<(ParentSpec, u64)>> {
    let mut from = Decoder::new(bytes.clone());
    let parent = ParentSpec {
        pool: PoolId(from.i64("the pool of a parent")?),
        namespace: String::new(),
        image: from.string("the id of a parent")?,
        snapshot: SnapId(from.u64("the snapshot of a parent")?),
    };
    let overlap = from.u64("the overlap with a parent")?;
    Ok((parent.pool.0 >= 0).then_some((parent, overlap)))
}

/// A snapshot.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_snapshot(bytes: &Bytes) -> Decoded<SnapshotInfo> {
    let mut fields = Decoder::new(bytes.clone()).section(1, "a snapshot")?.fields;
    let id = SnapId(fields.u64("the number of a snapshot")?);
    let mut kind = fields.section(1, "the kind of a snapshot")?.fields;
    let kind = match kind.u32("the kind of a snapshot")? {
        0 => SnapshotKind::User,
        1 => SnapshotKind::Group,
        2 => SnapshotKind::Trash(kind.string("the old name of a snapshot")?),
        3 => SnapshotKind::Mirror,
        other => SnapshotKind::Other(other),
    };
    Ok(SnapshotInfo {
        id,
        kind,
        name: fields.string("the name of a snapshot")?,
        size_bytes: fields.u64("the size of a snapshot")?,
        created: Time::decode(&mut fields)?,
        children: fields.u32("the number of children")?,
    })
}

/// Whether a snapshot is protected.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_protection(bytes: &Bytes) -> Decoded<Protection> {
    match Decoder::new(bytes.clone()).u8("the protection of a snapshot")? {
        0 => Ok(Protection::Unprotected),
        1 => Ok(Protection::Unprotecting),
        2 => Ok(Protection::Protected),
        other => Err(Decoder::refused(0, other.into(), "the protection of a snapshot")),
    }
}

/// Clones of format 2.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_children(bytes: &Bytes) -> Decoded<Vec<ChildSpec>> {
    Decoder::new(bytes.clone()).list(6, "children", ChildSpec::decode)
}

/// Names and ids of images.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_directory(bytes: &Bytes) -> Decoded<Vec<(String, String)>> {
    Decoder::new(bytes.clone()).list(8, "images", |from| {
        Ok((from.string("the name of an image")?, from.string("the id of an image")?))
    })
}

/// Settings.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_metadata(bytes: &Bytes) -> Decoded<BTreeMap<String, Bytes>> {
    let pairs = Decoder::new(bytes.clone()).list(8, "settings", |from| {
        Ok((from.string("the key of a setting")?, from.blob("the value of a setting")?))
    })?;
    Ok(pairs.into_iter().collect())
}

/// The group that an image belongs to: the id; `None` if it belongs to none.
///
/// # Errors
/// See [`decode_size`].
pub fn decode_group(bytes: &Bytes) -> Decoded<Option<String>> {
    let mut fields = Decoder::new(bytes.clone()).section(1, "a group")?.fields;
    let pool = fields.i64("the pool of a group")?;
    let id = fields.string("the id of a group")?;
    Ok((pool >= 0 && !id.is_empty()).then_some(id))
}

#[cfg(test)]
mod tests;
