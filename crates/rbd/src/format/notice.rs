//! Notifications among the clients of an image, over the watchers of its header.
//!
//! A message is a section: u32 number of the message, then its fields. Version 2 added the sender,
//! and version 3 a flag to [`Notice::RequestLock`]; older messages end before these fields.
//!
//! | No | Message | Who answers |
//! |---|---|---|
//! | 0, 1 | a client took, or gave up, the lock | no client |
//! | 2 | a client asks for the lock | the owner, with a [`response`]: 0, or `EROFS` to refuse |
//! | 3 | the header changed | no client |
//! | 4, 5 | progress of, or the end of, a request | no client |
//! | 6.. | a [`Request`] to the owner, e.g. for a resize | the owner |
//!
//! (Ceph: `src/librbd/WatchNotifyTypes`.)

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};

use super::request::{self, Request};

/// Names a client: its number, and the cookie of its watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId {
    /// The client.
    pub client: u64,
    /// Its watch.
    pub watch: u64,
}

/// Names a request to the owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    /// Who asked.
    pub client: ClientId,
    /// The number among the client's requests.
    pub request: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A client took the lock.
    AcquiredLock(ClientId),
    /// A client gave the lock up.
    ReleasedLock(ClientId),
    /// A client asks for the lock; `force` asks the owner to break off what it does.
    RequestLock(ClientId, bool),
    /// Size, snapshots, parent or settings changed.
    HeaderUpdate,
    /// How far a request is: done, of this many.
    AsyncProgress(RequestId, u64, u64),
    /// A request has ended, with a negative error number or 0.
    AsyncComplete(RequestId, i32),
    /// A request to the owner.
    Request(Request),
    /// A request to the owner that this client does not serve.
    OwnerRequest(u32),
    /// Another message. It needs no answer.
    Other(u32),
}

/// The version that this client writes.
const VERSION: u8 = 3;
/// Messages that ask the owner to do something: flatten (6) to sparsify (17). Of the later ones,
/// 20 (a change of settings) is one too; 18 and 19 ask all clients to hold writes back.
const OWNER_REQUESTS: std::ops::RangeInclusive<u32> = 6..=17;
const METADATA_UPDATE: u32 = 20;

impl ClientId {
    fn encode(self, into: &mut Encoder) {
        into.u64(self.client).u64(self.watch);
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Self { client: from.u64("a client")?, watch: from.u64("the watch of a client")? })
    }
}

impl RequestId {
    pub(super) fn encode(self, into: &mut Encoder) {
        self.client.encode(into);
        into.u64(self.request);
    }

    pub(super) fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Self { client: ClientId::decode(from)?, request: from.u64("a request")? })
    }
}

impl Notice {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Encoder::new();
        let version = if matches!(self, Notice::Request(_)) { request::VERSION } else { VERSION };
        into.section(version, 1, |into| match self {
            Notice::AcquiredLock(client) => client.encode(into.u32(0)),
            Notice::ReleasedLock(client) => client.encode(into.u32(1)),
            Notice::RequestLock(client, force) => {
                client.encode(into.u32(2));
                into.bool(*force);
            }
            Notice::HeaderUpdate => {
                into.u32(3);
            }
            Notice::AsyncProgress(request, done, total) => {
                request.encode(into.u32(4));
                into.u64(*done).u64(*total);
            }
            Notice::AsyncComplete(request, result) => {
                request.encode(into.u32(5));
                into.i32(*result);
            }
            Notice::Request(request) => request.encode(into.u32(request.number())),
            Notice::OwnerRequest(number) | Notice::Other(number) => {
                into.u32(*number);
            }
        });
        into.finish()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The bytes are no message.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let section = Decoder::new(bytes.clone()).section(1, "a notification")?;
        let version = section.version;
        let mut from = section.fields;
        let sender = |from: &mut Decoder| {
            if version >= 2 { ClientId::decode(from) } else { Ok(ClientId::default()) }
        };
        Ok(match from.u32("the number of a notification")? {
            0 => Notice::AcquiredLock(sender(&mut from)?),
            1 => Notice::ReleasedLock(sender(&mut from)?),
            2 => {
                let client = sender(&mut from)?;
                let force = version >= 3 && from.bool("the flag of a request for the lock")?;
                Notice::RequestLock(client, force)
            }
            3 => Notice::HeaderUpdate,
            4 => {
                let request = RequestId::decode(&mut from)?;
                Notice::AsyncProgress(request, from.u64("progress")?, from.u64("the total")?)
            }
            5 => Notice::AsyncComplete(RequestId::decode(&mut from)?, from.i32("a result")?),
            number if OWNER_REQUESTS.contains(&number) || number == METADATA_UPDATE => {
                match Request::decode(number, version, &mut from)? {
                    Some(request) => Notice::Request(request),
                    None => Notice::OwnerRequest(number),
                }
            }
            number => Notice::Other(number),
        })
    }
}

/// The owner's answer to a message: 0, or a negative error number.
#[must_use]
pub fn response(result: i32) -> Bytes {
    let mut into = Encoder::new();
    into.section(1, 1, |into| {
        into.i32(result);
    });
    into.finish()
}

/// Reads the owner's answer. Watchers that do not own the lock answer with no bytes: `None`.
///
/// # Errors
/// The bytes are no answer.
pub fn decode_response(bytes: &Bytes) -> Result<Option<i32>, DecodeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    Decoder::new(bytes.clone()).section(1, "a response")?.fields.i32("a result").map(Some)
}

#[cfg(test)]
mod tests {
    use fieldstone_rados::cluster::SnapId;

    use super::*;

    fn notices() -> Vec<Notice> {
        let client = ClientId { client: 1, watch: 2 };
        let request = RequestId { client, request: 3 };
        vec![
            Notice::AcquiredLock(client),
            Notice::ReleasedLock(client),
            Notice::RequestLock(client, true),
            Notice::HeaderUpdate,
            Notice::AsyncProgress(request, 4, 5),
            Notice::AsyncComplete(request, -2),
            Notice::OwnerRequest(10),
            Notice::Other(18),
        ]
        .into_iter()
        .chain(requests())
        .collect()
    }

    /// Each kind of work, with an id and, where that is possible, without one.
    fn requests() -> impl Iterator<Item = Notice> {
        use super::super::request::Work;
        let client = ClientId { client: 1, watch: 2 };
        let id = Some(RequestId { client, request: 3 });
        let name = || "s".to_owned();
        let named = [
            Work::CreateSnapshot(name()),
            Work::RemoveSnapshot(name()),
            Work::RenameSnapshot(SnapId(9), name()),
            Work::ProtectSnapshot(name()),
            Work::UnprotectSnapshot(name()),
        ];
        let resize = Work::Resize { size_bytes: 5, may_shrink: true };
        let with_id = named.clone().into_iter().chain([Work::Flatten, resize]);
        let with_id = with_id.map(move |work| Request { id, work });
        let without = named.into_iter().map(|work| Request { id: None, work });
        with_id.chain(without).map(Notice::Request)
    }

    #[test]
    fn requests_of_other_versions_are_read() {
        use super::super::request::Work;
        let read = |bytes: &'static [u8]| Notice::decode(&Bytes::from_static(bytes));
        // Version 3 of a resize says nothing about shrinking.
        let old = read(
            b"\x03\x01\x24\0\0\0\x07\0\0\0\x00\x10\0\0\0\0\0\0\
              \x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0",
        );
        let id = Some(RequestId { client: ClientId { client: 1, watch: 2 }, request: 3 });
        let work = Work::Resize { size_bytes: 4096, may_shrink: true };
        assert_eq!(old, Ok(Notice::Request(Request { id, work })));
        // Version 2 of a snapshot has nothing but the name.
        let old = read(b"\x02\x01\x09\0\0\0\x08\0\0\0\x01\0\0\0s");
        let work = Work::CreateSnapshot("s".into());
        assert_eq!(old, Ok(Notice::Request(Request { id: None, work })));
        // A snapshot of a group is not made here.
        let group = read(b"\x07\x01\x13\0\0\0\x09\0\0\0\x01\0\0\0s\x01\x01\x04\0\0\0\x01\0\0\0");
        assert_eq!(group, Ok(Notice::OwnerRequest(9)));
    }

    #[test]
    fn the_header_update_is_ten_bytes() {
        assert_eq!(Notice::HeaderUpdate.encode()[..], *b"\x03\x01\x04\0\0\0\x03\0\0\0");
        assert_eq!(response(-95)[..], *b"\x01\x01\x04\0\0\0\xa1\xff\xff\xff");
        assert_eq!(decode_response(&response(-30)), Ok(Some(-30)));
        assert_eq!(decode_response(&Bytes::new()), Ok(None));
    }

    #[test]
    fn messages_come_back_and_hostile_ones_give_errors() {
        for notice in notices() {
            let bytes = notice.encode();
            assert_eq!(Notice::decode(&bytes), Ok(notice.clone()));
            for len in 0..bytes.len() {
                assert!(Notice::decode(&bytes.slice(..len)).is_err(), "{notice:?}: {len} bytes");
            }
            for index in 0..bytes.len() {
                let mut flipped = bytes.to_vec();
                flipped[index] ^= 0x11;
                let _ = Notice::decode(&flipped.into());
            }
        }
    }

    #[test]
    fn an_old_request_has_no_sender() {
        let old = Bytes::from_static(b"\x01\x01\x04\0\0\0\x02\0\0\0");
        assert_eq!(Notice::decode(&old), Ok(Notice::RequestLock(ClientId::default(), false)));
    }
}
