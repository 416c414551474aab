//! Short texts for messages and operations in the trace.

use std::fmt;

use fieldstone_node::DiskOp;
use fieldstone_proto::{Fragments, Reply, ReplyBody, Request, RequestBody};

pub(super) struct BriefRequest<'a>(&'a Request);

pub(super) fn brief_request(request: &Request) -> BriefRequest<'_> {
    BriefRequest(request)
}

impl fmt::Display for BriefRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { tag, capability, body, route, payload } = self.0;
        write!(f, "#{} epoch {} ", tag.0, capability.epoch)?;
        if let Some(route) = route {
            let nodes: Vec<u16> = route.replicas.iter().map(|replica| replica.node.0).collect();
            write!(f, "{} {nodes:?} rank {} ", route.strategy, route.rank)?;
        }
        match body {
            RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, .. } => {
                let (blocks, sealed) = (checksums.len(), seal.is_some());
                write!(f, "ShardWrite segment {segment} shard {shard} at {offset_bytes} ")?;
                write!(f, "blocks {blocks} seal {sealed}")?;
            }
            RequestBody::ShardDelete { segments } => {
                write!(f, "ShardDelete")?;
                for segment in segments {
                    write!(f, " {segment}")?;
                }
            }
            RequestBody::Fragment { checksums, .. } => {
                write!(f, "Fragment checksums {}", checksums.len())?;
            }
            other => write!(f, "{other:?}")?,
        }
        if let Some(Fragments::Follow(bytes)) = route.as_ref().map(|route| route.fragments) {
            write!(f, " in fragments +{bytes}")?;
        }
        let bytes: usize = payload.iter().map(bytes::Bytes::len).sum();
        if bytes > 0 { write!(f, " +{bytes}") } else { Ok(()) }
    }
}

pub(super) struct BriefReply<'a>(&'a Reply);

pub(super) fn brief_reply(reply: &Reply) -> BriefReply<'_> {
    BriefReply(reply)
}

impl fmt::Display for BriefReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reply { tag, result, slots_free } = self.0;
        write!(f, "#{} ", tag.0)?;
        match result {
            Ok(ReplyBody::Done) => write!(f, "done")?,
            Ok(ReplyBody::Data(data)) => write!(f, "data +{}", data.len())?,
            Ok(ReplyBody::Stat(stat)) => write!(f, "stat incarnation {:x}", stat.incarnation)?,
            Ok(ReplyBody::Volumes(volumes)) => write!(f, "{} volumes", volumes.len())?,
            Ok(ReplyBody::VolumeState(state)) => write!(
                f,
                "state epoch before {} root {} journals {:?}",
                state.epoch_before, state.root_version, state.journals
            )?,
            Ok(ReplyBody::Shards { shards, next }) => {
                write!(f, "{} shards:", shards.len())?;
                for shard in shards {
                    write!(f, " {}.{}", shard.segment, shard.shard)?;
                }
                write!(f, " next {next:?}")?;
            }
            Ok(ReplyBody::Outcomes(outcomes)) => {
                for outcome in outcomes {
                    match &outcome.result {
                        Ok(()) => write!(f, "{} done ", outcome.node)?,
                        Err(error) => write!(f, "{} ERROR {error} ", outcome.node)?,
                    }
                }
            }
            Err(error) => write!(f, "ERROR {error}")?,
        }
        write!(f, " (free {slots_free})")
    }
}

pub(super) fn brief_disk(op: &DiskOp) -> String {
    match op {
        DiskOp::Write { file, offset_bytes, data } => {
            let bytes: usize = data.iter().map(bytes::Bytes::len).sum();
            format!("write {file:?} {offset_bytes}+{bytes}")
        }
        other => format!("{other:?}"),
    }
}
