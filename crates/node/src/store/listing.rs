//! The lists of a volume's shards, and of volumes with shards, on the node.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::{Epoch, SealMeta, SegmentId, ShardIndex, ShardInfo, VolumeId};

use super::{ChunkStore, ShardKey, SlotIndex};
use crate::limits::SHARDS_PER_PAGE;

impl ChunkStore {
    /// The volume's shards from one segment to another, a page of them.
    pub(crate) fn list(
        &self,
        volume: VolumeId,
        from: SegmentId,
        last: SegmentId,
    ) -> (Vec<ShardInfo>, Option<SegmentId>) {
        let mut shards: Vec<ShardInfo> = Vec::new();
        if from > last {
            return (shards, None);
        }
        let range = ShardKey { volume, segment: from, shard: ShardIndex(0) }..=ShardKey {
            volume,
            segment: last,
            shard: ShardIndex(u8::MAX),
        };
        for (key, copies) in self.index.range(range) {
            let full = shards.len() >= SHARDS_PER_PAGE;
            if full && shards.last().is_some_and(|shard| shard.segment != key.segment) {
                return (shards, Some(key.segment));
            }
            let content = |slot: SlotIndex| self.slots[slot.0 as usize].content();
            let info = |meta| ShardInfo { segment: key.segment, shard: key.shard, meta };
            shards.extend(copies.sealed.map(|slot| info(content(slot).meta)));
            let noted = copies.open.filter(|slot| content(*slot).is_noted());
            shards.extend(noted.map(|_| info(SealMeta::default())));
        }
        (shards, None)
    }

    /// The volumes that have shards on the node, except the `known` ones. Each volume comes with
    /// the highest epoch of its shards.
    pub(crate) fn unknown_volumes(&self, known: &BTreeSet<VolumeId>) -> BTreeMap<VolumeId, Epoch> {
        let mut unknown = BTreeMap::new();
        let mut next = VolumeId(0);
        while let Some((key, _)) = self.index.range(first_of(next)..).next() {
            let volume = key.volume;
            if !known.contains(&volume) {
                let keys = self.keys(volume, None);
                let copies = keys.iter().filter_map(|key| self.index.get(key));
                let slots = copies.flat_map(|copies| copies.sealed.into_iter().chain(copies.open));
                let epochs = slots.map(|slot| self.slots[slot.0 as usize].content().epoch);
                unknown.insert(volume, epochs.max().unwrap_or(Epoch(0)));
            }
            let Some(after) = volume.0.checked_add(1) else { break };
            next = VolumeId(after);
        }
        unknown
    }

    /// The volume's shards, open and complete, of one segment or of all.
    pub(super) fn keys(&self, volume: VolumeId, segment: Option<SegmentId>) -> Vec<ShardKey> {
        let first = segment.unwrap_or(SegmentId(0));
        let last = segment.unwrap_or(SegmentId(u64::MAX));
        let range = ShardKey { volume, segment: first, shard: ShardIndex(0) }..=ShardKey {
            volume,
            segment: last,
            shard: ShardIndex(u8::MAX),
        };
        self.index.range(range).map(|(key, _)| *key).collect()
    }
}

/// The first name that a shard of the volume can have.
fn first_of(volume: VolumeId) -> ShardKey {
    ShardKey { volume, segment: SegmentId(0), shard: ShardIndex(0) }
}
