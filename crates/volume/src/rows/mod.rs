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

mod complete;
mod send;

pub use complete::complete_rows;

use bytes::Bytes;
use fieldstone_proto::{JournalGen, NodeIndex, SegmentId, ShardIndex};
use smallvec::SmallVec;

use crate::core::VolumeCore;
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::NodeHealth;

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
    /// Number of records and writes that the write which seals a shard may overtake: records while
    /// the world makes their parity, and writes of rows or of parity that are on a route.
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
        blocks >= LARGE_BLOCKS.min(self.shape.layout().row_blocks())
    }

    /// The form of the next record of the open segment. `queued` blocks of large writes are at the
    /// front of the queue, and the segment has room for `room` blocks.
    pub fn record_form(&mut self, handle: SegmentIndex, queued: u32, room: u32) -> RecordForm {
        let most = self.log.record_blocks();
        let row = self.shape.layout().row_blocks();
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
        let layout = self.shape.layout();
        let in_chunks = layout.chunk_blocks < layout.shard_blocks;
        self.life.takes_requests() && in_chunks
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
        let width = self.shape.layout().width();
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
        let count = self.shape.layout().shard_blocks / self.shape.layout().chunk_blocks;
        let rows =
            Rows { keepers, written: vec![false; count as usize], intact: true, in_coding: 0 };
        if let Some(segment) = self.segments.get_mut(handle) {
            segment.rows = Some(rows);
        }
        true
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
}

/// The part of a record that goes to one shard.
#[derive(Clone, Default)]
pub struct ShardRows {
    /// The bytes, a piece for each row.
    pub data: Vec<Bytes>,
    /// Checksums of the blocks.
    pub checksums: Vec<u32>,
}

impl ShardRows {
    /// Length of the bytes.
    fn len_bytes(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}

pub fn shard_index(shard: usize) -> ShardIndex {
    ShardIndex(u8::try_from(shard).expect("at most 255 shards"))
}

#[cfg(test)]
mod tests;
