//! The slots and volumes of a node as the node believes them to be: for tests that compare them
//! with the disk.

use fieldstone_proto::{JournalGen, SegmentId, ShardIndex, VolumeId};

use crate::node::Node;
use crate::volumes::JournalStage;

/// The slots and volumes of a node that serves requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Every slot, in the order of the data file.
    pub slots: Vec<SlotUse>,
    /// Every volume of which the node knows anything, in the order of their ids.
    pub volumes: Vec<VolumeBooks>,
}

/// The state of a slot, with its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    /// Nothing: the slot may be taken, and no loss of power brings anything back.
    Free,
    /// A shard that is being written.
    Open(SlotShard),
    /// A complete shard whose header is written.
    Complete(SlotShard),
    /// A shard whose header is being written.
    Sealing(SlotShard),
    /// An older form of a shard, until the newer form is stable.
    Superseded(SlotShard),
    /// Nothing: the header is erased, and the erasure may not be stable yet.
    Erased,
    /// Nothing that counts, but its header may still be there.
    Leaving,
    /// The slot is out of use until the next start.
    Bad,
}

/// A shard in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShard {
    /// The volume.
    pub volume: VolumeId,
    /// The segment.
    pub segment: SegmentId,
    /// The place in the segment.
    pub shard: ShardIndex,
    /// Number of the header or note in the order in which the node wrote them; 0 without either.
    pub sequence: u64,
    /// Of an open shard: its note is written.
    pub noted: bool,
}

/// A volume, as the node accounts for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeBooks {
    /// The volume.
    pub volume: VolumeId,
    /// Its record is stored, or cannot be read.
    pub known: bool,
    /// Slots that count as held by it.
    pub slots_held: u32,
    /// Slots that are kept for it, with those that it holds.
    pub slots_reserved: u32,
    /// Its journals that can be used.
    pub journals: Vec<JournalGen>,
    /// A request on it is under way, or one of its journals is being made or removed.
    pub busy: bool,
}

impl Node {
    /// For tests: what the node believes that it holds; `None` unless it serves requests. It is
    /// dear: its cost grows with the number of slots.
    #[doc(hidden)]
    #[must_use]
    pub fn books(&self) -> Option<Books> {
        if !self.is_ready() {
            return None;
        }
        let mut ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        ids.extend(self.store.shared().map(|(volume, ..)| volume));
        ids.sort_unstable();
        ids.dedup();
        let volumes = ids.into_iter().map(|id| self.books_of(id)).collect();
        Some(Books { slots: self.store.uses().collect(), volumes })
    }

    fn books_of(&self, id: VolumeId) -> VolumeBooks {
        let share = self.store.shared().find(|(volume, ..)| *volume == id);
        let (_, slots_reserved, slots_held) = share.unwrap_or((id, 0, 0));
        let volume = self.volumes.get(&id);
        let ready = |stage: JournalStage| stage == JournalStage::Ready;
        let journals = volume.map(|volume| &volume.journals);
        let changing = journals.is_some_and(|all| all.values().any(|one| !ready(one.stage)));
        let usable = journals.into_iter().flatten().filter(|(_, one)| ready(one.stage));
        VolumeBooks {
            volume: id,
            known: volume.is_some_and(|volume| volume.known || volume.damaged.is_some()),
            slots_held,
            slots_reserved,
            journals: usable.map(|(generation, _)| *generation).collect(),
            busy: changing || volume.is_some_and(|v| v.active > 0 || !v.ordered.is_empty()),
        }
    }
}
