//! Encodes and decodes the answers to requests (Ceph: `MOSDOpReply`).
//!
//! Front of version 8: name of the object; group; s64 flags; s32 result; u32 epoch and u64 version
//! for old readers; u32 epoch of the map; u32 count, and 38 bytes for each operation; s32 attempt;
//! s32 result of each operation; u32 epoch and u64 version of the change; u64 user version; u8 1
//! and a redirection, or u8 0; a trace. The data of the operations are cut by the lengths in the
//! operations.

use std::sync::Arc;

use smallvec::SmallVec;

use super::locator::{Locator, encode_locator, text};
use super::request::{Pieces, decode_ops, encode_op};
use super::{OsdOpReply, Redirect};
use crate::encoding::{DecodeError, Decoder, Encoder, decode_pg, encode_pg};
use crate::message::{Message, MessageKind};
use crate::op::{Op, OpResult, Reply};

/// The version that is written.
const VERSION: u16 = 8;
/// The first with a redirection only where there is one.
const OLDEST: u16 = 7;
/// What a reader must know.
const COMPAT: u16 = 2;

impl OsdOpReply {
    /// The message, as an OSD writes it. The operations are those of the request, of which a reader
    /// takes nothing but the length of the data: their codes and fields are 0 here.
    #[must_use]
    pub fn encode(&self, _features: u64) -> Message {
        let mut front = Encoder::with_capacity(160 + self.object.len() + 42 * self.reply.ops.len());
        front.blob(&self.object);
        encode_pg(self.pg, &mut front);
        front.u64(self.flags.into()).i32(self.reply.result);
        let encode_version = |front: &mut Encoder| {
            front.u32(self.map_epoch).u64(self.reply.user_version);
        };
        encode_version(&mut front);
        front.u32(self.map_epoch);
        front.list(self.reply.ops.iter(), |front, result| {
            let blank = Op { code: 0, flags: 0, fields: [0; 28], data: result.data.clone() };
            encode_op(&blank, result.data.len(), front);
        });
        front.i32(self.attempt);
        for result in &self.reply.ops {
            front.i32(result.result);
        }
        encode_version(&mut front);
        front.u64(self.reply.user_version).bool(self.redirect.is_some());
        if let Some(redirect) = &self.redirect {
            redirect.encode(&mut front);
        }
        front.bytes(&[0; 24]);

        let mut message = Message::new(MessageKind::OsdOpReply, VERSION, COMPAT, front.finish());
        let data = self.reply.ops.iter().map(|result| &result.data);
        message.data = data.filter(|data| !data.is_empty()).cloned().collect();
        message
    }

    /// Reads an answer. The number of the request is in the message.
    ///
    /// # Errors
    /// The version is older than 7, or the bytes are no answer.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        if message.version < OLDEST {
            return Err(Decoder::refused(0, message.version.into(), "the version of an answer"));
        }
        let mut front = Decoder::new(message.front.clone());
        let object = front.blob("the name of an object")?;
        let pg = decode_pg(&mut front)?;
        let flags = front.u64("the flags of an answer")? as u32;
        let result = front.i32("the result of a request")?;
        front.skip(12, "a version")?;
        let map_epoch = front.u32("the epoch of an answer")?;
        let count = front.u32("the count of operations")?;
        let heads = decode_ops(&mut front, count as usize)?;
        let attempt = front.i32("the attempt of a request")?;

        let mut data = Pieces::new(&message.data);
        let mut ops = SmallVec::new();
        for (_, len) in heads {
            let result = front.i32("the result of an operation")?;
            ops.push(OpResult { result, data: data.take(len, "the data of an operation")? });
        }
        front.skip(12, "a version")?;
        let user_version = front.u64("the version of an object")?;
        let redirect = match front.bool("the mark of a redirection")? {
            true => Some(Redirect::decode(&mut front)?),
            false => None,
        };
        let reply = Reply { result, user_version, ops };
        Ok(Self { pg, object, flags, map_epoch, attempt, reply, redirect })
    }
}

impl Redirect {
    /// A section with a locator, the name of the object, and u32 0.
    fn encode(&self, into: &mut Encoder) {
        into.section(1, 1, |fields| {
            encode_locator(self.pool, &self.key, &self.namespace, None, fields);
            fields.string(&self.object).u32(0);
        });
    }

    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let mut fields = from.section(1, "a redirection")?.fields;
        let locator = Locator::decode(&mut fields)?;
        let object: Arc<str> = text(&mut fields, "the name of an object")?.into();
        let (namespace, key) = (locator.namespace.into(), locator.key.into());
        Ok(Self { pool: locator.pool, namespace, key, object })
    }
}
