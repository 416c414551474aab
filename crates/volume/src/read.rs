//! Reading: from memory while a segment is unsealed, else one range from one node, else decoded.
//!
//! A read is cut into pieces, one per run of blocks that lie together on a shard. Pieces that a
//! node does not deliver (down, shard missing, checksum wrong) are fetched again by a task, which
//! looks the blocks up anew: collection may have moved them meanwhile, and otherwise decodes
//! them from the other shards.

use bytes::Bytes;
use fieldstone_accel::Job;
use fieldstone_block::{BlockError, Completion, Payload, Piece, Request, Stage};
use fieldstone_buf::AlignedBuf;
use fieldstone_proto::{BLOCK_BYTES, NodeError, NodeIndex, ReplyBody, RequestBody, ShardIndex};
use slab::Slab;
use smallvec::SmallVec;

use crate::core::{CallResult, Core, Ctx, Waiter};
use crate::layout::ShardRange;
use crate::map::{Location, Run};
use crate::segment::Handle;
use crate::status::NodeHealth;

/// Attempts to read a piece before the read fails.
const ATTEMPTS_MAX: u32 = 8;
/// Pause between attempts, for a node to come back or a move to end.
const RETRY_MS: u64 = 20;

enum Slot {
    Ready(Piece),
    /// Being fetched: the blocks of the device that it holds.
    Waiting {
        block: u64,
        count: u32,
    },
}

struct Read {
    request: Request,
    pieces: SmallVec<[Slot; 2]>,
    waiting: u32,
    error: Option<BlockError>,
}

/// Reads under way.
#[derive(Default)]
pub struct Reads {
    reads: Slab<Read>,
}

impl Reads {
    /// Nothing is being read.
    pub fn idle(&self) -> bool {
        self.reads.is_empty()
    }
}

/// Where a range of a segment can be had.
struct Source {
    segment: fieldstone_proto::SegmentId,
    node: Option<NodeIndex>,
    range: ShardRange,
}

impl Core {
    /// Takes a user's read, block-aligned and in range.
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
        let runs: SmallVec<[Run; 4]> = self.map.runs(first..first + blocks).collect();
        for run in runs {
            self.start_run(entry, run);
        }
        self.finish_read_if_done(entry);
    }

    fn start_run(&mut self, read: usize, run: Run) {
        let Some((handle, block)) = run.location.stored() else {
            let len_bytes = run.count * BLOCK_BYTES as u32;
            let pieces = &mut self.reads.reads[read].pieces;
            pieces.push(Slot::Ready(Piece::Zeroes(len_bytes)));
            return;
        };
        if let Some(contents) = self.segments.get(handle).and_then(|s| s.contents.as_ref()) {
            let pieces = &mut self.reads.reads[read].pieces;
            contents.read(block, run.count, |data| pieces.push(Slot::Ready(Piece::Data(data))));
            return;
        }
        let mut at = run.block;
        for range in self.layout.ranges(block, run.count) {
            let piece = {
                let state = &mut self.reads.reads[read];
                state.pieces.push(Slot::Waiting { block: at, count: range.count });
                state.waiting += 1;
                state.pieces.len() - 1
            };
            self.start_piece(read, piece, handle, range);
            at += u64::from(range.count);
        }
    }

    fn source(&self, handle: Handle, range: ShardRange) -> Option<Source> {
        let segment = self.segments.get(handle)?;
        let node = segment.shards[range.shard as usize]
            .filter(|node| self.node(*node).health == NodeHealth::Up);
        Some(Source { segment: segment.id, node, range })
    }

    fn start_piece(&mut self, read: usize, piece: usize, handle: Handle, range: ShardRange) {
        match self.source(handle, range) {
            Some(Source { segment, node: Some(node), .. }) => {
                let body = read_body(segment, range);
                self.send(node, body, Vec::new(), Waiter::Read { read, piece });
            }
            _ => self.retry_piece(read, piece),
        }
    }

    fn retry_piece(&mut self, read: usize, piece: usize) {
        // A reply to a read that was already answered, because the volume failed, is dropped.
        let slot = self.reads.reads.get(read).and_then(|read| read.pieces.get(piece));
        let Some(&Slot::Waiting { block, count }) = slot else { return };
        self.counters.degraded_reads += 1;
        self.spawn_with(move |ctx| async move {
            let result = read_blocks(&ctx, block, count).await;
            ctx.with(|core| core.piece_done(read, piece, result));
        });
    }

    /// A node answered the read of a piece.
    pub fn read_replied(&mut self, read: usize, piece: usize, result: CallResult) {
        match result {
            Ok(ReplyBody::Data(data)) => self.piece_done(read, piece, Ok(vec![data])),
            _ => self.retry_piece(read, piece),
        }
    }

    fn piece_done(&mut self, key: usize, piece: usize, result: Result<Vec<Bytes>, BlockError>) {
        let Some(read) = self.reads.reads.get_mut(key) else { return };
        let Slot::Waiting { count, .. } = read.pieces[piece] else { return };
        match result {
            Ok(mut parts) => {
                let data = match parts.pop() {
                    Some(only) if parts.is_empty() => only,
                    Some(last) => {
                        parts.push(last);
                        AlignedBuf::concat(parts.iter().map(|part| &part[..])).freeze()
                    }
                    None => Bytes::new(),
                };
                if data.len() == count as usize * BLOCK_BYTES {
                    read.pieces[piece] = Slot::Ready(Piece::Data(data));
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
                        Slot::Ready(piece) => Some(piece),
                        Slot::Waiting { .. } => None,
                    })
                    .collect(),
            )),
        };
        self.completions.push(Completion { id: read.request.id, result, stamps });
    }

    /// The volume has failed: reads that wait are answered with an error.
    pub fn fail_reads(&mut self, why: &str) {
        for read in self.reads.reads.drain() {
            let result = Err(BlockError::Io(why.to_owned()));
            let stamps = read.request.stamps;
            self.completions.push(Completion { id: read.request.id, result, stamps });
        }
    }
}

fn read_body(segment: fieldstone_proto::SegmentId, range: ShardRange) -> RequestBody {
    RequestBody::ShardRead {
        segment,
        shard: ShardIndex(u8::try_from(range.shard).expect("at most 255 shards")),
        offset_bytes: range.offset_bytes,
        len_bytes: range.count * BLOCK_BYTES as u32,
    }
}

/// Reads blocks of the device with every means there is.
///
/// # Errors
/// Too few shards are there, after several attempts.
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
/// Too few shards are there.
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
/// Too few shards are there.
pub async fn read_segment(
    ctx: &Ctx,
    handle: Handle,
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
    let ranges: Vec<ShardRange> = ctx.with(|core| core.layout.ranges(block, count).collect());
    for range in ranges {
        parts.push(read_range(ctx, handle, range).await?);
    }
    Ok(parts)
}

async fn read_range(ctx: &Ctx, handle: Handle, range: ShardRange) -> Result<Bytes, BlockError> {
    let source = ctx.with(|core| core.source(handle, range));
    let Some(source) = source else {
        return Err(BlockError::Io("the segment is gone".into()));
    };
    if let Some(node) = source.node {
        match ctx.call(node, read_body(source.segment, source.range)).await {
            Ok(ReplyBody::Data(data)) => return Ok(data),
            Err(error) => ctx.with(|core| core.shard_failed(handle, range.shard, node, &error)),
            Ok(_) => {}
        }
    }
    decode_range(ctx, handle, range).await
}

impl Core {
    /// A shard could not be read: remember what is wrong with it, so that it is rebuilt.
    pub fn shard_failed(&mut self, handle: Handle, shard: u32, node: NodeIndex, error: &NodeError) {
        match error {
            NodeError::Corrupt { .. } | NodeError::NotFound => {
                let Some(segment) = self.segments.get_mut(handle) else { return };
                if segment.shards[shard as usize] == Some(node) {
                    segment.shards[shard as usize] = None;
                    if *error != NodeError::NotFound {
                        self.damage.note(segment.id, node);
                    }
                    self.scrub.damaged += u64::from(self.damaged.insert((segment.id, shard)));
                    self.start_rebuild();
                }
            }
            NodeError::Io(_) => self.give_up_node(node, &format!("read: {error}")),
            _ => {}
        }
    }

    /// The shards of a segment that can be read now, other than `except`.
    pub fn available(&self, handle: Handle, except: usize) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        segment
            .shards
            .iter()
            .enumerate()
            .filter(|(shard, _)| *shard != except)
            .filter_map(|(shard, node)| Some((shard, (*node)?)))
            .filter(|(_, node)| self.node(*node).health == NodeHealth::Up)
            .collect()
    }
}

/// Makes a range of a shard from other shards.
///
/// # Errors
/// Too few shards are there.
pub async fn decode_range(
    ctx: &Ctx,
    handle: Handle,
    range: ShardRange,
) -> Result<Bytes, BlockError> {
    let lost = range.shard as usize;
    // Each attempt loses at least one shard that looked available, so this ends.
    loop {
        let (plan, nodes, segment, whole) = ctx.with(|core| {
            let available = core.available(handle, lost);
            let shards: Vec<usize> = available.iter().map(|(shard, _)| *shard).collect();
            let plan = core.code.repair(&[lost], &shards).map_err(|error| {
                let k = core.code.k();
                BlockError::Io(format!(
                    "{} of the {k} shards needed are there ({error})",
                    shards.len()
                ))
            })?;
            let segment = core.segments.get(handle).map(|s| (s.id, s.shard_bytes));
            let (id, shard_bytes) =
                segment.ok_or_else(|| BlockError::Io("the segment is gone".into()))?;
            Ok::<_, BlockError>((plan, available, id, shard_bytes))
        })?;
        let elements = ctx.with(|core| core.code.elements());
        // With one element per shard, coding works byte by byte and a range needs just that range.
        let (offset, len) = if elements == 1 {
            (range.offset_bytes, range.count * BLOCK_BYTES as u32)
        } else {
            (0, whole)
        };
        let element_bytes = u64::from(len / elements);
        let calls: Vec<_> = ctx.with(|core| {
            plan.reads
                .iter()
                .map(|read| {
                    let node = nodes.iter().find(|(shard, _)| *shard == read.shard);
                    let (_, node) = node.expect("plans read available shards");
                    let parts: Vec<_> = read
                        .byte_ranges(element_bytes)
                        .map(|bytes| {
                            let body = RequestBody::ShardRead {
                                segment,
                                shard: ShardIndex(u8::try_from(read.shard).expect("small")),
                                offset_bytes: offset + u32::try_from(bytes.start).expect("small"),
                                len_bytes: u32::try_from(bytes.end - bytes.start).expect("small"),
                            };
                            core.call(*node, body, Vec::new())
                        })
                        .collect();
                    (read.shard, *node, parts)
                })
                .collect()
        });
        let mut inputs = Vec::with_capacity(calls.len());
        for (shard, node, parts) in calls {
            let mut data = Vec::with_capacity(parts.len());
            for result in crate::exec::all(parts).await {
                match result {
                    Ok(ReplyBody::Data(bytes)) => data.push(bytes),
                    Ok(_) => {}
                    Err(error) => ctx.with(|core| {
                        core.shard_failed(
                            handle,
                            u32::try_from(shard).expect("small"),
                            node,
                            &error,
                        );
                    }),
                }
            }
            let got: usize = data.iter().map(Bytes::len).sum();
            inputs.push(match data.len() {
                1 => data.swap_remove(0),
                _ => AlignedBuf::concat(data.iter().map(|part| &part[..])).freeze(),
            });
            ctx.with(|core| core.rebuild.read_bytes += got as u64);
        }
        let expected: Vec<u64> =
            plan.reads.iter().map(|r| u64::from(r.element_count()) * element_bytes).collect();
        if inputs.iter().zip(&expected).all(|(input, len)| input.len() as u64 == *len) {
            let job = Job::Code { map: std::sync::Arc::clone(&plan.map), inputs };
            let output = ctx.with(|core| core.engine.run(job));
            let output = output.map_err(|error| BlockError::Io(error.to_string()))?;
            let shard = output.into_shards().and_then(|mut shards| shards.pop());
            let shard = shard.ok_or_else(|| BlockError::Io("decoding gave nothing".into()))?;
            if elements == 1 {
                return Ok(shard);
            }
            let from = range.offset_bytes as usize;
            return Ok(shard.slice(from..from + range.count as usize * BLOCK_BYTES));
        }
        if ctx.with(|core| core.available(handle, lost).len()) >= nodes.len() {
            // Nothing became known to be bad: wait for the cause (a busy node) to pass.
            return Err(BlockError::Io("a node did not deliver a shard".into()));
        }
    }
}
