//! The class `lock`: advisory locks, stored as attributes `lock.NAME` of their object.
//!
//! A lock has a type, a tag, and lockers; a locker is a client with a cookie. All lockers of a
//! shared lock use the same tag. A lock with a duration ends by itself: a reader leaves out
//! what has expired.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder, EntityAddress, EntityName, Time};
use fieldstone_rados::errno::Errno;

use super::{Method, damaged, encoded, input, nothing};
use crate::objects::{Execution, client_name};

const PREFIX: &str = "lock.";
const EXCLUSIVE: u8 = 1;
const SHARED: u8 = 2;
/// The caller may hold the lock already.
const FLAG_MAY_RENEW: u8 = 1;
/// The caller must hold the lock already.
const FLAG_MUST_RENEW: u8 = 2;

pub(super) fn find(method: &str) -> Option<(bool, Method)> {
    Some(match method {
        "lock" => (true, lock),
        "unlock" => (true, unlock),
        "break_lock" => (true, break_lock),
        "get_info" => (false, get_info),
        "list_locks" => (false, list_locks),
        "assert_locked" => (false, assert_locked),
        "set_cookie" => (true, set_cookie),
        _ => return None,
    })
}

/// A client with a cookie. Clients are in order of kind, number and cookie.
type LockerId = (EntityName, Bytes);

#[derive(Clone, Debug)]
struct Locker {
    expires: Time,
    address: EntityAddress,
    description: Bytes,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    lockers: BTreeMap<LockerId, Locker>,
    kind: u8,
    tag: Bytes,
}

impl Lock {
    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let mut fields = from.section(1, "a lock")?.fields;
        let lockers = fields.list(12, "lockers", |from| {
            let mut id = from.section(1, "a locker")?.fields;
            let id = (EntityName::decode(&mut id)?, id.blob("a cookie")?);
            let mut locker = from.section(1, "a locker's state")?.fields;
            let expires = Time::decode(&mut locker)?;
            let address = EntityAddress::decode(&mut locker)?;
            Ok((id, Locker { expires, address, description: locker.blob("a description")? }))
        })?;
        let kind = fields.u8("the type of a lock")?;
        Ok(Self { lockers: lockers.into_iter().collect(), kind, tag: fields.blob("a tag")? })
    }

    fn encode(&self, into: &mut Encoder) {
        into.section(1, 1, |into| {
            into.list(self.lockers.iter(), |into, ((name, cookie), locker)| {
                into.section(1, 1, |into| {
                    name.encode(into);
                    into.blob(cookie);
                });
                into.section(1, 1, |into| {
                    locker.expires.encode(into);
                    locker.address.encode(into);
                    into.blob(&locker.description);
                });
            });
            into.u8(self.kind).blob(&self.tag);
        });
    }
}

fn attribute(name: &[u8]) -> Bytes {
    [PREFIX.as_bytes(), name].concat().into()
}

fn read(object: &Execution<'_>, name: &[u8]) -> Result<Lock, Errno> {
    let stored = match object.xattr(&attribute(name)) {
        Err(Errno::ENODATA) => return Ok(Lock::default()),
        other => other?,
    };
    let mut lock = Lock::decode(&mut Decoder::new(stored)).map_err(damaged)?;
    let now = object.now();
    lock.lockers.retain(|_, locker| locker.expires == Time::default() || locker.expires >= now);
    Ok(lock)
}

fn write(object: &mut Execution<'_>, name: &[u8], lock: &Lock) -> Result<Bytes, Errno> {
    object.set_xattr(attribute(name), encoded(|into| lock.encode(into)))?;
    nothing()
}

fn check(kind: u8, name: &[u8]) -> Result<(), Errno> {
    let is_known = kind == EXCLUSIVE || kind == SHARED;
    if is_known && !name.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
}

fn lock(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (name, kind, cookie, tag, description, duration, flags) = input(bytes, |from| {
        let mut fields = from.section(1, "a request for a lock")?.fields;
        Ok((
            fields.blob("a name")?,
            fields.u8("the type of a lock")?,
            fields.blob("a cookie")?,
            fields.blob("a tag")?,
            fields.blob("a description")?,
            Time::decode(&mut fields)?,
            fields.u8("flags")?,
        ))
    })?;
    check(kind, &name)?;
    let mut lock = match read(object, &name) {
        Err(Errno::ENOENT) => Lock::default(),
        other => other?,
    };
    let caller = object.caller();
    let (id, address) = ((client_name(caller.client), cookie), caller.address);
    if !lock.lockers.is_empty() && lock.tag != tag {
        return Err(Errno::EBUSY);
    }
    let holds = lock.lockers.remove(&id).is_some();
    if holds && flags & (FLAG_MAY_RENEW | FLAG_MUST_RENEW) == 0 {
        return Err(Errno::EEXIST);
    }
    if !holds && flags & FLAG_MUST_RENEW != 0 {
        return Err(Errno::ENOENT);
    }
    if !lock.lockers.is_empty() && (kind == EXCLUSIVE || lock.kind != kind) {
        return Err(Errno::EBUSY);
    }
    (lock.kind, lock.tag) = (kind, tag);
    let expires = if duration == Time::default() { duration } else { sum(object.now(), duration) };
    lock.lockers.insert(id, Locker { expires, address, description });
    write(object, &name, &lock)
}

fn sum(start: Time, duration: Time) -> Time {
    let nanos = start.nanos.saturating_add(duration.nanos);
    Time {
        seconds: start
            .seconds
            .saturating_add(duration.seconds)
            .saturating_add(nanos / 1_000_000_000),
        nanos: nanos % 1_000_000_000,
    }
}

fn remove(object: &mut Execution<'_>, name: &[u8], id: &LockerId) -> Result<Bytes, Errno> {
    let mut lock = read(object, name)?;
    lock.lockers.remove(id).ok_or(Errno::ENOENT)?;
    write(object, name, &lock)
}

fn unlock(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (name, cookie) = input(bytes, |from| {
        let mut fields = from.section(1, "an unlock")?.fields;
        Ok((fields.blob("a name")?, fields.blob("a cookie")?))
    })?;
    let id = (client_name(object.caller().client), cookie);
    remove(object, &name, &id)
}

fn break_lock(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (name, locker, cookie) = input(bytes, |from| {
        let mut fields = from.section(1, "a break of a lock")?.fields;
        let name = fields.blob("a name")?;
        Ok((name, EntityName::decode(&mut fields)?, fields.blob("a cookie")?))
    })?;
    remove(object, &name, &(locker, cookie))
}

fn get_info(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let name = input(bytes, |from| from.section(1, "a question")?.fields.blob("a name"))?;
    let lock = read(object, &name)?;
    Ok(encoded(|into| lock.encode(into)))
}

fn list_locks(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let names: Vec<_> =
        object.xattr_names().filter_map(|name| name.strip_prefix(PREFIX.as_bytes())).collect();
    Ok(encoded(|into| {
        into.section(1, 1, |into| {
            into.list(names.into_iter(), |into, name| {
                into.blob(name);
            });
        });
    }))
}

/// Fields that `assert_locked` and `set_cookie` have in common: name, type, cookie, tag.
fn holding(fields: &mut Decoder) -> Result<(Bytes, u8, Bytes, Bytes), DecodeError> {
    let (name, kind) = (fields.blob("a name")?, fields.u8("the type of a lock")?);
    Ok((name, kind, fields.blob("a cookie")?, fields.blob("a tag")?))
}

/// The lock, if the caller holds it in this way.
fn held(
    object: &Execution<'_>,
    (name, kind, cookie, tag): (Bytes, u8, Bytes, Bytes),
) -> Result<(Lock, LockerId), Errno> {
    check(kind, &name)?;
    let lock = read(object, &name)?;
    let id = (client_name(object.caller().client), cookie);
    let holds = lock.kind == kind && lock.tag == tag && lock.lockers.contains_key(&id);
    if holds { Ok((lock, id)) } else { Err(Errno::EBUSY) }
}

fn assert_locked(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let asserted = input(bytes, |from| holding(&mut from.section(1, "an assertion")?.fields))?;
    held(object, asserted)?;
    nothing()
}

fn set_cookie(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (asserted, new_cookie) = input(bytes, |from| {
        let mut fields = from.section(1, "a new cookie")?.fields;
        Ok((holding(&mut fields)?, fields.blob("a cookie")?))
    })?;
    let name = asserted.0.clone();
    let (mut lock, id) = held(object, asserted)?;
    let new_id = (id.0, new_cookie);
    if lock.lockers.contains_key(&new_id) {
        return Err(Errno::EBUSY);
    }
    if let Some(locker) = lock.lockers.remove(&id) {
        lock.lockers.insert(new_id, locker);
    }
    write(object, &name, &lock)
}
