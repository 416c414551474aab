//! The results of operations: readers for clients, and writers for models of OSDs.
//!
//! Byte strings share the memory of the reply. Names in listings may be any bytes in Ceph; those
//! that are no UTF-8 are replaced.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::cluster::{NotifyReply, SnapId, Watcher};
use crate::encoding::{DecodeError, Decoder, Encoder, EntityAddress, EntityKind, EntityName, Time};
use crate::message::osd::ObjectPosition;

/// Size and time of change ([`ObjectOps::stat`](super::ObjectOps::stat)): u64 size, time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The size.
    pub size_bytes: u64,
    /// The time of the last change, by the clock of the client that made it.
    pub modified: Time,
}

impl Stat {
    /// Reads the result.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes.clone());
        Ok(Self {
            size_bytes: from.u64("the size of an object")?,
            modified: Time::decode(&mut from)?,
        })
    }

    /// Writes the result.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let mut into = Encoder::with_capacity(16);
        into.u64(self.size_bytes);
        self.modified.encode(&mut into);
        into.finish()
    }
}

/// Keys and values of an omap ([`ObjectOps::omap_get_values`](super::ObjectOps::omap_get_values)),
/// and whether there are more: a list of two byte strings, u8.
///
/// # Errors
/// The bytes are no such result.
pub fn decode_omap(bytes: &Bytes) -> Result<(BTreeMap<Bytes, Bytes>, bool), DecodeError> {
    let mut from = Decoder::new(bytes.clone());
    let entries = entries(&mut from)?;
    Ok((entries, from.bool("the mark of more entries")?))
}

/// Writes the result that [`decode_omap`] reads.
pub fn encode_omap<'a>(
    entries: impl ExactSizeIterator<Item = (&'a Bytes, &'a Bytes)>,
    more: bool,
) -> Bytes {
    let mut into = Encoder::new();
    encode_entries(entries, &mut into);
    into.bool(more);
    into.finish()
}

/// Keys of an omap ([`ObjectOps::omap_get_keys`](super::ObjectOps::omap_get_keys)), in order, and
/// whether there are more: a list of byte strings, u8.
///
/// # Errors
/// The bytes are no such result.
pub fn decode_keys(bytes: &Bytes) -> Result<(Vec<Bytes>, bool), DecodeError> {
    let mut from = Decoder::new(bytes.clone());
    let keys = from.list(4, "keys", |from| from.blob("a key"))?;
    Ok((keys, from.bool("the mark of more keys")?))
}

/// Writes the result that [`decode_keys`] reads.
pub fn encode_keys<'a>(keys: impl ExactSizeIterator<Item = &'a Bytes>, more: bool) -> Bytes {
    let mut into = Encoder::new();
    into.list(keys, |into, key| {
        into.blob(key);
    });
    into.bool(more);
    into.finish()
}

/// The values for given keys of an omap
/// ([`ObjectOps::omap_get_by_keys`](super::ObjectOps::omap_get_by_keys)): a list of two byte
/// strings.
///
/// # Errors
/// The bytes are no such result.
pub fn decode_values(bytes: &Bytes) -> Result<BTreeMap<Bytes, Bytes>, DecodeError> {
    entries(&mut Decoder::new(bytes.clone()))
}

/// Writes the result that [`decode_values`] and [`decode_xattrs`] read.
pub fn encode_values<'a>(entries: impl ExactSizeIterator<Item = (&'a Bytes, &'a Bytes)>) -> Bytes {
    let mut into = Encoder::new();
    encode_entries(entries, &mut into);
    into.finish()
}

/// All attributes ([`ObjectOps::get_xattrs`](super::ObjectOps::get_xattrs)): a list of name and
/// value.
///
/// # Errors
/// The bytes are no such result.
pub fn decode_xattrs(bytes: &Bytes) -> Result<BTreeMap<Bytes, Bytes>, DecodeError> {
    decode_values(bytes)
}

fn entries(from: &mut Decoder) -> Result<BTreeMap<Bytes, Bytes>, DecodeError> {
    let count = from.count(8, "entries")?;
    (0..count).map(|_| Ok((from.blob("a key")?, from.blob("a value")?))).collect()
}

fn encode_entries<'a>(
    entries: impl ExactSizeIterator<Item = (&'a Bytes, &'a Bytes)>,
    into: &mut Encoder,
) {
    into.list(entries, |into, (key, value)| {
        into.blob(key).blob(value);
    });
}

/// Data without holes ([`ObjectOps::sparse_read`](super::ObjectOps::sparse_read)): a list of u64
/// offset and u64 length; a byte string with the data of all extents. An erasure-coded pool gives
/// one extent, holes included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseData {
    /// Offset in the object, and length, in order and apart from each other.
    pub extents: Vec<(u64, u64)>,
    /// The bytes of the extents, one behind the other.
    pub data: Bytes,
}

impl SparseData {
    /// Reads the result.
    ///
    /// # Errors
    /// The bytes are none, extents overlap or are out of order, or their lengths are not those of
    /// the data.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes.clone());
        let (mut end, mut total) = (0, 0_u64);
        let extents = from.list(16, "extents", |from| {
            let at = from.offset();
            let (offset, len) = (from.u64("an extent")?, from.u64("an extent")?);
            let refused = || Decoder::refused(at, offset, "an extent");
            if offset < end {
                return Err(refused());
            }
            end = offset.checked_add(len).ok_or_else(refused)?;
            total += len;
            Ok((offset, len))
        })?;
        let at = from.offset();
        // An OSD of an erasure-coded pool writes no length of the data if there are none.
        let data = match extents.is_empty() && from.is_empty() {
            true => Bytes::new(),
            false => from.blob("the data of extents")?,
        };
        if total != data.len() as u64 {
            return Err(Decoder::refused(at, data.len() as u64, "the length of extents' data"));
        }
        Ok(Self { extents, data })
    }

    /// Writes the result.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Encoder::with_capacity(8 + 16 * self.extents.len() + self.data.len());
        into.list(self.extents.iter(), |into, (offset, len)| {
            into.u64(*offset).u64(*len);
        });
        into.blob(&self.data);
        into.finish()
    }

    /// The extents with their data.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, Bytes)> + '_ {
        let mut at = 0;
        self.extents.iter().map(move |&(offset, len)| {
            let start = at;
            at += len as usize;
            (offset, self.data.slice(start..at))
        })
    }
}

/// A clone of an object: the state that some snapshots see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectClone {
    /// The newest snapshot that the clone keeps; [`SnapId::HEAD`] for the present state.
    pub id: SnapId,
    /// The snapshots that see it, ascending.
    pub snaps: Vec<SnapId>,
    /// Extents (offset, length) that the next newer clone, or the present state, has unchanged.
    pub overlap: Vec<(u64, u64)>,
    /// The size.
    pub size_bytes: u64,
}

/// The clones of an object ([`ObjectOps::list_snaps`](super::ObjectOps::list_snaps)): a section of
/// version 2 with a list of sections of version 1 (u64 id, list of u64, list of two u64, u64 size),
/// and u64 sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    /// The clones, ascending; the present state is last, unless the object is deleted.
    pub clones: Vec<ObjectClone>,
    /// The newest snapshot that a write has seen; [`SnapId::HEAD`] if the OSD does not say.
    pub seq: SnapId,
}

impl Snapshots {
    /// The present state; `None` if the object is deleted and only clones are left.
    #[must_use]
    pub fn head(&self) -> Option<&ObjectClone> {
        self.clones.iter().find(|clone| clone.id == SnapId::HEAD)
    }

    /// Reads the result.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let section = Decoder::new(bytes.clone()).section(2, "a list of clones")?;
        let mut fields = section.fields;
        let clones = fields.list(30, "clones", |from| {
            let mut fields = from.section(1, "a clone")?.fields;
            Ok(ObjectClone {
                id: SnapId(fields.u64("a clone")?),
                snaps: fields.list(8, "snapshots", |from| from.u64("a snapshot").map(SnapId))?,
                overlap: fields.list(16, "extents", |from| {
                    Ok((from.u64("an extent")?, from.u64("an extent")?))
                })?,
                size_bytes: fields.u64("the size of a clone")?,
            })
        })?;
        let seq = match section.version {
            0 | 1 => SnapId::HEAD,
            _ => SnapId(fields.u64("the newest snapshot")?),
        };
        Ok(Self { clones, seq })
    }

    /// Writes the result.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Encoder::new();
        into.section(2, 1, |into| {
            into.list(self.clones.iter(), |into, clone| {
                into.section(1, 1, |into| {
                    into.u64(clone.id.0);
                    into.list(clone.snaps.iter(), |into, snap| {
                        into.u64(snap.0);
                    });
                    into.list(clone.overlap.iter(), |into, (offset, len)| {
                        into.u64(*offset).u64(*len);
                    });
                    into.u64(clone.size_bytes);
                });
            });
            into.u64(self.seq.0);
        });
        into.finish()
    }
}

/// A watcher of an object, as the OSD keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatcherInfo {
    /// The client and its cookie.
    pub watcher: Watcher,
    /// How long the OSD waits for a sign of life.
    pub timeout_s: u32,
    /// The address of the client.
    pub address: EntityAddress,
}

/// The watchers of an object ([`ObjectOps::list_watchers`](super::ObjectOps::list_watchers)): a
/// section with a list of sections of version 2 (name, u64 cookie, u32 time, address).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watchers(pub Vec<WatcherInfo>);

impl Watchers {
    /// Reads the result.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(bytes.clone()).section(1, "a list of watchers")?.fields;
        let list = fields.list(27, "watchers", |from| {
            let section = from.section(2, "a watcher")?;
            let (version, mut fields) = (section.version, section.fields);
            let client = EntityName::decode(&mut fields)?.number.cast_unsigned();
            let cookie = fields.u64("the cookie of a watcher")?;
            let timeout_s = fields.u32("the time of a watcher")?;
            let address = match version {
                0 | 1 => EntityAddress::default(),
                _ => EntityAddress::decode(&mut fields)?,
            };
            Ok(WatcherInfo { watcher: Watcher { client, cookie }, timeout_s, address })
        })?;
        Ok(Self(list))
    }

    /// Writes the result.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Encoder::new();
        into.section(1, 1, |into| {
            into.list(self.0.iter(), |into, info| {
                into.section(2, 1, |into| {
                    let number = info.watcher.client.cast_signed();
                    EntityName { kind: EntityKind::Client, number }.encode(into);
                    into.u64(info.watcher.cookie).u32(info.timeout_s);
                    info.address.encode(into);
                });
            });
        });
        into.finish()
    }
}

/// Objects of a placement group ([`ObjectOps::list_group`](super::ObjectOps::list_group)): a
/// section with a position, u32 count, and namespace, name and key of each object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupListing {
    /// Namespace, name and locator key (empty if there is none).
    pub objects: Vec<(String, String, String)>,
    /// Where the next part begins. At the end of a group it is the start of the next group in the
    /// order of positions; at the end of the pool it [is the last](ObjectPosition::is_max).
    pub next: ObjectPosition,
    /// `next` as the OSD wrote it, for the next request.
    pub next_bytes: Bytes,
}

impl GroupListing {
    /// Reads the result.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(bytes.clone()).section(1, "a list of objects")?.fields;
        let (start, before) = (fields.offset(), fields.remaining());
        let next = ObjectPosition::decode(&mut fields)?;
        let next_bytes = bytes.slice(start..start + before - fields.remaining());
        let text =
            |from: &mut Decoder, what| Ok(String::from_utf8_lossy(&from.blob(what)?).into_owned());
        let objects = fields.list(12, "objects", |from| {
            let namespace = text(from, "a namespace")?;
            Ok((namespace, text(from, "the name of an object")?, text(from, "a key")?))
        })?;
        Ok(Self { objects, next, next_bytes })
    }

    /// Writes the result.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Encoder::new();
        into.section(1, 1, |into| {
            into.bytes(&self.next_bytes);
            into.list(self.objects.iter(), |into, (namespace, name, key)| {
                into.string(namespace).string(name).string(key);
            });
        });
        into.finish()
    }
}

/// The number of a notification ([`ObjectOps::notify`](super::ObjectOps::notify)): u64.
///
/// # Errors
/// The bytes are none.
pub fn decode_notify_id(bytes: &Bytes) -> Result<u64, DecodeError> {
    Decoder::new(bytes.clone()).u64("the number of a notification")
}

/// Writes the result that [`decode_notify_id`] reads.
#[must_use]
pub fn encode_notify_id(notify_id: u64) -> Bytes {
    let mut into = Encoder::with_capacity(8);
    into.u64(notify_id);
    into.finish()
}

/// The answers of watchers, which come with the end of a notification
/// ([`NotifyKind::Complete`](crate::message::osd::NotifyKind)): a list of u64 client, u64 cookie
/// and bytes; a list of u64 client and u64 cookie for those that did not answer.
///
/// # Errors
/// The bytes are none.
pub fn decode_notify_reply(bytes: &Bytes) -> Result<NotifyReply, DecodeError> {
    if bytes.is_empty() {
        return Ok(NotifyReply::default());
    }
    let mut from = Decoder::new(bytes.clone());
    let watcher = |from: &mut Decoder| {
        Ok(Watcher { client: from.u64("a client")?, cookie: from.u64("a cookie")? })
    };
    let acknowledged = from
        .list(20, "answers", |from| Ok((watcher(from)?, from.blob("the bytes of an answer")?)))?;
    let missed = from.list(16, "watchers without answer", watcher)?;
    Ok(NotifyReply { acknowledged, missed })
}

/// Writes the bytes that [`decode_notify_reply`] reads.
#[must_use]
pub fn encode_notify_reply(reply: &NotifyReply) -> Bytes {
    let mut into = Encoder::new();
    into.list(reply.acknowledged.iter(), |into, (watcher, bytes)| {
        into.u64(watcher.client).u64(watcher.cookie).blob(bytes);
    });
    into.list(reply.missed.iter(), |into, watcher| {
        into.u64(watcher.client).u64(watcher.cookie);
    });
    into.finish()
}

/// The result that a comparison of an extent gives for its first difference.
const MISMATCH: i64 = -4095;

/// Where a [`compare_extent`](super::ObjectOps::compare_extent) found the first difference, from
/// the start of its data; `None` if its result is another.
#[must_use]
pub fn mismatch_offset(result: i32) -> Option<u64> {
    u64::try_from(MISMATCH - i64::from(result)).ok()
}

/// The result of a comparison with the first difference at this offset in the data.
#[must_use]
pub fn mismatch_result(offset: u32) -> i32 {
    i32::try_from(MISMATCH - i64::from(offset)).unwrap_or(i32::MIN)
}
