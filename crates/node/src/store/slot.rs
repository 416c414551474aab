//! A slot: a fixed piece of the data file, its header block, and the shard in it.

use fieldstone_proto::disk::{OpenNote, SLOT_BLOCKS_MAX, SlotHeader};
use fieldstone_proto::{Epoch, NodeError, SealMeta, SegmentId, ShardIndex, VolumeId};

use crate::request_table::EntryId;

/// Number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// Names a shard on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShardKey {
    pub(crate) volume: VolumeId,
    pub(crate) segment: SegmentId,
    pub(crate) shard: ShardIndex,
}

/// The state of a slot; see the module text of [`crate::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The node may take the slot. Its header block holds no valid header, stably.
    Free,
    /// The slot takes a shard's blocks.
    Open,
    /// The node writes the slot's header, or is about to.
    Sealing,
    /// The slot holds a complete shard.
    Sealed,
    /// The slot holds a complete shard. Its rewritten copy, in another slot, is not yet stable.
    Superseded,
    /// The slot is on its way out, and waits until operations on it end.
    Leaving,
    /// The node is erasing the slot's header.
    Erasing,
    /// The slot's header is erased, but not yet stably.
    Erased,
    /// The node could not erase the slot's header, and will try again.
    EraseFailed,
    /// The file system is taking the slot's space back.
    Discarding,
    /// The node could not read the slot's header. The slot is out of use until the next start.
    Bad,
}

/// A slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stage: SlotState,
    /// Operations in flight on the slot. The node cannot reuse the slot until they end.
    pub(crate) pins: u32,
    /// Its header block may hold a valid header.
    pub(crate) header_dirty: bool,
    /// The sequence of the last header in the slot that is not erased.
    pub(crate) header_sequence: Option<u64>,
    /// A sync of the slots file failed during the erasure of the header: erase it again.
    pub(crate) erase_again: bool,
    /// Give the slot's space back to the file system before the slot becomes free.
    pub(crate) discard: bool,
    /// The entry that waits for the header's erasure.
    pub(crate) waiter: Option<EntryId>,
    /// The volume of the slot's last shard, while the slot is on its way to the free list.
    pub(crate) left_by: Option<VolumeId>,
    /// The shard in the slot.
    pub(crate) content: Option<Box<Content>>,
}

impl Slot {
    pub(crate) fn free() -> Self {
        Self {
            stage: SlotState::Free,
            pins: 0,
            header_dirty: false,
            header_sequence: None,
            erase_again: false,
            discard: false,
            waiter: None,
            left_by: None,
            content: None,
        }
    }

    /// The shard in a slot. The slot's stage must say that there is one.
    pub(crate) fn content(&self) -> &Content {
        self.content.as_deref().expect("open, sealing, sealed and pinned slots hold a shard")
    }

    /// As [`Self::content`], to change it.
    pub(crate) fn content_mut(&mut self) -> &mut Content {
        self.content.as_deref_mut().expect("open, sealing, sealed and pinned slots hold a shard")
    }
}

/// An operation in flight on blocks of an open shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) entry: EntryId,
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) writes: bool,
}

/// The state of an open shard's note.
#[derive(Debug, Default)]
pub(crate) enum Noted {
    /// There is no note: the shard is complete, or arrives in one piece.
    #[default]
    No,
    /// The node is writing the note, and these entries wait for it.
    Writing(Vec<EntryId>),
    /// The note is written.
    Yes,
}

/// A shard, complete or being written.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) key: ShardKey,
    pub(crate) epoch: Epoch,
    /// The header's sequence number; 0 while there is no header.
    pub(crate) sequence: u64,
    /// The header's or note's `stable_below`.
    pub(crate) stable_below: u64,
    /// The metadata in the header, once there is one.
    pub(crate) meta: SealMeta,
    pub(crate) checksums: Vec<u32>,
    /// The blocks that are in the file.
    pub(crate) written: BlockSet,
    /// The state of its open note.
    pub(crate) noted: Noted,
    /// A start found this open shard, or a write over acknowledged blocks failed. Blocks outside
    /// `written` may be in the file. Reads return them unchecked, and the reader checks them
    /// against the checksums of the journal. These blocks do not complete the shard.
    pub(crate) written_is_partial: bool,
    /// Operations in flight while the shard is open.
    pub(crate) busy: Vec<Busy>,
    /// Why one of the writes in flight failed. These writes do not complete the shard.
    pub(crate) failed: Option<NodeError>,
    /// The entry that completes the shard.
    pub(crate) seal: Option<(EntryId, SealMeta)>,
    /// The node writes the header only after the data is stable.
    pub(crate) data_first: bool,
    /// Why the node gave the shard up while operations were in flight.
    pub(crate) given_up: Option<NodeError>,
    /// A sync of data and header has succeeded since the header was written.
    pub(crate) stable: bool,
    /// The slot with the older copy, kept until this copy is stable.
    pub(crate) replaces: Option<SlotIndex>,
}

impl Content {
    pub(crate) fn new(key: ShardKey, epoch: Epoch) -> Self {
        Self {
            key,
            epoch,
            sequence: 0,
            stable_below: 0,
            meta: SealMeta::default(),
            checksums: Vec::new(),
            written: BlockSet::default(),
            noted: Noted::No,
            written_is_partial: false,
            failed: None,
            busy: Vec::new(),
            seal: None,
            data_first: false,
            given_up: None,
            stable: false,
            replaces: None,
        }
    }

    /// A complete shard as its header describes it.
    pub(crate) fn from_header(header: SlotHeader) -> Self {
        let key = ShardKey { volume: header.volume, segment: header.segment, shard: header.shard };
        Self {
            sequence: header.sequence,
            stable_below: header.stable_below,
            meta: header.meta,
            checksums: header.checksums,
            stable: true,
            ..Self::new(key, header.epoch)
        }
    }

    /// An open shard as its note describes it.
    pub(crate) fn from_note(note: OpenNote) -> Self {
        let key = ShardKey { volume: note.volume, segment: note.segment, shard: note.shard };
        Self {
            sequence: note.sequence,
            stable_below: note.stable_below,
            noted: Noted::Yes,
            written_is_partial: true,
            ..Self::new(key, note.epoch)
        }
    }

    /// Its open note is written.
    pub(crate) fn is_noted(&self) -> bool {
        matches!(self.noted, Noted::Yes)
    }

    /// The note of an open shard.
    pub(crate) fn note(&self, slot: SlotIndex, incarnation: u64) -> OpenNote {
        OpenNote {
            volume: self.key.volume,
            segment: self.key.segment,
            shard: self.key.shard,
            epoch: self.epoch,
            sequence: self.sequence,
            incarnation,
            slot: slot.0,
            stable_below: self.stable_below,
        }
    }

    /// The header of a complete shard.
    pub(crate) fn header(&self, slot: SlotIndex, incarnation: u64) -> SlotHeader {
        SlotHeader {
            volume: self.key.volume,
            segment: self.key.segment,
            shard: self.key.shard,
            epoch: self.epoch,
            sequence: self.sequence,
            incarnation,
            slot: slot.0,
            stable_below: self.stable_below,
            meta: self.meta,
            checksums: self.checksums.clone(),
        }
    }

    /// True when an operation in flight forbids one on these blocks. Reads can share blocks, writes
    /// cannot.
    pub(crate) fn conflicts(&self, first: u32, end: u32, writes: bool) -> bool {
        self.busy.iter().any(|b| (b.writes || writes) && b.first < end && first < b.end)
    }

    /// Some writes are in flight.
    pub(crate) fn is_written_to(&self) -> bool {
        self.busy.iter().any(|busy| busy.writes)
    }

    /// True when the blocks `first..end`, together with written blocks and those being written,
    /// include the first `blocks` blocks. Blocks after these may be left over from a writer that
    /// gave up.
    pub(crate) fn completes(&self, first: u32, end: u32, blocks: u32) -> bool {
        let mut set = self.written;
        for busy in self.busy.iter().filter(|busy| busy.writes) {
            set.insert(busy.first, busy.end);
        }
        set.insert(first, end);
        set.contains(0, blocks)
    }
}

/// A set of blocks of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet([u64; SLOT_BLOCKS_MAX.div_ceil(64)]);

impl BlockSet {
    pub(crate) fn insert(&mut self, first: u32, end: u32) {
        for block in first..end {
            self.0[block as usize / 64] |= 1 << (block % 64);
        }
    }

    pub(crate) fn remove(&mut self, first: u32, end: u32) {
        for block in first..end {
            self.0[block as usize / 64] &= !(1 << (block % 64));
        }
    }

    pub(crate) fn contains(&self, first: u32, end: u32) -> bool {
        (first..end).all(|block| self.0[block as usize / 64] & (1 << (block % 64)) != 0)
    }
}
