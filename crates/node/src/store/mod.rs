//! The chunk store: shards in slots, safe against a crash at any moment.
//!
//! # Layout
//! The file `data` is an array of slots of `slot_bytes`. A slot holds one shard. The file `slots`
//! is an array of records, one per slot: a header block of 4 KiB
//! ([`fieldstone_proto::disk::SlotHeader`]), and after it a block for the open note (see below). A
//! valid header says: this slot holds this complete shard, and these are the checksums of its
//! blocks. There is no other allocation record. A start finds the free slots by reading `slots`, so
//! allocation and content cannot disagree.
//!
//! # The life of a slot
//! ```text
//!            first write          last write done        header written
//!   Free ---------------> Open ------------------> Sealing -----------> Sealed --+
//!    ^                      | given up                 | given up         |      | rewritten
//!    |                      v                          v          deleted |      v
//!    |                   Leaving <-----------------------------------------  Superseded
//!    |                      | no operation in flight on it any more           (Leaving once the
//!    | slots synced         v                                                 new form is stable)
//!    +---------- Erased <-- Erasing
//! ```
//!
//! # What a power loss may do
//! Writes that completed but were not synced may be there, be missing, or be there in part. This
//! holds for each file and each 512-byte sector on its own. The following still holds:
//!
//! 1. *A shard is listed as complete after a restart only if its header was written, so only if the
//!    writer completed it.* A torn header fails its checksum. Its slot is then open if it has a
//!    note (see below), and free otherwise.
//! 2. *A synced shard is there and right.* The node writes the header after the data writes
//!    completed. A round of [`ChunkStore::sync`] takes the shards whose headers are written, then
//!    syncs `data`, then `slots`. Both syncs begin after the end of the writes that they must
//!    cover.
//! 3. *A shard that was not synced may be listed with missing data*, because the two files become
//!    stable in no particular order. Its blocks then fail the checksums of its own header. The node
//!    reports it as corrupt, and never returns other data for it. Writing the header only after a
//!    sync of `data` closes this gap at the price of a sync per seal. A new segment does not need
//!    that, because the volume keeps the journal until its shards are synced. A rebuilt shard does
//!    need it, because volumes take a listed shard as valid: the writer asks for it (`data_first`).
//! 4. *The node reuses a slot only when its erased header is stable.* Otherwise the erasure could
//!    be lost after the new shard's data reached the disk. Then the old shard would be listed with
//!    another shard's blocks. The checksums would show that, but a shard that looks complete and
//!    has no good block is worse than none. So an erased slot waits for the next sync of `slots`.
//!    Until that sync a deleted shard may come back after a power loss, whole and correct, because
//!    no write has touched its data. The volume knows that the segment is gone, and deletes it
//!    again. For the same reason the node takes no other shard of that segment before that sync
//!    (`departing`).
//! 5. *Rewriting a shard never loses it.* The new copy goes into its own slot, and the old copy
//!    stays until the new one is stable. Meanwhile two headers name the same shard. At start the
//!    one with the higher (epoch, sequence) wins, and the node erases the other. The newer header
//!    must then not be one whose data was lost (point 3), so the node writes the header of a
//!    rewritten shard only after a sync of `data`.
//! 6. *Everything that a node shows after a start is stable.* After a mere process crash the files
//!    show writes that were never synced. The node syncs its files before it is ready. So no volume
//!    relies on a write that a later power loss takes away, and point 5 may erase the older copies.
//!
//! # Acknowledged open shards
//! A shard that arrives in one piece is valid only when it is complete. A shard that is written
//! piece by piece is valid from its first acknowledged piece: its writer has this data in no other
//! place. So the node writes a note ([`fieldstone_proto::disk::OpenNote`], in the block after the
//! header) before it acknowledges the first piece. A sync covers the pieces, and a new writer finds
//! the shard in the list. Only a deletion or a failed sync gives the shard up; a failed write of
//! another piece does not. After a restart the node knows which shard is in the slot, but neither
//! its written blocks nor their checksums. The writer's journal knows both. The node erases header
//! and note together.
//!
//! # When the disk fails
//! A failed write loses the whole shard if no piece of it is acknowledged: its slot becomes free,
//! and the writer writes the shard again, on this node or another. A failed sync may amount to a
//! power loss, so the node treats it like one: the system may have dropped earlier writes, and a
//! later sync would succeed without them. So the node gives up everything that is not known to be
//! stable, and tells the writer. The waiting [`fieldstone_proto::RequestBody::ShardSync`]s fail. If
//! a volume lost a shard that none of these covers, or a deletion that was not stable yet, its next
//! `ShardSync` fails too. A header that cannot be erased keeps its slot out of use; later syncs try
//! the erasure again, and cover it if it succeeds. They do not fail with it, because one unwritable
//! header would then fail every sync. So a power loss may bring its shard back.
//!
//! Such an answer may be lost with its connection, and a connection may break because the node
//! restarted. A writer cannot tell these cases apart. So after a break all acknowledged data that
//! was not yet synced may be lost, and the writer asks for a list of the shards
//! ([`fieldstone_proto::RequestBody::ShardList`]).
//!
//! If only the process dies after a failed sync, the system's memory still shows the dropped writes
//! to the next start. The sync of this start would succeed, and a power loss would take the writes.
//! So the next start rewrites data that may not be stable ([`crate::start::failed_sync`]). It finds
//! this data through `stable_below`, a field of every header and note: complete shards with a lower
//! sequence were stable when the header or note was written. If the node gives a shard up,
//! `stable_below` does not pass the shard's sequence until its header is erased.
//!
//! # Operations on the same blocks
//! The disk completes operations in any order. So two writes to the same blocks, or a write and a
//! read, must not be in flight together. The node parks the second one until the first ends. This
//! happens when a writer repeats a request after it lost its connection.

mod accounting;
mod allotments;
mod departing;
mod found;
mod listing;
mod open;
mod reclaim;
mod seal;
mod slot;

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::disk::SlotHeader;
use fieldstone_proto::{BLOCK_BYTES, Epoch, NodeError, SealMeta, VolumeId};

use allotments::{Allotments, FreeSlots, ReserveResult};
use departing::Departing;
pub(crate) use seal::DataWaiter;
use seal::{Round, Seal, SyncWaiter};
use slot::{Busy, Content, Noted, Slot, SlotState};
pub(crate) use slot::{ShardKey, SlotIndex};

use crate::disk::{DiskOpKind, DiskQueue, SyncGroup};
use crate::interface::{DiskOp, FileId};
use crate::request_table::EntryId;

/// Length of a header block.
pub(crate) const HEADER_BYTES: u32 = BLOCK_BYTES as u32;

/// Length of a slot's record in the slots file: its header and its open note.
pub(crate) const RECORD_BYTES: u32 = 2 * HEADER_BYTES;

/// The copies of one shard.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    sealed: Option<SlotIndex>,
    open: Option<SlotIndex>,
}

/// A waiter for a sync of the slots file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotsWaiter {
    /// The round with this number, if it is still in progress.
    Round(u64),
    /// Erased slots. They become free.
    Reclaim,
    /// An entry.
    Entry(EntryId),
}

/// The slot for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChoice {
    /// Into this slot.
    Slot(SlotIndex),
    /// No slot now. Try again after a change in the store.
    Park,
}

/// The blocks of a slot that an operation touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Blocks {
    /// Converts a block-aligned range within a slot.
    pub(crate) fn new(offset_bytes: u32, len_bytes: u32) -> Self {
        Self { first: offset_bytes / HEADER_BYTES, end: (offset_bytes + len_bytes) / HEADER_BYTES }
    }
}

/// The chunk store.
#[derive(Debug)]
pub(crate) struct ChunkStore {
    slots: Vec<Slot>,
    index: BTreeMap<ShardKey, Copies>,
    /// Free slots. The store takes the last one first.
    free: Vec<SlotIndex>,
    /// How many slots each volume may take.
    allotments: Allotments,
    /// Slots that the disk has room for; `None` until the world reports it.
    room_slots: Option<u32>,
    slot_bytes: u32,
    incarnation: u64,
    next_sequence: u64,
    /// Shards whose headers have a lower sequence are stable, unless the node gave them up since.
    stable_below: u64,
    /// Some data that the start found stays unsynced, so `stable_below` does not rise.
    has_unsynced_data: bool,
    /// The sequences of headers that are being written, and of headers that may be on the disk
    /// although the node gave up their shards after a failed sync.
    headers_unsure: BTreeSet<u64>,
    /// Slots in Leaving, Erasing, Erased and Discarding: on their way to Free.
    leaving: usize,
    /// Slots in Superseded.
    superseded: usize,
    /// Shards that left the index, and that may still come back.
    departing: Departing,
    /// Slots in Erased whose erasure no sync covers yet.
    erased: Vec<SlotIndex>,
    /// Slots in Erased that the sync in flight covers.
    erased_covered: Vec<SlotIndex>,
    /// Slots in EraseFailed.
    erase_failed: Vec<SlotIndex>,
    /// Slots in Erasing whose erasure failed before.
    erasing_again: BTreeSet<SlotIndex>,
    /// Shards sealed since the last round began.
    unstable: Vec<Seal>,
    /// A write to an open shard has ended since the last round began.
    open_unstable: bool,
    /// Shards completed so far.
    seals: u64,
    /// Volumes that lost complete shards to a failed sync and have not got the error yet.
    lost: BTreeMap<VolumeId, NodeError>,
    round: Option<Round>,
    /// Rounds begun so far.
    rounds: u64,
    round_waiting: Vec<SyncWaiter>,
    data_sync: SyncGroup<DataWaiter>,
    slots_sync: SyncGroup<SlotsWaiter>,
    /// Parts of entries that ended. The completion handler takes them.
    pub(crate) done: Vec<(EntryId, Result<(), NodeError>)>,
    /// The store changed, so parked requests may be able to go on.
    pub(crate) changed: bool,
}

impl ChunkStore {
    pub(crate) fn new(slot_bytes: u32, slots: u32, incarnation: u64) -> Self {
        Self {
            slots: (0..slots).map(|_| Slot::free()).collect(),
            index: BTreeMap::new(),
            free: Vec::new(),
            allotments: Allotments::default(),
            room_slots: None,
            slot_bytes,
            incarnation,
            next_sequence: 1,
            stable_below: 0,
            has_unsynced_data: false,
            headers_unsure: BTreeSet::new(),
            leaving: 0,
            superseded: 0,
            departing: Departing::default(),
            erased: Vec::new(),
            erased_covered: Vec::new(),
            erase_failed: Vec::new(),
            erasing_again: BTreeSet::new(),
            unstable: Vec::new(),
            open_unstable: false,
            seals: 0,
            lost: BTreeMap::new(),
            round: None,
            rounds: 0,
            round_waiting: Vec::new(),
            data_sync: SyncGroup::default(),
            slots_sync: SyncGroup::default(),
            done: Vec::new(),
            changed: false,
        }
    }

    pub(super) fn raise_stable_below(&mut self, sequence: u64) {
        if !self.has_unsynced_data {
            self.stable_below = self.stable_below.max(sequence);
        }
    }

    /// Slots that hold no shard, or soon hold none.
    fn slots_empty(&self) -> u32 {
        u32::try_from(self.free.len() + self.leaving).expect("at most the number of slots")
    }

    /// Empty slots that the disk has room for.
    fn slots_free(&self) -> u32 {
        let empty = self.slots_empty();
        let used = u32::try_from(self.slots.len()).expect("made from a u32") - empty;
        self.room_slots.map_or(empty, |room| empty.min(room.saturating_sub(used)))
    }

    /// Slots that the volume may still take.
    pub(crate) fn slots_left(&self, volume: VolumeId) -> u32 {
        self.allotments.left(volume, self.slots_free())
    }

    /// Free slots that no volume has reserved.
    pub(crate) fn slots_unclaimed(&self) -> u32 {
        self.allotments.unclaimed(self.slots_free())
    }

    /// Slots that volumes need, and that the node refused to them.
    pub(crate) fn slots_lacking(&self) -> u32 {
        self.allotments.lacking(self.slots_free())
    }

    /// The volume asks for `slots` slots in total. It can do without `spare` of these.
    ///
    /// # Errors
    /// Other volumes have reserved them ([`NodeError::Busy`] if they can spare them), or the disk
    /// has no room for them.
    pub(crate) fn ask(
        &mut self,
        volume: VolumeId,
        slots: u32,
        spare: u32,
    ) -> Result<(), NodeError> {
        let free = FreeSlots { empty: self.slots_empty(), usable: self.slots_free() };
        match self.allotments.ask(volume, slots, spare, free) {
            ReserveResult::Granted => Ok(()),
            ReserveResult::Later => Err(NodeError::Busy),
            ReserveResult::Refused => Err(NodeError::NoSpace),
            ReserveResult::DiskFull => {
                Err(NodeError::Io("its disk has less room than its slots take".to_owned()))
            }
        }
    }

    /// The volume's writer is gone, so the volume neither waits for slots nor gives any back.
    pub(crate) fn clear_requests(&mut self, volume: VolumeId) {
        self.allotments.clear_requests(volume);
    }

    /// Sets a volume's reservation.
    pub(crate) fn reserve(&mut self, volume: VolumeId, slots: u32) {
        self.allotments.reserve(volume, slots);
    }

    /// The world reports the largest total length of the data file.
    pub(crate) fn set_room(&mut self, room_bytes: u64) {
        let slots = room_bytes / u64::from(self.slot_bytes);
        self.room_slots = Some(u32::try_from(slots).unwrap_or(u32::MAX));
        self.changed = true;
    }

    /// The disk had no room for a slot, which is free again. So the disk has room only for the
    /// slots in use, until the world reports otherwise. From now on the store takes slots first
    /// that were in use.
    fn note_full_disk(&mut self) {
        let used = self.slots.len() - self.slots_empty() as usize;
        self.room_slots = u32::try_from(used).ok();
    }

    /// First byte of a slot in the data file.
    fn data_at(&self, slot: SlotIndex) -> u64 {
        u64::from(slot.0) * u64::from(self.slot_bytes)
    }

    fn header_at(slot: SlotIndex) -> u64 {
        u64::from(slot.0) * u64::from(RECORD_BYTES)
    }

    /// Chooses the slot for a write of `blocks`. Takes a new slot if the shard has no open one.
    pub(crate) fn place(
        &mut self,
        key: ShardKey,
        epoch: Epoch,
        blocks: Blocks,
        seal: Option<&SealMeta>,
        disk: &mut DiskQueue,
    ) -> Result<SlotChoice, NodeError> {
        let open = self.index.get(&key).and_then(|copies| copies.open);
        if let Some(slot) = open {
            let state = &self.slots[slot.0 as usize];
            let content = state.content();
            if content.seal.is_some() || content.conflicts(blocks.first, blocks.end, true) {
                return Ok(SlotChoice::Park);
            }
        }
        if let Some(meta) = seal {
            let wanted = meta.shard_bytes / HEADER_BYTES;
            let completes = match open {
                Some(slot) => self.slots[slot.0 as usize].content().completes(
                    blocks.first,
                    blocks.end,
                    wanted,
                ),
                None => blocks.first == 0 && blocks.end >= wanted,
            };
            if !completes {
                let text = format!("sealing a shard of {wanted} blocks that are not all written");
                let error = NodeError::Invalid(text);
                // The first part of the shard failed and is lost. The rest does not complete the
                // shard. The node keeps the rest only if it has acknowledged a piece.
                if let Some(slot) = open
                    && !self.slots[slot.0 as usize].content().is_noted()
                {
                    self.give_up(slot, &error, None, disk);
                }
                return Err(error);
            }
        }
        if let Some(slot) = open {
            // An earlier writer may have begun the shard. The header names the epoch of the writer
            // that completes it: point 5 compares this epoch with that of a copy that was completed
            // in between.
            let content = self.slots[slot.0 as usize].content_mut();
            content.epoch = content.epoch.max(epoch);
            return Ok(SlotChoice::Slot(slot));
        }
        if let Some(other) = self.departing.of_another(key) {
            return self.wait_for_departure(other, disk);
        }
        if self.slots_left(key.volume) == 0 {
            // A rewritten shard gives its old slot back once the new copy is stable.
            let coming = self.free.is_empty() && self.leaving == 0 && self.superseded > 0;
            return if coming { Ok(SlotChoice::Park) } else { Err(NodeError::NoSpace) };
        }
        let Some(slot) = self.free.pop() else {
            return Ok(SlotChoice::Park); // a slot will become free soon
        };
        self.allotments.take(key.volume);
        let state = &mut self.slots[slot.0 as usize];
        state.stage = SlotState::Open;
        state.content = Some(Box::new(Content::new(key, epoch)));
        self.index.entry(key).or_default().open = Some(slot);
        Ok(SlotChoice::Slot(slot))
    }

    /// Notes a write in flight. Returns its position in the data file.
    pub(crate) fn begin_write(
        &mut self,
        slot: SlotIndex,
        entry: EntryId,
        blocks: Blocks,
        checksums: Vec<u32>,
        (seal, data_first): (Option<SealMeta>, bool),
    ) -> u64 {
        let at = self.data_at(slot) + u64::from(blocks.first) * u64::from(HEADER_BYTES);
        let state = &mut self.slots[slot.0 as usize];
        state.pins += 1;
        let content = state.content_mut();
        let Blocks { first, end } = blocks;
        content.busy.push(Busy { entry, first, end, writes: true });
        content.written.remove(first, end);
        if content.checksums.is_empty() && first == 0 {
            content.checksums = checksums;
        } else {
            if content.checksums.len() < end as usize {
                content.checksums.resize(end as usize, 0);
            }
            content.checksums[first as usize..end as usize].copy_from_slice(&checksums);
        }
        content.seal = content.seal.or(seal.map(|meta| (entry, meta)));
        content.data_first |= data_first;
        at
    }

    /// A write ended. The entry's part ends here, or with the seal if this write seals the shard.
    pub(crate) fn end_write(
        &mut self,
        slot: SlotIndex,
        entry: EntryId,
        result: Result<(), NodeError>,
        disk: &mut DiskQueue,
    ) {
        self.changed = true;
        let state = &mut self.slots[slot.0 as usize];
        state.pins -= 1;
        let content = state.content_mut();
        let at = content.busy.iter().position(|busy| busy.entry == entry && busy.writes);
        let busy = content.busy.swap_remove(at.expect("noted by begin_write"));
        if let Some(error) = content.given_up.clone() {
            self.done.push((entry, Err(error)));
            return self.advance(slot, disk);
        }
        if let Err(error) = &result
            && content.is_noted()
        {
            // The acknowledged blocks of the shard stay. The blocks that this write was to
            // replace may be old, new or mixed, and a journal may rely on them.
            content.failed.get_or_insert(error.clone());
            content.written_is_partial = true;
            let full = *error == NodeError::NoSpace;
            if content.seal.is_none_or(|(sealing, _)| sealing != entry) {
                self.done.push((entry, result));
            }
            if full {
                self.note_full_disk();
            }
            return self.try_seal(slot, disk);
        }
        if let Err(error) = result {
            // This write is no longer busy, so giving the shard up also ends the sealing entry's
            // part.
            if content.seal.is_none_or(|(sealing, _)| sealing != entry) {
                self.done.push((entry, Err(error.clone())));
            }
            self.give_up(slot, &error, None, disk);
            if error == NodeError::NoSpace {
                self.note_full_disk();
            }
            return;
        }
        content.written.insert(busy.first, busy.end);
        self.open_unstable |= !matches!(content.noted, Noted::No);
        if content.seal.is_none_or(|(sealing, _)| sealing != entry) {
            self.done.push((entry, Ok(())));
        }
        self.try_seal(slot, disk);
    }

    /// Finds the slot to read `blocks` of a shard from, and pins it. `None` means: try again later.
    pub(crate) fn begin_read(
        &mut self,
        key: ShardKey,
        entry: EntryId,
        blocks: Blocks,
    ) -> Result<Option<SlotIndex>, NodeError> {
        let copies = self.index.get(&key).copied().ok_or(NodeError::NotFound)?;
        let slot = copies.sealed.or(copies.open).ok_or(NodeError::NotFound)?;
        let state = &mut self.slots[slot.0 as usize];
        let content = state.content_mut();
        if copies.sealed.is_some() {
            if blocks.end as usize > content.checksums.len() {
                return Err(NodeError::Invalid("reading past the end of the shard".to_owned()));
            }
        } else {
            let Blocks { first, end } = blocks;
            if content.conflicts(first, end, false) {
                return Ok(None);
            }
            if !content.written.contains(first, end) && !content.written_is_partial {
                return Err(NodeError::Invalid("reading blocks not yet written".to_owned()));
            }
            content.busy.push(Busy { entry, first, end, writes: false });
        }
        state.pins += 1;
        Ok(Some(slot))
    }

    /// The checksums to check a read against. Empty for blocks of an open shard whose state the
    /// node does not know.
    ///
    /// # Errors
    /// The shard was completed meanwhile, and is shorter than the range.
    pub(crate) fn checksums(&self, slot: SlotIndex, blocks: Blocks) -> Result<&[u32], NodeError> {
        let content = self.slots[slot.0 as usize].content();
        if content.written_is_partial && !content.written.contains(blocks.first, blocks.end) {
            return Ok(&[]);
        }
        let checksums = content.checksums.get(blocks.first as usize..blocks.end as usize);
        checksums.ok_or_else(|| NodeError::Invalid("reading past the end of the shard".to_owned()))
    }

    /// A read ended.
    pub(crate) fn end_read(&mut self, slot: SlotIndex, entry: EntryId, disk: &mut DiskQueue) {
        let state = &mut self.slots[slot.0 as usize];
        state.pins -= 1;
        let content = state.content_mut();
        if let Some(at) = content.busy.iter().position(|busy| busy.entry == entry) {
            content.busy.swap_remove(at);
            self.changed = true;
        }
        self.advance(slot, disk);
    }

    /// Pins the slot of a complete shard for verification; [`Self::end_read`] unpins it.
    pub(crate) fn begin_verify(&mut self, key: ShardKey) -> Result<SlotIndex, NodeError> {
        let slot =
            self.index.get(&key).and_then(|copies| copies.sealed).ok_or(NodeError::NotFound)?;
        self.slots[slot.0 as usize].pins += 1;
        Ok(slot)
    }

    /// True when `block` is the header block of the complete shard in `slot`.
    pub(crate) fn header_matches(&self, slot: SlotIndex, block: &[u8]) -> bool {
        let expected = self.slots[slot.0 as usize].content().header(slot, self.incarnation);
        SlotHeader::decode(block).is_ok_and(|header| header == expected)
    }

    /// Length of the complete shard in `slot`.
    pub(crate) fn shard_bytes(&self, slot: SlotIndex) -> u32 {
        self.slots[slot.0 as usize].content().meta.shard_bytes
    }

    /// Reads a part of a slot's data.
    pub(crate) fn read_op(&self, slot: SlotIndex, offset_bytes: u32, len_bytes: u32) -> DiskOp {
        let offset_bytes = self.data_at(slot) + u64::from(offset_bytes);
        DiskOp::Read { file: FileId::Data, offset_bytes, len_bytes }
    }

    /// Reads a slot's header.
    pub(crate) fn read_header_op(slot: SlotIndex) -> DiskOp {
        let offset_bytes = Self::header_at(slot);
        DiskOp::Read { file: FileId::Slots, offset_bytes, len_bytes: HEADER_BYTES }
    }

    /// Panics unless every slot is accounted for exactly once.
    pub(crate) fn check(&self) {
        let count = |stage: SlotState| self.slots.iter().filter(|slot| slot.stage == stage).count();
        assert_eq!(count(SlotState::Free), self.free.len());
        let leaving =
            [SlotState::Leaving, SlotState::Erasing, SlotState::Erased, SlotState::Discarding];
        assert_eq!(leaving.map(count).iter().sum::<usize>(), self.leaving);
        assert_eq!(count(SlotState::Superseded), self.superseded);
        let held = [SlotState::Open, SlotState::Sealing, SlotState::Sealed, SlotState::Superseded];
        assert_eq!(held.map(count).iter().sum::<usize>() as u64, self.allotments.held());
        assert_eq!(count(SlotState::EraseFailed), self.erase_failed.len());
        assert_eq!(count(SlotState::Erased), self.erased.len() + self.erased_covered.len());
        let sealed = self.index.values().filter(|copies| copies.sealed.is_some()).count();
        let open = self.index.values().filter(|copies| copies.open.is_some()).count();
        assert_eq!(count(SlotState::Sealed), sealed);
        assert_eq!(count(SlotState::Open) + count(SlotState::Sealing), open);
    }

    fn write_header(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let incarnation = self.incarnation;
        let state = &mut self.slots[slot.0 as usize];
        state.header_dirty = true;
        state.header_sequence = Some(sequence);
        let content = state.content_mut();
        content.sequence = sequence;
        content.stable_below = self.stable_below;
        self.headers_unsure.insert(sequence);
        let block = content.header(slot, incarnation).encode();
        let op = DiskOp::Write {
            file: FileId::Slots,
            offset_bytes: Self::header_at(slot),
            data: vec![block],
        };
        disk.submit(DiskOpKind::ShardHeader(slot), op);
    }
}
