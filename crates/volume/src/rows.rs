//! Rows: large writes go to their shards at once, and not through the journal.
//!
//! A row is one unit on each data shard and one on each parity shard. The volume stores a write
//! through the journal m + 1 times in the journal and (k + m) / k times in its segment. It needs to
//! store a write that fills rows only in the segment. So when enough data of large writes waits,
//! the volume codes whole rows of the open segment and writes them to all its shards as they are.
//! The journal gets only the record's header: the record's position in the log, its changes, and
//! the checksums of its blocks. Such a record is *detached*. The volume acknowledges it when every
//! journal node has the header and every shard has the rows, so the record survives the loss of any
//! m nodes like any other.
//!
//! - *Place in the log.* A detached record takes the positions that it would take with its blocks;
//!   the ring keeps the positions of the blocks unwritten. So the volume can send the record again
//!   whole at the same position, and a journal move does that with every record. Whatever goes
//!   wrong with rows, the volume moves the journal. After the move nothing depends on the rows.
//! - *Node.* The shards are open until the segment is sealed. The node notes them, so they outlive
//!   its process and their writer. A sync makes them stable (`node/src/store`).
//! - *Flush.* A sync of the journal also syncs the nodes with rows of segments that are not
//!   durable.
//! - *Sealing* writes the rows that are not on the shards yet, among them those with the footer.
//! - *Opening* reads the blocks of detached records from the shards, checks them against the
//!   header, and decodes missing ones from the other shards (`detached`). If the opening cannot get
//!   a record's blocks, the log ends there: that record was never acknowledged.
//!
//! The volume writes rows only while all nodes that the segment needs are up and there is plenty of
//! room. A degraded or full pool writes through the journal. The volume holds less than a row back
//! for more data only while other records are in flight and no small write waits behind it. So
//! nothing waits for data that may not come.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_accel::Job;
use fieldstone_buf::join;
use fieldstone_proto::{
    BLOCK_BYTES, JournalGen, NodeError, NodeIndex, RequestBody, SealMeta, SegmentId, ShardIndex,
    crc32c_blocks,
};
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::core::{Core, Ctx};
use crate::segment::{Handle, Segment, State};
use crate::status::{NodeHealth, Phase};

/// A write of at least this many blocks may go into rows. If a row is smaller, a write of a row may
/// too.
const LARGE_BLOCKS: u32 = 16;

/// The node that keeps the rows of a shard.
#[derive(Clone, Copy)]
struct Keeper {
    node: NodeIndex,
    /// The connection over which the volume sent the rows. Rows from an earlier connection may be
    /// gone.
    session: u64,
    /// The node did not take some of the rows.
    lost: bool,
}

/// Where the shards of an unsealed segment are that already have rows.
pub struct Rows {
    /// The keeper of each shard.
    keepers: SmallVec<[Keeper; 8]>,
    /// Which rows were written.
    written: Vec<bool>,
    /// No write of rows went wrong: more rows may follow.
    intact: bool,
}

impl Rows {
    fn keeps(&self, node: NodeIndex) -> bool {
        self.keepers.iter().any(|keeper| keeper.node == node)
    }
}

/// The shape of the next record.
pub enum Shape {
    /// Through the journal, with at most so many blocks.
    Whole(u32),
    /// Rows of so many blocks.
    Detached(u32),
    /// Nothing yet: more data makes a row, and other records are in flight.
    Hold,
    /// Rows, at the beginning of the next segment: this one has no room for a row any more. Filling
    /// this segment with a part of a row would shift all rows of the next.
    Close,
}

impl Core {
    /// True if it pays to put a write of `blocks` blocks into rows.
    pub fn is_large(&self, blocks: u32) -> bool {
        blocks >= LARGE_BLOCKS.min(self.layout.row_blocks())
    }

    /// The shape of the next record of the open segment. `queued` blocks of large writes are at the
    /// front of the queue, and the segment has room for `room` blocks.
    pub fn record_shape(&mut self, handle: Handle, queued: u32, room: u32) -> Shape {
        let most = self.log.record_blocks();
        let row = self.layout.row_blocks();
        if queued == 0 || row > most || !self.rows_possible() {
            return Shape::Whole(most);
        }
        let blocks = self.segments.get(handle).map_or(0, Segment::contents_blocks);
        if queued >= row && room < row && blocks > 0 && self.room_for_rows() {
            return Shape::Close;
        }
        let filled = blocks % row;
        let to_boundary = (row - filled) % row;
        let rows = queued.saturating_sub(to_boundary).min(room.saturating_sub(to_boundary)) / row;
        if rows == 0 {
            // The end of a segment that has no room for a row goes through the journal.
            let fits = room >= to_boundary + row;
            return match fits && self.hold_back() {
                true => Shape::Hold,
                false => Shape::Whole(most),
            };
        }
        if to_boundary > 0 {
            return Shape::Whole(to_boundary.min(most));
        }
        if !self.rows_ready(handle) {
            return Shape::Whole(most);
        }
        Shape::Detached((rows * row).min(most / row * row))
    }

    /// Whether the volume holds waiting data of less than a row back for more data.
    fn hold_back(&self) -> bool {
        self.log.records_in_flight() && self.log.only_large_waits()
    }

    fn rows_possible(&self) -> bool {
        self.phase == Phase::Serving && self.code.elements() == 1 && !self.closing
    }

    /// Rows borrow room until their segment is durable; see `space`.
    fn room_for_rows(&self) -> bool {
        self.segments_free() > self.marks().reserve + self.segments.row_backed() + 2
    }

    /// Chooses a node for every shard, unless the segment already has them.
    fn rows_ready(&mut self, handle: Handle) -> bool {
        let Some(segment) = self.segments.get(handle) else { return false };
        if let Some(rows) = &segment.rows {
            return rows.intact;
        }
        if !self.room_for_rows() {
            self.start_sync();
            return false;
        }
        let width = self.layout.width();
        let mut keepers = SmallVec::new();
        let placed = self.place_missing(handle, 0);
        for shard in 0..width {
            let Some((_, node)) = placed.iter().find(|(placed, _)| *placed == shard) else {
                return false;
            };
            keepers.push(Keeper { node: *node, session: self.node(*node).session, lost: false });
        }
        let count = self.layout.shard_blocks / self.layout.unit_blocks;
        let rows = Rows { keepers, written: vec![false; count as usize], intact: true };
        if let Some(segment) = self.segments.get_mut(handle) {
            segment.rows = Some(rows);
        }
        true
    }

    /// Codes whole rows of the open segment, from block `first` on, and writes them to the shards.
    /// Returns the number of writes, which count towards batch `batch`.
    pub fn send_rows(&mut self, handle: Handle, first: u32, checksums: &[u32], batch: u64) -> u32 {
        let layout = self.layout;
        let (unit, row) = (layout.unit_blocks as usize, layout.row_blocks() as usize);
        let k = layout.k as usize;
        let segment = self.segments.get(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        let id = segment.id;
        let mut pieces: Vec<(Vec<Bytes>, Vec<u32>)> = vec![Default::default(); layout.width()];
        for row_at in (0..checksums.len()).step_by(row) {
            let mut inputs = Vec::with_capacity(k);
            for (shard, piece) in pieces.iter_mut().enumerate().take(k) {
                let at = row_at + shard * unit;
                let mut parts: SmallVec<[Bytes; 2]> = SmallVec::new();
                let block = first + u32::try_from(at).expect("small");
                contents.read(block, layout.unit_blocks, |part| parts.push(part));
                let data = join(&parts);
                piece.0.push(data.clone());
                piece.1.extend_from_slice(&checksums[at..at + unit]);
                inputs.push(data);
            }
            let job = Job::Code { map: std::sync::Arc::clone(self.code.encode()), inputs };
            let output = self.engine.run(job).expect("the shape of a row fits its code");
            let parity = output.into_shards().expect("a code job gives shards");
            for (piece, data) in pieces[k..].iter_mut().zip(parity) {
                piece.1.extend(crc32c_blocks(&data));
                piece.0.push(data);
            }
        }
        let first_row = first / layout.row_blocks();
        let generation = self.log.generation;
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let rows = segment.rows.as_mut().expect("made before the record");
        let count = checksums.len() / row;
        rows.written[first_row as usize..first_row as usize + count].fill(true);
        let keepers = rows.keepers.clone();
        for (shard, (keeper, (data, checksums))) in keepers.iter().zip(pieces).enumerate() {
            let body = RequestBody::ShardWrite {
                segment: id,
                shard: shard_index(shard),
                offset_bytes: first_row * layout.unit_blocks * BLOCK_BYTES as u32,
                checksums,
                seal: None,
                data_first: false,
            };
            self.send(
                keeper.node,
                body,
                data,
                Waiter::Row { generation, batch, segment: id, shard },
            );
        }
        u32::try_from(layout.width()).expect("at most 255 shards")
    }

    /// A node answered the write of rows.
    pub fn row_replied(
        &mut self,
        node: NodeIndex,
        generation: JournalGen,
        batch: u64,
        (segment, shard): (SegmentId, usize),
        result: CallResult,
    ) {
        // A moved journal has the record whole.
        let counts = generation == self.log.generation;
        let Err(error) = result else {
            if counts {
                self.row_stored(batch);
            }
            return;
        };
        if let Some(handle) = self.segments.find(segment) {
            self.lose_row(handle, shard);
        }
        if counts {
            self.journal_broken();
        }
        match error {
            NodeError::NoSpace => self.node_mut(node).full = true,
            NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. } => {}
            error => self.give_up_node(node, &format!("write: {error}")),
        }
    }

    /// The node has blocks that the journal lacks.
    pub fn has_rows(&self, node: NodeIndex) -> bool {
        self.segments.iter().any(|(_, segment)| {
            segment.detached
                && segment.state < State::Durable
                && (segment.shards.contains(&Some(node))
                    || segment.rows.as_ref().is_some_and(|rows| rows.keeps(node)))
        })
    }

    /// The nodes that the volume has to sync for a stable log, in addition to the journal's nodes.
    pub fn row_nodes(&self) -> Vec<NodeIndex> {
        let mut nodes: Vec<NodeIndex> = Vec::new();
        for (_, segment) in self.segments.iter().filter(|(_, s)| s.detached) {
            if segment.state < State::Durable {
                let rows = segment.rows.iter().flat_map(|rows| &rows.keepers);
                nodes.extend(rows.map(|keeper| keeper.node));
                nodes.extend(segment.shards.iter().flatten());
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The journal has every record whole. Nothing depends on rows any more.
    pub fn forget_rows(&mut self) {
        for handle in self.segments.handles() {
            let Some(segment) = self.segments.get_mut(handle) else { continue };
            if let Some(rows) = &mut segment.rows {
                rows.intact = false;
            }
            let sealed = segment.state >= State::Sealed;
            self.segments.set_detached(handle, false);
            if sealed {
                self.drop_rows(handle);
            }
        }
    }

    /// The shards of a closed segment that rows were written to and that still exist. Also, for
    /// each run of rows that is not written yet, its first row and its shards.
    fn rest_of_rows(&mut self, handle: Handle) -> Option<RestOfRows> {
        let segment = self.segments.get(handle)?;
        let rows = segment.rows.as_ref()?;
        let there: Vec<(usize, NodeIndex, u64)> = (0..)
            .zip(&rows.keepers)
            .filter(|(_, keeper)| self.still_keeps(keeper))
            .map(|(shard, keeper)| (shard, keeper.node, keeper.session))
            .collect();
        let total = segment.shard_bytes / BLOCK_BYTES as u32 / self.layout.unit_blocks;
        let mut runs: Vec<Range<u32>> = Vec::new();
        for row in (0..total).filter(|row| !rows.written[*row as usize]) {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        let shards = runs
            .into_iter()
            .map(|run| Some((run.start, self.make_shards(handle, run)?)))
            .collect::<Option<_>>()?;
        Some(RestOfRows { there, shards })
    }

    /// The shard's keeper did not take some of the shard's rows.
    fn row_lost(&self, handle: Handle, shard: usize) -> bool {
        let rows = self.segments.get(handle).and_then(|segment| segment.rows.as_ref());
        rows.is_some_and(|rows| rows.keepers[shard].lost)
    }

    fn lose_row(&mut self, handle: Handle, shard: usize) {
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        if let Some(rows) = rows {
            rows.keepers[shard].lost = true;
            rows.intact = false;
        }
    }

    fn still_keeps(&self, keeper: &Keeper) -> bool {
        let state = self.node(keeper.node);
        !keeper.lost && state.health == NodeHealth::Up && state.session == keeper.session
    }

    /// The best node for a shard of the segment: the node that already has a slot for the shard.
    pub fn row_node(&self, segment: &Segment, shard: usize) -> Option<NodeIndex> {
        let keeper = segment.rows.as_ref().map(|rows| rows.keepers[shard])?;
        let node = self.node(keeper.node);
        let usable = node.health == NodeHealth::Up && (!node.full || self.still_keeps(&keeper));
        (usable && !segment.shards.contains(&Some(keeper.node))).then_some(keeper.node)
    }

    /// Rebuild has ended: drops the rows that the volume could not drop meanwhile.
    pub fn drop_left_rows(&mut self) {
        let holds = |s: &Segment| s.rows.is_some() || !s.left_on.is_empty();
        let left = self.segments.iter().filter(|(_, s)| s.state >= State::Sealed && holds(s));
        let left: Vec<Handle> = left.map(|(handle, _)| handle).collect();
        for handle in left {
            self.drop_rows(handle);
        }
    }

    /// The segment is sealed: deletes rows on nodes that hold none of its shards. If the segment
    /// lacks shards, the journal first has to have the segment's records whole again.
    pub fn drop_rows(&mut self, handle: Handle) {
        let Some(segment) = self.segments.get_mut(handle) else { return };
        if segment.detached && segment.missing() > 0 && segment.state < State::Durable {
            self.log.moving = true; // a move under way is enough
            return;
        }
        if self.rebuild_running {
            return; // a rebuild may be writing the shard there; it ends with `drop_left_rows`
        }
        let Some(segment) = self.segments.get_mut(handle) else { return };
        let (id, shards) = (segment.id, segment.shards.clone());
        let rows = segment.rows.take();
        let keepers = rows.iter().flat_map(|rows| &rows.keepers).map(|keeper| keeper.node);
        let mut nodes: SmallVec<[NodeIndex; 8]> = keepers.collect();
        if segment.state == State::Durable || !segment.detached {
            nodes.extend(std::mem::take(&mut segment.left_on));
        }
        for node in nodes {
            if shards.contains(&Some(node)) || self.node(node).health != NodeHealth::Up {
                continue; // when this node joins, the volume compares its shards
            }
            let body = RequestBody::ShardDelete { segments: vec![id] };
            drop(self.call(node, body, Vec::new()));
        }
    }
}

struct RestOfRows {
    there: Vec<(usize, NodeIndex, u64)>,
    shards: Vec<(u32, Vec<crate::seal::Shard>)>,
}

/// Completes the shards of a closed segment that already have rows.
pub async fn complete_rows(ctx: &Ctx, handle: Handle, meta: SealMeta) {
    let Some(rest) = ctx.with(|core| core.rest_of_rows(handle)) else { return };
    let calls: Vec<_> = ctx.with(|core| {
        let Some(id) = core.segments.get(handle).map(|segment| segment.id) else {
            return Vec::new();
        };
        let unit_bytes = core.layout.unit_blocks * BLOCK_BYTES as u32;
        let last = rest.shards.len().saturating_sub(1);
        let mut calls = Vec::new();
        for (shard, node, session) in &rest.there {
            for (at, (first_row, shards)) in rest.shards.iter().enumerate() {
                let body = RequestBody::ShardWrite {
                    segment: id,
                    shard: shard_index(*shard),
                    offset_bytes: first_row * unit_bytes,
                    checksums: shards[*shard].checksums.clone(),
                    seal: (at == last).then_some(meta),
                    data_first: false,
                };
                let call = core.call(*node, body, vec![shards[*shard].data.clone()]);
                calls.push((*shard, *node, *session, at == last, call));
            }
        }
        calls
    });
    for (shard, node, session, seals, call) in calls {
        let result = call.await;
        ctx.with(|core| match result {
            Ok(_) if !seals => {}
            // The shard lacks rows that the node refused. `row_replied` handled that refusal.
            Err(NodeError::Invalid(_)) if core.row_lost(handle, shard) => {}
            result => {
                if result.is_err() {
                    core.lose_row(handle, shard);
                }
                core.shard_written(handle, shard, (node, session), result.map(|_| ()));
            }
        });
    }
}

pub fn shard_index(shard: usize) -> ShardIndex {
    ShardIndex(u8::try_from(shard).expect("at most 255 shards"))
}
