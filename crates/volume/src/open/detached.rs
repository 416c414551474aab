//! Reads detached records again: an opening gets their blocks from the shards that hold them as
//! rows.
//!
//! Every journal node has the record's header. The header says where in the segment the blocks are,
//! and gives their checksums (see `rows`). The opening checks the bytes of a data shard against
//! these checksums. A record has no checksums for parity. So the opening decodes with the parity
//! shards, and compares the checksums of the decoded blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{Job, JobOutput, Shard};
use fieldstone_buf::{AlignedBuf, join};
use fieldstone_codes::{RepairPlan, ShardRead};
use fieldstone_proto::{
    BLOCK_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId, ShardIndex, crc32c,
    crc32c_blocks,
};

use crate::coding::join_chunks;
use crate::core::Ctx;
use crate::layout::Layout;
use crate::record::Header;
use crate::rows::shard_index;

/// The nodes that hold shards of segments, complete or open.
pub type ShardLocations = BTreeMap<SegmentId, Vec<(ShardIndex, NodeIndex)>>;

/// Reads the blocks of a detached record. `None` if the nodes cannot deliver them.
///
/// # Errors
/// A node was lost on the way: this node.
pub async fn read_detached(
    ctx: &Ctx,
    header: &Header,
    places: &ShardLocations,
) -> Result<Option<Bytes>, (NodeIndex, NodeError)> {
    let Some(places) = places.get(&header.segment) else { return Ok(None) };
    let layout = ctx.with(|core| *core.shape.layout());
    let k = layout.k as usize;
    let blocks = u32::try_from(header.checksums.len()).expect("a record is small");
    let row = layout.row_blocks();
    if blocks == 0 || !blocks.is_multiple_of(row) || !header.segment_block.is_multiple_of(row) {
        return Ok(None);
    }
    let rows = blocks / row;
    let range = PieceRange {
        segment: header.segment,
        offset_bytes: header.segment_block / row * layout.chunk_blocks * BLOCK_BYTES as u32,
        len_bytes: rows * layout.chunk_blocks * BLOCK_BYTES as u32,
    };
    let mut pieces: Vec<Option<Bytes>> = vec![None; layout.width()];
    for (shard, piece) in pieces.iter_mut().enumerate().take(k) {
        let sums = piece_checksums(&layout, shard, &header.checksums);
        *piece = range.read(ctx, places, shard, |data| crc32c_blocks(data) == sums).await?;
    }
    let bad: Vec<usize> = (0..k).filter(|shard| pieces[*shard].is_none()).collect();
    if !bad.is_empty() {
        for (shard, piece) in pieces.iter_mut().enumerate().skip(k) {
            let whole = |data: &[u8]| data.len() == range.len_bytes as usize;
            *piece = range.read(ctx, places, shard, whole).await?;
        }
        if !repair_pieces(ctx, &layout, &bad, &mut pieces, &header.checksums).await {
            return Ok(None);
        }
    }
    let mut data = AlignedBuf::stale(blocks as usize * BLOCK_BYTES);
    let unit_bytes = layout.unit_blocks as usize * BLOCK_BYTES;
    for (number, unit) in data.chunks_exact_mut(unit_bytes).enumerate() {
        let (shard, at) = (number % k, number / k * unit_bytes);
        let piece = pieces[shard].as_ref().expect("read or repaired above");
        unit.copy_from_slice(&piece[at..at + unit_bytes]);
    }
    Ok(Some(data.freeze()))
}

/// A range that is the same on every shard.
struct PieceRange {
    segment: SegmentId,
    offset_bytes: u32,
    len_bytes: u32,
}

impl PieceRange {
    /// Reads the range of one shard, from the first node whose bytes pass `good`.
    async fn read(
        &self,
        ctx: &Ctx,
        places: &[(ShardIndex, NodeIndex)],
        shard: usize,
        good: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Bytes>, (NodeIndex, NodeError)> {
        let shard = shard_index(shard);
        for (_, node) in places.iter().filter(|(placed, _)| *placed == shard) {
            let body = RequestBody::ShardRead {
                segment: self.segment,
                shard,
                offset_bytes: self.offset_bytes,
                len_bytes: self.len_bytes,
            };
            match ctx.call(*node, body).await {
                Ok(ReplyBody::Data(data)) if good(&data) => return Ok(Some(data)),
                // The node may deliver it at another attempt.
                Err(
                    error @ (NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. }),
                ) => {
                    return Err((*node, error));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The checksums of one data shard's part of a record.
fn piece_checksums(layout: &Layout, shard: usize, checksums: &[u32]) -> Vec<u32> {
    let unit = layout.unit_blocks as usize;
    let units = checksums.chunks_exact(unit).skip(shard).step_by(layout.k as usize);
    units.flatten().copied().collect()
}

/// Makes the pieces in `bad` from the other pieces, with those parity pieces that lead to the right
/// checksums. A record has no checksums for parity.
async fn repair_pieces(
    ctx: &Ctx,
    layout: &Layout,
    bad: &[usize],
    pieces: &mut [Option<Bytes>],
    checksums: &[u32],
) -> bool {
    let k = layout.k as usize;
    let parity: Vec<usize> = (k..pieces.len()).filter(|shard| pieces[*shard].is_some()).collect();
    if parity.len() < bad.len() {
        return false;
    }
    // There are few shards and few parity shards, so the loop tries all choices.
    for choice in 0u64..1 << parity.len().min(16) {
        if choice.count_ones() as usize != bad.len() {
            continue;
        }
        let chosen =
            parity.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1).map(|(_, p)| *p);
        let sources: Vec<usize> =
            (0..k).filter(|shard| pieces[*shard].is_some()).chain(chosen).collect();
        let plan = ctx.with(|core| core.shape.code().repair(bad, &sources));
        let Ok(plan) = plan else { continue };
        let Some(made) = repair_chunks(ctx, &plan, pieces).await else { continue };
        let right = bad.iter().zip(&made).all(|(shard, made)| {
            let sums = piece_checksums(layout, *shard, checksums);
            made.data.chunks_exact(BLOCK_BYTES).zip(&sums).all(|(block, sum)| crc32c(block) == *sum)
        });
        if right && made.len() == bad.len() {
            for (shard, made) in bad.iter().zip(made) {
                pieces[*shard] = Some(made.data);
            }
            return true;
        }
    }
    false
}

/// Makes the pieces of a plan's lost shards, chunk by chunk. `None` if a job failed.
async fn repair_chunks(
    ctx: &Ctx,
    plan: &RepairPlan,
    pieces: &[Option<Bytes>],
) -> Option<Vec<Shard>> {
    let len_bytes = pieces.iter().flatten().map(Bytes::len).max()?;
    let (chunk_bytes, elements) =
        ctx.with(|core| (core.coded_bytes(len_bytes), core.shape.code().elements() as usize));
    let element_bytes = chunk_bytes / elements;
    let mut jobs = Vec::with_capacity(len_bytes / chunk_bytes);
    for chunk in (0..len_bytes).step_by(chunk_bytes) {
        let input = |read: &ShardRead| {
            let piece = pieces[read.shard].as_ref()?;
            let run = |elements: &Range<u32>| {
                let (start, end) = (elements.start as usize, elements.end as usize);
                piece.slice(chunk + start * element_bytes..chunk + end * element_bytes)
            };
            Some(join(&read.elements.iter().map(run).collect::<Vec<Bytes>>()))
        };
        let inputs = plan.reads.iter().map(input).collect::<Option<Vec<Bytes>>>()?;
        let job = Job::code(Arc::clone(&plan.map), inputs);
        jobs.push(ctx.with(|core| core.start_job(job)));
    }
    let mut chunks = Vec::with_capacity(jobs.len());
    for job in jobs {
        chunks.push(job.await.ok().and_then(JobOutput::into_shards)?);
    }
    Some(join_chunks(chunks))
}
