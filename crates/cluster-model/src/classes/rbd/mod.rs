//! The class `rbd`: what images keep beside their data.
//!
//! ```text
//!   rbd_directory          omap  name_NAME -> id, id_ID -> name
//!   rbd_id.NAME            data  the id
//!   rbd_header.ID          omap  size, order, features, object_prefix, snap_seq, create_timestamp,
//!                                access_timestamp, modify_timestamp, flags, op_features,
//!                                data_pool_id, stripe_unit, stripe_count, parent, snap_limit,
//!                                snapshot_NUMBER, snap_children_NUMBER, metadata_KEY
//!   rbd_object_map.ID      data  two bits an object; of a snapshot: rbd_object_map.ID.NUMBER
//!   rbd_children           omap  pool, id and snapshot of a parent -> ids of its children
//!   rbd_trash              omap  id_ID -> name, time of deletion
//!   rbd_info               data  a text that shows that the pool takes overwrites
//! ```
//!
//! NUMBER is a snapshot as 16 hexadecimal digits. Parents and snapshots are stored as since
//! Nautilus: one record `parent` for the image and all its snapshots, and in each snapshot only how
//! much of the parent shows through it.
//!
//! Source of behaviour: Ceph's `cls_rbd.cc`. Left out: journals, groups, migration, the
//! registration of mirrors, and the format 1.

mod directory;
mod header;
mod metadata;
mod object_map;
mod parents;
mod records;
mod snapshots;
#[cfg(test)]
mod tests;
mod trash;

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};
use fieldstone_rados::errno::Errno;

use super::{Method, damaged, encoded, input, nothing};
use crate::objects::Execution;

pub use object_map::ObjectMap;

/// The image does not have the feature.
const ENOEXEC: Errno = Errno(8);

/// The snapshot number of the present state.
const HEAD: u64 = u64::MAX - 1;

/// A method of the tables below: its name, whether it writes, its function.
type Entry = (&'static str, bool, Method);

fn methods() -> impl Iterator<Item = &'static Entry> {
    [
        header::METHODS,
        snapshots::METHODS,
        parents::METHODS,
        directory::METHODS,
        metadata::METHODS,
        object_map::METHODS,
        trash::METHODS,
    ]
    .into_iter()
    .flatten()
}

pub(super) fn find(method: &str) -> Option<(bool, Method)> {
    methods().find(|entry| entry.0 == method).map(|&(_, writes, run)| (writes, run))
}

/// The names of all methods.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    methods().map(|entry| entry.0)
}

/// A stored value.
fn stored<T>(
    object: &Execution<'_>,
    key: &str,
    read: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>,
) -> Result<T, Errno> {
    let value = object.omap_get(key.as_bytes())?;
    read(&mut Decoder::new(value)).map_err(damaged)
}

/// A stored value, if there is one.
fn stored_or_none<T>(
    object: &Execution<'_>,
    key: &str,
    read: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>,
) -> Result<Option<T>, Errno> {
    match stored(object, key, read) {
        Err(Errno::ENOENT) => Ok(None),
        other => other.map(Some),
    }
}

fn stored_u64(object: &Execution<'_>, key: &str) -> Result<u64, Errno> {
    stored(object, key, |from| from.u64("a number"))
}

fn store(
    object: &mut Execution<'_>,
    key: &str,
    fill: impl FnOnce(&mut Encoder),
) -> Result<(), Errno> {
    object.omap_set(vec![(Bytes::copy_from_slice(key.as_bytes()), encoded(fill))])
}

fn store_u64(object: &mut Execution<'_>, key: &str, value: u64) -> Result<(), Errno> {
    store(object, key, |into| {
        into.u64(value);
    })
}

fn forget(object: &mut Execution<'_>, key: &str) -> Result<(), Errno> {
    object.omap_remove(vec![Bytes::copy_from_slice(key.as_bytes())])
}

/// A number as a method's input.
fn input_u64(bytes: Bytes) -> Result<u64, Errno> {
    input(bytes, |from| from.u64("a number"))
}

/// True if a text can be the id of an image.
fn is_valid_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
