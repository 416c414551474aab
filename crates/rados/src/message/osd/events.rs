//! Encodes and decodes what an OSD sends by itself: backoffs (Ceph: `MOSDBackoff`), notifications
//! (`MWatchNotify`) and maps (`MOSDMap`).

use bytes::Bytes;

use super::{BackoffStep, NotifyKind, ObjectPosition, OsdBackoff, OsdMaps, ShardedPg, WatchNotify};
use crate::encoding::{DecodeError, Decoder, Encoder};
use crate::message::{Message, MessageKind};

impl OsdBackoff {
    /// The message: group with shard; u32 epoch; u8 step; u64 id; first and last position.
    ///
    /// The acknowledgement of a client repeats all that the OSD sent, but for the step.
    #[must_use]
    pub fn encode(&self, _features: u64) -> Message {
        let mut front = Encoder::with_capacity(160);
        self.target.encode(&mut front);
        front.u32(self.map_epoch).u8(self.step as u8).u64(self.id);
        self.begin.encode(&mut front);
        self.end.encode(&mut front);
        Message::new(MessageKind::OsdBackoff, 1, 1, front.finish())
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes are no backoff.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = Decoder::new(message.front.clone());
        let target = ShardedPg::decode(&mut front)?;
        let map_epoch = front.u32("the epoch of a backoff")?;
        let offset = front.offset();
        let step = match front.u8("the step of a backoff")? {
            1 => BackoffStep::Block,
            2 => BackoffStep::AckBlock,
            3 => BackoffStep::Unblock,
            other => return Err(Decoder::refused(offset, other.into(), "the step of a backoff")),
        };
        let id = front.u64("the id of a backoff")?;
        let begin = ObjectPosition::decode(&mut front)?;
        let end = ObjectPosition::decode(&mut front)?;
        Ok(Self { target, map_epoch, step, id, begin, end })
    }
}

impl WatchNotify {
    /// The message: u8 1; u8 kind; u64 cookie; u64 version; u64 id; bytes; s32 result; u64
    /// notifier. The answers of the watchers ([`NotifyKind::Complete`]) are the data of the
    /// message.
    #[must_use]
    pub fn encode(&self, _features: u64) -> Message {
        let (bytes, data) = match self.kind {
            NotifyKind::Complete => (Bytes::new(), self.payload.clone()),
            NotifyKind::Notify | NotifyKind::Disconnect => (self.payload.clone(), Bytes::new()),
        };
        let mut front = Encoder::with_capacity(42 + bytes.len());
        front.u8(1).u8(self.kind as u8).u64(self.cookie).u64(self.version).u64(self.notify_id);
        front.blob(&bytes).i32(self.result).u64(self.from);
        let mut message = Message::new(MessageKind::WatchNotify, 3, 1, front.finish());
        if !data.is_empty() {
            message.data.push(data);
        }
        message
    }

    /// Reads one. Version 1 has no result, version 2 no notifier.
    ///
    /// # Errors
    /// The bytes are no notification.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = Decoder::new(message.front.clone());
        let inner = front.u8("the inner version of a notification")?;
        let offset = front.offset();
        let kind = match front.u8("the kind of a notification")? {
            1 => NotifyKind::Notify,
            2 => NotifyKind::Complete,
            3 => NotifyKind::Disconnect,
            other => {
                return Err(Decoder::refused(offset, other.into(), "the kind of a notification"));
            }
        };
        let cookie = front.u64("the cookie of a watch")?;
        let version = front.u64("the version of an object")?;
        let notify_id = front.u64("the id of a notification")?;
        let payload = match inner {
            0 => Bytes::new(),
            _ => front.blob("the bytes of a notification")?,
        };
        let payload = match kind {
            NotifyKind::Complete => fieldstone_buf::join(&message.data),
            NotifyKind::Notify | NotifyKind::Disconnect => payload,
        };
        let result = match message.version {
            0 | 1 => 0,
            _ => front.i32("the result of a notification")?,
        };
        let from = match message.version {
            0..=2 => 0,
            _ => front.u64("the sender of a notification")?,
        };
        Ok(Self { kind, cookie, version, notify_id, payload, result, from })
    }
}

impl OsdMaps {
    /// The message: 16 bytes fsid; changes and whole maps, each a list of u32 epoch and bytes; u32
    /// oldest epoch; u32 newest epoch; u32 0 (Ceph 14 and older tell removed snapshots here).
    #[must_use]
    pub fn encode(&self, _features: u64) -> Message {
        let maps = |list: &[(u32, Bytes)]| list.iter().map(|(_, map)| map.len() + 8).sum::<usize>();
        let len = 36 + maps(&self.incremental) + maps(&self.full);
        let mut front = Encoder::with_capacity(len);
        front.bytes(&self.fsid);
        for list in [&self.incremental, &self.full] {
            front.list(list.iter(), |front, (epoch, map)| {
                front.u32(*epoch).blob(map);
            });
        }
        front.u32(self.oldest).u32(self.newest).u32(0);
        Message::new(MessageKind::OsdMap, 4, 3, front.finish())
    }

    /// Reads the maps. They share the memory of the message. Version 1 tells no range of epochs: it
    /// is 0 to 0.
    ///
    /// # Errors
    /// The bytes are no maps.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = Decoder::new(message.front.clone());
        let fsid = front.array("the identity of a cluster")?;
        let mut list = |what| {
            front.list(8, what, |front| {
                Ok((front.u32("the epoch of a map")?, front.blob("the bytes of a map")?))
            })
        };
        let incremental = list("changes of maps")?;
        let full = list("whole maps")?;
        let (oldest, newest) = match message.version {
            0 | 1 => (0, 0),
            _ => (front.u32("the oldest epoch")?, front.u32("the newest epoch")?),
        };
        Ok(Self { fsid, incremental, full, oldest, newest })
    }
}
