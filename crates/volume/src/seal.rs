//! Sealing: a closed segment becomes k + m shards on as many nodes. Syncing makes the shards
//! durable.
//!
//! Data blocks keep the checksums that the volume computed when it wrote them, so a read notices a
//! bit that flips anywhere in between. The world makes the checksums of parity together with the
//! parity. If a node fails, its shard stays missing: the segment is degraded, and a rebuild
//! restores the shard later.
//!
//! A sealed segment survives the loss of m nodes, like the journal before it. Each of its k + m
//! shards is on a node that is up, except the shards for nodes that are lost now, at most m. A node
//! without room counts as lost if its disk is full, or if other volumes have the room. Until so
//! many shards are written, the volume retries, and the journal keeps the segment's records. If
//! the ring fills up meanwhile, users' writes wait. They get the error that there is no space if
//! more than m nodes have no room (`log/admission`). With fewer such nodes they wait until a node
//! has room.
//!
//! The segment's blocks stay in memory until it is durable: if syncs fail on so many nodes that
//! fewer than k shards are left, the volume seals the segment again. The ring keeps the same
//! blocks, so the ring bounds this memory.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_accel::{Job, Shard};
use fieldstone_buf::{AlignedBuf, join};
use fieldstone_proto::{
    BLOCK_BYTES, NodeError, NodeIndex, RequestBody, SealMeta, SegmentId, SegmentKind, ShardIndex,
    crc32c_blocks,
};
use smallvec::SmallVec;

use crate::calls::CallResult;
use crate::core::{Ctx, VolumeCore};
use crate::exec::Awaited;
use crate::footer::Footer;
use crate::jobs::JobResult;
use crate::rows::complete_rows;
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::{NodeHealth, VolumePhase};

/// Pause before the volume tries failed shards on other nodes.
const RETRY_MS: u64 = 50;

/// How often an opening tries to write a segment.
const OPENING_ATTEMPTS: u64 = 20;
/// How often the volume tries missing shards on nodes that can take them although k are written.
const WHOLE_ATTEMPTS: u64 = 3;
/// Every so many attempts the volume asks full nodes how much room they have now.
const ASK_ATTEMPTS: u64 = 8;

/// Seals a closed segment.
pub async fn seal(ctx: Ctx, handle: SegmentIndex) {
    let Some(meta) = ctx.with(|core| core.seal_meta(handle)) else { return };
    complete_rows(&ctx, handle, meta).await;
    ask_for_room(&ctx, handle).await;
    let short = ctx.with(|core| {
        let exists = core.segments.get(handle).is_some();
        exists && (!core.stored_well(handle) || core.is_narrow(handle, &[]))
    });
    if short {
        let coding = ctx.with(|core| {
            let blocks = core.segments.get(handle)?.shard_bytes / BLOCK_BYTES as u32;
            core.code_blocks(handle, 0..blocks)
        });
        let Some(coding) = coding else { return };
        if !store(&ctx, handle, &coding.finish().await, meta).await {
            return;
        }
    }
    ctx.with(|core| {
        core.segments.set_state(handle, State::Sealed);
        core.drop_rows(handle);
        if core.segments.get(handle).is_some_and(|segment| segment.missing() > 0) {
            core.start_rebuild();
        }
        core.consider_gc();
    });
}

/// Writes the missing shards of a segment until at least k are written, and as many as there are
/// nodes for. Returns false if the volume failed meanwhile.
pub async fn store(ctx: &Ctx, handle: SegmentIndex, shards: &[Shard], meta: SealMeta) -> bool {
    let mut asked = false;
    let mut refusing = Vec::new();
    for attempt in 0u64.. {
        let targets = ctx.with(|core| core.place_missing(handle, attempt));
        let calls: Vec<_> = ctx.with(|core| {
            let Some(id) = core.segments.get(handle).map(|s| s.id) else { return Vec::new() };
            targets
                .iter()
                .map(|(shard, node)| {
                    let body = RequestBody::ShardWrite {
                        segment: id,
                        shard: ShardIndex(u8::try_from(*shard).expect("at most 255 shards")),
                        offset_bytes: 0,
                        checksums: shards[*shard].checksums.clone(),
                        seal: Some(meta),
                        data_first: false,
                    };
                    core.call(*node, body, vec![shards[*shard].data.clone()])
                })
                .collect()
        });
        let sessions: Vec<u64> = ctx
            .with(|core| targets.iter().map(|(_, node)| core.node(*node).link.session).collect());
        let results = crate::exec::all(calls).await;
        let done = ctx.with(|core| {
            for (((shard, node), result), session) in targets.iter().zip(results).zip(sessions) {
                if result == Err(NodeError::NoSpace) {
                    refusing.push(*node);
                }
                core.shard_written(handle, *shard, (*node, session), result.map(|_| ()));
            }
            // A node that has made room since then refuses no more.
            refusing.retain(|node| core.node(*node).slots.full);
            if core.segments.get(handle).is_none()
                || matches!(core.phase, VolumePhase::Failed(_) | VolumePhase::Closed)
            {
                return Some(false);
            }
            // Lost nodes come back only to a volume that serves. An opening starts over instead.
            if core.phase == VolumePhase::Opening && attempt >= OPENING_ATTEMPTS {
                return Some(false);
            }
            let enough = core.stored(handle) && attempt >= WHOLE_ATTEMPTS;
            let wide = !core.is_narrow(handle, &refusing);
            (wide && (enough || core.stored_well(handle))).then_some(true)
        });
        match done {
            None if attempt % ASK_ATTEMPTS == WHOLE_ATTEMPTS => {
                if !ask_for_room(ctx, handle).await {
                    ctx.sleep_ms(RETRY_MS).await;
                }
            }
            None => ctx.sleep_ms(RETRY_MS).await,
            Some(true) if !asked => {
                asked = true;
                if !ask_for_room(ctx, handle).await {
                    return true;
                }
            }
            Some(done) => return done,
        }
    }
    false
}

/// Asks each node that had no room for a missing shard of the segment how much room it has now. Its
/// last answer may be as old as the wait for the other shards. The wait for these answers is short,
/// because a node may hang. Returns whether any node had no room.
async fn ask_for_room(ctx: &Ctx, handle: SegmentIndex) -> bool {
    let full = ctx.with(|core| {
        let full = core.full_for(handle);
        for node in &full {
            drop(core.call(*node, RequestBody::Stat, Vec::new()));
        }
        full
    });
    if full.is_empty() {
        return false;
    }
    ctx.sleep_ms(RETRY_MS).await;
    true
}

/// Makes sealed segments durable, and forgets the records that are then superfluous.
pub async fn sync_segments_task(ctx: Ctx) {
    sync_segments(&ctx).await;
    ctx.with(|core| core.sync_running = false);
}

/// A segment under sync, and where its shards were when the sync began.
type Synced = (SegmentIndex, SegmentId, SmallVec<[Option<NodeIndex>; 8]>);

/// Makes the segments durable that are sealed now.
pub async fn sync_segments(ctx: &Ctx) {
    let sealed: Vec<Synced> = ctx.with(|core| {
        let sealed = core.segments.iter().filter(|(_, s)| s.state == State::Sealed);
        sealed.map(|(handle, s)| (handle, s.id, s.shards.iter().copied().collect())).collect()
    });
    if sealed.is_empty() {
        // Wait for a segment that is being sealed.
        ctx.sleep_ms(1).await;
        return;
    }
    let mut nodes: Vec<NodeIndex> =
        sealed.iter().flat_map(|(_, _, shards)| shards.iter().flatten().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    // A sync of a node's present life does not tell which data a joining node lost with its power.
    ctx.with(|core| nodes.retain(|node| core.node(*node).health == NodeHealth::Up));
    let sessions = ctx.with(|core| core.sessions_of(&nodes));
    let results = ctx.call_all(&nodes, &RequestBody::ShardSync).await;
    let answers = results.into_iter().zip(sessions).collect();
    let progress = ctx.with(|core| core.synced_segments(&sealed, answers));
    if !progress {
        // Too few shards are left of every segment. A rebuild or a returning node has to help
        // first.
        ctx.sleep_ms(RETRY_MS).await;
    }
}

impl VolumeCore {
    /// So many shards of the segment are written that the volume can rely on it. With fewer nodes
    /// than an opening needs, it relies on no segment.
    fn stored(&self, handle: SegmentIndex) -> bool {
        let written = |s: &Segment| s.shards.len() - s.missing() >= self.code.k();
        self.segments.get(handle).is_some_and(written) && self.writable()
    }

    /// Nodes that could take a missing shard of the segment if they had room.
    fn full_for(&self, handle: SegmentIndex) -> Vec<NodeIndex> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        if segment.missing() == 0 {
            return Vec::new();
        }
        let full = |node: NodeIndex| self.node(node).slots.full || !self.has_room_for_data(node);
        let mut nodes = self.up_nodes();
        nodes.retain(|node| full(*node) && !segment.has_shard_on(*node));
        nodes
    }

    /// A segment of data lies on fewer nodes than it must; see [`Self::shards_lacking`]. An opening
    /// has to go on with the room that it finds.
    fn is_narrow(&self, handle: SegmentIndex, refusing: &[NodeIndex]) -> bool {
        let data = |segment: &Segment| segment.kind == SegmentKind::Data;
        self.segments.get(handle).is_some_and(data)
            && self.phase != VolumePhase::Opening
            && self.shards_lacking(handle, refusing) > 0
    }

    /// Shards that the segment lacks to survive the loss of m nodes. A shard counts while its node
    /// is up. Nodes that are lost, that have no room or that refused the segment (`refusing`) are
    /// among those m nodes, unless they hold a shard.
    pub fn shards_lacking(&self, handle: SegmentIndex, refusing: &[NodeIndex]) -> usize {
        let Some(segment) = self.segments.get(handle) else { return 0 };
        let (mut holding, mut lost) = (0, 0);
        for (index, node) in (0..).map(NodeIndex).zip(&self.nodes) {
            let full =
                node.is_short() || self.is_limited_by_disk(node) || refusing.contains(&index);
            match node.health == NodeHealth::Up {
                true if segment.has_shard_on(index) => holding += 1,
                up => lost += usize::from(full || !up),
            }
        }
        (segment.shards.len() - lost.min(self.code.m())).saturating_sub(holding)
    }

    /// As [`Self::stored`], and no node could take a missing shard.
    fn stored_well(&mut self, handle: SegmentIndex) -> bool {
        let whole = self.segments.get(handle).is_some_and(|segment| segment.missing() == 0);
        self.stored(handle) && (whole || self.place_missing(handle, 0).is_empty())
    }

    /// The nodes answered the sync of the `sealed` segments, whose shards were then on the nodes
    /// given, in the sessions given. True if at least one of the segments is durable now.
    fn synced_segments(
        &mut self,
        sealed: &[Synced],
        answers: Vec<((NodeIndex, CallResult), u64)>,
    ) -> bool {
        let (mut synced, mut failed) = (Vec::new(), Vec::new());
        for ((node, result), session) in answers {
            let state = self.node(node);
            let Err(error) = result else {
                // A node that was lost since then may be an empty replacement, which has got other
                // shards of the segments: the answer does not cover these.
                if state.link.session == session {
                    synced.push(node);
                }
                continue;
            };
            if state.link.session != session && state.health == NodeHealth::Up {
                // The node was lost and has joined since, and then reported its shards. If the
                // volume forgot these, the node would keep shards that the volume does not know.
                continue;
            }
            failed.push(node);
            if error != NodeError::Unreachable {
                self.give_up_node(node, &format!("sync: {error}"));
            }
        }
        let (k, writable, up) = (self.code.k(), self.writable(), self.up_nodes());
        let mut progress = false;
        for (handle, id, before) in sealed {
            let handle = *handle;
            let Some(segment) = self.segments.get_mut(handle) else { continue };
            if segment.id != *id || segment.state != State::Sealed {
                continue;
            }
            // The sync did not cover shards that reached a node since the sync began.
            let mut stable = 0;
            for (shard, before) in segment.shards.iter_mut().zip(before) {
                match *shard {
                    Some(node) if failed.contains(&node) => *shard = None,
                    Some(node) if synced.contains(&node) && *shard == *before => stable += 1,
                    _ => {}
                }
            }
            let left = segment.shards.len() - segment.missing();
            if stable >= k && writable {
                // A node that has joined since then has reported its shards. A node that is lost or
                // about to join reports them when it joins.
                let counts = |node: &NodeIndex| up.contains(node) || synced.contains(node);
                for shard in &mut segment.shards {
                    *shard = shard.filter(counts);
                }
                segment.contents = None;
                self.segments.set_state(handle, State::Durable);
                self.drop_rows(handle);
                progress = true;
            } else if left < k && segment.contents.is_some() && self.phase != VolumePhase::Opening {
                // An opening starts over instead, and gives the handle to another segment.
                self.segments.set_state(handle, State::Closed);
                self.spawn_with(move |ctx| seal(ctx, handle));
            }
        }
        self.trim_log();
        self.start_rebuild();
        progress
    }

    /// The complete segments whose shards are still to be written.
    pub fn closed_segments(&self) -> Vec<SegmentIndex> {
        let closed = |s: &Segment| s.state == State::Closed && !s.shelved;
        self.segments.iter().filter(|(_, s)| closed(s)).map(|(handle, _)| handle).collect()
    }

    /// The segment's shards are stable.
    pub fn is_durable(&self, handle: SegmentIndex) -> bool {
        self.segments.get(handle).is_some_and(|segment| segment.state == State::Durable)
    }

    /// The contents of the headers of a closed segment's shards.
    fn seal_meta(&self, handle: SegmentIndex) -> Option<SealMeta> {
        let segment = self.segments.get(handle)?;
        Some(SealMeta {
            kind: SegmentKind::Data,
            lsn_first: segment.lsn_first,
            lsn_end: segment.lsn_end,
            shard_bytes: segment.shard_bytes,
        })
    }

    /// Lays blocks of each shard of a closed segment out, and starts to code them. The range is one
    /// of whole chunks, or the whole shard.
    pub fn code_blocks(&mut self, handle: SegmentIndex, blocks: Range<u32>) -> Option<Coding> {
        let layout = self.layout;
        let segment = self.segments.get(handle)?;
        let contents = segment.contents.as_ref()?;
        let (begin, end) = (blocks.start * layout.k, blocks.end * layout.k);
        let mut builder = ShardBuilder::new(layout, blocks.end - blocks.start);
        let mut at = begin;
        let stop = end.min(contents.blocks()).max(begin);
        contents.read(begin, stop - begin, |data| {
            let count = data.len() / BLOCK_BYTES;
            let sums = &contents.checksums[at as usize..at as usize + count];
            builder.put(at - begin, &data, sums);
            at += u32::try_from(count).expect("small");
        });
        if end * BLOCK_BYTES as u32 >= layout.k * segment.shard_bytes {
            let footer = Footer {
                volume: self.config.volume,
                segment: segment.id,
                lsn_first: segment.lsn_first,
                lsn_end: segment.lsn_end,
                entries: contents.entries.clone(),
            }
            .encode();
            let footer_blocks = u32::try_from(footer.len() / BLOCK_BYTES).expect("small");
            builder.put(end - begin - footer_blocks, &footer, &crc32c_blocks(&footer));
        }
        Some(self.start_coding(builder))
    }

    /// Starts to make the parity shards.
    pub fn start_coding(&mut self, builder: ShardBuilder) -> Coding {
        let data = builder.finish();
        let shard_bytes = data.first().map_or(0, |shard| shard.data.len());
        let chunk_bytes = self.coded_bytes(shard_bytes);
        let chunk = |at: usize| {
            data.iter().map(|shard| shard.data.slice(at..at + chunk_bytes)).collect::<Vec<Bytes>>()
        };
        let chunks: Vec<Vec<Bytes>> = (0..shard_bytes).step_by(chunk_bytes).map(chunk).collect();
        let parity = chunks.into_iter().map(|inputs| self.start_encoding(inputs)).collect();
        Coding { data, parity }
    }

    /// Bytes that the code makes at a time of a shard, or a run of chunks, of `len_bytes`: all, or
    /// one chunk.
    pub fn coded_bytes(&self, len_bytes: usize) -> usize {
        let chunk_bytes = self.layout.chunk_blocks as usize * BLOCK_BYTES;
        match self.code.elements() {
            1 => len_bytes.max(1),
            _ => chunk_bytes.min(len_bytes).max(1),
        }
    }

    /// Gives the world the job that makes parity for `inputs`, one for each data shard, and the
    /// checksums of the parity.
    pub fn start_encoding(&mut self, inputs: Vec<Bytes>) -> Awaited<JobResult> {
        let map = std::sync::Arc::clone(self.code.encode());
        self.start_job(Job::Code { map, inputs, checksum_block_bytes: Some(BLOCK_BYTES) })
    }

    /// Chooses a node for each shard of the segment that is not written yet, as far as nodes have
    /// room. Room that is kept for checkpoints is no room for data.
    pub fn place_missing(&mut self, handle: SegmentIndex, attempt: u64) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let (id, kind) = (segment.id, segment.kind);
        self.place_missing_on(handle, attempt, |core, node| {
            kind == SegmentKind::Checkpoint
                || core.has_room_for_data(node)
                || core.has_bad(id, node)
        })
    }

    /// The node holds a shard of the segment, or a write of such a shard to the node is under way.
    /// Rebuild gives such a node no second shard: the node could not delete one of two alone.
    pub fn has_or_gets_shard(&self, segment: &Segment, node: NodeIndex) -> bool {
        segment.has_shard_on(node) || self.node(node).slots.claimed.contains_key(&segment.id)
    }

    /// As [`Self::place_missing`], on some of the nodes only.
    pub fn place_missing_on(
        &mut self,
        handle: SegmentIndex,
        attempt: u64,
        chosen: impl Fn(&Self, NodeIndex) -> bool,
    ) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let is_missing: SmallVec<[bool; 8]> =
            segment.shards.iter().map(|node| node.is_none()).collect();
        let missing = |shard: &usize| is_missing[*shard];
        let kept = self.nodes_with_rows(segment);
        let mut used: SmallVec<[NodeIndex; 8]> =
            segment.shards.iter().chain(&kept).flatten().copied().collect();
        let wanted = segment.shards.len() - used.len();
        // A node that has a shard or rows left over, or to which a write of such a shard is under
        // way, gets no second shard: the node could not delete one of two alone.
        used.extend_from_slice(&segment.left_on);
        used.extend(self.nodes_that(|node| node.slots.claimed.contains_key(&segment.id)));
        let key = self.placement_key(segment.id, attempt);
        let input = self.placement_input(key, &used, wanted, chosen);
        let none = input.in_weights.iter().all(|weight| *weight == 0);
        if none && kept.iter().all(Option::is_none) {
            return Vec::new();
        }
        let placed = self.place_shards(handle, &input);
        let node = |placed: usize| NodeIndex(u16::try_from(placed).expect("nodes are 16 bits"));
        // A missing shard goes to the node that placement gives it. Placement may leave a missing
        // shard without a node; it then takes a node that placement gave to a shard that is already
        // written.
        let settled = |shard: &usize| !missing(shard) || kept[*shard].is_some();
        let mut spare = (0..placed.len()).filter(settled).filter_map(|shard| placed[shard]);
        let mut other = |shard: usize| Some(node(placed[shard].or_else(|| spare.next())?));
        (0..placed.len())
            .filter(missing)
            .filter_map(|shard| Some((shard, kept[shard].or_else(|| other(shard))?)))
            .collect()
    }

    /// For each missing shard of the segment, the node that has rows of the shard.
    fn nodes_with_rows(&self, segment: &Segment) -> SmallVec<[Option<NodeIndex>; 8]> {
        let node = |(shard, placed): (usize, &Option<NodeIndex>)| match placed {
            None => self.row_node(segment, shard),
            Some(_) => None,
        };
        segment.shards.iter().enumerate().map(node).collect()
    }

    /// A node answered the write of a shard from the session `session`.
    pub fn shard_written(
        &mut self,
        handle: SegmentIndex,
        shard: usize,
        (node, session): (NodeIndex, u64),
        result: Result<(), NodeError>,
    ) {
        match result {
            // The node was lost after it answered. Its next join reports its shards, and may have
            // deleted this very shard. An error tells nothing about the node's present state.
            _ if self.node(node).link.session != session => {}
            Ok(()) => {
                let Some(segment) = self.segments.get(handle) else { return };
                let (id, other) =
                    (segment.id, segment.shards[shard].filter(|other| *other != node));
                let is_second = segment.shards[shard] != Some(node) && segment.has_shard_on(node);
                let up = other.is_some_and(|other| self.node(other).health == NodeHealth::Up);
                if is_second {
                    // The segment uses no second shard on this node.
                } else if up {
                    // Another node came back with the same shard meanwhile. Only one copy may
                    // exist, so that it is always clear which one is valid.
                    self.delete_leftover(node, id);
                } else if let Some(segment) = self.segments.get_mut(handle) {
                    // A copy on a node that is not up is compared when that node joins.
                    segment.shards[shard] = Some(node);
                }
            }
            Err(NodeError::NoSpace) => self.node_mut(node).slots.full = true,
            Err(NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. }) => {}
            Err(error) => self.give_up_node(node, &format!("write: {error}")),
        }
    }
}

/// Shards whose parity the world is making.
pub struct Coding {
    data: Vec<Shard>,
    /// A job for each chunk.
    parity: Vec<Awaited<JobResult>>,
}

impl Coding {
    /// All shards: those of data, then those of parity.
    pub async fn finish(self) -> Vec<Shard> {
        let mut chunks = Vec::with_capacity(self.parity.len());
        for chunk in self.parity {
            chunks.push(finish_encoding(chunk).await);
        }
        let mut shards = self.data;
        shards.extend(join_chunks(chunks));
        shards
    }
}

/// The shards that consist of these chunks. Each item has the same chunk of all of the shards.
pub fn join_chunks(mut chunks: Vec<Vec<Shard>>) -> Vec<Shard> {
    if chunks.len() == 1 {
        return chunks.remove(0);
    }
    let shards = 0..chunks.first().map_or(0, Vec::len);
    let shard = |shard: usize| {
        let parts: Vec<Bytes> = chunks.iter().map(|chunk| chunk[shard].data.clone()).collect();
        let checksums = chunks.iter().flat_map(|chunk| chunk[shard].checksums.iter().copied());
        Shard { data: join(&parts), checksums: checksums.collect() }
    };
    shards.map(shard).collect()
}

/// The parity shards of [`VolumeCore::start_encoding`].
pub async fn finish_encoding(parity: Awaited<JobResult>) -> Vec<Shard> {
    let output = parity.await.expect("the shape of a segment fits its code");
    output.into_shards().expect("a code job gives shards")
}

/// Lays blocks out on data shards.
pub struct ShardBuilder {
    layout: crate::layout::Layout,
    buffers: Vec<AlignedBuf>,
    /// The length of each buffer that is laid out. Bytes after that are stale.
    ends: Vec<usize>,
    checksums: Vec<Vec<u32>>,
}

impl ShardBuilder {
    /// Data shards of `shard_blocks` zero blocks each.
    #[must_use]
    pub fn new(layout: crate::layout::Layout, shard_blocks: u32) -> Self {
        let bytes = shard_blocks as usize * BLOCK_BYTES;
        let zero = fieldstone_proto::crc32c(&[0; BLOCK_BYTES]);
        Self {
            layout,
            buffers: (0..layout.k).map(|_| AlignedBuf::stale(bytes)).collect(),
            ends: vec![0; layout.k as usize],
            checksums: (0..layout.k).map(|_| vec![zero; shard_blocks as usize]).collect(),
        }
    }

    /// Places blocks from segment block `first` on.
    pub fn put(&mut self, first: u32, data: &[u8], checksums: &[u32]) {
        let count = u32::try_from(data.len() / BLOCK_BYTES).expect("a segment is small");
        let mut at = 0;
        for range in self.layout.ranges(first, count) {
            let (shard, blocks) = (range.shard as usize, range.count as usize);
            let to = range.offset_bytes as usize;
            let bytes = blocks * BLOCK_BYTES;
            let from = at * BLOCK_BYTES;
            self.extend(shard, to);
            self.buffers[shard][to..to + bytes].copy_from_slice(&data[from..from + bytes]);
            self.ends[shard] = self.ends[shard].max(to + bytes);
            let block = to / BLOCK_BYTES;
            self.checksums[shard][block..block + blocks]
                .copy_from_slice(&checksums[at..at + blocks]);
            at += blocks;
        }
    }

    /// Zeroes the bytes between the laid-out end of a shard and `to`.
    fn extend(&mut self, shard: usize, to: usize) {
        if let Some(gap) = self.buffers[shard].get_mut(self.ends[shard]..to) {
            gap.fill(0);
        }
    }

    fn finish(mut self) -> Vec<Shard> {
        for shard in 0..self.buffers.len() {
            self.extend(shard, self.buffers[shard].len());
        }
        self.buffers
            .into_iter()
            .zip(self.checksums)
            .map(|(buffer, checksums)| Shard { data: buffer.freeze(), checksums })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::ReplyBody;

    use crate::node::{Node, Shortage};
    use crate::script::{Script, stat};

    /// A segment is as wide as the nodes that are up allow, although the code needs fewer shards.
    #[test]
    fn a_segment_is_narrow_if_fewer_nodes_are_lost_than_shards() {
        let mut script = Script::serving(8);
        let whole = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
        let five = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let four = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        let narrow = |script: &mut Script, refusing: &[u16]| {
            let refusing: Vec<NodeIndex> = refusing.iter().copied().map(NodeIndex).collect();
            script.core(|core| [whole, five, four].map(|handle| core.is_narrow(handle, &refusing)))
        };
        assert_eq!(narrow(&mut script, &[]), [false, true, true], "all nodes are up");
        assert_eq!(narrow(&mut script, &[6]), [false, false, true], "one refused");
        assert_eq!(narrow(&mut script, &[6, 7]), [false, false, false]);
        script.core(|core| core.node_mut(NodeIndex(7)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, false, true], "one is lost");
        assert_eq!(narrow(&mut script, &[7]), [false, false, true], "it counts once");
        script.core(|core| core.node_mut(NodeIndex(6)).slots.shortage = Shortage::DiskFull);
        assert_eq!(narrow(&mut script, &[]), [false, false, false], "a full disk is like a loss");
        script.core(|core| core.node_mut(NodeIndex(7)).health = NodeHealth::Up);
        script.core(|core| core.node_mut(NodeIndex(0)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, false, true], "its shard counts no more");
        script.core(|core| core.node_mut(NodeIndex(1)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, true, true], "no more than m are lost");
    }

    /// Seals a segment on six nodes that have no room for 5 s. Then `roomy` of them have room for
    /// `wait_ms`. Returns the number of shards that are written, if sealing has ended.
    fn sealed_on(roomy: u16, wait_ms: u64) -> Option<usize> {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[None; 6]);
        let ended = std::rc::Rc::new(std::cell::Cell::new(false));
        let ends = std::rc::Rc::clone(&ended);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            let full = |node: &mut Node| (node.slots.full, node.slots.reserved) = (true, 0);
            core.nodes.iter_mut().for_each(full);
        });
        script.start(move |ctx| async move {
            let data = Bytes::from(vec![0; BLOCK_BYTES]);
            let shard = Shard { checksums: crc32c_blocks(&data), data };
            let meta = SealMeta { shard_bytes: BLOCK_BYTES as u32, ..SealMeta::default() };
            ends.set(store(&ctx, handle, &vec![shard; 6], meta).await);
        });
        let mut run = |roomy: u16, run_ms: u64| {
            for _ in 0..run_ms / RETRY_MS {
                for sent in script.sent() {
                    let room = if sent.node.0 < roomy { 9 } else { 0 };
                    let reply = match sent.request.body {
                        RequestBody::Stat => ReplyBody::Stat(stat(sent.node)),
                        _ => ReplyBody::Done,
                    };
                    script.answer_with_room(&sent, Ok(reply), room);
                }
                script.wait_ms(RETRY_MS);
            }
        };
        run(0, 5_000);
        run(roomy, wait_ms);
        let missing = script.core(|core| core.segments.get(handle).map(Segment::missing));
        ended.get().then(|| 6 - missing.expect("it was added"))
    }

    /// However long the wait is, the volume relies on no segment that a permitted loss may take.
    #[test]
    fn a_segment_waits_for_room_on_every_node_that_is_up() {
        assert_eq!(sealed_on(6, 1_000), Some(6));
        assert_eq!(sealed_on(5, 60_000), None);
        assert_eq!(sealed_on(3, 60_000), None, "too few to read it");
    }

    /// A node could not delete one of two shards of a segment alone.
    #[test]
    fn no_node_gets_a_second_shard_of_a_segment() {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            let nodes = |core: &mut VolumeCore| -> Vec<u16> {
                let mut nodes: Vec<u16> =
                    core.place_missing(handle, 0).iter().map(|(_, node)| node.0).collect();
                nodes.sort_unstable();
                nodes
            };
            assert_eq!(nodes(core), [4, 5]);
            // Rebuild's write of a shard is under way there.
            let id = core.segments.get(handle).expect("it was added").id;
            core.node_mut(NodeIndex(4)).slots.claimed.insert(id, 1);
            assert_eq!(nodes(core), [5]);
            // The node came back with a shard that an opening may need.
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.left_on.push(NodeIndex(5));
            assert!(nodes(core).is_empty());
            let session = core.node(NodeIndex(3)).link.session;
            core.shard_written(handle, 5, (NodeIndex(3), session), Ok(()));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], None, "the node has another shard already");
        });
    }

    /// An answer of an earlier session says nothing about the node that is there now.
    #[test]
    fn an_answer_of_an_earlier_session_changes_no_shard() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let node = NodeIndex(5);
        let session = script.core(|core| core.node(node).link.session);
        script.reconnect(node);
        script.core(|core| {
            core.shard_written(handle, 5, (node, session), Ok(()));
            core.shard_written(handle, 5, (node, session), Err(NodeError::NoSpace));
            let broken = NodeError::Io("an error of the node that was there".into());
            core.shard_written(handle, 5, (node, session), Err(broken));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], None);
            assert!(core.node(node).link.connected && !core.node(node).slots.full);
            let session = core.node(node).link.session;
            core.shard_written(handle, 5, (node, session), Ok(()));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], Some(node));
        });
    }
}
