//! The state of each slot, for tests.

use fieldstone_proto::VolumeId;

use super::ChunkStore;
use super::slot::{Slot, SlotState};
use crate::accounting::{SlotShard, SlotUse};

impl ChunkStore {
    /// The state of each slot.
    pub(crate) fn uses(&self) -> impl Iterator<Item = SlotUse> {
        self.slots.iter().map(|slot| match slot.stage {
            SlotState::Free => SlotUse::Free,
            SlotState::Open => SlotUse::Open(shard(slot)),
            SlotState::Sealing => SlotUse::Sealing(shard(slot)),
            SlotState::Sealed => SlotUse::Complete(shard(slot)),
            SlotState::Superseded => SlotUse::Superseded(shard(slot)),
            SlotState::Erased | SlotState::Discarding => SlotUse::Erased,
            SlotState::Leaving | SlotState::Erasing | SlotState::EraseFailed => SlotUse::Leaving,
            SlotState::Bad => SlotUse::Bad,
        })
    }

    /// Every volume that has slots or a reservation, with the reserved number and the held number.
    pub(crate) fn allotments(&self) -> impl Iterator<Item = (VolumeId, u32, u32)> {
        self.allotments.all()
    }
}

fn shard(slot: &Slot) -> SlotShard {
    let content = slot.content();
    let key = content.key;
    SlotShard {
        volume: key.volume,
        segment: key.segment,
        shard: key.shard,
        sequence: content.sequence,
        noted: content.is_noted(),
    }
}
