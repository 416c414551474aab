//! Shards that left the index, and that a power loss may still bring back.
//!
//! A deleted shard is gone for good only when the erasure of its header is stable. Had the node
//! taken another shard of the same segment meanwhile, then after a power loss it would show two
//! shards of one segment. A volume puts each shard on a node of its own, so that it can lose m
//! nodes. It cannot make the node delete one of two shards: a deletion takes all shards of a
//! segment. So the node takes no other shard of a segment until the erasure is stable.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::ShardIndex;

use super::{ShardKey, SlotIndex};

/// The shards, by slot and by name.
#[derive(Debug, Default)]
pub(super) struct Departing {
    keys: BTreeMap<SlotIndex, ShardKey>,
    slots: BTreeSet<(ShardKey, SlotIndex)>,
}

impl Departing {
    /// The shard leaves its slot.
    pub(super) fn insert(&mut self, slot: SlotIndex, key: ShardKey) {
        self.keys.insert(slot, key);
        self.slots.insert((key, slot));
    }

    /// The erasure of the slot's header is stable.
    pub(super) fn remove(&mut self, slot: SlotIndex) {
        if let Some(key) = self.keys.remove(&slot) {
            self.slots.remove(&(key, slot));
        }
    }

    /// The slot of another shard of the same segment.
    pub(super) fn of_another(&self, key: ShardKey) -> Option<SlotIndex> {
        let bound = |shard, slot| (ShardKey { shard: ShardIndex(shard), ..key }, SlotIndex(slot));
        let of_segment = self.slots.range(bound(0, 0)..=bound(u8::MAX, u32::MAX));
        of_segment.filter(|(other, _)| *other != key).map(|(_, slot)| *slot).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{SegmentId, VolumeId};

    #[test]
    fn only_other_shards_of_the_same_segment_count() {
        let key = |volume, segment, shard| ShardKey {
            volume: VolumeId(volume),
            segment: SegmentId(segment),
            shard: ShardIndex(shard),
        };
        let mut departing = Departing::default();
        departing.insert(SlotIndex(7), key(1, 5, 2));
        departing.insert(SlotIndex(3), key(1, 5, 2));
        assert_eq!(departing.of_another(key(1, 5, 2)), None, "the same shard");
        assert_eq!(departing.of_another(key(1, 6, 0)), None, "another segment");
        assert_eq!(departing.of_another(key(2, 5, 0)), None, "another volume");
        assert_eq!(departing.of_another(key(1, 5, 0)), Some(SlotIndex(3)));
        assert_eq!(departing.of_another(key(1, 5, 255)), Some(SlotIndex(3)));
        departing.remove(SlotIndex(3));
        assert_eq!(departing.of_another(key(1, 5, 0)), Some(SlotIndex(7)));
        departing.remove(SlotIndex(7));
        departing.remove(SlotIndex(7));
        assert_eq!(departing.of_another(key(1, 5, 0)), None);
    }
}
