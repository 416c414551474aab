//! Authentication on a session that stands already: the renewal of tickets.

use bytes::Bytes;

use super::{PaxosHeader, front};
use crate::encoding::{DecodeError, Encoder};
use crate::message::{Message, MessageKind};

/// The method without proof.
pub const METHOD_NONE: u32 = 1;
/// The method cephx.
pub const METHOD_CEPHX: u32 = 2;

/// A request for tickets (`MAuth` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// The method: [`METHOD_CEPHX`].
    pub method: u32,
    /// The method's bytes.
    pub payload: Bytes,
    /// The epoch of the client's list of monitors.
    pub monmap_epoch: u32,
}

/// The answer to a request for tickets (`MAuthReply` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthReply {
    /// The method.
    pub method: u32,
    /// The result; negative is an error number.
    pub result: i32,
    /// The client's number; 0 says nothing.
    pub global_id: u64,
    /// The method's bytes.
    pub payload: Bytes,
    /// A text for people.
    pub status: String,
}

impl Auth {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(30 + self.payload.len());
        PaxosHeader { version: 0 }.encode(&mut front);
        front.u32(self.method).blob(&self.payload).u32(self.monmap_epoch);
        Message::new(MessageKind::Auth, 1, 0, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::Auth)?;
        PaxosHeader::decode(&mut front)?;
        let method = front.u32("a method of authentication")?;
        let payload = front.blob("the bytes of authentication")?;
        let monmap_epoch = if front.is_empty() { 0 } else { front.u32("an epoch")? };
        Ok(Self { method, payload, monmap_epoch })
    }
}

impl AuthReply {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(24 + self.payload.len() + self.status.len());
        front.u32(self.method).i32(self.result).u64(self.global_id);
        front.blob(&self.payload).string(&self.status);
        Message::new(MessageKind::AuthReply, 1, 0, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::AuthReply)?;
        Ok(Self {
            method: front.u32("a method of authentication")?,
            result: front.i32("the result of authentication")?,
            global_id: front.u64("a client's number")?,
            payload: front.blob("the bytes of authentication")?,
            status: front.string("the status of authentication")?,
        })
    }
}
