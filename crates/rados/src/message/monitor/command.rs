//! Commands to monitors, and the configuration that monitors keep.

use std::collections::BTreeMap;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use super::{Fsid, PaxosHeader, front, fsid};
use crate::encoding::{DecodeError, Encoder};
use crate::message::{Message, MessageKind};

/// A command (`MMonCommand` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Names the command.
    pub tid: u64,
    /// The cluster. A monitor refuses a command for another one.
    pub fsid: Fsid,
    /// The command: one text, which is JSON with a `prefix`.
    pub command: Vec<String>,
    /// Input, e.g. a file; mostly empty.
    pub input: Bytes,
}

/// The answer to a command (`MMonCommandAck` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAck {
    /// Names the command.
    pub tid: u64,
    /// The monitor's version of the map that the command changed.
    pub version: u64,
    /// The result; negative is an error number.
    pub result: i32,
    /// A text for people.
    pub status: String,
    /// The command.
    pub command: Vec<String>,
    /// Output.
    pub output: Bytes,
}

/// The bytes of a message's data as one.
fn joined(data: &SmallVec<[Bytes; 1]>) -> Bytes {
    match data.as_slice() {
        [] => Bytes::new(),
        [only] => only.clone(),
        several => several.concat().into(),
    }
}

fn as_data(bytes: &Bytes) -> SmallVec<[Bytes; 1]> {
    if bytes.is_empty() { SmallVec::new() } else { smallvec![bytes.clone()] }
}

fn encode_command(command: &[String], into: &mut Encoder) {
    into.list(command.iter(), |into, part| {
        into.string(part);
    });
}

impl Command {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        PaxosHeader { version: 0 }.encode(&mut front);
        front.bytes(&self.fsid);
        encode_command(&self.command, &mut front);
        let message = Message::new(MessageKind::MonCommand, 1, 0, front.finish());
        Message { tid: self.tid, data: as_data(&self.input), ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonCommand)?;
        PaxosHeader::decode(&mut front)?;
        Ok(Self {
            tid: message.tid,
            fsid: fsid(&mut front)?,
            command: front.list(4, "a command", |front| front.string("a command"))?,
            input: joined(&message.data),
        })
    }
}

impl CommandAck {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        PaxosHeader { version: self.version }.encode(&mut front);
        front.i32(self.result).string(&self.status);
        encode_command(&self.command, &mut front);
        let message = Message::new(MessageKind::MonCommandAck, 1, 0, front.finish());
        Message { tid: self.tid, data: as_data(&self.output), ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::MonCommandAck)?;
        Ok(Self {
            tid: message.tid,
            version: PaxosHeader::decode(&mut front)?.version,
            result: front.i32("the result of a command")?,
            status: front.string("the status of a command")?,
            command: front.list(4, "a command", |front| front.string("a command"))?,
            output: joined(&message.data),
        })
    }
}

/// The configuration that monitors keep, as far as it is for this client (`MConfig` v1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Values by option.
    pub options: BTreeMap<String, String>,
}

impl Config {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        front.list(self.options.iter(), |front, (option, value)| {
            front.string(option).string(value);
        });
        Message::new(MessageKind::Config, 1, 1, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::Config)?;
        let options = front.list(8, "options", |front| {
            Ok((front.string("an option")?, front.string("the value of an option")?))
        })?;
        Ok(Self { options: options.into_iter().collect() })
    }
}
