//! Calls of the OSDs' class `lock`: advisory locks on objects.
//!
//! A lock has a name, a type and a tag, and lockers. A locker is a client, by its number, with a
//! cookie. RBD's lock is named `rbd_lock`. On the header, its tag is `internal`, and the cookie is
//! `auto N`, where N is the cookie of the owner's watch: so others can see whether the owner lives.
//! On the object map, tag and cookie are empty.
//!
//! A method's input and output is a section of version 1. (Ceph: `src/cls/lock`.)

use bytes::Bytes;
use fieldstone_rados::encoding::{
    DecodeError, Decoder, Encoder, EntityAddress, EntityKind, EntityName, Time,
};
use fieldstone_rados::op::ObjectOps;

/// The name of the class.
const CLASS: &str = "lock";
/// The name of RBD's lock.
pub const NAME: &str = "rbd_lock";
/// The tag of locks that clients take and give up by themselves.
pub const INTERNAL_TAG: &str = "internal";
/// What the cookies of such locks begin with.
const COOKIE_PREFIX: &str = "auto ";

/// How many may hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// No client holds it.
    None,
    /// One.
    Exclusive,
    /// Many.
    Shared,
    /// One, for a moment.
    Ephemeral,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locker {
    /// The client.
    pub client: EntityName,
    /// The client's cookie.
    pub cookie: String,
    /// The client's address, by which it can be blocked.
    pub address: EntityAddress,
    /// A text of the client.
    pub description: String,
}

impl Locker {
    /// The cookie of the watch that shows that the locker lives.
    #[must_use]
    pub fn watch_cookie(&self) -> Option<u64> {
        parse_cookie(&self.cookie)
    }

    /// The address as `osd blocklist add` takes it: without the protocol.
    #[must_use]
    pub fn blocklist_address(&self) -> Option<String> {
        Some(format!("{}/{}", self.address.socket?, self.address.nonce))
    }
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Its holders.
    pub lockers: Vec<Locker>,
    /// The type.
    pub kind: LockKind,
    /// The tag.
    pub tag: String,
}

/// The cookie of the lock of a client with this watch.
#[must_use]
pub fn cookie(watch: u64) -> String {
    format!("{COOKIE_PREFIX}{watch}")
}

/// The watch of a lock's cookie.
#[must_use]
pub fn parse_cookie(cookie: &str) -> Option<u64> {
    cookie.strip_prefix(COOKIE_PREFIX)?.parse().ok()
}

fn section(fields: impl FnOnce(&mut Encoder)) -> Bytes {
    let mut into = Encoder::new();
    into.section(1, 1, fields);
    into.finish()
}

/// Takes the lock alone. `EBUSY` if another has it, `EEXIST` if this client and cookie have it.
pub fn lock(ops: &mut ObjectOps, cookie: &str, tag: &str) {
    let fields = section(|into| {
        into.string(NAME).u8(LockKind::Exclusive as u8).string(cookie).string(tag).string("");
        Time::default().encode(into);
        into.u8(0);
    });
    ops.call(CLASS, "lock", fields);
}

/// Gives the lock up. `ENOENT` if it is not held.
pub fn unlock(ops: &mut ObjectOps, cookie: &str) {
    let fields = section(|into| {
        into.string(NAME).string(cookie);
    });
    ops.call(CLASS, "unlock", fields);
}

/// Takes the lock from its holder. `ENOENT` if that does not hold it.
pub fn break_lock(ops: &mut ObjectOps, locker: EntityName, cookie: &str) {
    let fields = section(|into| {
        into.string(NAME);
        locker.encode(into);
        into.string(cookie);
    });
    ops.call(CLASS, "break_lock", fields);
}

/// Fails with `EBUSY` unless this client holds the lock with this cookie.
pub fn assert_locked(ops: &mut ObjectOps, cookie: &str, tag: &str) {
    let fields = section(|into| {
        into.string(NAME).u8(LockKind::Exclusive as u8).string(cookie).string(tag);
    });
    ops.query(CLASS, "assert_locked", fields);
}

/// Changes the cookie of a lock that this client holds.
pub fn set_cookie(ops: &mut ObjectOps, old: &str, tag: &str, new: &str) {
    let fields = section(|into| {
        into.string(NAME).u8(LockKind::Exclusive as u8).string(old).string(tag).string(new);
    });
    ops.call(CLASS, "set_cookie", fields);
}

/// Who holds the lock. Answer: [`LockInfo::decode`].
pub fn get_info(ops: &mut ObjectOps) {
    let fields = section(|into| {
        into.string(NAME);
    });
    ops.query(CLASS, "get_info", fields);
}

impl LockInfo {
    /// Reads the answer of [`get_info`].
    ///
    /// # Errors
    /// The bytes are no such answer.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(bytes.clone()).section(1, "a lock")?.fields;
        let lockers = fields.list(12, "the lockers", |from| {
            let mut id = from.section(1, "a locker")?.fields;
            let client = EntityName::decode(&mut id)?;
            let cookie = id.string("the cookie of a locker")?;
            let mut info = from.section(1, "a locker")?.fields;
            Time::decode(&mut info)?;
            let address = EntityAddress::decode(&mut info)?;
            let description = info.string("the description of a locker")?;
            Ok(Locker { client, cookie, address, description })
        })?;
        let offset = fields.offset();
        let kind = match fields.u8("the type of a lock")? {
            0 => LockKind::None,
            1 => LockKind::Exclusive,
            2 => LockKind::Shared,
            3 => LockKind::Ephemeral,
            other => return Err(Decoder::refused(offset, other.into(), "the type of a lock")),
        };
        Ok(Self { lockers, kind, tag: fields.string("the tag of a lock")? })
    }

    /// Writes the answer, for models of OSDs.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        section(|into| {
            into.list(self.lockers.iter(), |into, locker| {
                into.section(1, 1, |into| {
                    locker.client.encode(into);
                    into.string(&locker.cookie);
                });
                into.section(1, 1, |into| {
                    Time::default().encode(into);
                    locker.address.encode(into);
                    into.string(&locker.description);
                });
            });
            into.u8(self.kind as u8).string(&self.tag);
        })
    }
}

/// The name of a client.
#[must_use]
pub fn client(number: u64) -> EntityName {
    EntityName { kind: EntityKind::Client, number: number.cast_signed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> LockInfo {
        let address = EntityAddress {
            kind: fieldstone_rados::encoding::AddressKind::Any,
            nonce: 77,
            socket: Some("10.0.0.1:0".parse().expect("an address")),
        };
        let locker =
            Locker { client: client(4123), cookie: cookie(9), address, description: String::new() };
        LockInfo { lockers: vec![locker], kind: LockKind::Exclusive, tag: INTERNAL_TAG.into() }
    }

    #[test]
    fn a_cookie_names_the_watch() {
        assert_eq!(cookie(18_446_462_598_732_840_961), "auto 18446462598732840961");
        assert_eq!(parse_cookie("auto 5"), Some(5));
        assert_eq!(parse_cookie("manual 5"), None);
        assert_eq!(info().lockers[0].blocklist_address().as_deref(), Some("10.0.0.1:0/77"));
    }

    #[test]
    fn hostile_answers_give_errors() {
        let bytes = info().encode();
        assert_eq!(LockInfo::decode(&bytes), Ok(info()));
        for len in 0..bytes.len() {
            assert!(LockInfo::decode(&bytes.slice(..len)).is_err(), "{len} bytes");
        }
        for index in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[index] ^= 0x81;
            let _ = LockInfo::decode(&flipped.into());
        }
    }

    #[test]
    fn inputs_have_the_fields_of_the_class() {
        let mut ops = ObjectOps::new();
        unlock(&mut ops, "c");
        // The name of class and method, then the section.
        let expected = b"lockunlock\x01\x01\x11\0\0\0\x08\0\0\0rbd_lock\x01\0\0\0c";
        assert_eq!(ops.ops()[0].data[..], expected[..]);
    }
}
