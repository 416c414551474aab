//! Methods of `rbd_directory`: names and ids of images.

use bytes::Bytes;
use fieldstone_rados::encoding::Decoder;
use fieldstone_rados::errno::Errno;

use super::{Entry, damaged, encoded, forget, input, is_valid_id, nothing, stored};
use crate::objects::Execution;

const NAME: &str = "name_";
const ID: &str = "id_";
/// The id is in the directory already.
const EBADF: Errno = Errno(9);

pub(super) const METHODS: &[Entry] = &[
    ("dir_get_id", false, |object, bytes| look_up(object, bytes, NAME)),
    ("dir_get_name", false, |object, bytes| look_up(object, bytes, ID)),
    ("dir_list", false, dir_list),
    ("dir_add_image", true, dir_add_image),
    ("dir_remove_image", true, dir_remove_image),
    ("dir_rename_image", true, dir_rename_image),
    ("dir_state_assert", false, dir_state_assert),
    ("dir_state_set", true, dir_state_set),
];

const READY: u8 = 0;
const ADD_DISABLED: u8 = 1;

fn text(object: &Execution<'_>, key: &str) -> Result<String, Errno> {
    stored(object, key, |from| from.string("a name or id"))
}

fn look_up(object: &Execution<'_>, bytes: Bytes, prefix: &str) -> Result<Bytes, Errno> {
    let key = input(bytes, |from| from.string("a name or id"))?;
    let value = text(object, &format!("{prefix}{key}"))?;
    Ok(encoded(|into| {
        into.string(&value);
    }))
}

fn dir_list(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (after, max) = input(bytes, |from| Ok((from.string("a name")?, from.u64("a number")?)))?;
    let after = format!("{NAME}{after}");
    let mut images = Vec::new();
    for (key, value) in object.omap_with_prefix(after.as_bytes(), NAME.as_bytes()) {
        if images.len() as u64 >= max {
            break;
        }
        let id = Decoder::new(value.clone()).blob("an id").map_err(damaged)?;
        images.push((key.slice(NAME.len()..), id));
    }
    Ok(encoded(|into| {
        into.list(images.iter(), |into, (name, id)| {
            into.blob(name).blob(id);
        });
    }))
}

fn add(object: &mut Execution<'_>, name: &str, id: &str, is_new: bool) -> Result<(), Errno> {
    if name.is_empty() || !is_valid_id(id) {
        return Err(Errno::EINVAL);
    }
    let (name_key, id_key) = (format!("{NAME}{name}"), format!("{ID}{id}"));
    if object.omap_get(name_key.as_bytes()).is_ok() {
        return Err(Errno::EEXIST);
    }
    if is_new && object.omap_get(id_key.as_bytes()).is_ok() {
        return Err(EBADF);
    }
    object.omap_set(vec![
        (
            name_key.into(),
            encoded(|into| {
                into.string(id);
            }),
        ),
        (
            id_key.into(),
            encoded(|into| {
                into.string(name);
            }),
        ),
    ])
}

fn remove(object: &mut Execution<'_>, name: &str, id: &str) -> Result<(), Errno> {
    let (name_key, id_key) = (format!("{NAME}{name}"), format!("{ID}{id}"));
    if text(object, &name_key)? != id || text(object, &id_key)? != name {
        return Err(Errno::ESTALE);
    }
    forget(object, &name_key)?;
    forget(object, &id_key)
}

fn dir_add_image(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    object.create(false)?;
    let (name, id) = input(bytes, |from| Ok((from.string("a name")?, from.string("an id")?)))?;
    add(object, &name, &id, true)?;
    nothing()
}

fn dir_remove_image(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (name, id) = input(bytes, |from| Ok((from.string("a name")?, from.string("an id")?)))?;
    remove(object, &name, &id)?;
    nothing()
}

fn dir_rename_image(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (before, after, id) = input(bytes, |from| {
        Ok((from.string("a name")?, from.string("a name")?, from.string("an id")?))
    })?;
    remove(object, &before, &id)?;
    add(object, &after, &id, false)?;
    nothing()
}

fn dir_state_assert(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let wanted = input(bytes, |from| from.u8("a state"))?;
    let state = stored(object, "state", |from| from.u8("a state"))?;
    if state == wanted { nothing() } else { Err(Errno::ENOENT) }
}

fn dir_state_set(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let state = input(bytes, |from| from.u8("a state"))?;
    match state {
        READY => {}
        ADD_DISABLED => {
            object.stat()?;
            if object.omap_with_prefix(NAME.as_bytes(), NAME.as_bytes()).next().is_some() {
                return Err(Errno::EBUSY);
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    super::store(object, "state", |into| {
        into.u8(state);
    })?;
    nothing()
}
