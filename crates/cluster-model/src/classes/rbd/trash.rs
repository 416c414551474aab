//! Methods of `rbd_trash`: images that wait for their deletion.

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder, Time};
use fieldstone_rados::errno::Errno;

use super::{Entry, damaged, encoded, forget, input, is_valid_id, nothing, store, stored};
use crate::objects::Execution;

const PREFIX: &str = "id_";

pub(super) const METHODS: &[Entry] = &[
    ("trash_add", true, trash_add),
    ("trash_remove", true, trash_remove),
    ("trash_list", false, trash_list),
    ("trash_get", false, trash_get),
    ("trash_state_set", true, trash_state_set),
];

/// An image in the trash.
struct Trashed {
    /// Who put it there: 0 a user, 1 the mirror, and more.
    source: u8,
    name: String,
    deleted: Time,
    kept_until: Time,
    /// 0 normal, 1 moving, 2 being removed, 3 being restored.
    state: u8,
}

impl Trashed {
    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let section = from.section(2, "an image in the trash")?;
        let mut fields = section.fields;
        let (source, name) = (fields.u8("a source")?, fields.string("a name")?);
        let (deleted, kept_until) = (Time::decode(&mut fields)?, Time::decode(&mut fields)?);
        let state = if section.version >= 2 { fields.u8("a state")? } else { 0 };
        Ok(Self { source, name, deleted, kept_until, state })
    }

    fn encode(&self, into: &mut Encoder) {
        into.section(2, 1, |into| {
            into.u8(self.source).string(&self.name);
            self.deleted.encode(into);
            self.kept_until.encode(into);
            into.u8(self.state);
        });
    }
}

fn trash_add(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    object.create(false)?;
    let (id, image) = input(bytes, |from| Ok((from.string("an id")?, Trashed::decode(from)?)))?;
    if !is_valid_id(&id) {
        return Err(Errno::EINVAL);
    }
    let key = format!("{PREFIX}{id}");
    if object.omap_get(key.as_bytes()).is_ok() {
        return Err(Errno::EEXIST);
    }
    store(object, &key, |into| image.encode(into))?;
    nothing()
}

fn named(bytes: Bytes) -> Result<String, Errno> {
    Ok(format!("{PREFIX}{}", input(bytes, |from| from.string("an id"))?))
}

fn trash_remove(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let key = named(bytes)?;
    object.omap_get(key.as_bytes())?;
    forget(object, &key)?;
    nothing()
}

fn trash_get(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    object.omap_get(named(bytes)?.as_bytes())
}

fn trash_list(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (after, max) = input(bytes, |from| Ok((from.string("an id")?, from.u64("a number")?)))?;
    let after = format!("{PREFIX}{after}");
    let mut images = Vec::new();
    let entries = object.omap_with_prefix(after.as_bytes(), PREFIX.as_bytes());
    for (key, value) in entries.take(max.min(u64::from(u32::MAX)) as usize) {
        let image = Trashed::decode(&mut Decoder::new(value.clone())).map_err(damaged)?;
        images.push((key.slice(PREFIX.len()..), image));
    }
    Ok(encoded(|into| {
        into.list(images.iter(), |into, (id, image)| {
            into.blob(id);
            image.encode(into);
        });
    }))
}

fn trash_state_set(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (id, wanted, expected) =
        input(bytes, |from| Ok((from.string("an id")?, from.u8("a state")?, from.u8("a state")?)))?;
    let key = format!("{PREFIX}{id}");
    let mut image = stored(object, &key, Trashed::decode)?;
    if image.state == expected {
        image.state = wanted;
        store(object, &key, |into| image.encode(into))?;
    } else if image.state != wanted {
        return Err(Errno::ESTALE);
    }
    nothing()
}
