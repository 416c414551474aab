//! Replies as bytes.

use bytes::Bytes;

use super::body::{Reader, Writer};
use super::decoder::sealed::Parts;
use super::request::{get_meta, put_meta};
use super::{
    Envelope, Header, REPLY_BODY_BYTES_MAX, WIRE_VERSION_BASIC, WIRE_VERSION_ROUTES, WireError,
    WireErrorKind, assemble,
};
use crate::route::REPLICAS_MAX;
use crate::{
    CapabilityError, Epoch, JournalGen, JournalInfo, NodeError, NodeIndex, NodeStat, Outcome,
    PoolId, Reply, ReplyBody, SegmentId, ShardIndex, ShardInfo, Tag, VolumeId, VolumeState,
    VolumeSummary,
};

/// The kinds of replies. Errors start at 128.
mod op {
    pub(super) const DONE: u8 = 0;
    pub(super) const DATA: u8 = 1;
    pub(super) const STAT: u8 = 2;
    pub(super) const VOLUMES: u8 = 3;
    pub(super) const VOLUME_STATE: u8 = 4;
    pub(super) const SHARDS: u8 = 5;
    pub(super) const OUTCOMES: u8 = 6;
    pub(super) const CAPABILITY: u8 = 128;
    pub(super) const FENCED: u8 = 129;
    pub(super) const IN_USE: u8 = 130;
    pub(super) const NOT_FOUND: u8 = 131;
    pub(super) const CORRUPT: u8 = 132;
    pub(super) const NO_SPACE: u8 = 133;
    pub(super) const BUSY: u8 = 134;
    pub(super) const INVALID: u8 = 135;
    pub(super) const IO: u8 = 136;
    pub(super) const UNREACHABLE: u8 = 137;
    pub(super) const NOT_PASSED_ON: u8 = 138;
}

/// Both nodes of a *not passed on* that says *denied*. No node passes a request on to itself. A
/// release that does not know this meaning reads that the node may lack the piece, which is true:
/// it announces a new pass, and makes the parity. It would not understand an error with a number of
/// its own, and would give up the connection.
const DENIED_NODE: u16 = 0;

/// The smallest length of an item of each list.
const VOLUME_BYTES: usize = 36;
const JOURNAL_BYTES: usize = 16;
const SHARD_BYTES: usize = 30;
const OUTCOME_BYTES: usize = 3;

/// The reply as a gather list: header and body, then the data read.
///
/// # Errors
/// [`WireErrorKind::TooLong`] when the reply is above the bounds of a message.
pub fn encode_reply(reply: &Reply) -> Result<Vec<Bytes>, WireError> {
    let mut out = Writer::new();
    let mut payload: &[Bytes] = &[];
    let op = match &reply.result {
        Ok(ReplyBody::Data(data)) => {
            payload = std::slice::from_ref(data);
            op::DATA
        }
        Ok(body) => put_body(&mut out, body),
        Err(error) => put_error(&mut out, error),
    };
    let envelope = Envelope {
        direction: Reply::DIRECTION,
        version: Reply::version_of(op),
        op,
        tag: reply.tag,
        slots_free: reply.slots_free,
        body_max: Reply::BODY_BYTES_MAX,
    };
    assemble(&envelope, out.0, payload)
}

fn put_body(out: &mut Writer, body: &ReplyBody) -> u8 {
    match body {
        ReplyBody::Done => op::DONE,
        ReplyBody::Data(_) => op::DATA,
        ReplyBody::Stat(stat) => {
            put_stat(out, stat);
            op::STAT
        }
        ReplyBody::Volumes(volumes) => {
            out.count(volumes.len());
            for summary in volumes {
                out.u128(summary.volume.0);
                out.u64(summary.epoch.0);
                out.u64(summary.root_version);
                out.bytes(&summary.root);
            }
            op::VOLUMES
        }
        ReplyBody::VolumeState(state) => {
            out.u64(state.epoch_before.0);
            out.u64(state.root_version);
            out.bytes(&state.root);
            out.count(state.journals.len());
            for journal in &state.journals {
                out.u64(journal.generation.0);
                out.u64(journal.ring_bytes);
            }
            put_stat(out, &state.stat);
            op::VOLUME_STATE
        }
        ReplyBody::Shards { shards, next } => {
            out.u8(u8::from(next.is_some()));
            if let Some(segment) = next {
                out.u64(segment.0);
            }
            out.count(shards.len());
            for info in shards {
                out.u64(info.segment.0);
                out.u8(info.shard.0);
                put_meta(out, &info.meta);
            }
            op::SHARDS
        }
        ReplyBody::Outcomes(outcomes) => {
            out.count(outcomes.len());
            for outcome in outcomes {
                out.u16(outcome.node.0);
                // The kind precedes the fields of the error, whose length it decides.
                let at = out.0.len();
                out.u8(op::DONE);
                if let Err(error) = &outcome.result {
                    out.0[at] = put_error(out, error);
                }
            }
            op::OUTCOMES
        }
    }
}

fn put_stat(out: &mut Writer, stat: &NodeStat) {
    out.u128(stat.pool.0);
    out.u16(stat.node.0);
    out.u64(stat.incarnation);
    out.u32(stat.slot_bytes);
    out.u32(stat.slots_total);
    out.u32(stat.slots_free);
    out.u32(stat.slots_lacking);
    out.u64(stat.read_bytes);
    out.u64(stat.written_bytes);
    out.u64(stat.refused);
    out.u64(stat.corrupt_blocks);
}

fn put_error(out: &mut Writer, error: &NodeError) -> u8 {
    match error {
        NodeError::Capability(reason) => {
            out.u8(match reason {
                CapabilityError::Forged => 0,
                CapabilityError::Expired => 1,
                CapabilityError::Rights => 2,
                CapabilityError::Range => 3,
                CapabilityError::Retired => 4,
                CapabilityError::UnknownGeneration => 5,
            });
            op::CAPABILITY
        }
        NodeError::Fenced { sent, current } => {
            out.u64(sent.0);
            out.u64(current.0);
            op::FENCED
        }
        NodeError::InUse { current } => {
            out.u64(current.0);
            op::IN_USE
        }
        NodeError::NotFound => op::NOT_FOUND,
        NodeError::Corrupt { offset_bytes } => {
            out.u32(*offset_bytes);
            op::CORRUPT
        }
        NodeError::NoSpace => op::NO_SPACE,
        NodeError::Busy => op::BUSY,
        NodeError::Invalid(reason) => {
            out.text(reason);
            op::INVALID
        }
        NodeError::Io(reason) => {
            out.text(reason);
            op::IO
        }
        NodeError::Unreachable => op::UNREACHABLE,
        NodeError::NotPassedOn { from, to } => {
            out.u16(from.0);
            out.u16(to.0);
            op::NOT_PASSED_ON
        }
        NodeError::Denied => {
            out.u16(DENIED_NODE);
            out.u16(DENIED_NODE);
            op::NOT_PASSED_ON
        }
    }
}

impl Parts for Reply {
    const DIRECTION: u8 = 1;
    const BODY_BYTES_MAX: usize = REPLY_BODY_BYTES_MAX;

    fn version_of(op: u8) -> u16 {
        match op {
            op::OUTCOMES | op::NOT_PASSED_ON => WIRE_VERSION_ROUTES,
            _ => WIRE_VERSION_BASIC,
        }
    }

    fn decode(header: &Header, body: &[u8], payload: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        if header.op != op::DATA && !payload.is_empty() {
            let value = payload.len() as u64;
            return Err(WireErrorKind::Value { what: "this reply's payload", value }.at(24));
        }
        let result = match header.op {
            op::DATA => Ok(ReplyBody::Data(payload)),
            op::DONE..op::CAPABILITY => Ok(get_body(header.op, &mut reader)?),
            _ => Err(get_error(header.op, &mut reader)?),
        };
        reader.finish()?;
        let slots_free = header.slots_free.get();
        Ok(Reply { tag: Tag(header.tag.get()), result, slots_free })
    }
}

fn unknown(op: u8) -> WireError {
    WireErrorKind::Value { what: "the kind of reply", value: u64::from(op) }.at(7)
}

fn get_body(op: u8, body: &mut Reader<'_>) -> Result<ReplyBody, WireError> {
    Ok(match op {
        op::DONE => ReplyBody::Done,
        op::STAT => ReplyBody::Stat(get_stat(body)?),
        op::VOLUMES => {
            let count = body.count(VOLUME_BYTES, "the volumes")?;
            let volumes = (0..count).map(|_| {
                Ok(VolumeSummary {
                    volume: VolumeId(body.u128("a volume")?),
                    epoch: Epoch(body.u64("a volume's epoch")?),
                    root_version: body.u64("a root's version")?,
                    root: body.bytes("a root")?,
                })
            });
            ReplyBody::Volumes(volumes.collect::<Result<_, WireError>>()?)
        }
        op::VOLUME_STATE => {
            let epoch_before = Epoch(body.u64("the epoch before")?);
            let root_version = body.u64("the root's version")?;
            let root = body.bytes("the root")?;
            let count = body.count(JOURNAL_BYTES, "the journals")?;
            let journals = (0..count).map(|_| {
                Ok(JournalInfo {
                    generation: JournalGen(body.u64("a journal's generation")?),
                    ring_bytes: body.u64("a ring's size")?,
                })
            });
            let journals = journals.collect::<Result<_, WireError>>()?;
            let stat = get_stat(body)?;
            ReplyBody::VolumeState(VolumeState { epoch_before, root_version, root, journals, stat })
        }
        op::SHARDS => {
            let more = body.flag("the next segment's presence")?;
            let next = if more { Some(SegmentId(body.u64("the next segment")?)) } else { None };
            let count = body.count(SHARD_BYTES, "the shards")?;
            let shards = (0..count).map(|_| {
                Ok(ShardInfo {
                    segment: SegmentId(body.u64("a segment")?),
                    shard: ShardIndex(body.u8("a shard")?),
                    meta: get_meta(body)?,
                })
            });
            ReplyBody::Shards { shards: shards.collect::<Result<_, WireError>>()?, next }
        }
        op::OUTCOMES => {
            let count = body.count(OUTCOME_BYTES, "the outcomes")?;
            if count > REPLICAS_MAX {
                return Err(body.value_error("the number of outcomes", count as u64, 4));
            }
            let outcomes = (0..count).map(|_| {
                let node = NodeIndex(body.u16("an outcome's node")?);
                let result = match body.u8("an outcome")? {
                    op::DONE => Ok(()),
                    op => Err(get_error(op, body)?),
                };
                Ok(Outcome { node, result })
            });
            ReplyBody::Outcomes(outcomes.collect::<Result<_, WireError>>()?)
        }
        other => return Err(unknown(other)),
    })
}

fn get_stat(body: &mut Reader<'_>) -> Result<NodeStat, WireError> {
    let what = "the node's state";
    Ok(NodeStat {
        pool: PoolId(body.u128(what)?),
        node: NodeIndex(body.u16(what)?),
        incarnation: body.u64(what)?,
        slot_bytes: body.u32(what)?,
        slots_total: body.u32(what)?,
        slots_free: body.u32(what)?,
        slots_lacking: body.u32(what)?,
        read_bytes: body.u64(what)?,
        written_bytes: body.u64(what)?,
        refused: body.u64(what)?,
        corrupt_blocks: body.u64(what)?,
    })
}

fn get_error(op: u8, body: &mut Reader<'_>) -> Result<NodeError, WireError> {
    Ok(match op {
        op::CAPABILITY => NodeError::Capability(match body.u8("the reason")? {
            0 => CapabilityError::Forged,
            1 => CapabilityError::Expired,
            2 => CapabilityError::Rights,
            3 => CapabilityError::Range,
            4 => CapabilityError::Retired,
            5 => CapabilityError::UnknownGeneration,
            other => return Err(body.value_error("the reason", u64::from(other), 1)),
        }),
        op::FENCED => NodeError::Fenced {
            sent: Epoch(body.u64("the sent epoch")?),
            current: Epoch(body.u64("the current epoch")?),
        },
        op::IN_USE => NodeError::InUse { current: Epoch(body.u64("the current epoch")?) },
        op::NOT_FOUND => NodeError::NotFound,
        op::CORRUPT => NodeError::Corrupt { offset_bytes: body.u32("the offset")? },
        op::NO_SPACE => NodeError::NoSpace,
        op::BUSY => NodeError::Busy,
        op::INVALID => NodeError::Invalid(body.text("the reason")?),
        op::IO => NodeError::Io(body.text("the reason")?),
        op::UNREACHABLE => NodeError::Unreachable,
        op::NOT_PASSED_ON => {
            let from = NodeIndex(body.u16("the node that tried")?);
            let to = NodeIndex(body.u16("the node that it tried to reach")?);
            match from == to {
                true => NodeError::Denied,
                false => NodeError::NotPassedOn { from, to },
            }
        }
        other => return Err(unknown(other)),
    })
}
