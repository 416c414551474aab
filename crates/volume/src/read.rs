//! Reading: the volume reads blocks from memory while their segment is unsealed, then as one range
//! from one node, and else decodes them.
//!
//! The volume cuts a read into pieces, one per run of blocks that lie together on a shard. A long
//! read has several pieces on each shard, one unit after the other, and the volume asks the node
//! for all of them at once, up to [`RUN_BLOCKS_MAX`]. A node may fail to deliver (node down, shard
//! missing, checksum wrong). Then tasks fetch the pieces again, one by one. A task looks the blocks
//! up anew, because collection may have moved them meanwhile, and otherwise decodes them from the
//! other shards.
//!
//! A few large reads of scattered blocks are thousands of requests. So many at once would fill a
//! node's table, and the node would answer the last ones so late that it looked hung. So a bounded
//! number of requests and of blocks is under way to each node; the other requests wait in a queue
//! of the node. A bounded number of tasks fetches pieces again; the other pieces wait for a task.

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
use crate::interface::ReadPolicy;
use crate::layout::{ShardRange, ShardRun};
use crate::map::{Location, MapRun};
use crate::node::NodeReads;
use crate::segment::{Segment, SegmentIndex};
use crate::status::NodeHealth;

/// Attempts to read a piece before the read fails.
const ATTEMPTS_MAX: u32 = 8;
/// Pause between attempts, for a node to come back or a move to end.
const RETRY_MS: u64 = 20;
/// How often the volume asks a node for a range while the node answers that it is busy.
const BUSY_MAX: u32 = 10;
/// The most blocks in one request. A longer range of a single piece goes alone.
const RUN_BLOCKS_MAX: u32 = 256;
/// Requests for users' reads under way to one node.
const READS_PER_NODE_MAX: u32 = 256;
/// Blocks under way from one node, without those of the last request. At 8 MiB a slow network
/// delivers them well within the time in which a node has to answer.
const BLOCKS_PER_NODE_MAX: u32 = 2048;
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

/// Pieces that the volume has not asked for yet.
pub struct QueuedRun {
    read: usize,
    /// Number of the first piece in the read.
    piece: usize,
    pieces: u32,
    handle: SegmentIndex,
    segment: SegmentId,
    range: ShardRange,
}

impl NodeReads {
    /// The next request has to wait.
    fn is_full(&self) -> bool {
        self.in_flight >= READS_PER_NODE_MAX || self.blocks_in_flight >= BLOCKS_PER_NODE_MAX
    }
}

/// Reads under way.
#[derive(Default)]
pub struct Reads {
    reads: Slab<Read>,
    /// Pieces that are to be fetched again: their reads and numbers.
    retries: VecDeque<(usize, usize)>,
    /// Tasks that fetch these pieces.
    retrying: u32,
    /// Rises with each choice between copies.
    turn: usize,
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
        let state = &mut self.reads.reads[read];
        let first = state.pieces.len();
        for range in self.shape.layout().ranges(block, run.count) {
            state.pieces.push(PieceState::Waiting { block: at, count: range.count });
            state.waiting += 1;
            at += u64::from(range.count);
        }
        for run in self.shape.layout().runs(block, run.count, RUN_BLOCKS_MAX) {
            self.start_pieces(read, first, handle, run);
        }
    }

    /// The node that holds a range, if the volume can ask it.
    fn source(&self, segment: &Segment, range: ShardRange) -> Option<NodeIndex> {
        segment.shards[range.shard as usize]
            .filter(|node| self.node(*node).health == NodeHealth::Up)
    }

    /// The same range of the copy that is to answer the read: the range itself, unless the volume
    /// balances reads over copies.
    fn nearest_copy(&mut self, handle: SegmentIndex, range: ShardRange) -> ShardRange {
        if self.config.reads != ReadPolicy::Balance || !self.has_copies() {
            return range;
        }
        let Some(segment) = self.segments.get(handle) else { return range };
        let copies = segment.shards.len();
        // Copies whose nodes have the same number of blocks to deliver take turns.
        let turn = self.reads.turn % copies.max(1);
        let asked = |shard: usize| {
            let node = segment.shards[shard]?;
            let state = self.node(node);
            (state.health == NodeHealth::Up).then_some((state.reads.blocks_in_flight, shard))
        };
        let in_turn = (turn..copies).chain(0..turn).filter_map(asked);
        let best = in_turn.min_by_key(|(blocks, _)| *blocks);
        self.reads.turn = self.reads.turn.wrapping_add(1);
        match best.and_then(|(_, shard)| u32::try_from(shard).ok()) {
            Some(shard) => ShardRange { shard, ..range },
            None => range,
        }
    }

    /// Asks for the pieces of `run`, which counts them from piece `first` of the read.
    fn start_pieces(&mut self, read: usize, first: usize, handle: SegmentIndex, run: ShardRun) {
        let ShardRun { piece, pieces, range } = run;
        let piece = first + piece as usize;
        let range = self.nearest_copy(handle, range);
        let segment = self.segments.get(handle);
        match segment.and_then(|segment| Some((segment.id, self.source(segment, range)?))) {
            Some((segment, node)) => {
                let queued = QueuedRun { read, piece, pieces, handle, segment, range };
                match self.node(node).reads.is_full() {
                    true => self.node_mut(node).reads.waiting.push_back(queued),
                    false => self.send_pieces(node, &queued),
                }
            }
            None => self.retry_pieces(read, (piece, pieces)),
        }
    }

    fn send_pieces(&mut self, node: NodeIndex, queued: &QueuedRun) {
        let QueuedRun { read, piece, pieces, segment, range, .. } = *queued;
        let reads = &mut self.node_mut(node).reads;
        reads.in_flight += 1;
        reads.blocks_in_flight += range.count;
        let waiter = Waiter::Read { read, piece, pieces, blocks: range.count };
        self.send(node, read_body(segment, range), Vec::new(), waiter);
    }

    /// Asks a node for queued runs, as far as bounds allow.
    fn send_waiting(&mut self, node: NodeIndex) {
        while !self.node(node).reads.is_full() {
            let Some(queued) = self.node_mut(node).reads.waiting.pop_front() else { break };
            let QueuedRun { read, piece, pieces, handle, segment, range } = queued;
            // The shard may have moved since the run was queued, or the segment may be gone.
            let there =
                |found: &Segment| found.id == segment && self.source(found, range) == Some(node);
            match self.segments.get(handle).is_some_and(there) {
                true => self.send_pieces(node, &queued),
                false => self.retry_pieces(read, (piece, pieces)),
            }
        }
    }

    /// The numbers of the pieces of a run: `pieces` numbers from `piece` on, k apart.
    fn numbers(&self, (piece, pieces): (usize, u32)) -> impl Iterator<Item = usize> + use<> {
        (piece..).step_by(self.shape.layout().k as usize).take(pieces as usize)
    }

    fn retry_pieces(&mut self, read: usize, run: (usize, u32)) {
        for piece in self.numbers(run) {
            self.retry_piece(read, piece);
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
            self.spawn_with(fetch_again);
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

    /// A node answered a request for `blocks` blocks. `run` is the number of the first piece, and
    /// the number of pieces.
    pub fn read_replied(
        &mut self,
        node: NodeIndex,
        read: usize,
        (run, blocks): ((usize, u32), u32),
        result: CallResult,
    ) {
        let reads = &mut self.node_mut(node).reads;
        reads.in_flight -= 1;
        reads.blocks_in_flight -= blocks;
        self.send_waiting(node);
        let Ok(ReplyBody::Data(mut data)) = result else {
            return self.retry_pieces(read, run);
        };
        let bytes = |piece| self.piece_bytes(read, piece);
        let expected: Option<usize> = self.numbers(run).map(bytes).sum();
        if expected != Some(data.len()) {
            return self.retry_pieces(read, run);
        }
        for piece in self.numbers(run) {
            let len_bytes = self.piece_bytes(read, piece).expect("just summed");
            let part = data.split_to(len_bytes);
            self.piece_done(read, piece, Ok(vec![part]));
        }
    }

    /// Length of a piece that is being fetched.
    fn piece_bytes(&self, read: usize, piece: usize) -> Option<usize> {
        match self.reads.reads.get(read)?.pieces.get(piece)? {
            PieceState::Waiting { count, .. } => Some(*count as usize * BLOCK_BYTES),
            PieceState::Ready(_) => None,
        }
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
        self.outbox.complete(completion);
    }

    /// The volume has failed: answers every waiting read with an error.
    pub fn fail_reads(&mut self, why: &str) {
        for read in self.reads.reads.drain() {
            let result = Err(BlockError::Io(why.to_owned()));
            self.outbox.complete(Completion::of(&read.request, result));
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

async fn fetch_again(ctx: Ctx) {
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
    let ranges: Vec<ShardRange> =
        ctx.with(|core| core.shape.layout().ranges(block, count).collect());
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
                        self.repair.damage.note(id, node);
                    }
                    self.note_damaged(id, shard);
                    self.start_rebuild();
                }
            }
            // A node that takes the volume's connection for an old one refuses every read. It takes
            // the next connection.
            NodeError::Io(_) | NodeError::Invalid(_) => {
                self.give_up_node(node, &format!("read: {error}"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::Op;

    use super::*;
    use crate::script::Script;

    /// Reads of copies go to all of their nodes that are up, and to a busy node last.
    #[test]
    fn reads_are_balanced_over_copies() {
        let mut script = Script::serving_in_chunks(8, "copies:3", 0);
        let handle = script.add_segment(&[4, 2, 6].map(Some));
        script.core(|core| {
            for block in 0..15 {
                core.map.set(u64::from(block), Location::at(handle, block));
            }
        });
        let nodes_read = |script: &mut Script, first: u64, count: u64| {
            (first..first + count).for_each(|block| script.submit(Op::Read, block, 1));
            let sent = script.sent();
            for sent in &sent {
                let RequestBody::ShardRead { shard, .. } = sent.request.body else {
                    panic!("only reads are sent")
                };
                assert_eq!(sent.node, NodeIndex([4, 2, 6][usize::from(shard.0)]));
            }
            let mut nodes: Vec<u16> = sent.iter().map(|sent| sent.node.0).collect();
            nodes.sort_unstable();
            nodes
        };
        assert_eq!(nodes_read(&mut script, 0, 3), [4, 4, 4], "the primary");
        script.core(|core| core.config.reads = ReadPolicy::Balance);
        // Node 4 still has three blocks to deliver.
        assert_eq!(nodes_read(&mut script, 3, 6), [2, 2, 2, 6, 6, 6]);
        assert_eq!(nodes_read(&mut script, 9, 3), [2, 4, 6]);
        script.core(|core| core.node_mut(NodeIndex(2)).health = NodeHealth::Down);
        assert_eq!(nodes_read(&mut script, 12, 2), [4, 6]);
    }

    /// A volume whose blocks 0 to 63 are those of a segment, with its shards on nodes 0 to 5.
    fn filled() -> Script {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
        script.core(|core| {
            for block in 0..64 {
                core.map.set(u64::from(block), Location::at(handle, block));
            }
        });
        script
    }

    /// The content of a shard: each block has the number of its place in the segment.
    fn content(shard: u8, offset_bytes: u32, len_bytes: u32) -> Bytes {
        let first = offset_bytes / BLOCK_BYTES as u32;
        let blocks = first..first + len_bytes / BLOCK_BYTES as u32;
        let bytes = blocks.flat_map(|block| vec![block as u8 * 4 + shard; BLOCK_BYTES]);
        bytes.collect::<Vec<u8>>().into()
    }

    /// The first byte of each block of the only completion.
    fn blocks_read(script: &Script) -> Vec<u8> {
        let [completion] = &script.completions[..] else { panic!("one read was made") };
        let Ok(Payload::Data(pieces)) = &completion.result else { panic!("{completion:?}") };
        let mut bytes = Vec::new();
        for piece in pieces {
            let Piece::Data(data) = piece else { panic!("{piece:?}") };
            bytes.extend(data.chunks(BLOCK_BYTES).map(|block| block[0]));
        }
        bytes
    }

    #[test]
    fn a_read_of_several_rows_asks_each_node_once() {
        let mut script = filled();
        script.submit(Op::Read, 3, 10);
        let sent = script.sent();
        let mut lengths = Vec::new();
        // Backwards, because nodes may answer in any order.
        for sent in sent.iter().rev() {
            let RequestBody::ShardRead { shard, offset_bytes, len_bytes, .. } = sent.request.body
            else {
                panic!("{:?}", sent.request.body)
            };
            assert_eq!(sent.node.0, u16::from(shard.0));
            lengths.push((shard.0, offset_bytes as usize / BLOCK_BYTES, len_bytes as usize));
            let data = ReplyBody::Data(content(shard.0, offset_bytes, len_bytes));
            script.answer(sent, Ok(data));
        }
        lengths.sort_unstable();
        let expected = [(0, 1, 3), (1, 1, 2), (2, 1, 2), (3, 0, 3)];
        assert_eq!(lengths, expected.map(|(s, first, blocks)| (s, first, blocks * BLOCK_BYTES)));
        script.sent();
        assert_eq!(blocks_read(&script), (3..13).collect::<Vec<u8>>());
    }

    #[test]
    fn the_pieces_of_a_run_that_fails_are_fetched_one_by_one() {
        let mut script = filled();
        script.submit(Op::Read, 0, 8);
        let mut sent = script.sent();
        assert_eq!(sent.len(), 4);
        let mut asked_again = 0;
        let mut first = true;
        while script.completions.is_empty() {
            for sent in std::mem::take(&mut sent) {
                let RequestBody::ShardRead { shard, offset_bytes, len_bytes, .. } =
                    sent.request.body
                else {
                    panic!("{:?}", sent.request.body)
                };
                let fails = first && shard.0 == 2;
                asked_again += u32::from(!first && shard.0 == 2);
                let data = ReplyBody::Data(content(shard.0, offset_bytes, len_bytes));
                script.answer(&sent, if fails { Err(NodeError::Busy) } else { Ok(data) });
            }
            first = false;
            sent = script.sent();
            assert!(!sent.is_empty() || !script.completions.is_empty(), "the read is stuck");
        }
        assert_eq!((asked_again, blocks_read(&script)), (2, (0..8).collect::<Vec<u8>>()));
    }
}
