//! Reading: the volume reads blocks from memory while their segment is unsealed, then as one range
//! from one node, and else decodes them.
//!
//! The volume cuts a read into pieces, one per run of blocks that lie together on a shard. A node
//! may fail to deliver a piece (node down, shard missing, checksum wrong). Then a task fetches the
//! piece again. The task looks the blocks up anew, because collection may have moved them
//! meanwhile, and otherwise decodes them from the other shards.
//!
//! A few large reads of scattered blocks are thousands of pieces. So many requests at once would
//! fill a node's table, and the node would answer the last ones so late that it looked hung. So a
//! bounded number of pieces is under way to each node, and a bounded number of tasks fetches pieces
//! again. The other pieces wait in a queue.

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_block::{BlockError, Completion, Payload, Piece, Request, Stage};
use fieldstone_buf::join;
use fieldstone_proto::{
    BLOCK_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody, SegmentId, ShardIndex,
};
use slab::Slab;
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::core::{Ctx, VolumeCore};
use crate::decode::{decode_range, gone, wrong_length};
use crate::layout::ShardRange;
use crate::map::{Location, MapRun};
use crate::segment::{Segment, SegmentIndex};
use crate::status::NodeHealth;

/// Attempts to read a piece before the read fails.
const ATTEMPTS_MAX: u32 = 8;
/// Pause between attempts, for a node to come back or a move to end.
const RETRY_MS: u64 = 20;
/// How often the volume asks a node for a range while the node answers that it is busy.
const BUSY_MAX: u32 = 10;
/// Pieces of users' reads under way to one node.
const READS_PER_NODE_MAX: u32 = 256;
/// Tasks that fetch pieces again.
const RETRIES_MAX: u32 = 64;

/// The state of a piece of a read.
enum PieceState {
    Ready(Piece),
    /// The piece is being fetched. It holds these blocks of the device.
    Waiting {
        block: u64,
        count: u32,
    },
}

struct Read {
    request: Request,
    pieces: SmallVec<[PieceState; 2]>,
    waiting: u32,
    error: Option<BlockError>,
}

/// A piece that the volume has not asked for yet.
pub struct QueuedPiece {
    read: usize,
    piece: usize,
    handle: SegmentIndex,
    segment: SegmentId,
    range: ShardRange,
}

/// Reads under way.
#[derive(Default)]
pub struct Reads {
    reads: Slab<Read>,
    /// Pieces that are to be fetched again: their reads and numbers.
    retries: VecDeque<(usize, usize)>,
    /// Tasks that fetch these pieces.
    retrying: u32,
}

impl Reads {
    /// No read is under way.
    pub fn idle(&self) -> bool {
        self.reads.is_empty()
    }
}

impl VolumeCore {
    /// Takes a user's read. The range is block-aligned and inside the device.
    pub fn start_read(&mut self, mut request: Request) {
        request.stamps.stamp(Stage::Sent, self.now);
        let first = request.offset_bytes / BLOCK_BYTES as u64;
        let blocks = u64::from(request.len_bytes) / BLOCK_BYTES as u64;
        let entry = self.reads.reads.insert(Read {
            request,
            pieces: SmallVec::new(),
            waiting: 0,
            error: None,
        });
        let runs: SmallVec<[MapRun; 4]> = self.map.runs(first..first + blocks).collect();
        for run in runs {
            self.start_run(entry, run);
        }
        self.finish_read_if_done(entry);
    }

    fn start_run(&mut self, read: usize, run: MapRun) {
        let Some((handle, block)) = run.location.stored() else {
            let len_bytes = run.count * BLOCK_BYTES as u32;
            let pieces = &mut self.reads.reads[read].pieces;
            pieces.push(PieceState::Ready(Piece::Zeroes(len_bytes)));
            return;
        };
        if let Some(contents) = self.segments.get(handle).and_then(|s| s.contents.as_ref()) {
            let pieces = &mut self.reads.reads[read].pieces;
            contents
                .read(block, run.count, |data| pieces.push(PieceState::Ready(Piece::Data(data))));
            return;
        }
        let mut at = run.block;
        for range in self.layout.ranges(block, run.count) {
            let piece = {
                let state = &mut self.reads.reads[read];
                state.pieces.push(PieceState::Waiting { block: at, count: range.count });
                state.waiting += 1;
                state.pieces.len() - 1
            };
            self.start_piece(read, piece, handle, range);
            at += u64::from(range.count);
        }
    }

    /// The node that holds a range, if the volume can ask it.
    fn source(&self, segment: &Segment, range: ShardRange) -> Option<NodeIndex> {
        segment.shards[range.shard as usize]
            .filter(|node| self.node(*node).health == NodeHealth::Up)
    }

    fn start_piece(&mut self, read: usize, piece: usize, handle: SegmentIndex, range: ShardRange) {
        let segment = self.segments.get(handle);
        match segment.and_then(|segment| Some((segment.id, self.source(segment, range)?))) {
            Some((segment, node)) => {
                let queued = QueuedPiece { read, piece, handle, segment, range };
                let state = self.node_mut(node);
                if state.reads.in_flight >= READS_PER_NODE_MAX {
                    state.reads.waiting.push_back(queued);
                } else {
                    self.send_piece(node, &queued);
                }
            }
            None => self.retry_piece(read, piece),
        }
    }

    fn send_piece(&mut self, node: NodeIndex, queued: &QueuedPiece) {
        self.node_mut(node).reads.in_flight += 1;
        let (body, waiter) = (
            read_body(queued.segment, queued.range),
            Waiter::Read { read: queued.read, piece: queued.piece },
        );
        self.send(node, body, Vec::new(), waiter);
    }

    /// Asks a node for queued pieces, as far as bounds allow.
    fn send_waiting(&mut self, node: NodeIndex) {
        while self.node(node).reads.in_flight < READS_PER_NODE_MAX {
            let Some(queued) = self.node_mut(node).reads.waiting.pop_front() else { break };
            let QueuedPiece { read, piece, handle, segment, range } = queued;
            // The shard may have moved since the piece was queued, or the segment may be gone.
            let there =
                |found: &Segment| found.id == segment && self.source(found, range) == Some(node);
            match self.segments.get(handle).is_some_and(there) {
                true => self.send_piece(node, &queued),
                false => self.retry_piece(read, piece),
            }
        }
    }

    fn retry_piece(&mut self, read: usize, piece: usize) {
        // Drops a reply to a read that was already answered because the volume failed.
        let slot = self.reads.reads.get(read).and_then(|read| read.pieces.get(piece));
        if !matches!(slot, Some(PieceState::Waiting { .. })) {
            return;
        }
        self.counters.degraded_reads += 1;
        self.reads.retries.push_back((read, piece));
        if self.reads.retrying < RETRIES_MAX {
            self.reads.retrying += 1;
            self.spawn_with(retry_pieces);
        }
    }

    /// The next piece to fetch again; `None` ends the task.
    fn next_retry(&mut self) -> Option<Retry> {
        while let Some((read, piece)) = self.reads.retries.pop_front() {
            let slot = self.reads.reads.get(read).and_then(|read| read.pieces.get(piece));
            if let Some(&PieceState::Waiting { block, count }) = slot {
                return Some(Retry { read, piece, block, count });
            }
        }
        self.reads.retrying -= 1;
        None
    }

    /// A node answered the read of a piece.
    pub fn read_replied(&mut self, node: NodeIndex, read: usize, piece: usize, result: CallResult) {
        self.node_mut(node).reads.in_flight -= 1;
        self.send_waiting(node);
        match result {
            Ok(ReplyBody::Data(data)) if self.fits_piece(read, piece, &data) => {
                self.piece_done(read, piece, Ok(vec![data]));
            }
            _ => self.retry_piece(read, piece),
        }
    }

    fn fits_piece(&self, read: usize, piece: usize, data: &Bytes) -> bool {
        let slot = self.reads.reads.get(read).and_then(|read| read.pieces.get(piece));
        matches!(slot, Some(PieceState::Waiting { count, .. })
            if data.len() == *count as usize * BLOCK_BYTES)
    }

    fn piece_done(&mut self, key: usize, piece: usize, result: Result<Vec<Bytes>, BlockError>) {
        let Some(read) = self.reads.reads.get_mut(key) else { return };
        let PieceState::Waiting { count, .. } = read.pieces[piece] else { return };
        match result {
            Ok(parts) => {
                let data = join(&parts);
                if data.len() == count as usize * BLOCK_BYTES {
                    read.pieces[piece] = PieceState::Ready(Piece::Data(data));
                } else {
                    read.error = Some(BlockError::Io("a node sent too few bytes".into()));
                }
            }
            Err(error) => read.error = Some(error),
        }
        read.waiting -= 1;
        self.finish_read_if_done(key);
    }

    fn finish_read_if_done(&mut self, key: usize) {
        if self.reads.reads[key].waiting > 0 {
            return;
        }
        let read = self.reads.reads.remove(key);
        let mut stamps = read.request.stamps;
        stamps.stamp(Stage::Replied, self.now);
        let result = match read.error {
            Some(error) => Err(error),
            None => Ok(Payload::Data(
                read.pieces
                    .into_iter()
                    .filter_map(|slot| match slot {
                        PieceState::Ready(piece) => Some(piece),
                        PieceState::Waiting { .. } => None,
                    })
                    .collect(),
            )),
        };
        let completion = Completion { stamps, ..Completion::of(&read.request, result) };
        self.completions.push(completion);
    }

    /// The volume has failed: answers every waiting read with an error.
    pub fn fail_reads(&mut self, why: &str) {
        for read in self.reads.reads.drain() {
            let result = Err(BlockError::Io(why.to_owned()));
            self.completions.push(Completion::of(&read.request, result));
        }
    }
}

/// A piece to fetch again.
struct Retry {
    read: usize,
    piece: usize,
    block: u64,
    count: u32,
}

async fn retry_pieces(ctx: Ctx) {
    while let Some(Retry { read, piece, block, count }) = ctx.with(VolumeCore::next_retry) {
        let result = read_blocks(&ctx, block, count).await;
        ctx.with(|core| core.piece_done(read, piece, result));
    }
}

fn read_body(segment: SegmentId, range: ShardRange) -> RequestBody {
    RequestBody::ShardRead {
        segment,
        shard: ShardIndex(u8::try_from(range.shard).expect("at most 255 shards")),
        offset_bytes: range.offset_bytes,
        len_bytes: range.count * BLOCK_BYTES as u32,
    }
}

/// Reads blocks of the device, by decoding if necessary.
///
/// # Errors
/// Too few shards are readable, after several attempts.
pub async fn read_blocks(ctx: &Ctx, block: u64, count: u32) -> Result<Vec<Bytes>, BlockError> {
    let mut parts = Vec::new();
    let mut at = block;
    let end = block + u64::from(count);
    let mut attempts = 0;
    while at < end {
        let run = ctx.with(|core| core.map.runs(at..end).next());
        let Some(run) = run else { break };
        match read_location(ctx, run.location, run.count).await {
            Ok(mut data) => {
                parts.append(&mut data);
                at += u64::from(run.count);
            }
            Err(error) => {
                attempts += 1;
                if attempts >= ATTEMPTS_MAX {
                    return Err(error);
                }
                ctx.sleep_ms(RETRY_MS).await;
            }
        }
    }
    Ok(parts)
}

/// Reads consecutive blocks of one segment (or zeroes).
///
/// # Errors
/// Too few shards are readable.
pub async fn read_location(
    ctx: &Ctx,
    location: Location,
    count: u32,
) -> Result<Vec<Bytes>, BlockError> {
    let Some((handle, block)) = location.stored() else {
        return Ok(vec![fieldstone_buf::zeroes(count as usize * BLOCK_BYTES)]);
    };
    read_segment(ctx, handle, block, count).await
}

/// Reads consecutive blocks of a segment.
///
/// # Errors
/// Too few shards are readable.
pub async fn read_segment(
    ctx: &Ctx,
    handle: SegmentIndex,
    block: u32,
    count: u32,
) -> Result<Vec<Bytes>, BlockError> {
    let from_memory = ctx.with(|core| {
        let contents = core.segments.get(handle)?.contents.as_ref()?;
        let mut parts = Vec::new();
        contents.read(block, count, |data| parts.push(data));
        Some(parts)
    });
    if let Some(parts) = from_memory {
        return Ok(parts);
    }
    let mut parts = Vec::new();
    // While one part is being read, the segment may go, and its handle may pass to another segment.
    let id =
        ctx.with(|core| core.segments.get(handle).map(|segment| segment.id)).ok_or_else(gone)?;
    let ranges: Vec<ShardRange> = ctx.with(|core| core.layout.ranges(block, count).collect());
    for range in ranges {
        parts.push(read_range(ctx, id, range).await?);
    }
    Ok(parts)
}

async fn read_range(ctx: &Ctx, id: SegmentId, range: ShardRange) -> Result<Bytes, BlockError> {
    let node =
        ctx.with(|core| Some(core.source(core.segments.named(id)?, range))).ok_or_else(gone)?;
    if let Some(node) = node {
        let mut answer = ctx.call(node, read_body(id, range)).await;
        for _ in 1..BUSY_MAX {
            if answer != Err(NodeError::Busy) {
                break;
            }
            ctx.sleep_ms(RETRY_MS).await;
            answer = ctx.call(node, read_body(id, range)).await;
        }
        match answer {
            Ok(ReplyBody::Data(data)) if data.len() == range.count as usize * BLOCK_BYTES => {
                return Ok(data);
            }
            Err(error) => ctx.with(|core| core.shard_failed(id, range.shard, node, &error)),
            Ok(_) => ctx.with(|core| core.shard_failed(id, range.shard, node, &wrong_length())),
        }
    }
    decode_range(ctx, id, range).await
}

impl VolumeCore {
    /// The volume could not read a shard. Notes the reason, so that a rebuild makes the shard
    /// again.
    pub fn shard_failed(&mut self, id: SegmentId, shard: u32, node: NodeIndex, error: &NodeError) {
        match error {
            NodeError::Corrupt { .. } | NodeError::NotFound => {
                let handle = self.segments.find(id);
                let segment = handle.and_then(|handle| self.segments.get_mut(handle));
                let Some(segment) = segment else { return };
                if segment.shards[shard as usize] == Some(node) {
                    segment.shards[shard as usize] = None;
                    if *error != NodeError::NotFound {
                        self.damage.note(id, node);
                    }
                    self.scrub.progress.damaged += u64::from(self.scrub.found.insert((id, shard)));
                    self.start_rebuild();
                }
            }
            NodeError::Io(_) => self.give_up_node(node, &format!("read: {error}")),
            _ => {}
        }
    }
}
