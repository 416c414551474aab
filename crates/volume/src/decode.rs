//! Decoding: shards, or a range of one, made from the other shards of their segment.
//!
//! A repair plan says which parts of which shards to read and how to compute the lost ones from
//! them. One plan and one set of reads give all the lost shards that are asked for, so that two
//! shards cost no more reading than one.
//!
//! Reading takes time, in which the segment may be collected and its handle be given to another
//! one. So all of this goes by the segment's name, which is never given again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::Job;
use fieldstone_block::BlockError;
use fieldstone_buf::AlignedBuf;
use fieldstone_codes::{RepairPlan, ShardRead};
use fieldstone_proto::{BLOCK_BYTES, NodeIndex, ReplyBody, RequestBody, SegmentId, ShardIndex};

use crate::core::{CallResult, Core, Ctx};
use crate::exec::{Awaited, all};
use crate::layout::ShardRange;
use crate::status::NodeHealth;

/// What decoding gave.
pub struct Decoded {
    /// The shards, in the order in which they were asked for.
    pub shards: Vec<Bytes>,
    /// Bytes that were read for them, those of attempts that failed included.
    pub read_bytes: u64,
}

/// What to read for an attempt, and what to make of it.
struct Attempt {
    plan: Arc<RepairPlan>,
    segment: SegmentId,
    /// The shards that looked available, and where they are.
    available: Vec<(usize, NodeIndex)>,
    /// The part of each shard to work on.
    part: Range<u32>,
    element_bytes: u64,
}

/// The reads of one shard.
type Reads = (usize, NodeIndex, Vec<Awaited<CallResult>>);

impl Core {
    /// The shards of a segment that can be read now, other than `except`.
    fn available(&self, id: SegmentId, except: &[usize]) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.named(id) else { return Vec::new() };
        segment
            .shards
            .iter()
            .enumerate()
            .filter(|(shard, _)| !except.contains(shard))
            .filter_map(|(shard, node)| Some((shard, (*node)?)))
            .filter(|(_, node)| self.node(*node).health == NodeHealth::Up)
            .collect()
    }

    fn plan_attempt(
        &self,
        id: SegmentId,
        lost: &[usize],
        part: &Range<u32>,
    ) -> Result<Attempt, BlockError> {
        let gone = || BlockError::Io("the segment is gone".into());
        let segment = self.segments.named(id).ok_or_else(gone)?;
        let available = self.available(id, lost);
        let shards: Vec<usize> = available.iter().map(|(shard, _)| *shard).collect();
        let plan = self.code.repair(lost, &shards).map_err(|error| {
            let (k, there) = (self.code.k(), shards.len());
            BlockError::Io(format!("{there} of the {k} shards needed are there ({error})"))
        })?;
        // With one element per shard, coding works byte by byte and a range needs just that range.
        let elements = self.code.elements();
        let part = if elements == 1 { part.clone() } else { 0..segment.shard_bytes };
        let element_bytes = u64::from((part.end - part.start) / elements);
        Ok(Attempt { plan, segment: id, available, part, element_bytes })
    }

    fn send_reads(&mut self, attempt: &Attempt) -> Vec<Reads> {
        let mut sent = Vec::with_capacity(attempt.plan.reads.len());
        for read in &attempt.plan.reads {
            let node = attempt.available.iter().find(|(shard, _)| *shard == read.shard);
            let (shard, node) = *node.expect("plans read available shards");
            let bodies = attempt.bodies(read);
            let calls = bodies.into_iter().map(|body| self.call(node, body, Vec::new())).collect();
            sent.push((shard, node, calls));
        }
        sent
    }
}

impl Attempt {
    fn bodies(&self, read: &ShardRead) -> Vec<RequestBody> {
        let body = |bytes: Range<u64>| RequestBody::ShardRead {
            segment: self.segment,
            shard: ShardIndex(u8::try_from(read.shard).expect("at most 255 shards")),
            offset_bytes: self.part.start + u32::try_from(bytes.start).expect("within a shard"),
            len_bytes: u32::try_from(bytes.end - bytes.start).expect("within a shard"),
        };
        read.byte_ranges(self.element_bytes).map(body).collect()
    }

    /// True when `inputs` is everything that the plan reads.
    fn complete(&self, inputs: &[Bytes]) -> bool {
        let wanted = |read: &ShardRead| u64::from(read.element_count()) * self.element_bytes;
        self.plan.reads.iter().zip(inputs).all(|(read, input)| wanted(read) == input.len() as u64)
    }
}

/// Makes a range of a shard from other shards.
///
/// # Errors
/// Too few shards are there.
pub async fn decode_range(
    ctx: &Ctx,
    id: SegmentId,
    range: ShardRange,
) -> Result<Bytes, BlockError> {
    let end = range.offset_bytes + range.count * BLOCK_BYTES as u32;
    let decoded = decode(ctx, id, &[range.shard as usize], range.offset_bytes..end).await?;
    let only = decoded.shards.into_iter().next();
    only.ok_or_else(|| BlockError::Io("decoding gave nothing".into()))
}

/// Makes the same bytes of each of the shards `lost` from other shards.
///
/// # Errors
/// Too few shards are there.
pub async fn decode(
    ctx: &Ctx,
    id: SegmentId,
    lost: &[usize],
    bytes: Range<u32>,
) -> Result<Decoded, BlockError> {
    let mut read_bytes = 0;
    // Each attempt loses at least one shard that looked available, so this ends.
    loop {
        let attempt = ctx.with(|core| core.plan_attempt(id, lost, &bytes))?;
        let inputs = gather(ctx, &attempt).await;
        read_bytes += inputs.iter().map(|input| input.len() as u64).sum::<u64>();
        if attempt.complete(&inputs) {
            let job = Job::Code { map: Arc::clone(&attempt.plan.map), inputs };
            let output = ctx.with(|core| core.engine.run(job));
            let output = output.map_err(|error| BlockError::Io(error.to_string()))?;
            let mut shards = output.into_shards().unwrap_or_default();
            if shards.len() != lost.len() {
                return Err(BlockError::Io("decoding gave too few shards".into()));
            }
            let from = (bytes.start - attempt.part.start) as usize;
            let to = (bytes.end - attempt.part.start) as usize;
            shards.iter_mut().for_each(|shard| *shard = shard.slice(from..to));
            return Ok(Decoded { shards, read_bytes });
        }
        if ctx.with(|core| core.available(id, lost).len()) >= attempt.available.len() {
            // Nothing became known to be bad: wait for the cause (a busy node) to pass.
            return Err(BlockError::Io("a node did not deliver a shard".into()));
        }
    }
}

/// Reads what the plan asks for, all at once; an input comes out short where a node failed.
async fn gather(ctx: &Ctx, attempt: &Attempt) -> Vec<Bytes> {
    let sent = ctx.with(|core| core.send_reads(attempt));
    let mut inputs = Vec::with_capacity(sent.len());
    for (shard, node, calls) in sent {
        let mut parts = Vec::with_capacity(calls.len());
        for result in all(calls).await {
            match result {
                Ok(ReplyBody::Data(bytes)) => parts.push(bytes),
                Ok(_) => {}
                Err(error) => ctx.with(|core| {
                    let shard = u32::try_from(shard).expect("at most 255 shards");
                    core.shard_failed(attempt.segment, shard, node, &error);
                }),
            }
        }
        inputs.push(match parts.len() {
            1 => parts.swap_remove(0),
            _ => AlignedBuf::concat(parts.iter().map(|part| &part[..])).freeze(),
        });
    }
    inputs
}
