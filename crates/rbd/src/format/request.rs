//! Requests to the owner of the lock: other clients ask it, by a notification, to change the image
//! for them.
//!
//! ```text
//!  6 flatten     id
//!  7 resize      u64 bytes, id, (4) u8 may shrink
//!  8 snapshot    name, (6) kind, (7) id, u64 flags
//!  9 remove      name, (6) kind, and an id from newer clients
//! 11 rename      u64 snapshot, new name, (6) kind, and an id from newer clients
//! 12 protect     name, (6) kind, and an id from newer clients
//! 13 unprotect   name, (6) kind, and an id from newer clients
//! ```
//!
//! The number in brackets is the version of the message that added a field. A kind is a section:
//! u32, and 0 for a user's snapshot. A request with an id is answered at once, and its end is told
//! by another notification. One without an id is answered at its end.
//!
//! (Ceph: `src/librbd/WatchNotifyTypes`, `ImageWatcher`.)

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};

use super::notice::RequestId;

/// A request to the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request, if its end is told by a notification.
    pub id: Option<RequestId>,
    /// What the owner is asked for.
    pub work: Work,
}

/// What an owner does for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Makes a clone independent of its parent.
    Flatten,
    /// Sets the size.
    Resize {
        /// The new size.
        size_bytes: u64,
        /// It may be smaller than the old one.
        may_shrink: bool,
    },
    /// Makes a snapshot of this name.
    CreateSnapshot(String),
    /// Removes the snapshot of this name.
    RemoveSnapshot(String),
    /// Gives a snapshot another name.
    RenameSnapshot(SnapId, String),
    /// Protects the snapshot of this name.
    ProtectSnapshot(String),
    /// Lifts the protection of the snapshot of this name.
    UnprotectSnapshot(String),
}

/// The version of the messages that this client writes.
pub(super) const VERSION: u8 = 7;
/// The kind of snapshots that users make.
const USER: u32 = 0;

impl Request {
    /// The number of the message.
    pub(super) fn number(&self) -> u32 {
        match self.work {
            Work::Flatten => 6,
            Work::Resize { .. } => 7,
            Work::CreateSnapshot(_) => 8,
            Work::RemoveSnapshot(_) => 9,
            Work::RenameSnapshot(..) => 11,
            Work::ProtectSnapshot(_) => 12,
            Work::UnprotectSnapshot(_) => 13,
        }
    }

    /// Writes the fields behind the number.
    pub(super) fn encode(&self, into: &mut Encoder) {
        match &self.work {
            Work::Flatten => self.id.unwrap_or_default().encode(into),
            Work::Resize { size_bytes, may_shrink } => {
                into.u64(*size_bytes);
                self.id.unwrap_or_default().encode(into);
                into.bool(*may_shrink);
            }
            Work::CreateSnapshot(name)
            | Work::RemoveSnapshot(name)
            | Work::ProtectSnapshot(name)
            | Work::UnprotectSnapshot(name) => self.encode_snapshot(name, into),
            Work::RenameSnapshot(snapshot, name) => {
                into.u64(snapshot.0);
                self.encode_snapshot(name, into);
            }
        }
    }

    fn encode_snapshot(&self, name: &str, into: &mut Encoder) {
        into.string(name);
        into.section(1, 1, |into| {
            into.u32(USER);
        });
        if let Some(id) = self.id {
            id.encode(into);
            if matches!(self.work, Work::CreateSnapshot(_)) {
                into.u64(0);
            }
        }
    }

    /// Reads the fields of a message. `None` if this client does not do such work.
    pub(super) fn decode(
        number: u32,
        version: u8,
        from: &mut Decoder,
    ) -> Result<Option<Self>, DecodeError> {
        let named = |from: &mut Decoder| -> Result<(String, u32, Option<RequestId>), DecodeError> {
            let name = from.string("the name of a snapshot")?;
            let mut kind = USER;
            if version >= 5 && (version >= 6 || number == 8) {
                let mut fields = from.section(1, "a kind of snapshot")?.fields;
                kind = fields.u32("a kind of snapshot")?;
            }
            let id = if from.is_empty() { None } else { Some(RequestId::decode(from)?) };
            Ok((name, kind, id))
        };
        let (id, work) = match number {
            6 => (Some(RequestId::decode(from)?), Work::Flatten),
            7 => {
                let size_bytes = from.u64("a size")?;
                let id = RequestId::decode(from)?;
                let may_shrink = version < 4 || from.bool("whether an image may shrink")?;
                (Some(id), Work::Resize { size_bytes, may_shrink })
            }
            8 | 9 | 11..=13 => {
                let snapshot =
                    if number == 11 { SnapId(from.u64("a snapshot")?) } else { SnapId(0) };
                let (name, kind, id) = named(from)?;
                if kind != USER {
                    return Ok(None);
                }
                let work = match number {
                    8 => Work::CreateSnapshot(name),
                    9 => Work::RemoveSnapshot(name),
                    11 => Work::RenameSnapshot(snapshot, name),
                    12 => Work::ProtectSnapshot(name),
                    _ => Work::UnprotectSnapshot(name),
                };
                (id, work)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { id, work }))
    }
}
