//! Messages between client, monitors and OSDs.

pub mod features;
mod kind;
pub mod monitor;
pub mod osd;

use bytes::Bytes;
use smallvec::SmallVec;

pub use kind::MessageKind;

/// A message, with the fields of its header that its sender sets.
///
/// A payload has up to three parts: `front` has the message's own fields, `middle` is empty in all
/// messages of this crate, and `data` has the bytes of objects. The messenger aligns nothing and
/// copies nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Says how to read the payload: one of [`MessageKind`]'s numbers, or another.
    pub kind: u16,
    /// Names a request; its reply has the same.
    pub tid: u64,
    /// Higher priorities are handled first; 127 is usual.
    pub priority: u16,
    /// The version of the payload.
    pub version: u16,
    /// The lowest version that a reader must know.
    pub compat_version: u16,
    /// The fields of the message.
    pub front: Bytes,
    /// Unused by clients.
    pub middle: Bytes,
    /// The bytes of objects, in order.
    pub data: SmallVec<[Bytes; 1]>,
}

/// The usual priority of messages.
pub const PRIORITY_DEFAULT: u16 = 127;
/// The priority of requests on objects (Ceph: `osd_client_op_priority`).
pub const PRIORITY_REQUEST: u16 = 63;
/// The priority of what keeps the cluster going.
pub const PRIORITY_HIGH: u16 = 196;

impl Message {
    /// A message without data.
    #[must_use]
    pub fn new(kind: MessageKind, version: u16, compat_version: u16, front: Bytes) -> Self {
        Self {
            kind: kind as u16,
            priority: PRIORITY_DEFAULT,
            version,
            compat_version,
            front,
            ..Self::default()
        }
    }

    /// The length of the data.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}
