//! The log: how changes become records of the journal and blocks of the open segment.
//!
//! Changes queue up while the volume handles events (`pending`). [`VolumeCore::pump_log`] then
//! packs as many as fit into one record, updates the map, appends the blocks to the open segment in
//! memory, and sends the record to all journal nodes (`append`). The volume acknowledges a change
//! when every journal node has its record *and all records before it*. Recovery replays a prefix of
//! the log: it would lose an acknowledged record after a hole.
//!
//! Bounds: [`BATCHES_MAX`] records are in flight. The ring bounds the unsealed data, and so the
//! memory of this module. When the ring fills up, the volume closes, seals and syncs segments, and
//! meanwhile the queue waits (backpressure towards the front-end).

mod admission;
mod append;
mod journal_move;
mod pending;

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::{BLOCK_BYTES, JournalGen, Lsn, NodeError, NodeIndex, SegmentKind};
use slab::Slab;
use smallvec::SmallVec;

use crate::calls::CallResult;
use crate::core::VolumeCore;
use crate::map::Location;
use crate::one_task::OneTask;
use crate::record::{EntryKind, Header, RECORD_BLOCKS_MAX, RECORD_ENTRIES_MAX};
use crate::segment::{SegmentIndex, State};
pub use journal_move::JournalMove;
use pending::Pending;

/// Most records in flight to the journal nodes.
const BATCHES_MAX: usize = 16;

/// The queue in which a change waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// The volume's own: replay and collection.
    Internal,
    /// Users' trims, which take no room.
    Trims,
    /// Users' other changes.
    Users,
}

/// A change that waits to be appended.
pub struct Mutation {
    /// Key of its [`Pending`].
    pending: usize,
    kind: EntryKind,
    block: u64,
    count: u32,
    data: Bytes,
    /// For collection: the volume moves only blocks that still lie here, consecutively.
    from: Option<Location>,
    /// The change was large when it arrived. The rest of it may go into rows.
    large: bool,
    /// Rises with every change that arrives.
    number: u64,
}

/// A time in which changes found too little room. It ends when a change finds at least `blocks`.
#[derive(Clone, Copy)]
struct Lack {
    since: Nanos,
    /// When a change last found too little room.
    last: Nanos,
    /// Blocks that the smallest of these changes would have taken.
    blocks: u64,
}

struct Batch {
    sequence: u64,
    end: Lsn,
    /// Journal nodes that have not answered.
    waiting: SmallVec<[NodeIndex; 4]>,
    /// Writes of the batch's rows that nodes have not answered.
    rows: u32,
    /// Blocks of the record.
    blocks: u32,
    parts: Vec<usize>,
}

impl Batch {
    fn is_stored(&self) -> bool {
        self.waiting.is_empty() && self.rows == 0
    }
}

/// A record that the volume may still need, to send it again when the journal moves.
pub struct KeptRecord {
    /// Its header.
    pub header: Header,
    /// Its blocks.
    pub payload: Vec<Bytes>,
}

/// The log of a volume.
pub struct Log {
    /// The journal in use.
    pub generation: JournalGen,
    /// The nodes that hold it.
    pub nodes: Vec<NodeIndex>,
    /// Size of its ring.
    pub ring_bytes: u64,
    /// Where the next record goes (or the beginning of the ring after this position).
    pub next: Lsn,
    /// Durable segments hold everything before this position.
    pub trimmed: Lsn,
    /// All journal nodes have everything before this position.
    pub acked: Lsn,
    /// Everything before this position is stable.
    pub synced: Lsn,
    /// Whether the journal stays where it is.
    pub journal_move: JournalMove,
    /// The segment that takes blocks.
    pub open: Option<SegmentIndex>,
    /// Records from `trimmed` on.
    pub records: VecDeque<KeptRecord>,
    /// Changes by users, except trims.
    queue: VecDeque<Mutation>,
    /// Trims by users. They make room, so they overtake changes that wait for room. Concurrent
    /// requests have no order, so a trim may overtake.
    trims: VecDeque<Mutation>,
    /// Number of changes that have arrived so far.
    mutations_made: u64,
    /// Changes found no room, and the volume asked nodes to grant more.
    lack: Option<Lack>,
    /// A timer that soon makes the log try the waiting changes again.
    wake: OneTask,
    /// Since when changes have been waiting for room for a segment.
    held_since: Option<Nanos>,
    /// Since when changes have waited for room while more than `missing_max` nodes are lost or have
    /// no room.
    no_room_since: Option<Nanos>,
    /// Changes by the volume itself. They go first and may use the reserve.
    internal: VecDeque<Mutation>,
    batches: VecDeque<Batch>,
    batches_made: u64,
    pending: Slab<Pending>,
    /// Requests that wait until the log is stable up to a position.
    syncs: Vec<(Lsn, usize)>,
    /// The task that syncs the journal, for as long as requests wait for this.
    pub journal_sync: OneTask,
    /// The task that makes sealed segments durable.
    pub segment_sync: OneTask,
    /// Since when users' changes have been waiting for space, without a trim that frees any.
    pub starved_since: Option<Nanos>,
    /// Since when some user's change has been waiting for space, whatever trims free.
    pub hopeless_since: Option<Nanos>,
    /// When the volume last sealed a segment.
    pub stored_at: Nanos,
    /// When collection last moved blocks.
    pub moved_at: Nanos,
    /// The blocks of a reservation that waits for the room that the checkpoint then takes.
    pub reserving_blocks: u64,
}

impl Log {
    /// An empty log.
    #[must_use]
    pub fn new(ring_bytes: u64) -> Self {
        Self {
            generation: JournalGen(0),
            nodes: Vec::new(),
            ring_bytes,
            next: Lsn(0),
            trimmed: Lsn(0),
            acked: Lsn(0),
            synced: Lsn(0),
            journal_move: JournalMove::default(),
            open: None,
            records: VecDeque::new(),
            queue: VecDeque::new(),
            trims: VecDeque::new(),
            mutations_made: 0,
            lack: None,
            wake: OneTask::default(),
            held_since: None,
            no_room_since: None,
            internal: VecDeque::new(),
            batches: VecDeque::new(),
            batches_made: 0,
            pending: Slab::new(),
            syncs: Vec::new(),
            journal_sync: OneTask::default(),
            segment_sync: OneTask::default(),
            starved_since: None,
            hopeless_since: None,
            stored_at: Nanos(0),
            moved_at: Nanos(0),
            reserving_blocks: 0,
        }
    }

    /// Starts an empty log at `lsn`, with a journal that does not have to move.
    pub fn start_at(&mut self, generation: JournalGen, nodes: Vec<NodeIndex>, lsn: Lsn) {
        self.generation = generation;
        self.nodes = nodes;
        self.next = lsn;
        self.trimmed = lsn;
        self.acked = lsn;
        self.synced = lsn;
        self.journal_move = JournalMove::Settled;
    }

    /// The largest number of payload blocks in a record. A small ring takes small records, so that
    /// several fit.
    pub fn record_blocks(&self) -> u32 {
        let eighth = self.ring_bytes / 8 / BLOCK_BYTES as u64;
        u32::try_from(eighth.saturating_sub(1)).unwrap_or(u32::MAX).clamp(1, RECORD_BLOCKS_MAX)
    }

    /// Bytes of the ring that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.next.0 - self.trimmed.0
    }

    /// Changes by the volume itself wait, and nothing is in flight that could free them.
    #[must_use]
    pub fn replay_is_held(&self) -> bool {
        !self.internal.is_empty() && self.batches.is_empty()
    }

    /// Changes by users wait.
    #[must_use]
    pub fn waits(&self) -> bool {
        !(self.queue.is_empty() && self.trims.is_empty())
    }

    /// Blocks of the next record of an opening, at most `most`.
    fn replay_blocks(&self, most: u32) -> u32 {
        let mut blocks = 0u32;
        for mutation in self.internal.iter().take(RECORD_ENTRIES_MAX) {
            if mutation.kind == EntryKind::Data {
                blocks = blocks.saturating_add(mutation.count);
            }
            if blocks >= most {
                return most;
            }
        }
        blocks
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<Mutation> {
        match line {
            Line::Internal => &mut self.internal,
            Line::Trims => &mut self.trims,
            Line::Users => &mut self.queue,
        }
    }

    /// True if only large writes wait. Then the next record may take all of them.
    #[must_use]
    pub fn only_large_waits(&self) -> bool {
        self.trims.is_empty() && self.queue.iter().all(|mutation| mutation.large)
    }

    /// Number of records on their way.
    #[must_use]
    pub fn records_in_flight(&self) -> usize {
        self.batches.len()
    }

    /// Number of blocks in the records on their way.
    #[must_use]
    pub fn blocks_in_flight(&self) -> u32 {
        self.batches.iter().map(|batch| batch.blocks).sum()
    }

    /// The batch with this number, unless it was acknowledged.
    fn batch_mut(&mut self, sequence: u64) -> Option<&mut Batch> {
        let index = sequence.checked_sub(self.batches.front()?.sequence)?;
        self.batches.get_mut(usize::try_from(index).ok()?)
    }

    /// The batch waits for the answer of this node.
    pub fn awaits(&self, batch: u64, node: NodeIndex) -> bool {
        let first = self.batches.front().map_or(0, |batch| batch.sequence);
        let found = batch.checked_sub(first).and_then(|at| usize::try_from(at).ok());
        let batch = found.and_then(|at| self.batches.get(at));
        batch.is_some_and(|batch| batch.waiting.contains(&node))
    }

    /// The queue with the next change: the volume's own changes first, then users' in their order
    /// of arrival. With `held`, only trims.
    fn next_line(&self, held: bool) -> Option<Line> {
        if held {
            return (!self.trims.is_empty()).then_some(Line::Trims);
        }
        if !self.internal.is_empty() {
            return Some(Line::Internal);
        }
        match (self.trims.front(), self.queue.front()) {
            (Some(trim), Some(change)) if change.number < trim.number => Some(Line::Users),
            (Some(_), _) => Some(Line::Trims),
            (None, change) => change.map(|_| Line::Users),
        }
    }

    /// Blocks of large writes at the front of the users' queue, up to the next trim. Counting stops
    /// above `enough`.
    fn large_queued(&self, enough: u32) -> u32 {
        let trim = self.trims.front().map_or(u64::MAX, |trim| trim.number);
        let mut blocks = 0u32;
        let large = |mutation: &&Mutation| mutation.large && mutation.number < trim;
        for mutation in self.queue.iter().take_while(large) {
            blocks = blocks.saturating_add(mutation.count);
            if blocks > enough {
                break;
            }
        }
        blocks
    }

    /// No change waits, and none is in flight.
    #[must_use]
    pub fn idle(&self) -> bool {
        !self.waits()
            && self.internal.is_empty()
            && self.batches.is_empty()
            && self.pending.is_empty()
    }
}

impl VolumeCore {
    /// A journal node answered an append.
    pub fn append_replied(
        &mut self,
        node: NodeIndex,
        generation: JournalGen,
        batch: u64,
        result: CallResult,
    ) {
        if generation != self.log.generation {
            return;
        }
        match result {
            Ok(_) => {
                let Some(batch) = self.log.batch_mut(batch) else { return };
                batch.waiting.retain(|waiting| *waiting != node);
                if !self.log.journal_move.has_to_move() {
                    self.acknowledge();
                }
            }
            Err(NodeError::Unreachable) => self.journal_broken(),
            Err(error) => {
                self.journal_broken();
                self.give_up_node(node, &format!("journal: {error}"));
            }
        }
    }

    /// A node has the rows of a batch.
    pub fn row_stored(&mut self, batch: u64) {
        let Some(batch) = self.log.batch_mut(batch) else { return };
        batch.rows = batch.rows.saturating_sub(1);
        if !self.log.journal_move.has_to_move() {
            self.acknowledge();
        }
    }

    /// The journal has to move: some node may lack a record, or rows that stand for one.
    pub fn journal_broken(&mut self) {
        self.log.journal_move.request_anew();
    }

    /// Acknowledges the records at the front of the log that all journal nodes have.
    fn acknowledge(&mut self) {
        while self.log.batches.front().is_some_and(Batch::is_stored) {
            let batch = self.log.batches.pop_front().expect("seen above");
            self.log.acked = batch.end;
            for pending in batch.parts {
                let entry = &mut self.log.pending[pending];
                entry.end = entry.end.max(batch.end);
                self.part_done(pending);
            }
        }
    }

    /// The journal has moved, and every record is stable in its new place.
    pub fn acknowledge_all(&mut self) {
        for batch in &mut self.log.batches {
            batch.waiting.clear();
            batch.rows = 0;
        }
        self.acknowledge();
        self.log.acked = self.log.next;
        self.forget_rows();
    }

    /// Forgets the records whose changes durable segments hold.
    pub fn trim_log(&mut self) {
        let undurable = self
            .segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.state < State::Durable)
            .map(|(_, s)| s.lsn_first)
            .min();
        let trimmed = undurable.unwrap_or(self.log.next);
        if trimmed > self.log.trimmed {
            self.log.trimmed = trimmed;
            // A record whose changes are in durable segments counts as stable.
            self.synced_up_to(trimmed);
        }
        while self.log.records.front().is_some_and(|r| r.header.end() <= self.log.trimmed) {
            self.log.records.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutation(number: u64, kind: EntryKind, large: bool) -> Mutation {
        let (block, count) = (0, 1);
        Mutation { pending: 0, kind, block, count, data: Bytes::new(), from: None, large, number }
    }

    #[test]
    fn changes_go_in_the_order_in_which_they_came_unless_they_wait_for_room() {
        let mut log = Log::new(1 << 20);
        assert_eq!(log.next_line(false), None);
        log.trims.push_back(mutation(2, EntryKind::Trim, false));
        log.trims.push_back(mutation(4, EntryKind::Trim, false));
        log.queue.push_back(mutation(1, EntryKind::Data, false));
        log.queue.push_back(mutation(3, EntryKind::Data, false));
        for line in [Line::Users, Line::Trims, Line::Users, Line::Trims] {
            assert_eq!(log.next_line(true), Some(Line::Trims));
            assert_eq!(log.next_line(false), Some(line));
            log.line(line).pop_front();
        }
        log.queue.push_back(mutation(5, EntryKind::Data, false));
        assert_eq!(log.next_line(true), None);
        log.internal.push_back(mutation(6, EntryKind::Data, false));
        assert_eq!(log.next_line(false), Some(Line::Internal));
    }

    #[test]
    fn a_trim_between_large_writes_ends_the_rows() {
        let mut log = Log::new(1 << 20);
        log.queue.extend([1, 2, 4].map(|number| mutation(number, EntryKind::Data, true)));
        assert_eq!(log.large_queued(100), 3);
        log.trims.push_back(mutation(3, EntryKind::Trim, false));
        assert_eq!(log.large_queued(100), 2);
    }
}
