//! Payloads of messages, and results of operations.
//!
//! An input: u8 which decoder, u8 version, u8 lowest version of readers, u8 length of the data, and
//! the front with the data behind it.

use bytes::Bytes;
use smallvec::smallvec;

use crate::auth::Entity;
use crate::encoding::{Addresses, DecodeError, Decoder, EntityAddress};
use crate::message::features::SUPPORTED;
use crate::message::monitor::{
    Auth, AuthReply, Command, CommandAck, Config, GetPoolStatsReply, GetVersionReply, MonMap,
    MonMapMessage, PoolOpReply, StatFsReply, SubscribeAck,
};
use crate::message::osd::{ObjectPosition, OsdBackoff, OsdMaps, OsdOp, OsdOpReply, WatchNotify};
use crate::message::{Message, MessageKind};
use crate::op::results::{self, GroupListing, Snapshots, SparseData, Stat, Watchers};

/// Bytes in front of the message's own.
pub(super) const HEAD_BYTES: usize = 4;

/// Decodes an input, and encodes what it was again. `None`: what was read cannot be written.
type Decode = fn(&Message) -> Result<Option<Message>, DecodeError>;

/// A decoder of a message's kind.
pub(super) struct Target {
    pub(super) kind: u16,
    decode: Decode,
}

const fn message(kind: MessageKind, decode: Decode) -> Target {
    Target { kind: kind as u16, decode }
}

/// A decoder of the result of an operation, which is the front alone.
const fn result(decode: Decode) -> Target {
    Target { kind: 0, decode }
}

fn front(bytes: Bytes) -> Result<Option<Message>, DecodeError> {
    Ok(Some(Message { front: bytes, ..Message::default() }))
}

fn only_read<T>(_: T) -> Result<Option<Message>, DecodeError> {
    Ok(None)
}

/// All decoders. The first are of messages, the others of results.
pub(super) const TARGETS: [Target; 27] = [
    message(MessageKind::MonMap, |m| Ok(Some(MonMapMessage::decode(m)?.encode()))),
    message(MessageKind::MonSubscribeAck, |m| Ok(Some(SubscribeAck::decode(m)?.encode()))),
    message(MessageKind::MonGetVersionReply, |m| Ok(Some(GetVersionReply::decode(m)?.encode()))),
    message(MessageKind::MonCommandAck, |m| Ok(Some(CommandAck::decode(m)?.encode()))),
    message(MessageKind::Config, |m| Ok(Some(Config::decode(m)?.encode()))),
    message(MessageKind::AuthReply, |m| Ok(Some(AuthReply::decode(m)?.encode()))),
    message(MessageKind::PoolOpReply, |m| {
        let reply = PoolOpReply::decode(m)?;
        let _ = reply.snap();
        Ok(Some(reply.encode()))
    }),
    message(MessageKind::StatFsReply, |m| Ok(Some(StatFsReply::decode(m)?.encode()))),
    message(MessageKind::GetPoolStatsReply, |m| Ok(Some(GetPoolStatsReply::decode(m)?.encode()))),
    message(MessageKind::OsdMap, |m| Ok(Some(OsdMaps::decode(m)?.encode(SUPPORTED)))),
    message(MessageKind::OsdOpReply, |m| Ok(Some(OsdOpReply::decode(m)?.encode(SUPPORTED)))),
    message(MessageKind::WatchNotify, |m| Ok(Some(WatchNotify::decode(m)?.encode(SUPPORTED)))),
    message(MessageKind::OsdBackoff, |m| Ok(Some(OsdBackoff::decode(m)?.encode(SUPPORTED)))),
    // What a model of a cluster reads.
    message(MessageKind::OsdOp, |m| Ok(Some(OsdOp::decode(m)?.encode(SUPPORTED)))),
    message(MessageKind::MonCommand, |m| Ok(Some(Command::decode(m)?.encode()))),
    message(MessageKind::Auth, |m| Ok(Some(Auth::decode(m)?.encode()))),
    result(|m| front(Stat::decode(&m.front)?.encode())),
    result(|m| {
        let (entries, more) = results::decode_omap(&m.front)?;
        front(results::encode_omap(entries.iter(), more))
    }),
    result(|m| {
        let (keys, more) = results::decode_keys(&m.front)?;
        front(results::encode_keys(keys.iter(), more))
    }),
    result(|m| front(results::encode_values(results::decode_values(&m.front)?.iter()))),
    result(|m| {
        let sparse = SparseData::decode(&m.front)?;
        let bytes: usize = sparse.pieces().map(|(_, piece)| piece.len()).sum();
        assert_eq!(bytes, sparse.data.len(), "the extents are not the data");
        front(sparse.encode())
    }),
    result(|m| front(Snapshots::decode(&m.front)?.encode())),
    result(|m| front(Watchers::decode(&m.front)?.encode())),
    result(|m| only_read(GroupListing::decode(&m.front)?)),
    result(|m| front(results::encode_notify_reply(&results::decode_notify_reply(&m.front)?))),
    result(|m| only_read(results::decode_notify_id(&m.front)?)),
    result(|m| {
        let from = || Decoder::new(m.front.clone());
        let _ = MonMap::decode(&mut from());
        let _ = ObjectPosition::decode(&mut from());
        let _ = EntityAddress::decode(&mut from());
        let _ = Entity::decode(&mut from());
        only_read(Addresses::decode(&mut from())?)
    }),
];

/// Feeds an input to the decoder that it names. True if it was understood.
///
/// # Panics
/// If a property does not hold: what is decoded, encoded and decoded again, is the same when it is
/// encoded again. This is the finding.
pub fn payload(input: &[u8]) -> bool {
    let Some((head, rest)) = input.split_at_checked(HEAD_BYTES) else { return false };
    let target = &TARGETS[usize::from(head[0]) % TARGETS.len()];
    let split = rest.len() - usize::from(head[3]).min(rest.len());
    let (front, data) = rest.split_at(split);
    let mut message = Message {
        kind: target.kind,
        version: head[1].into(),
        compat_version: head[2].into(),
        front: Bytes::copy_from_slice(front),
        ..Message::default()
    };
    if !data.is_empty() {
        message.data = smallvec![Bytes::copy_from_slice(data)];
    }
    let Ok(decoded) = (target.decode)(&message) else { return false };
    if let Some(once) = decoded {
        let twice = (target.decode)(&once).expect("what was encoded here is understood");
        let twice = twice.expect("it was encoded the first time");
        assert_eq!(once, twice, "what was read changes when it is written again");
    }
    true
}
