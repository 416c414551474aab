//! Decoding: makes shards, or a range of one, from the other shards of their segment.
//!
//! A repair plan says which parts of which shards to read, and how to compute the lost shards from
//! them. One plan and one set of reads give all lost shards that the caller asks for, so two shards
//! cost no more reading than one. Coding works chunk by chunk (see `layout`), and byte by byte
//! within the elements of a chunk. So a few bytes of an element need only the same few bytes of the
//! elements that it depends on, in the same chunk.
//!
//! Reading takes time. Meanwhile collection may free the segment, and its handle may pass to
//! another segment. So this module uses the segment's name, which no other segment ever gets.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{Job, Shard};
use fieldstone_block::BlockError;
use fieldstone_buf::join;
use fieldstone_codes::{RepairPlan, ShardRead};
use fieldstone_proto::{
    BLOCK_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId, ShardIndex,
};

use crate::calls::CallResult;
use crate::coding::join_chunks;
use crate::core::{Ctx, VolumeCore};
use crate::layout::ShardRange;
use crate::status::NodeHealth;
use fieldstone_tasks::{Awaited, all, concurrently};

/// The result of decoding.
pub struct Decoded {
    /// The shards, in the order of the request, with the checksums of their blocks.
    pub shards: Vec<Shard>,
    /// Bytes that were read for them, including failed attempts.
    pub read_bytes: u64,
}

/// The reads of one attempt, and the computation over them.
struct DecodeAttempt {
    plan: Arc<RepairPlan>,
    segment: SegmentId,
    /// The shards that looked available, and their nodes.
    available: Vec<(usize, NodeIndex)>,
    /// The chunks to work on.
    chunks: Range<u32>,
    chunk_bytes: u32,
    element_bytes: u32,
    /// The bytes of each element to work on.
    columns: Range<u32>,
}

/// A part of a shard: the same bytes of some elements of some chunks.
struct Part {
    chunks: Range<u32>,
    elements: Range<u32>,
    columns: Range<u32>,
}

/// The reads of one shard.
type Reads = (usize, NodeIndex, Vec<Awaited<CallResult>>);

impl VolumeCore {
    /// The shards of a segment that the volume can read now, other than those of `except`.
    fn available(&self, id: SegmentId, except: [&[usize]; 2]) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.named(id) else { return Vec::new() };
        segment
            .shards
            .iter()
            .enumerate()
            .filter(|(shard, _)| !except.iter().any(|some| some.contains(shard)))
            .filter_map(|(shard, node)| Some((shard, (*node)?)))
            .filter(|(_, node)| self.node(*node).health == NodeHealth::Up)
            .collect()
    }

    fn plan_attempt(
        &self,
        id: SegmentId,
        (lost, refused): (&[usize], &[usize]),
        part: &Part,
    ) -> Result<DecodeAttempt, BlockError> {
        let (_, chunk_bytes) = self.lengths(id)?;
        let element_bytes = chunk_bytes / self.shape.code().elements();
        let available = self.available(id, [lost, refused]);
        let shards: Vec<usize> = available.iter().map(|(shard, _)| *shard).collect();
        let plan = self.shape.code().repair_elements(lost, &shards, part.elements.clone());
        let plan = plan.map_err(|error| {
            let (k, there) = (self.shape.code().k(), shards.len());
            BlockError::Io(format!("{there} of the {k} shards needed are there ({error})"))
        })?;
        let (chunks, columns) = (part.chunks.clone(), part.columns.clone());
        Ok(DecodeAttempt {
            plan,
            segment: id,
            available,
            chunks,
            chunk_bytes,
            element_bytes,
            columns,
        })
    }

    /// Lengths of a shard of the segment, and of its chunks.
    fn lengths(&self, id: SegmentId) -> Result<(u32, u32), BlockError> {
        let shard_bytes = self.segments.named(id).ok_or_else(gone)?.shard_bytes;
        let chunk_bytes = self.coded_bytes(shard_bytes as usize);
        Ok((shard_bytes, u32::try_from(chunk_bytes).expect("at most a shard")))
    }

    /// A whole shard of the segment as one part.
    fn whole(&self, id: SegmentId) -> Result<Part, BlockError> {
        let (shard_bytes, chunk_bytes) = self.lengths(id)?;
        Ok(self.whole_chunks(0..shard_bytes / chunk_bytes, chunk_bytes))
    }

    fn whole_chunks(&self, chunks: Range<u32>, chunk_bytes: u32) -> Part {
        let elements = self.shape.code().elements();
        Part { chunks, elements: 0..elements, columns: 0..chunk_bytes / elements }
    }

    /// The parts of a shard of the segment that make up its bytes `bytes`.
    fn parts(&self, id: SegmentId, bytes: &Range<u32>) -> Result<Vec<Part>, BlockError> {
        let (_, chunk_bytes) = self.lengths(id)?;
        let element_bytes = chunk_bytes / self.shape.code().elements();
        let mut parts = Vec::new();
        for chunk in bytes.start / chunk_bytes..bytes.end.div_ceil(chunk_bytes) {
            let at = chunk * chunk_bytes;
            let (start, end) = (bytes.start.max(at) - at, bytes.end.min(at + chunk_bytes) - at);
            if start == 0 && end == chunk_bytes {
                parts.push(self.whole_chunks(chunk..chunk + 1, chunk_bytes));
                continue;
            }
            parts.extend((start / element_bytes..end.div_ceil(element_bytes)).map(|element| {
                let at = element * element_bytes;
                let columns = start.max(at) - at..end.min(at + element_bytes) - at;
                Part { chunks: chunk..chunk + 1, elements: element..element + 1, columns }
            }));
        }
        Ok(parts)
    }

    fn send_reads(&mut self, attempt: &DecodeAttempt) -> Vec<Reads> {
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

impl DecodeAttempt {
    fn bodies(&self, read: &ShardRead) -> Vec<RequestBody> {
        let body = |range: Range<u32>| RequestBody::ShardRead {
            segment: self.segment,
            shard: ShardIndex(u8::try_from(read.shard).expect("at most 255 shards")),
            offset_bytes: range.start,
            len_bytes: range.end - range.start,
        };
        let (element_bytes, columns) = (self.element_bytes, &self.columns);
        let starts = self.chunks.clone().map(|chunk| chunk * self.chunk_bytes);
        let runs = read.elements.iter().cloned();
        if *columns != (0..element_bytes) {
            let elements = starts.flat_map(|start| {
                runs.clone().flatten().map(move |element| start + element * element_bytes)
            });
            return elements.map(|at| body(at + columns.start..at + columns.end)).collect();
        }
        let ranges = starts.flat_map(|start| {
            runs.clone()
                .map(move |run| start + run.start * element_bytes..start + run.end * element_bytes)
        });
        // Whole chunks lie one behind the other.
        let mut joined: Vec<Range<u32>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        joined.into_iter().map(body).collect()
    }

    /// True when `inputs` holds everything that the plan reads.
    fn complete(&self, inputs: &[Bytes]) -> bool {
        self.plan.reads.iter().zip(inputs).all(|(read, input)| self.fits(read, input))
    }

    /// The shards of which `inputs` lacks something.
    fn lacking(&self, inputs: &[Bytes]) -> Vec<usize> {
        let reads = self.plan.reads.iter().zip(inputs);
        reads.filter(|(read, input)| !self.fits(read, input)).map(|(read, _)| read.shard).collect()
    }

    /// True when `input` has the length that the plan reads of the shard.
    fn fits(&self, read: &ShardRead, input: &Bytes) -> bool {
        self.chunks.len() * self.input_bytes(read) == input.len()
    }

    /// Bytes that the plan reads of each chunk of the shard.
    fn input_bytes(&self, read: &ShardRead) -> usize {
        read.element_count() as usize * self.columns.len()
    }

    /// For each chunk, the inputs of its job.
    fn inputs_of_chunks(&self, inputs: &[Bytes]) -> Vec<Vec<Bytes>> {
        let inputs_of = |chunk: usize| {
            let part = |(read, input): (&ShardRead, &Bytes)| {
                let len_bytes = self.input_bytes(read);
                input.slice(chunk * len_bytes..(chunk + 1) * len_bytes)
            };
            self.plan.reads.iter().zip(inputs).map(part).collect()
        };
        (0..self.chunks.len()).map(inputs_of).collect()
    }
}

/// Makes a range of a shard from other shards. Reads and computes all parts of the range at once.
///
/// # Errors
/// Too few shards are readable.
pub async fn decode_range(
    ctx: &Ctx,
    id: SegmentId,
    range: ShardRange,
) -> Result<Bytes, BlockError> {
    let end = range.offset_bytes + range.count * BLOCK_BYTES as u32;
    let parts = ctx.with(|core| core.parts(id, &(range.offset_bytes..end)))?;
    let lost = [range.shard as usize];
    let decoded = parts.iter().map(|part| decode_part(ctx, id, &lost, part, None)).collect();
    let mut pieces = Vec::with_capacity(parts.len());
    for decoded in concurrently(decoded).await {
        pieces.extend(decoded?.shards.into_iter().map(|shard| shard.data));
    }
    Ok(join(&pieces))
}

/// Makes the shards `lost` whole from other shards, with the checksums of their blocks.
///
/// # Errors
/// Too few shards are readable.
pub async fn decode(ctx: &Ctx, id: SegmentId, lost: &[usize]) -> Result<Decoded, BlockError> {
    let whole = ctx.with(|core| core.whole(id))?;
    decode_part(ctx, id, lost, &whole, Some(BLOCK_BYTES)).await
}

/// Makes the same part of each of the shards `lost`, with checksums of blocks of so many bytes if
/// the caller wants them.
async fn decode_part(
    ctx: &Ctx,
    id: SegmentId,
    lost: &[usize],
    part: &Part,
    checksum_block_bytes: Option<usize>,
) -> Result<Decoded, BlockError> {
    let mut read_bytes = 0;
    // Shards of nodes that are up and did not deliver them: such a node is busy.
    let mut refused: Vec<usize> = Vec::new();
    // Each attempt loses at least one shard that looked available, so the loop ends.
    loop {
        let attempt = match ctx.with(|core| core.plan_attempt(id, (lost, &refused), part)) {
            Err(_) if !refused.is_empty() => {
                // Wait until the nodes are no longer busy.
                return Err(BlockError::Io("a node did not deliver a shard".into()));
            }
            planned => planned?,
        };
        let inputs = gather(ctx, &attempt).await;
        read_bytes += inputs.iter().map(|input| input.len() as u64).sum::<u64>();
        if attempt.complete(&inputs) {
            let shards = run_jobs(ctx, &attempt, &inputs, checksum_block_bytes).await?;
            if shards.len() != lost.len() {
                return Err(BlockError::Io("decoding gave too few shards".into()));
            }
            return Ok(Decoded { shards, read_bytes });
        }
        let left = ctx.with(|core| core.available(id, [lost, &refused]).len());
        if left >= attempt.available.len() {
            // No shard is known to be bad. Others may be enough.
            refused.extend(attempt.lacking(&inputs));
        }
    }
}

/// Computes the lost parts from the inputs, with a job for each chunk.
async fn run_jobs(
    ctx: &Ctx,
    attempt: &DecodeAttempt,
    inputs: &[Bytes],
    checksum_block_bytes: Option<usize>,
) -> Result<Vec<Shard>, BlockError> {
    let start = |inputs: Vec<Bytes>| {
        let job = Job::Code { map: Arc::clone(&attempt.plan.map), inputs, checksum_block_bytes };
        ctx.with(|core| core.start_job(job))
    };
    let jobs: Vec<_> = attempt.inputs_of_chunks(inputs).into_iter().map(start).collect();
    let mut chunks = Vec::with_capacity(jobs.len());
    for job in jobs {
        let output = job.await.map_err(|error| BlockError::Io(error.to_string()))?;
        chunks.push(output.into_shards().unwrap_or_default());
    }
    Ok(join_chunks(chunks))
}

/// Reads everything that the plan needs at once. An input is too short where a node failed.
async fn gather(ctx: &Ctx, attempt: &DecodeAttempt) -> Vec<Bytes> {
    let sent = ctx.with(|core| core.send_reads(attempt));
    let mut inputs = Vec::with_capacity(sent.len());
    for ((shard, node, calls), read) in sent.into_iter().zip(&attempt.plan.reads) {
        let mut parts = Vec::with_capacity(calls.len());
        let mut failed = None;
        for result in all(calls).await {
            match result {
                Ok(ReplyBody::Data(bytes)) => parts.push(bytes),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        let input = join(&parts);
        if failed.is_none() && !attempt.fits(read, &input) {
            failed = Some(wrong_length());
        }
        if let Some(error) = failed {
            let shard = u32::try_from(shard).expect("at most 255 shards");
            ctx.with(|core| core.shard_failed(attempt.segment, shard, node, &error));
        }
        inputs.push(input);
    }
    inputs
}

/// The error of a node that answers a read with more or fewer bytes than the read asked for.
pub fn wrong_length() -> NodeError {
    NodeError::Io("its answer is not the part of a shard that was asked for".into())
}

/// The error for a segment that was freed while a read of it was under way.
pub fn gone() -> BlockError {
    BlockError::Io("the segment is gone".into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::script::Script;

    /// Decodes a shard while the node of another one refuses reads with `error`. Returns the health
    /// of that node at the end.
    fn decode_beside(error: &NodeError) -> NodeHealth {
        let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 2 * BLOCK_BYTES as u32);
        let handle = script.add_segment(&[None, Some(1), Some(2), Some(3)]);
        let id = script.core(|core| core.segments.get(handle).expect("it was added").id);
        let range = ShardRange { shard: 0, offset_bytes: 0, count: 8 };
        let decoded = Rc::new(Cell::new(None));
        let told = decoded.clone();
        script.start(move |ctx| async move {
            told.set(Some(decode_range(&ctx, id, range).await.map(|bytes| bytes.len())));
        });
        let mut asked = [0; 4];
        loop {
            let sent = script.sent();
            for sent in &sent {
                let RequestBody::ShardRead { len_bytes, shard, .. } = sent.request.body else {
                    // The volume moves the journal away from a node that it has given up.
                    continue;
                };
                asked[usize::from(shard.0)] += 1;
                let data = ReplyBody::Data(vec![7; len_bytes as usize].into());
                script.answer(sent, if shard.0 == 1 { Err(error.clone()) } else { Ok(data) });
            }
            if sent.is_empty() && script.jobs.is_empty() {
                break;
            }
            script.do_jobs();
        }
        assert_eq!(decoded.take(), Some(Ok(8 * BLOCK_BYTES)), "{error}");
        assert!(asked[1] > 0 && asked[2] > 0 && asked[3] > 0, "{asked:?}");
        script.core(|core| core.node(NodeIndex(1)).health)
    }

    /// A busy node stays in use. A node that takes the connection for an old one does not: it would
    /// refuse every read.
    #[test]
    fn the_shards_of_other_nodes_replace_those_of_a_node_that_refuses() {
        assert_eq!(decode_beside(&NodeError::Busy), NodeHealth::Up);
        let superseded = NodeError::Invalid("the writer has come back".into());
        assert_eq!(decode_beside(&superseded), NodeHealth::Down);
    }

    /// The engine of the world gets a job for each part before any is done.
    #[test]
    fn the_parts_of_a_range_are_decoded_at_once() {
        let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 2 * BLOCK_BYTES as u32);
        let handle = script.add_segment(&[None, Some(1), Some(2), Some(3)]);
        let id = script.core(|core| core.segments.get(handle).expect("it was added").id);
        let range = ShardRange { shard: 0, offset_bytes: 0, count: 8 };
        script.start(move |ctx| async move {
            let bytes = decode_range(&ctx, id, range).await.expect("two shards are enough");
            assert_eq!(bytes.len(), 8 * BLOCK_BYTES);
        });
        for sent in script.sent() {
            let RequestBody::ShardRead { len_bytes, .. } = sent.request.body else {
                panic!("{:?}", sent.request.body)
            };
            script.answer(&sent, Ok(ReplyBody::Data(vec![7; len_bytes as usize].into())));
        }
        assert!(script.sent().is_empty());
        assert_eq!(script.jobs.len(), 4, "one for each chunk of the range");
        script.do_jobs();
        script.sent();
    }
}
