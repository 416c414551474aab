//! Subscriptions to maps, and questions for their newest versions.

use std::collections::BTreeMap;

use super::{Fsid, front, fsid};
use crate::encoding::{DecodeError, Encoder};
use crate::message::{Message, MessageKind};

/// The list of monitors, as the subject of a subscription or of a question.
pub const WHAT_MONMAP: &str = "monmap";
/// The map of OSDs, as the subject of a subscription or of a question.
pub const WHAT_OSDMAP: &str = "osdmap";
/// The configuration that monitors keep, as the subject of a subscription.
pub const WHAT_CONFIG: &str = "config";

/// Only one answer is wanted.
const FLAG_ONCE: u8 = 1;

/// A subscription to one kind of map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// The first epoch that the client lacks; 0 for the newest map in full.
    pub start: u64,
    /// Only one answer is wanted.
    pub once: bool,
}

/// A client subscribes to maps (`MMonSubscribe` v3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// The subscriptions by subject.
    pub what: BTreeMap<String, Subscription>,
    /// The client's host, for rules of configuration.
    pub hostname: String,
}

impl Subscribe {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        front.list(self.what.iter(), |front, (subject, subscription)| {
            let flags = if subscription.once { FLAG_ONCE } else { 0 };
            front.string(subject).u64(subscription.start).u8(flags);
        });
        front.string(&self.hostname);
        Message::new(MessageKind::MonSubscribe, 3, 1, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonSubscribe)?;
        let what = front.list(4 + 9, "subscriptions", |front| {
            let subject = front.string("the subject of a subscription")?;
            let start = front.u64("the start of a subscription")?;
            let once = front.u8("the flags of a subscription")? & FLAG_ONCE != 0;
            Ok((subject, Subscription { start, once }))
        })?;
        let hostname =
            if message.version >= 3 { front.string("a host")? } else { String::default() };
        Ok(Self { what: what.into_iter().collect(), hostname })
    }
}

/// A monitor acknowledges a subscription (`MMonSubscribeAck` v1). Monitors since Ceph 12 do not
/// send it to clients that keep their sessions open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeAck {
    /// Seconds until the subscription has to be renewed.
    pub interval_s: u32,
    /// The cluster.
    pub fsid: Fsid,
}

impl SubscribeAck {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        front.u32(self.interval_s).bytes(&self.fsid);
        Message::new(MessageKind::MonSubscribeAck, 1, 0, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonSubscribeAck)?;
        Ok(Self { interval_s: front.u32("an interval")?, fsid: fsid(&mut front)? })
    }
}

/// A question for the newest version of a map (`MMonGetVersion` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetVersion {
    /// Names the question. It is a field of its own, and the `tid` of the message too.
    pub id: u64,
    /// The subject.
    pub what: String,
}

impl GetVersion {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        front.u64(self.id).string(&self.what);
        let message = Message::new(MessageKind::MonGetVersion, 1, 0, front.finish());
        Message { tid: self.id, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonGetVersion)?;
        Ok(Self { id: front.u64("a question")?, what: front.string("the subject of a question")? })
    }
}

/// The answer to a question for a version (`MMonGetVersionReply` v2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetVersionReply {
    /// Names the question.
    pub id: u64,
    /// The newest version.
    pub newest: u64,
    /// The oldest version that the monitors still have; 0 if not told.
    pub oldest: u64,
}

impl GetVersionReply {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(24);
        front.u64(self.id).u64(self.newest).u64(self.oldest);
        let message = Message::new(MessageKind::MonGetVersionReply, 2, 0, front.finish());
        Message { tid: self.id, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonGetVersionReply)?;
        let (id, newest) = (front.u64("a question")?, front.u64("a version")?);
        let oldest = if message.version >= 2 { front.u64("a version")? } else { 0 };
        Ok(Self { id, newest, oldest })
    }
}
