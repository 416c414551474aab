//! The log: how changes become records of the journal and blocks of the open segment.
//!
//! Changes queue up while the volume handles events; [`Core::pump_log`] then packs as many as fit
//! into one record, updates the map, appends the blocks to the open segment in memory and sends the
//! record to all journal nodes. A change is acknowledged when every journal node has its record
//! *and all records before it*, because recovery replays a prefix of the log: an acknowledged
//! record behind a hole would be lost.
//!
//! Bounds: [`BATCHES_MAX`] records in flight; the ring bounds what is unsealed, and so the memory
//! that this module holds; when the ring fills up, segments are closed, sealed and synced, and the
//! queue waits meanwhile (backpressure towards the front-end).

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_block::{BlockError, Completion, Nanos, Payload, Request, Stage};
use fieldstone_proto::{
    BLOCK_BYTES, JournalGen, Lsn, NodeError, NodeIndex, RequestBody, SegmentKind, crc32c_blocks,
};
use slab::Slab;
use smallvec::SmallVec;

use crate::core::{CallResult, Core, Waiter};
use crate::exec::Filler;
use crate::footer::footer_blocks;
use crate::map::Location;
use crate::record::{
    Entry, EntryKind, HEADER_BYTES, Header, RECORD_BLOCKS_MAX, RECORD_ENTRIES_MAX,
};
use crate::rows::Shape;
use crate::segment::{Contents, Handle, Segment, State, segment_id};
use crate::status::Phase;

/// Most records in flight to the journal nodes.
const BATCHES_MAX: usize = 16;

/// Who wants a change.
pub enum Origin {
    /// A user's request, answered with a completion.
    User(Box<Request>),
    /// The volume itself: collection, replay.
    Internal(Filler<Result<(), BlockError>>),
}

/// A change that waits to be appended.
pub struct Mutation {
    /// Key of its [`Pending`].
    pending: usize,
    kind: EntryKind,
    block: u64,
    count: u32,
    data: Bytes,
    /// Collection: only blocks that still lie here (consecutively) are moved.
    from: Option<Location>,
    /// It was large when it came: what is left of it may go into rows.
    large: bool,
}

/// A request of which some part is not yet acknowledged.
struct Pending {
    origin: Origin,
    /// Mutations not yet appended completely, plus records not yet acknowledged.
    parts: u32,
    fua: bool,
    /// End of the last record with a part of it.
    end: Lsn,
    error: Option<BlockError>,
}

struct Batch {
    sequence: u64,
    end: Lsn,
    /// Journal nodes that have not answered.
    waiting: SmallVec<[NodeIndex; 4]>,
    /// Writes of its rows that have not been answered.
    rows: u32,
    parts: Vec<usize>,
}

impl Batch {
    fn is_stored(&self) -> bool {
        self.waiting.is_empty() && self.rows == 0
    }
}

/// A record that may still be needed: to send it again when the journal moves.
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
    /// Where the next record goes (or the turn of the ring after it).
    pub next: Lsn,
    /// Everything before is stored in durable segments.
    pub trimmed: Lsn,
    /// Everything before is on all journal nodes.
    pub acked: Lsn,
    /// Everything before is stable.
    pub synced: Lsn,
    /// The journal has to move to other nodes; nothing is appended meanwhile.
    pub moving: bool,
    /// A node of the journal was lost while it was being moved.
    pub moving_again: bool,
    /// A task is moving it.
    pub mover_running: bool,
    /// The segment that takes blocks.
    pub open: Option<Handle>,
    /// Records from `trimmed` on.
    pub records: VecDeque<KeptRecord>,
    /// Changes by users.
    queue: VecDeque<Mutation>,
    /// Changes by the volume itself: they go first and may use the reserve.
    internal: VecDeque<Mutation>,
    batches: VecDeque<Batch>,
    batches_made: u64,
    pending: Slab<Pending>,
    /// Who waits for the log to be stable up to a position.
    syncs: Vec<(Lsn, usize)>,
    /// A task is syncing the journal.
    pub journal_sync_running: bool,
    /// Since when a user's change has been waiting for space.
    starved_since: Option<Nanos>,
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
            moving: false,
            moving_again: false,
            mover_running: false,
            open: None,
            records: VecDeque::new(),
            queue: VecDeque::new(),
            internal: VecDeque::new(),
            batches: VecDeque::new(),
            batches_made: 0,
            pending: Slab::new(),
            syncs: Vec::new(),
            journal_sync_running: false,
            starved_since: None,
        }
    }

    /// Starts an empty log at `lsn`.
    pub fn start_at(&mut self, generation: JournalGen, nodes: Vec<NodeIndex>, lsn: Lsn) {
        self.generation = generation;
        self.nodes = nodes;
        self.next = lsn;
        self.trimmed = lsn;
        self.acked = lsn;
        self.synced = lsn;
    }

    /// Most payload blocks of a record: small rings take small records, so that several fit.
    pub fn record_blocks(&self) -> u32 {
        let eighth = self.ring_bytes / 8 / BLOCK_BYTES as u64;
        u32::try_from(eighth.saturating_sub(1)).unwrap_or(u32::MAX).clamp(1, RECORD_BLOCKS_MAX)
    }

    /// Bytes of the ring that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.next.0 - self.trimmed.0
    }

    /// Nothing but large writes waits.
    #[must_use]
    pub fn only_large_waits(&self) -> bool {
        self.queue.iter().all(|mutation| mutation.large)
    }

    /// Records are on their way.
    #[must_use]
    pub fn records_in_flight(&self) -> bool {
        !self.batches.is_empty()
    }

    /// The batch with this number, unless it was acknowledged.
    fn batch_mut(&mut self, sequence: u64) -> Option<&mut Batch> {
        let index = sequence.checked_sub(self.batches.front()?.sequence)?;
        self.batches.get_mut(usize::try_from(index).ok()?)
    }

    /// Blocks of large writes at the front of the users' queue; counting ends above `enough`.
    fn large_queued(&self, enough: u32) -> u32 {
        let mut blocks = 0u32;
        for mutation in self.queue.iter().take_while(|mutation| mutation.large) {
            blocks = blocks.saturating_add(mutation.count);
            if blocks > enough {
                break;
            }
        }
        blocks
    }

    /// Nothing waits, nothing is in flight.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.queue.is_empty()
            && self.internal.is_empty()
            && self.batches.is_empty()
            && self.pending.is_empty()
    }
}

impl Core {
    /// Takes a user's write, trim or write-zeroes, block-aligned and in range.
    pub fn queue_user(&mut self, request: Request, kind: EntryKind) {
        let block = request.offset_bytes / BLOCK_BYTES as u64;
        let count = request.len_bytes / BLOCK_BYTES as u32;
        let (data, fua) = (request.data.clone(), request.flags.fua);
        let origin = Origin::User(Box::new(request));
        let pending =
            self.log.pending.insert(Pending { origin, parts: 1, fua, end: Lsn(0), error: None });
        let large = kind == EntryKind::Data && self.is_large(count);
        self.log.queue.push_back(Mutation { pending, kind, block, count, data, from: None, large });
    }

    /// Takes a change by the volume itself.
    pub fn queue_internal(
        &mut self,
        entry: Entry,
        data: Bytes,
        from: Option<Location>,
        done: Filler<Result<(), BlockError>>,
    ) {
        let origin = Origin::Internal(done);
        let pending = self.log.pending.insert(Pending {
            origin,
            parts: 1,
            fua: false,
            end: Lsn(0),
            error: None,
        });
        let Entry { kind, block, count, .. } = entry;
        let large = false;
        self.log.internal.push_back(Mutation { pending, kind, block, count, data, from, large });
    }

    /// A user's flush: covers everything acknowledged by now.
    pub fn queue_flush(&mut self, request: Request) {
        let pending = self.log.pending.insert(Pending {
            origin: Origin::User(Box::new(request)),
            parts: 0,
            fua: true,
            end: self.log.acked,
            error: None,
        });
        self.await_sync(pending);
    }

    fn await_sync(&mut self, pending: usize) {
        let end = self.log.pending[pending].end;
        if end <= self.log.synced {
            self.finish_pending(pending);
            return;
        }
        self.log.syncs.push((end, pending));
        if !self.log.journal_sync_running {
            self.log.journal_sync_running = true;
            self.spawn_with(crate::journal::sync_journal);
        }
    }

    /// Someone still waits for the journal to be stable.
    pub fn sync_wanted(&self) -> bool {
        !self.log.syncs.is_empty()
    }

    /// The log is stable up to `lsn`: completes those who waited for it.
    pub fn synced_up_to(&mut self, lsn: Lsn) {
        self.log.synced = self.log.synced.max(lsn);
        let synced = self.log.synced;
        let (done, wait) = self.log.syncs.drain(..).partition(|(end, _)| *end <= synced);
        self.log.syncs = wait;
        let done: Vec<(Lsn, usize)> = done;
        for (_, pending) in done {
            self.finish_pending(pending);
        }
    }

    fn finish_pending(&mut self, key: usize) {
        let pending = self.log.pending.remove(key);
        let result = pending.error.map_or(Ok(()), Err);
        match pending.origin {
            Origin::Internal(filler) => filler.fill(result),
            Origin::User(request) => {
                let mut stamps = request.stamps;
                stamps.stamp(Stage::Replied, self.now);
                let result = result.map(|()| Payload::None);
                self.completions.push(Completion { id: request.id, result, stamps });
            }
        }
    }

    fn part_done(&mut self, key: usize) {
        let pending = &mut self.log.pending[key];
        pending.parts -= 1;
        if pending.parts > 0 {
            return;
        }
        if pending.fua && pending.error.is_none() {
            self.await_sync(key);
        } else {
            self.finish_pending(key);
        }
    }

    fn refuse(&mut self, mutation: &Mutation, error: BlockError) {
        self.log.pending[mutation.pending].error.get_or_insert(error);
        self.part_done(mutation.pending);
    }

    /// Fails what users are waiting for: the nodes that are left cannot keep it safe. Records stay,
    /// so what was in flight is indeterminate, not gone.
    pub fn fail_user_changes(&mut self, why: &str) {
        let error = BlockError::Io(why.to_owned());
        for mutation in std::mem::take(&mut self.log.queue) {
            self.refuse(&mutation, error.clone());
        }
        let keys: Vec<usize> = self
            .log
            .pending
            .iter()
            .filter(|(_, p)| matches!(p.origin, Origin::User(_)) && p.error.is_none())
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            // The parts still in flight refer to the entry; only its answer is given early.
            self.answer_early(key, error.clone());
        }
        let syncs = std::mem::take(&mut self.log.syncs);
        for (_, key) in syncs {
            if self.log.pending[key].error.is_some() {
                self.log.pending.remove(key);
            } else {
                self.log.syncs.push((self.log.pending[key].end, key));
            }
        }
    }

    fn answer_early(&mut self, key: usize, error: BlockError) {
        let (nobody, _) = crate::exec::slot();
        let pending = &mut self.log.pending[key];
        pending.error = Some(error.clone());
        let origin = std::mem::replace(&mut pending.origin, Origin::Internal(nobody));
        if let Origin::User(request) = origin {
            let completion =
                Completion { id: request.id, result: Err(error), stamps: request.stamps };
            self.completions.push(completion);
        }
    }

    /// The volume has failed or closed: everything that waits is answered with an error.
    pub fn fail_everything(&mut self) {
        let why = match &self.phase {
            Phase::Failed(why) => why.clone(),
            _ => "the volume is closed".into(),
        };
        self.fail_user_changes(&why);
        for mutation in std::mem::take(&mut self.log.internal) {
            self.refuse(&mutation, BlockError::Io(why.clone()));
        }
        self.fail_reads(&why);
    }

    /// Appends what waits, as far as bounds allow. Returns whether anything was appended.
    pub fn pump_log(&mut self) -> bool {
        let mut any = false;
        loop {
            if matches!(self.phase, Phase::Failed(_) | Phase::Closed) || self.log.nodes.is_empty() {
                break;
            }
            if self.log.moving {
                self.start_mover();
                break;
            }
            if self.log.batches.len() >= BATCHES_MAX {
                break;
            }
            if self.log.queue.is_empty() && self.log.internal.is_empty() {
                break;
            }
            if !self.ring_has_room() || !self.append_one() {
                break;
            }
            any = true;
        }
        self.relieve_ring();
        any
    }

    fn ring_has_room(&self) -> bool {
        // A record may have to skip to the next turn: at most a record's length is lost then.
        let record = HEADER_BYTES as u64 + u64::from(self.log.record_blocks()) * BLOCK_BYTES as u64;
        self.log.used_bytes() + 2 * record <= self.log.ring_bytes
    }

    /// Keeps the ring from filling up: closes the open segment when it alone fills half, and has
    /// closed segments made durable so that their records can go.
    fn relieve_ring(&mut self) {
        if self.log.used_bytes() * 2 <= self.log.ring_bytes || self.phase == Phase::Opening {
            return;
        }
        if let Some(open) = self.log.open {
            let first = self.segments.get(open).map_or(self.log.next, |s| s.lsn_first);
            // Below a half it is the closed segments' records that fill the ring, and they go when
            // those are durable. Closing this one as well would spend a slot on every node for the
            // few records in it, with each further record again.
            if (self.log.next.0 - first.0) * 2 > self.log.ring_bytes {
                self.close_open_segment();
            }
        }
        self.start_sync();
    }

    /// Starts making sealed segments durable, if that is not under way.
    pub fn start_sync(&mut self) {
        if !self.sync_running {
            self.sync_running = true;
            self.spawn_with(crate::seal::sync_segments_task);
        }
    }

    fn open_segment(&mut self) -> Handle {
        if let Some(open) = self.log.open {
            return open;
        }
        self.segments_made += 1;
        let handle = self.segments.insert(Segment {
            id: segment_id(self.epoch, self.segments_made),
            kind: SegmentKind::Data,
            state: State::Open,
            lsn_first: self.log.next,
            lsn_end: self.log.next,
            shard_bytes: 0,
            shards: SmallVec::from_elem(None, self.layout.width()),
            live_blocks: 0,
            contents: Some(Contents::default()),
            rows: None,
            detached: false,
        });
        self.log.open = Some(handle);
        handle
    }

    /// Ends the open segment, if any, and starts sealing it.
    pub fn close_open_segment(&mut self) {
        let Some(handle) = self.log.open.take() else { return };
        let layout = self.layout;
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        if contents.entries.is_empty() {
            // There is nothing to store. Sealing it would take slots for nothing, again and again
            // while the ring is full and users wait for space.
            self.segments.remove(handle);
            return;
        }
        let blocks = contents.blocks() + footer_blocks(contents.entries.len());
        segment.shard_bytes = layout.shard_blocks_for(blocks) * BLOCK_BYTES as u32;
        self.segments.set_state(handle, State::Closed);
        self.segments_since_checkpoint += 1;
        self.spawn_with(move |ctx| crate::seal::seal(ctx, handle));
    }

    /// Blocks that the open segment can still take, if `entries` more entries come along.
    fn segment_room(&self, handle: Handle, entries: usize) -> u32 {
        let segment = self.segments.get(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        let footer = footer_blocks(contents.entries.len() + entries);
        self.layout.segment_blocks().saturating_sub(contents.blocks() + footer)
    }

    /// Builds and sends one record. Returns false if nothing could be taken.
    fn append_one(&mut self) -> bool {
        let handle = self.open_segment();
        let queued = match self.log.internal.is_empty() {
            true => self.log.large_queued(2 * self.log.record_blocks()),
            false => 0,
        };
        let room = self.segment_room(handle, RECORD_ENTRIES_MAX);
        let (room, detached) = match self.record_shape(handle, queued, room) {
            Shape::Whole(room) => (room, false),
            Shape::Detached(room) => (room, true),
            Shape::Hold => return false,
            Shape::Close => {
                self.close_open_segment();
                return true;
            }
        };
        let mut record = RecordBuilder {
            handle,
            entries: Vec::new(),
            payload: Vec::new(),
            blocks: 0,
            room,
            detached,
            parts: Vec::new(),
        };
        // Looked at once a record: its few blocks fit into what the reserve leaves.
        let mut space = UserSpace {
            blocks: self.space_for_user(),
            starved: self.starved(),
            lent: self.room_is_lent(),
        };
        while record.room > 0 && record.entries.len() < RECORD_ENTRIES_MAX {
            let internal = !self.log.internal.is_empty();
            let queue = if internal { &mut self.log.internal } else { &mut self.log.queue };
            let Some(mut mutation) = queue.pop_front() else { break };
            let room = self.segment_room(handle, RECORD_ENTRIES_MAX);
            if room == 0 {
                self.requeue(mutation, internal);
                break;
            }
            let admission = match internal {
                true => Admission::Take,
                false => self.admit(&mutation, &mut space),
            };
            match admission {
                Admission::Refuse(error) => {
                    self.refuse(&mutation, error);
                    continue;
                }
                Admission::Wait => {
                    self.requeue(mutation, internal);
                    break;
                }
                Admission::Take => {}
            }
            self.take_part(&mut record, &mut mutation, room);
            if mutation.count > 0 {
                self.requeue(mutation, internal);
            } else {
                self.part_done(mutation.pending);
            }
        }
        if record.entries.is_empty() {
            let full = self.segment_room(handle, RECORD_ENTRIES_MAX) == 0;
            if full {
                self.close_open_segment();
            }
            return full;
        }
        self.send_record(record);
        true
    }

    fn requeue(&mut self, mutation: Mutation, internal: bool) {
        let queue = if internal { &mut self.log.internal } else { &mut self.log.queue };
        queue.push_front(mutation);
    }

    /// Whether a user's change may be appended now.
    fn admit(&mut self, mutation: &Mutation, space: &mut UserSpace) -> Admission {
        if mutation.kind == EntryKind::Trim {
            return Admission::Take;
        }
        let end = mutation.block + u64::from(mutation.count);
        let taken = self.map.holes_in(mutation.block..end);
        if taken > space.blocks {
            return Admission::Refuse(BlockError::NoSpace);
        }
        space.blocks -= taken;
        if mutation.kind == EntryKind::Data && space.lent {
            self.start_sync();
            return Admission::Wait;
        }
        if mutation.kind == EntryKind::Data && space.starved {
            if self.gc_stuck {
                return Admission::Refuse(BlockError::NoSpace);
            }
            self.log.starved_since.get_or_insert(self.now);
            self.start_gc();
            return Admission::Wait;
        }
        if let Some(since) = self.log.starved_since.take() {
            let pause = self.now.since(since).0;
            self.counters.gc_pause_max_ns = self.counters.gc_pause_max_ns.max(pause);
        }
        Admission::Take
    }

    /// Moves as much of `mutation` into the record as fits.
    fn take_part(&mut self, record: &mut RecordBuilder, mutation: &mut Mutation, room: u32) {
        let first_entry = record.entries.len();
        match mutation.kind {
            EntryKind::Data => {
                let count = mutation.count.min(record.room).min(room);
                let bytes = count as usize * BLOCK_BYTES;
                let data = mutation.data.slice(..bytes);
                match mutation.from {
                    None => self.take_blocks(record, mutation.block, count, data),
                    Some(from) => self.take_moved(record, mutation.block, count, &data, from),
                }
                if matches!(self.log.pending[mutation.pending].origin, Origin::User(_)) {
                    self.counters.user_written_bytes += bytes as u64;
                }
                mutation.data = mutation.data.slice(bytes..);
                mutation.from = mutation.from.map(|from| from.plus(count));
                mutation.block += u64::from(count);
                mutation.count -= count;
            }
            EntryKind::Trim | EntryKind::Reserve => {
                let range = mutation.block..mutation.block + u64::from(mutation.count);
                let to = match mutation.kind {
                    EntryKind::Reserve => Location::RESERVED,
                    _ => Location::HOLE,
                };
                self.clear_map(range, to);
                record.entries.push(Entry {
                    kind: mutation.kind,
                    block: mutation.block,
                    count: mutation.count,
                    segment_block: 0,
                });
                self.note_entry(record.handle, *record.entries.last().expect("just pushed"));
                mutation.count = 0;
            }
        }
        if record.entries.len() > first_entry {
            let pending = &mut self.log.pending[mutation.pending];
            pending.parts += 1;
            record.parts.push(mutation.pending);
        }
    }

    /// Blocks that collection moves: those that were overwritten meanwhile stay behind.
    fn take_moved(
        &mut self,
        record: &mut RecordBuilder,
        block: u64,
        count: u32,
        data: &Bytes,
        from: Location,
    ) {
        let mut at = 0;
        while at < count {
            let still = |i: u32| self.map.get(block + u64::from(i)) == from.plus(i);
            if !still(at) {
                at += 1;
                continue;
            }
            let mut run = 1;
            while at + run < count && still(at + run) {
                run += 1;
            }
            let slice = data.slice(at as usize * BLOCK_BYTES..(at + run) as usize * BLOCK_BYTES);
            if record.entries.len() >= RECORD_ENTRIES_MAX {
                // Cannot happen with one entry per two blocks; kept so that a change of the bounds
                // leaves blocks behind rather than overflowing the header.
                return;
            }
            self.counters.moved_bytes += u64::from(run) * BLOCK_BYTES as u64;
            self.take_blocks(record, block + u64::from(at), run, slice);
            at += run;
        }
    }

    fn take_blocks(&mut self, record: &mut RecordBuilder, block: u64, count: u32, data: Bytes) {
        let segment = self.segments.get_mut(record.handle).expect("the open segment exists");
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        let segment_block = contents.blocks();
        contents.push(data.clone());
        segment.live_blocks += count;
        for i in 0..count {
            let location = Location::at(record.handle, segment_block + i);
            let before = self.map.set(block + u64::from(i), location);
            self.forget(before);
        }
        let entry = Entry { kind: EntryKind::Data, block, count, segment_block };
        record.entries.push(entry);
        record.payload.push(data);
        record.blocks += count;
        record.room -= count;
        self.note_entry(record.handle, entry);
    }

    /// Adds an entry to the footer to be, joined with the one before where they are one run.
    fn note_entry(&mut self, handle: Handle, entry: Entry) {
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        if let Some(last) = contents.entries.last_mut()
            && last.kind == EntryKind::Data
            && entry.kind == EntryKind::Data
            && last.block + u64::from(last.count) == entry.block
            && last.segment_block + last.count == entry.segment_block
        {
            last.count += entry.count;
            return;
        }
        contents.entries.push(entry);
    }

    /// A block of the device no longer lies at `location`.
    pub fn forget(&mut self, location: Location) {
        if let Some((handle, _)) = location.stored()
            && let Some(segment) = self.segments.get_mut(handle)
        {
            segment.live_blocks -= 1;
        }
    }

    /// Clears a range of the map.
    pub fn clear_map(&mut self, range: std::ops::Range<u64>, to: Location) {
        self.gc_stuck = false;
        let segments = &mut self.segments;
        self.map.clear(range, to, |gone| {
            if let Some((handle, _)) = gone.stored()
                && let Some(segment) = segments.get_mut(handle)
            {
                segment.live_blocks -= 1;
            }
        });
    }

    fn send_record(&mut self, record: RecordBuilder) {
        let bytes = (HEADER_BYTES + record.blocks as usize * BLOCK_BYTES) as u64;
        let ring = self.log.ring_bytes;
        let previous_end = self.log.next;
        let turn_left = ring - previous_end.0 % ring;
        let lsn = if bytes > turn_left { previous_end.plus(turn_left) } else { previous_end };
        let checksums: Vec<u32> =
            record.payload.iter().flat_map(|data| crc32c_blocks(data)).collect();
        let segment = self.segments.get_mut(record.handle).expect("the open segment exists");
        segment.lsn_end = lsn.plus(bytes);
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        contents.checksums.extend_from_slice(&checksums);
        let segment_block = contents.blocks() - record.blocks;
        // Space may have run out in the middle of a row.
        let row = self.layout.row_blocks();
        let detached = record.detached && record.blocks > 0 && record.blocks.is_multiple_of(row);
        let header = Header {
            volume: self.config.volume,
            epoch: self.epoch,
            generation: self.log.generation,
            lsn,
            previous_end,
            trimmed: self.log.trimmed,
            segment: segment.id,
            segment_block,
            detached,
            entries: record.entries,
            checksums,
        };
        self.log.next = header.end();
        self.log.batches_made += 1;
        let sequence = self.log.batches_made;
        if detached {
            self.segments.set_detached(record.handle, true);
        }
        let rows = match detached {
            true => self.send_rows(record.handle, segment_block, &header.checksums, sequence),
            false => 0,
        };
        self.log.batches.push_back(Batch {
            sequence,
            end: header.end(),
            waiting: SmallVec::from_slice(&self.log.nodes),
            rows,
            parts: record.parts,
        });
        let mut payload = Vec::with_capacity(1 + record.payload.len());
        payload.push(header.encode());
        if !detached {
            payload.extend(record.payload.iter().cloned());
        }
        self.log.records.push_back(KeptRecord { header, payload: record.payload });
        let generation = self.log.generation;
        for node in self.log.nodes.clone() {
            let body = RequestBody::JournalAppend { generation, lsn };
            let waiter = Waiter::Append { generation, batch: sequence };
            self.send(node, body, payload.clone(), waiter);
        }
    }

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
                if !self.log.moving {
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
        if !self.log.moving {
            self.acknowledge();
        }
    }

    /// The journal has to move: a record, or rows that stand for one, may be missing somewhere.
    pub fn journal_broken(&mut self) {
        self.log.moving = true;
        self.log.moving_again = true;
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

    /// Forgets the records that durable segments hold.
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
            // What durable segments hold needs no journal to be stable.
            self.synced_up_to(trimmed);
        }
        while self.log.records.front().is_some_and(|r| r.header.end() <= self.log.trimmed) {
            self.log.records.pop_front();
        }
    }
}

/// What users may still take, as seen at the start of a record.
struct UserSpace {
    blocks: u64,
    starved: bool,
    lent: bool,
}

enum Admission {
    Take,
    Wait,
    Refuse(BlockError),
}

struct RecordBuilder {
    handle: Handle,
    entries: Vec<Entry>,
    payload: Vec<Bytes>,
    blocks: u32,
    room: u32,
    /// It is to be sent as rows, if it comes out as whole rows.
    detached: bool,
    parts: Vec<usize>,
}
