//! The state of each slot, for tests.

use fieldstone_proto::VolumeId;

use super::Store;
use super::slot::{Slot, Stage};
use crate::books::{SlotShard, SlotUse};

impl Store {
    /// The state of each slot.
    pub(crate) fn uses(&self) -> impl Iterator<Item = SlotUse> {
        self.slots.iter().map(|slot| match slot.stage {
            Stage::Free => SlotUse::Free,
            Stage::Open => SlotUse::Open(shard(slot)),
            Stage::Sealing => SlotUse::Sealing(shard(slot)),
            Stage::Sealed => SlotUse::Complete(shard(slot)),
            Stage::Superseded => SlotUse::Superseded(shard(slot)),
            Stage::Erased | Stage::Discarding => SlotUse::Erased,
            Stage::Leaving | Stage::Erasing | Stage::EraseFailed => SlotUse::Leaving,
            Stage::Bad => SlotUse::Bad,
        })
    }

    /// Every volume that has slots or a reservation, with the reserved number and the held number.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (VolumeId, u32, u32)> {
        self.shares.all()
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
