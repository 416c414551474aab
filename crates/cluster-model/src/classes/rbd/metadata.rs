//! Methods for metadata of images and pools, and the answers of what the model leaves out: groups,
//! mirrors and namespaces.

use bytes::Bytes;
use fieldstone_rados::errno::Errno;

use super::{Entry, encoded, forget, input, nothing};
use crate::objects::Execution;

const PREFIX: &str = "metadata_";
const NAMESPACE: &str = "name_";
/// Most entries that a list gives if the caller sets no limit.
const DEFAULT_MAX: u64 = 64;

pub(super) const METHODS: &[Entry] = &[
    ("metadata_list", false, metadata_list),
    ("metadata_get", false, metadata_get),
    ("metadata_set", true, metadata_set),
    ("metadata_remove", true, metadata_remove),
    ("namespace_add", true, namespace_add),
    ("namespace_remove", true, namespace_remove),
    ("namespace_list", false, namespace_list),
    ("image_group_get", false, image_group_get),
    ("mirror_mode_get", false, absent),
    ("mirror_uuid_get", false, absent),
    ("mirror_image_get", false, absent),
    ("mirror_image_get_image_id", false, absent),
    ("mirror_peer_list", false, empty_list),
    ("mirror_image_list", false, empty_list),
];

fn key_of(name: &[u8]) -> Bytes {
    [PREFIX.as_bytes(), name].concat().into()
}

fn metadata_list(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (after, max) = input(bytes, |from| Ok((from.blob("a key")?, from.u64("a number")?)))?;
    let max = if max == 0 { DEFAULT_MAX } else { max };
    let after = key_of(&after);
    let entries: Vec<_> =
        object.omap_with_prefix(&after, PREFIX.as_bytes()).take(max as usize).collect();
    Ok(encoded(|into| {
        into.list(entries.into_iter(), |into, (key, value)| {
            into.blob(&key[PREFIX.len()..]).blob(value);
        });
    }))
}

fn metadata_get(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let name = input(bytes, |from| from.blob("a key"))?;
    let value = object.omap_get(&key_of(&name))?;
    Ok(encoded(|into| {
        into.blob(&value);
    }))
}

fn metadata_set(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let entries = input(bytes, |from| {
        from.list(8, "entries", |from| Ok((key_of(&from.blob("a key")?), from.blob("a value")?)))
    })?;
    object.omap_set(entries)?;
    nothing()
}

fn metadata_remove(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let name = input(bytes, |from| from.blob("a key"))?;
    object.omap_remove(vec![key_of(&name)])?;
    nothing()
}

fn namespace_add(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let key = format!("{NAMESPACE}{}", input(bytes, |from| from.string("a namespace"))?);
    if object.omap_get(key.as_bytes()).is_ok() {
        return Err(Errno::EEXIST);
    }
    object.omap_set(vec![(key.into(), Bytes::new())])?;
    nothing()
}

fn namespace_remove(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let key = format!("{NAMESPACE}{}", input(bytes, |from| from.string("a namespace"))?);
    object.omap_get(key.as_bytes())?;
    forget(object, &key)?;
    nothing()
}

fn namespace_list(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (after, max) = input(bytes, |from| Ok((from.string("a name")?, from.u64("a number")?)))?;
    let after = format!("{NAMESPACE}{after}");
    let names: Vec<_> = object
        .omap_with_prefix(after.as_bytes(), NAMESPACE.as_bytes())
        .take(max.min(u64::from(u32::MAX)) as usize)
        .map(|(key, _)| key.slice(NAMESPACE.len()..))
        .collect();
    Ok(encoded(|into| {
        into.list(names.iter(), |into, name| {
            into.blob(name);
        });
    }))
}

/// An image of no group: pool -1, and an empty id.
fn image_group_get(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    object.stat()?;
    Ok(encoded(|into| {
        into.section(1, 1, |into| {
            into.i64(-1).string("");
        });
    }))
}

fn absent(_: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    Err(Errno::ENOENT)
}

fn empty_list(_: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    Ok(encoded(|into| {
        into.u32(0);
    }))
}
