//! Rows: large writes go to their shards at once, and not through the journal.
//!
//! A row is one chunk on each data shard and one on each parity shard. The volume stores a write
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
//! for more data only while other records are in flight and only large writes wait. So nothing
//! waits for data that may not come. On the same conditions it holds whole rows back until they
//! fill a record, while at least [`RECORDS_GATHER`] records are in flight, or as many blocks as
//! fill a record. A record of several rows is one longer write on each shard, and one header.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_buf::join;
use fieldstone_proto::{
    BLOCK_BYTES, JournalGen, NodeError, NodeIndex, RequestBody, SealMeta, SegmentId, ShardIndex,
};
use smallvec::SmallVec;

use crate::calls::{CallResult, Waiter};
use crate::coding::{Coding, finish_encoding};
use crate::core::{Ctx, VolumeCore};
use crate::jobs::JobResult;
use crate::relay_copies::{CopiesWaiter, CopiesWrite};
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::{NodeHealth, VolumePhase};
use fieldstone_tasks::Awaited;

/// A write of at least this many blocks may go into rows. If a row is smaller, a write of a row may
/// too.
const LARGE_BLOCKS: u32 = 16;

/// With so many records in flight, the volume gathers rows until they fill a record. So one record
/// is on its way to the disks while another one is being answered.
const RECORDS_GATHER: usize = 2;

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
    /// Records whose rows may be overtaken by the write that seals a shard: while the world makes
    /// their parity, or while they or their parity are on a route.
    in_coding: u32,
}

/// The rows of a record.
#[derive(Clone, Copy)]
pub struct RecordRows {
    /// The journal that the record's header went to.
    pub generation: JournalGen,
    /// The writes count towards this batch of the log.
    pub batch: u64,
    /// The segment.
    pub segment: SegmentId,
    first_row: u32,
}

impl Rows {
    /// The node has rows of the segment, or is about to get some.
    pub fn keeps(&self, node: NodeIndex) -> bool {
        self.keepers.iter().any(|keeper| keeper.node == node)
    }
}

/// The form of the next record.
pub enum RecordForm {
    /// Through the journal, with at most so many blocks.
    Whole(u32),
    /// Rows of so many blocks.
    Detached(u32),
    /// Nothing yet: more data makes a row or a longer record, and other records are in flight.
    Hold,
    /// Rows, at the beginning of the next segment: this one has no room for a row any more. Filling
    /// this segment with a part of a row would shift all rows of the next.
    Close,
}

impl VolumeCore {
    /// True if it pays to put a write of `blocks` blocks into rows.
    pub fn is_large(&self, blocks: u32) -> bool {
        blocks >= LARGE_BLOCKS.min(self.layout.row_blocks())
    }

    /// The form of the next record of the open segment. `queued` blocks of large writes are at the
    /// front of the queue, and the segment has room for `room` blocks.
    pub fn record_form(&mut self, handle: SegmentIndex, queued: u32, room: u32) -> RecordForm {
        let most = self.log.record_blocks();
        let row = self.layout.row_blocks();
        if queued == 0 || row > most || !self.rows_possible() {
            return RecordForm::Whole(most);
        }
        let blocks = self.segments.get(handle).map_or(0, Segment::contents_blocks);
        if queued >= row && room < row && blocks > 0 && self.room_for_rows() {
            return RecordForm::Close;
        }
        let filled = blocks % row;
        let to_boundary = (row - filled) % row;
        let waiting = queued.saturating_sub(to_boundary) / row;
        let fitting = room.saturating_sub(to_boundary) / row;
        let rows = waiting.min(fitting);
        if rows == 0 {
            // The end of a segment that has no room for a row goes through the journal.
            let fits = room >= to_boundary + row;
            return match fits && self.log.records_in_flight() > 0 && self.log.only_large_waits() {
                true => RecordForm::Hold,
                false => RecordForm::Whole(most),
            };
        }
        if to_boundary > 0 {
            return RecordForm::Whole(to_boundary.min(most));
        }
        if !self.rows_ready(handle) {
            return RecordForm::Whole(most);
        }
        let full = most / row;
        if rows < fitting.min(full) && self.gathers_rows(full * row) {
            return RecordForm::Hold;
        }
        RecordForm::Detached((rows * row).min(most / row * row))
    }

    /// Whether the volume holds whole rows back for more rows. A record takes at most `most`
    /// blocks.
    fn gathers_rows(&self, most: u32) -> bool {
        let log = &self.log;
        let busy = log.records_in_flight() >= RECORDS_GATHER || log.blocks_in_flight() >= most;
        busy && log.only_large_waits()
    }

    fn rows_possible(&self) -> bool {
        // A row that is a whole segment would have no room for the segment's footer.
        let layout = &self.layout;
        let in_chunks = layout.chunk_blocks < layout.shard_blocks;
        self.phase == VolumePhase::Serving && in_chunks && !self.closing
    }

    /// Rows borrow room until their segment is durable; see `space`.
    fn room_for_rows(&self) -> bool {
        self.segments_free() > self.marks().reserve + self.segments.row_backed() + 2
    }

    /// Chooses a node for every shard, unless the segment already has them.
    fn rows_ready(&mut self, handle: SegmentIndex) -> bool {
        let Some(segment) = self.segments.get(handle) else { return false };
        if let Some(rows) = &segment.rows {
            let connected = || rows.keepers.iter().all(|keeper| self.is_connected_since(keeper));
            if !rows.intact || rows.written.contains(&true) || connected() {
                return rows.intact;
            }
            // The volume held the rows back, and lost a keeper meanwhile: it chooses anew.
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
            keepers.push(Keeper {
                node: *node,
                session: self.node(*node).link.session,
                lost: false,
            });
        }
        let count = self.layout.shard_blocks / self.layout.chunk_blocks;
        let rows =
            Rows { keepers, written: vec![false; count as usize], intact: true, in_coding: 0 };
        if let Some(segment) = self.segments.get_mut(handle) {
            segment.rows = Some(rows);
        }
        true
    }

    /// Writes whole rows of the open segment, from block `first` on, to the data shards. The nodes
    /// make their parity (`stream`), or the volume starts to code them, and their parity follows
    /// ([`send_parity`]). Returns the number of writes of both kinds, which count towards batch
    /// `batch`.
    pub fn send_rows(
        &mut self,
        handle: SegmentIndex,
        first: u32,
        checksums: &[u32],
        batch: u64,
    ) -> u32 {
        let layout = self.layout;
        let (unit, row) = (layout.unit_blocks as usize, layout.row_blocks() as usize);
        let k = layout.k as usize;
        let segment = self.segments.get(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        let id = segment.id;
        let mut parts_of_shards: Vec<ShardRows> = vec![ShardRows::default(); k];
        let mut inputs_of_rows = Vec::with_capacity(checksums.len() / row);
        for row_at in (0..checksums.len()).step_by(row) {
            let mut inputs = Vec::with_capacity(k);
            for (shard, part) in parts_of_shards.iter_mut().enumerate() {
                let mut parts: SmallVec<[Bytes; 2]> = SmallVec::new();
                for at in (row_at + shard * unit..row_at + row).step_by(k * unit) {
                    let block = first + u32::try_from(at).expect("small");
                    contents.read(block, layout.unit_blocks, |part| parts.push(part));
                    part.checksums.extend_from_slice(&checksums[at..at + unit]);
                }
                let data = join(&parts);
                part.data.push(data.clone());
                inputs.push(data);
            }
            inputs_of_rows.push(inputs);
        }
        let first_row = first / layout.row_blocks();
        let record = RecordRows { generation: self.log.generation, batch, segment: id, first_row };
        let width = u32::try_from(layout.width()).expect("at most 255 shards");
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let rows = segment.rows.as_mut().expect("made before the record");
        let count = checksums.len() / row;
        let is_first = !rows.written.contains(&true);
        rows.written[first_row as usize..first_row as usize + count].fill(true);
        rows.in_coding += 1;
        let keepers = rows.keepers.clone();
        if self.send_rows_along(record, &keepers, &parts_of_shards[0], is_first) {
            return width;
        }
        let nodes: SmallVec<[NodeIndex; 8]> = keepers.iter().map(|keeper| keeper.node).collect();
        if let Some(routes) = self.stream_routes(&nodes) {
            let at = (self.row_offset_bytes(record), is_first);
            self.stream_rows(record, routes, (parts_of_shards, inputs_of_rows), at);
            return width;
        }
        let parity = self.start_parity(inputs_of_rows);
        for (shard, (keeper, part)) in keepers.iter().zip(parts_of_shards).enumerate() {
            self.send_shard_rows(record, shard, keeper.node, part);
        }
        let shards = (k..keepers.len()).collect();
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, shards));
        width
    }

    /// Makes parity for the rows of a record, and sends it to these shards.
    pub fn code_rows(
        &mut self,
        record: RecordRows,
        inputs_of_rows: Vec<Vec<Bytes>>,
        shards: SmallVec<[usize; 4]>,
    ) {
        let parity = self.start_parity(inputs_of_rows);
        self.spawn_with(move |ctx| send_parity(ctx, record, parity, shards));
    }

    /// Starts to make parity for rows; gives a job for each row.
    fn start_parity(&mut self, inputs_of_rows: Vec<Vec<Bytes>>) -> Vec<Awaited<JobResult>> {
        inputs_of_rows.into_iter().map(|inputs| self.start_encoding(inputs)).collect()
    }

    /// Where the rows of a record begin in each shard.
    fn row_offset_bytes(&self, record: RecordRows) -> u32 {
        record.first_row * self.layout.chunk_blocks * BLOCK_BYTES as u32
    }

    /// Sends rows along a route, if the shards are copies and there is a route.
    fn send_rows_along(
        &mut self,
        record: RecordRows,
        keepers: &[Keeper],
        part: &ShardRows,
        first: bool,
    ) -> bool {
        if !self.has_copies() {
            return false;
        }
        let RecordRows { generation, batch, segment, .. } = record;
        let targets = keepers.iter().enumerate();
        let write = CopiesWrite {
            segment,
            targets: targets.map(|(shard, keeper)| (shard, keeper.node, keeper.session)).collect(),
            offset_bytes: self.row_offset_bytes(record),
            checksums: part.checksums.clone(),
            seal: None,
            data: part.data.clone(),
            first,
        };
        self.send_copies(write, CopiesWaiter::Rows { generation, batch })
    }

    /// Rows of the segment are not on a route any more.
    pub fn rows_off_route(&mut self, segment: SegmentId) {
        let Some(handle) = self.segments.find(segment) else { return };
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        if let Some(rows) = rows {
            rows.in_coding = rows.in_coding.saturating_sub(1);
        }
    }

    fn send_shard_rows(
        &mut self,
        record: RecordRows,
        shard: usize,
        node: NodeIndex,
        part: ShardRows,
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let body = RequestBody::ShardWrite {
            segment,
            shard: shard_index(shard),
            offset_bytes: self.row_offset_bytes(record),
            checksums: part.checksums,
            seal: None,
            data_first: false,
        };
        let waiter = Waiter::Row { generation, batch, segment, shard };
        self.send(node, body, part.data, waiter);
    }

    /// The parity of a record's rows is there; it goes to these shards. A keeper that was lost
    /// since the volume wrote the data has lost the other rows as well.
    fn parity_made(
        &mut self,
        record: RecordRows,
        parts_of_shards: Vec<ShardRows>,
        shards: &[usize],
    ) {
        let RecordRows { generation, batch, segment, .. } = record;
        let Some(handle) = self.segments.find(segment) else { return };
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        let Some(rows) = rows else { return };
        rows.in_coding -= 1;
        let keepers = rows.keepers.clone();
        if matches!(self.phase, VolumePhase::Failed(_) | VolumePhase::Closed) {
            return;
        }
        let k = keepers.len() - parts_of_shards.len();
        let parts = (k..).zip(keepers.iter().skip(k).zip(parts_of_shards));
        for (shard, (keeper, part)) in parts.filter(|(shard, _)| shards.contains(shard)) {
            if self.is_connected_since(keeper) {
                self.send_shard_rows(record, shard, keeper.node, part);
            } else {
                let lost = Err(NodeError::Unreachable);
                self.row_replied(keeper.node, generation, batch, (segment, shard), lost);
            }
        }
    }

    /// The connection over which the keeper got its rows is the present one.
    fn is_connected_since(&self, keeper: &Keeper) -> bool {
        let state = self.node(keeper.node);
        state.health == NodeHealth::Up && state.link.session == keeper.session
    }

    /// The world makes parity for rows of the segment that are on their way to the data shards.
    fn rows_in_coding(&self, handle: SegmentIndex) -> bool {
        let rows = self.segments.get(handle).and_then(|segment| segment.rows.as_ref());
        rows.is_some_and(|rows| rows.in_coding > 0)
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
            NodeError::NoSpace => self.node_mut(node).slots.full = true,
            NodeError::Unreachable | NodeError::Busy | NodeError::Fenced { .. } => {}
            error => self.give_up_node(node, &format!("write: {error}")),
        }
    }

    /// The node has blocks that the journal lacks.
    pub fn has_rows(&self, node: NodeIndex) -> bool {
        self.segments.iter().any(|(_, segment)| {
            segment.needs_rows()
                && (segment.has_shard_on(node)
                    || segment.rows.as_ref().is_some_and(|rows| rows.keeps(node)))
        })
    }

    /// The nodes that the volume has to sync for a stable log, in addition to the journal's nodes.
    pub fn row_nodes(&self) -> Vec<NodeIndex> {
        let mut nodes: Vec<NodeIndex> = Vec::new();
        for (_, segment) in self.segments.iter().filter(|(_, s)| s.needs_rows()) {
            let rows = segment.rows.iter().flat_map(|rows| &rows.keepers);
            nodes.extend(rows.map(|keeper| keeper.node));
            nodes.extend(segment.shards.iter().flatten());
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

    /// Starts to code the runs of rows of a closed segment that are not written yet. Gives the
    /// first row of each run. `None` if the segment has no rows on its shards.
    fn code_rest(&mut self, handle: SegmentIndex) -> Option<Vec<(u32, Coding)>> {
        let segment = self.segments.get(handle)?;
        let rows = segment.rows.as_ref()?;
        let chunk = self.layout.chunk_blocks;
        let total = segment.shard_bytes / BLOCK_BYTES as u32 / chunk;
        let mut runs: Vec<Range<u32>> = Vec::new();
        for row in (0..total).filter(|row| !rows.written[*row as usize]) {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        let blocks = |run: &Range<u32>| run.start * chunk..run.end * chunk;
        runs.into_iter()
            .map(|run| Some((run.start, self.code_blocks(handle, blocks(&run))?)))
            .collect()
    }

    /// The shards of the segment that rows were written to, that still exist, and that are not
    /// complete. A segment that is sealed again may have complete ones.
    fn shards_with_rows(&self, handle: SegmentIndex) -> Vec<(usize, NodeIndex, u64)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let keepers = segment.rows.iter().flat_map(|rows| (0usize..).zip(&rows.keepers));
        keepers
            .filter(|(shard, _)| segment.shards[*shard].is_none())
            .filter(|(_, keeper)| self.still_keeps(keeper))
            .map(|(shard, keeper)| (shard, keeper.node, keeper.session))
            .collect()
    }

    /// The shard's keeper did not take some of the shard's rows.
    fn row_lost(&self, handle: SegmentIndex, shard: usize) -> bool {
        let rows = self.segments.get(handle).and_then(|segment| segment.rows.as_ref());
        rows.is_some_and(|rows| rows.keepers[shard].lost)
    }

    fn lose_row(&mut self, handle: SegmentIndex, shard: usize) {
        let rows = self.segments.get_mut(handle).and_then(|segment| segment.rows.as_mut());
        if let Some(rows) = rows {
            rows.keepers[shard].lost = true;
            rows.intact = false;
        }
    }

    fn still_keeps(&self, keeper: &Keeper) -> bool {
        !keeper.lost && self.is_connected_since(keeper)
    }

    /// The node has a slot with rows of the segment for one of its shards.
    pub fn keeps_rows(&self, segment: &Segment, node: NodeIndex) -> bool {
        let keepers = segment.rows.iter().flat_map(|rows| &rows.keepers);
        keepers.filter(|keeper| keeper.node == node).any(|keeper| self.still_keeps(keeper))
    }

    /// The best node for a shard of the segment: the node that already has a slot for the shard.
    pub fn row_node(&self, segment: &Segment, shard: usize) -> Option<NodeIndex> {
        let keeper = segment.rows.as_ref().map(|rows| rows.keepers[shard])?;
        let node = self.node(keeper.node);
        let usable =
            node.health == NodeHealth::Up && (!node.slots.full || self.still_keeps(&keeper));
        (usable && !segment.has_shard_on(keeper.node)).then_some(keeper.node)
    }

    /// Rebuild has ended: drops the rows that the volume could not drop meanwhile.
    pub fn drop_left_rows(&mut self) {
        let holds = |s: &Segment| s.rows.is_some() || !s.left_on.is_empty();
        let left = self.segments.iter().filter(|(_, s)| s.state >= State::Sealed && holds(s));
        let left: Vec<SegmentIndex> = left.map(|(handle, _)| handle).collect();
        for handle in left {
            self.drop_rows(handle);
        }
    }

    /// The segment is sealed: deletes rows on nodes that hold none of its shards. Rows stay while
    /// nothing else of their records may be stable: until the shards are durable, or the journal
    /// has the records whole. If the segment lacks shards, the volume moves the journal for that.
    pub fn drop_rows(&mut self, handle: SegmentIndex) {
        let Some(segment) = self.segments.get_mut(handle) else { return };
        if segment.needs_rows() {
            self.log.moving |= segment.missing() > 0; // a move under way is enough
            return;
        }
        if self.rebuild.is_running() {
            return; // a rebuild may be writing the shard there; it ends with `drop_left_rows`
        }
        let Some(segment) = self.segments.get_mut(handle) else { return };
        let (id, shards) = (segment.id, segment.shards.clone());
        let rows = segment.rows.take();
        let keepers = rows.iter().flat_map(|rows| &rows.keepers).map(|keeper| keeper.node);
        let mut nodes: SmallVec<[NodeIndex; 8]> = keepers.collect();
        nodes.extend(std::mem::take(&mut segment.left_on));
        for node in nodes {
            if shards.contains(&Some(node)) || self.node(node).health != NodeHealth::Up {
                continue; // when this node joins, the volume compares its shards
            }
            self.delete_leftover(node, id);
        }
    }
}

/// The part of a record that goes to one shard.
#[derive(Clone, Default)]
pub struct ShardRows {
    /// The bytes, a piece for each row.
    pub data: Vec<Bytes>,
    /// Checksums of the blocks.
    pub checksums: Vec<u32>,
}

/// Sends the parity of a record's rows to `shards`. `parity` has one job for each row.
async fn send_parity(
    ctx: Ctx,
    record: RecordRows,
    parity: Vec<Awaited<JobResult>>,
    shards: SmallVec<[usize; 4]>,
) {
    let mut parts_of_shards: Vec<ShardRows> = Vec::new();
    for row in parity {
        let shards = finish_encoding(row).await;
        parts_of_shards.resize_with(shards.len(), ShardRows::default);
        for (part, shard) in parts_of_shards.iter_mut().zip(shards) {
            part.checksums.extend(shard.checksums);
            part.data.push(shard.data);
        }
    }
    ctx.with(|core| core.parity_made(record, parts_of_shards, &shards));
}

/// Completes the shards of a closed segment that already have rows.
pub async fn complete_rows(ctx: &Ctx, handle: SegmentIndex, meta: SealMeta) {
    let Some(rest) = ctx.with(|core| core.code_rest(handle)) else { return };
    let mut runs = Vec::with_capacity(rest.len());
    for (first_row, coding) in rest {
        runs.push((first_row, coding.finish().await));
    }
    // The write that seals a shard comes after all other writes to the shard.
    while ctx.with(|core| core.rows_in_coding(handle)) {
        ctx.sleep_ms(1).await;
    }
    let calls: Vec<_> = ctx.with(|core| {
        let over = matches!(core.phase, VolumePhase::Failed(_) | VolumePhase::Closed);
        let segment = core.segments.get(handle).filter(|_| !over);
        let Some(id) = segment.map(|segment| segment.id) else { return Vec::new() };
        let chunk_bytes = core.layout.chunk_blocks * BLOCK_BYTES as u32;
        let last = runs.len().saturating_sub(1);
        let mut calls = Vec::new();
        for (shard, node, session) in core.shards_with_rows(handle) {
            for (at, (first_row, shards)) in runs.iter().enumerate() {
                let body = RequestBody::ShardWrite {
                    segment: id,
                    shard: shard_index(shard),
                    offset_bytes: first_row * chunk_bytes,
                    checksums: shards[shard].checksums.clone(),
                    seal: (at == last).then_some(meta),
                    data_first: false,
                };
                let call = core.call(node, body, vec![shards[shard].data.clone()]);
                calls.push((shard, node, session, at == last, call));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fieldstone_accel::{Job, JobId};
    use fieldstone_block::{Nanos, Op};

    use super::*;
    use crate::interface::VolumeEvent;
    use crate::script::{JOURNAL, Script, Sent};

    /// The data shards and the parity shards among the requests, with their nodes.
    fn shards(sent: &[Sent]) -> (Vec<NodeIndex>, Vec<NodeIndex>) {
        let (mut data, mut parity) = (Vec::new(), Vec::new());
        for sent in sent {
            if let RequestBody::ShardWrite { shard, .. } = sent.request.body {
                if shard.0 < 4 { data.push(sent.node) } else { parity.push(sent.node) }
            }
        }
        (data, parity)
    }

    #[test]
    fn a_write_of_rows_waits_for_its_parity() {
        let mut script = Script::serving(8);
        script.write(0, 16);
        let sent = script.sent();
        let (data, parity) = shards(&sent);
        assert_eq!((data.len(), parity.len()), (4, 0), "the world makes the parity");
        sent.iter().for_each(|sent| script.done(sent));
        assert!(script.sent().is_empty() && script.completions.is_empty());
        script.do_jobs();
        let sent = script.sent();
        let (data, parity) = shards(&sent);
        assert_eq!((data.len(), parity.len()), (0, 2));
        script.done(&sent[0]);
        assert!(script.sent().is_empty() && script.completions.is_empty());
        script.done(&sent[1]);
        script.sent();
        assert!(script.completions.iter().all(|done| done.result.is_ok()));
        assert_eq!(script.completions.len(), 1);
    }

    /// With Zigzag a row has a chunk of each shard, and each row is coded by itself.
    #[test]
    fn rows_of_a_code_with_elements_have_chunks() {
        // Two elements per chunk: chunks of two blocks, rows of four.
        let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 2 * BLOCK_BYTES as u32);
        script.core(|core| {
            assert_eq!((core.code.elements(), core.layout.row_blocks()), (2, 4));
        });
        script.write(0, 16);
        let sent = script.sent();
        let mut shards: Vec<Vec<u8>> = vec![Vec::new(); 4];
        let mut take = |sent: &[Sent]| {
            for sent in sent {
                if let RequestBody::ShardWrite { shard, offset_bytes, .. } = sent.request.body {
                    assert_eq!(offset_bytes, 0);
                    assert!(shards[usize::from(shard.0)].is_empty(), "one write of all rows");
                    shards[usize::from(shard.0)] = sent.request.payload.concat();
                }
            }
        };
        take(&sent);
        sent.iter().for_each(|sent| script.done(sent));
        let codes = |(_, job): &&(JobId, Job)| matches!(job, Job::Code { .. });
        assert_eq!(script.jobs.iter().filter(codes).count(), 4, "one for each row");
        script.do_jobs();
        let parity = script.sent();
        take(&parity);
        settle(&mut script, parity);
        assert_eq!(script.completions.len(), 1);
        assert!(shards.iter().all(|shard| shard.len() == 8 * BLOCK_BYTES));
        let code = script.core(|core| Arc::clone(core.code.encode()));
        for chunk in (0..8 * BLOCK_BYTES).step_by(2 * BLOCK_BYTES) {
            let part = |shard: usize| &shards[shard][chunk..chunk + 2 * BLOCK_BYTES];
            let mut made = vec![vec![0; 2 * BLOCK_BYTES]; 2];
            let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
            code.execute(&[part(0), part(1)], &mut outputs).expect("whole chunks");
            assert!(made[0] == part(2) && made[1] == part(3), "the chunk at {chunk}");
        }
    }

    /// A shard of one chunk has no rows: such a row would be a whole segment.
    #[test]
    fn a_shard_of_one_chunk_gets_no_rows() {
        let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 0);
        script.write(0, 16);
        assert_eq!(row_blocks(&script.sent()), [] as [usize; 0]);
    }

    /// Answers all requests and does all jobs, until the volume sends no more.
    fn settle(script: &mut Script, mut sent: Vec<Sent>) {
        while !sent.is_empty() || !script.jobs.is_empty() {
            sent.iter().for_each(|sent| script.done(sent));
            script.do_jobs();
            sent = script.sent();
        }
    }

    /// Lengths of the writes to data shards, in blocks.
    fn row_blocks(sent: &[Sent]) -> Vec<usize> {
        let blocks = |sent: &Sent| match &sent.request.body {
            RequestBody::ShardWrite { shard, checksums, .. } if shard.0 < 4 => {
                Some(checksums.len())
            }
            _ => None,
        };
        sent.iter().filter_map(blocks).collect()
    }

    /// Two records of one row are in flight.
    fn two_records() -> (Script, Vec<Sent>) {
        let mut script = Script::serving(8);
        script.write(0, 4);
        let mut sent = script.sent();
        script.write(4, 4);
        sent.extend(script.sent());
        (script, sent)
    }

    #[test]
    fn rows_are_gathered_while_two_records_are_in_flight() {
        let (mut script, first) = two_records();
        assert_eq!(row_blocks(&first), [1; 8]);
        script.write(8, 4);
        script.write(12, 4);
        assert!(script.sent().is_empty());
        first.iter().for_each(|sent| script.done(sent));
        script.do_jobs();
        let parity = script.sent();
        parity.iter().for_each(|sent| script.done(sent));
        let gathered = script.sent();
        assert_eq!(row_blocks(&gathered), [2; 4]);
        settle(&mut script, gathered);
        assert_eq!(script.completions.len(), 4);
    }

    #[test]
    fn rows_are_not_held_back_before_a_trim() {
        let (mut script, first) = two_records();
        script.write(8, 4);
        assert!(script.sent().is_empty());
        script.submit(Op::Trim, 20, 4);
        assert_eq!(row_blocks(&script.sent()), [1; 4]);
        settle(&mut script, first);
    }

    #[test]
    fn rows_that_were_held_back_go_to_no_node_that_was_lost_meanwhile() {
        let (mut script, first) = two_records();
        // The next segment gets its keepers while its first row is held back.
        script.core(VolumeCore::close_open_segment);
        script.write(8, 4);
        script.sent();
        let keepers = |core: &mut VolumeCore| -> Vec<NodeIndex> {
            let open = core.log.open.expect("for the row");
            let segment = core.segments.get(open).expect("it is open");
            let rows = segment.rows.iter().flat_map(|rows| &rows.keepers);
            rows.map(|keeper| keeper.node).collect()
        };
        let chosen = script.core(keepers);
        let lost = chosen.into_iter().find(|node| !JOURNAL.contains(node)).expect("six nodes");
        script.volume.handle(VolumeEvent::NodeDown(lost), Nanos(0));
        first.iter().filter(|sent| sent.node != lost).for_each(|sent| script.done(sent));
        script.do_jobs();
        let sent = script.sent();
        assert!(sent.iter().all(|sent| sent.node != lost));
    }

    #[test]
    fn parity_goes_to_no_node_that_was_lost_since_the_data_was_sent() {
        let mut script = Script::serving(8);
        script.write(0, 16);
        let sent = script.sent();
        let keepers: Vec<NodeIndex> = script.core(|core| {
            let (_, segment) = core.segments.iter().next().expect("the open one");
            let rows = segment.rows.as_ref().expect("rows were written");
            rows.keepers.iter().map(|keeper| keeper.node).collect()
        });
        sent.iter().for_each(|sent| script.done(sent));
        let lost = keepers[5];
        script.reconnect(lost);
        // The journal moves, to have the record whole. Until then the write is not safe.
        let creates = |sent: &Sent| matches!(sent.request.body, RequestBody::JournalCreate { .. });
        assert!(script.sent().iter().any(creates));
        script.do_jobs();
        let sent = script.sent();
        assert_eq!(shards(&sent).1, [keepers[4]]);
        sent.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert!(script.completions.is_empty());
    }

    /// A segment that is sealed again has complete shards on some of its keepers. Rows would begin
    /// a second copy there.
    #[test]
    fn complete_shards_get_no_rows_again() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), None, Some(2), Some(7), Some(4), None]);
        let left = script.core(|core| {
            let keeper = |node| Keeper { node: NodeIndex(node), session: 0, lost: false };
            let keepers = (0..6).map(keeper).collect();
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.rows = Some(Rows { keepers, written: vec![true], intact: false, in_coding: 0 });
            core.shards_with_rows(handle)
        });
        assert_eq!(left, [(1, NodeIndex(1), 0), (5, NodeIndex(5), 0)]);
    }

    /// Seed 2817102: the volume deleted rows that a flush had made stable when all shards were
    /// written, but not stable. A power loss took the shards.
    #[test]
    fn rows_stay_until_the_shards_are_durable() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(6), Some(7)]);
        script.core(|core| {
            let keeper = |node| Keeper { node: NodeIndex(node), session: 0, lost: false };
            let keepers = (0..6).map(keeper).collect();
            let segment = core.segments.get_mut(handle).expect("it was added");
            let written = vec![true];
            segment.rows = Some(Rows { keepers, written, intact: false, in_coding: 0 });
            core.segments.set_state(handle, State::Sealed);
            core.segments.set_detached(handle, true);
            core.drop_rows(handle);
        });
        assert!(script.sent().is_empty());
        script.core(|core| {
            core.segments.set_state(handle, State::Durable);
            core.drop_rows(handle);
        });
        let sent = script.sent();
        assert!(sent.iter().all(|s| matches!(s.request.body, RequestBody::ShardDelete { .. })));
        let nodes: Vec<u16> = sent.iter().map(|sent| sent.node.0).collect();
        assert_eq!(nodes, [4, 5], "the others have shards");
    }
}
