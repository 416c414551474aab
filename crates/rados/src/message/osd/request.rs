//! Encodes and decodes requests (Ceph: `MOSDOp`).
//!
//! Front of version 8: group with shard; u32 hash; u32 epoch; u32 flags; name of the request (a
//! section: u8 kind and s64 number of the client, u64 number of the request, u32 incarnation); 24
//! bytes of a trace, all 0. Version 9 has here one more trace: a section with u8 0. Then u32
//! incarnation; time of the change; locator; name of the object; u16 count, and 38 bytes for each
//! operation; u64 snapshot to read; snapshot context (u64 newest, list of u64); s32 attempt; u64
//! features.
//!
//! An OSD reads only the version it knows: Ceph 16 drops a request of version 9 without an answer.

use bytes::Bytes;
use smallvec::SmallVec;

use super::locator::{Locator, encode_locator, text};
use super::{OsdOp, ShardedPg, flag};
use crate::cluster::{ObjectName, SnapContext, SnapId};
use crate::encoding::{DecodeError, Decoder, Encoder, EntityKind, Fault, Time};
use crate::message::features::SERVER_SQUID;
use crate::message::{Message, MessageKind, PRIORITY_REQUEST};
use crate::op::{ObjectOps, Op};

/// The version since Ceph 12.
const VERSION: u16 = 8;
/// The version since Ceph 19.
const VERSION_SQUID: u16 = 9;
/// What a reader must know.
const COMPAT: u16 = 3;
/// Bytes of a front without texts, operations and snapshots, in the larger version.
const FRONT_BYTES: usize = 178;
/// Bytes of an operation.
const OP_BYTES: usize = 38;
/// Bytes of a trace that does not trace.
const TRACE_BYTES: usize = 24;

impl OsdOp {
    /// The message, for a connection with these features. Data are shared, not copied.
    #[must_use]
    pub fn encode(&self, features: u64) -> Message {
        let has_trace = SERVER_SQUID.is_in(features);
        let (object, snaps) = (&self.object, &self.snap_context.snaps);
        let texts = object.key.len() + object.namespace.len() + object.name.len();
        let lists = OP_BYTES * self.ops.len() + 8 * snaps.len();
        let mut front = Encoder::with_capacity(FRONT_BYTES + texts + lists);

        let retry = if self.attempt > 0 { flag::RETRY } else { 0 };
        self.target.encode(&mut front);
        front.u32(self.hash).u32(self.map_epoch).u32(self.flags | retry);
        self.encode_name(&mut front);
        front.bytes(&[0; TRACE_BYTES]);
        if has_trace {
            front.section(1, 1, |trace| {
                trace.bool(false);
            });
        }

        front.u32(0);
        self.modified.encode(&mut front);
        // A request on a group has no object whose name could be hashed.
        let hash = object.name.is_empty().then_some(self.hash);
        let key = if hash.is_some() { "" } else { &object.key };
        encode_locator(object.pool, key, &object.namespace, hash, &mut front);
        front.string(&object.name);
        front.u16(u16::try_from(self.ops.len()).expect("a request has few operations"));
        for op in self.ops.ops() {
            encode_op(op, op.data.len(), &mut front);
        }
        front.u64(self.snapshot.0).u64(self.snap_context.seq.0);
        front.list(snaps.iter(), |front, snap| {
            front.u64(snap.0);
        });
        front.i32(self.attempt).u64(features);

        let version = if has_trace { VERSION_SQUID } else { VERSION };
        let mut message = Message::new(MessageKind::OsdOp, version, COMPAT, front.finish());
        message.tid = self.tid;
        message.priority = PRIORITY_REQUEST;
        let data = self.ops.ops().iter().filter(|op| !op.data.is_empty());
        message.data = data.map(|op| op.data.clone()).collect();
        message
    }

    /// The name of the request; empty if the OSD has to make it of the session and the message.
    fn encode_name(&self, front: &mut Encoder) {
        let (kind, tid) = match self.client {
            0 => (0, 0),
            _ => (EntityKind::Client as u8, self.tid),
        };
        front.section(2, 2, |name| {
            name.u8(kind).u64(self.client).u64(tid).u32(0);
        });
    }

    /// Reads a request, as an OSD does.
    ///
    /// # Errors
    /// The version is another than 8 or 9, or the bytes are no request.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        if !(VERSION..=VERSION_SQUID).contains(&message.version) {
            return Err(Decoder::refused(0, message.version.into(), "the version of a request"));
        }
        let mut front = Decoder::new(message.front.clone());
        let target = ShardedPg::decode(&mut front)?;
        let hash = front.u32("the hash of an object")?;
        let map_epoch = front.u32("the epoch of a request")?;
        let flags = front.u32("the flags of a request")?;
        let mut name = front.section(2, "the name of a request")?.fields;
        name.u8("the kind of a client")?;
        let client = name.u64("the number of a client")?;
        front.skip(TRACE_BYTES, "a trace")?;
        if message.version >= VERSION_SQUID {
            front.section(1, "a trace")?;
        }

        front.u32("the incarnation of a client")?;
        let modified = Time::decode(&mut front)?;
        let locator = Locator::decode(&mut front)?;
        let object = ObjectName {
            pool: locator.pool,
            namespace: locator.namespace.into(),
            key: locator.key.into(),
            name: text(&mut front, "the name of an object")?.into(),
        };
        let count = front.u16("the count of operations")?;
        let heads = decode_ops(&mut front, count.into())?;
        let snapshot = SnapId(front.u64("a snapshot to read")?);
        let seq = SnapId(front.u64("the newest snapshot")?);
        let snaps = front.list(8, "snapshots", |front| front.u64("a snapshot").map(SnapId))?;
        let attempt = front.i32("the attempt of a request")?;
        let features = front.u64("the features of a client")?;
        let snap_context = SnapContext { seq, snaps };

        let mut data = Pieces::new(&message.data);
        let ops = heads
            .into_iter()
            .map(|(op, len)| Ok(Op { data: data.take(len, "the data of an operation")?, ..op }))
            .collect::<Result<_, DecodeError>>()?;
        let ops = ObjectOps::from_ops(ops, flags & flag::WRITE != 0);
        let tid = message.tid;
        let (modified, flags) = (modified, flags & !flag::RETRY);
        Ok(Self {
            target,
            object,
            hash,
            map_epoch,
            flags,
            snapshot,
            snap_context,
            modified,
            client,
            tid,
            attempt,
            features,
            ops,
        })
    }
}

/// Writes an operation without its data: u16 code, u32 flags, the fields, u32 length of the data.
pub(super) fn encode_op(op: &Op, data_bytes: usize, into: &mut Encoder) {
    into.u16(op.code).u32(op.flags).bytes(&op.fields).len(data_bytes);
}

/// Reads operations without their data, and the lengths of those.
pub(super) fn decode_ops(
    from: &mut Decoder,
    count: usize,
) -> Result<SmallVec<[(Op, usize); 2]>, DecodeError> {
    let needed = (OP_BYTES as u64) * (count as u64);
    if needed > from.remaining() as u64 {
        let fault = Fault::Short { needed, left: from.remaining() };
        return Err(DecodeError { what: "operations", offset: from.offset(), fault });
    }
    (0..count)
        .map(|_| {
            let code = from.u16("the number of an operation")?;
            let flags = from.u32("the flags of an operation")?;
            let fields = from.array("the fields of an operation")?;
            let len = from.u32("the length of an operation's data")?;
            Ok((Op { code, flags, fields, data: Bytes::new() }, len as usize))
        })
        .collect()
}

/// The data of a message, cut from the front. Data that come in several pieces are cut without
/// copying where a part lies in one piece.
pub(super) struct Pieces<'a> {
    pieces: std::slice::Iter<'a, Bytes>,
    piece: Bytes,
    offset: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(pieces: &'a [Bytes]) -> Self {
        Self { pieces: pieces.iter(), piece: Bytes::new(), offset: 0 }
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize, what: &'static str) -> Result<Bytes, DecodeError> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        self.next_if_empty();
        let offset = self.offset;
        if len <= self.piece.len() {
            self.offset += len;
            return Ok(self.piece.split_to(len));
        }
        let left = self.piece.len() + self.pieces.as_slice().iter().map(Bytes::len).sum::<usize>();
        if len > left {
            let fault = Fault::Short { needed: len as u64, left };
            return Err(DecodeError { what, offset, fault });
        }
        let mut joined = Vec::with_capacity(len);
        while joined.len() < len {
            self.next_if_empty();
            let part = (len - joined.len()).min(self.piece.len());
            joined.extend_from_slice(&self.piece.split_to(part));
        }
        self.offset += len;
        Ok(joined.into())
    }

    fn next_if_empty(&mut self) {
        while self.piece.is_empty() {
            let Some(next) = self.pieces.next() else { return };
            self.piece = next.clone();
        }
    }
}
