//! The node's own view of its slots and volumes, for tests that compare it with the disk.

use fieldstone_proto::{JournalGen, SegmentId, ShardIndex, VolumeId};

use crate::node::Node;
use crate::volumes::JournalStage;

/// The slots and volumes of a node that serves requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAccounting {
    /// Every slot, in the order of the data file.
    pub slots: Vec<SlotUse>,
    /// Every volume that the node has any data about, in the order of their ids.
    pub volumes: Vec<VolumeAccounting>,
}

/// The state of a slot, with its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    /// No shard. The node may take the slot, and no power loss brings a shard back.
    Free,
    /// A shard that is being written.
    Open(SlotShard),
    /// A complete shard whose header is written.
    Complete(SlotShard),
    /// A shard whose header is being written.
    Sealing(SlotShard),
    /// An older copy of a shard, until the newer copy is stable.
    Superseded(SlotShard),
    /// No shard. The header is erased, and the erasure may not be stable yet.
    Erased,
    /// No valid shard. The header may still be there.
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
    /// Number of the header or note in the order of the node's writes; 0 without either.
    pub sequence: u64,
    /// For an open shard: its note is written.
    pub noted: bool,
}

/// The node's account of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAccounting {
    /// The volume.
    pub volume: VolumeId,
    /// The node stores its record, or cannot read it.
    pub known: bool,
    /// Slots that the volume holds.
    pub slots_held: u32,
    /// Slots that the node keeps for the volume, including those that the volume holds.
    pub slots_reserved: u32,
    /// Its usable journals.
    pub journals: Vec<JournalGen>,
    /// A request on the volume is under way, or the node is making or removing one of its journals.
    pub busy: bool,
}

impl Node {
    /// For tests: the node's own view of its slots and volumes; `None` unless it serves requests.
    /// The cost grows with the number of slots.
    #[doc(hidden)]
    #[must_use]
    pub fn accounting(&self) -> Option<NodeAccounting> {
        if !self.is_ready() {
            return None;
        }
        let mut ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        ids.extend(self.store.allotments().map(|(volume, ..)| volume));
        ids.sort_unstable();
        ids.dedup();
        let volumes = ids.into_iter().map(|id| self.volume_accounting(id)).collect();
        Some(NodeAccounting { slots: self.store.uses().collect(), volumes })
    }

    fn volume_accounting(&self, id: VolumeId) -> VolumeAccounting {
        let allotment = self.store.allotments().find(|(volume, ..)| *volume == id);
        let (_, slots_reserved, slots_held) = allotment.unwrap_or((id, 0, 0));
        let volume = self.volumes.get(&id);
        let ready = |stage: JournalStage| stage == JournalStage::Ready;
        let journals = volume.map(|volume| &volume.journals);
        let changing = journals.is_some_and(|all| all.values().any(|one| !ready(one.stage)));
        let usable = journals.into_iter().flatten().filter(|(_, one)| ready(one.stage));
        VolumeAccounting {
            volume: id,
            known: volume.is_some_and(|volume| volume.known || volume.damaged.is_some()),
            slots_held,
            slots_reserved,
            journals: usable.map(|(generation, _)| *generation).collect(),
            busy: changing || volume.is_some_and(|v| v.active > 0 || !v.ordered.is_empty()),
        }
    }
}
