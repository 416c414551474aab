//! When a checkpoint is worth its cost.
//!
//! A checkpoint writes the whole map, and takes room until the old one is gone. It pays when it
//! frees much more than it takes, or when it shortens the next opening by much.

use crate::core::VolumeCore;
use crate::interface::Provisioning;

/// Fewest dead segments for which collection writes a checkpoint to free them.
const DEAD_BATCH: u64 = 8;
/// In large volumes, collection waits for this many dead segments per segment of the checkpoint.
const DEAD_PER_CHECKPOINT_SEGMENT: u64 = 4;
/// One in this many of the volume's segments is many dead ones.
const DEAD_FRACTION: u64 = 4;
/// Fewest segments between two checkpoints that only shorten recovery.
const CHECKPOINT_EVERY_SEGMENTS: u64 = 64;
/// In large volumes, this many segments per segment of the checkpoint lie between two such
/// checkpoints. So these checkpoints add about 3 % to what the volume writes.
const SEGMENTS_PER_CHECKPOINT_SEGMENT: u64 = 32;

/// Changes since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct SinceCheckpoint {
    /// Segments that the volume has begun.
    pub segments: u64,
    /// Segments whose last block was overwritten or trimmed.
    pub segments_died: u64,
    /// Some shards lie on other nodes than the checkpoint says.
    pub placement_changed: bool,
}

impl VolumeCore {
    /// Whether a checkpoint is worth its cost. It forgets segments of trims that are not stored. Or
    /// it shortens the next opening: the log after the last checkpoint is long, or the last
    /// checkpoint does not name shards that were made or came back since, so an opening would
    /// verify them. The last reason does not apply where space is short, because a checkpoint takes
    /// room.
    pub(super) fn checkpoint_pays(&self) -> bool {
        let paid = SEGMENTS_PER_CHECKPOINT_SEGMENT * self.checkpoint_segments();
        let long = CHECKPOINT_EVERY_SEGMENTS.max(paid);
        let settled =
            self.gc.since_checkpoint.placement_changed && !self.repair.rebuild.is_running();
        self.segments.any_shelved()
            || self.many_have_died()
            || self.gc.since_checkpoint.segments >= long
            || (settled && self.segments_free() >= self.marks().low)
    }

    /// Many segments have died since the last checkpoint, and their room will be needed: other
    /// volumes may need the room of a thin volume, and a thick volume frees it before users have to
    /// wait for it, and before large writes have to go through the journal (`rows`).
    fn many_have_died(&self) -> bool {
        let many = DEAD_BATCH.max(self.segments.len() as u64 / DEAD_FRACTION);
        let thin = self.reservation.provisioning == Provisioning::Thin;
        let soon = || self.segments_free() < self.segments_ample();
        self.gc.since_checkpoint.segments_died >= many && (thin || soon())
    }

    /// Free segments with which users can write for as long as a checkpoint takes, and large writes
    /// can go around the journal meanwhile (`rows`).
    pub(super) fn segments_ample(&self) -> u64 {
        2 * (self.marks_at_rest().high + self.ring_segments())
    }

    /// Dead segments for which collection writes a checkpoint: enough that the checkpoint is small
    /// compared with the space that it frees, but no more than half of those that may die before
    /// users have to wait.
    pub(super) fn dead_batch(&self) -> u64 {
        let marks = self.marks_at_rest();
        let worth = DEAD_PER_CHECKPOINT_SEGMENT * self.checkpoint_segments();
        worth.min((marks.low - marks.reserve) / 2).max(DEAD_BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Location, Map};
    use crate::script::Script;

    /// Makes the volume as large as its checkpoint has to be to take five segments, and gives it so
    /// many free slots on each node.
    fn enlarge(core: &mut VolumeCore, slots: u32) {
        let blocks = 150_000;
        core.map = Map::new(blocks);
        for block in 0..blocks {
            core.map.set(block, Location::RESERVED);
        }
        core.nodes.iter_mut().for_each(|node| node.slots.free = slots);
        assert_eq!(core.checkpoint_segments(), 5);
    }

    #[test]
    fn a_large_checkpoint_waits_for_more_dead_segments() {
        Script::serving(8).core(|core| {
            assert_eq!(core.dead_batch(), DEAD_BATCH, "a small volume");
            enlarge(core, 10_000);
            assert_eq!(core.dead_batch(), 20);
        });
    }

    #[test]
    fn a_checkpoint_comes_before_users_have_to_wait() {
        Script::serving(8).core(|core| {
            enlarge(core, 1000);
            let marks = core.marks_at_rest();
            let half = (marks.low - marks.reserve) / 2;
            assert!(DEAD_BATCH < half && half < 20, "{half}");
            assert_eq!(core.dead_batch(), half);
            core.nodes.iter_mut().for_each(|node| node.slots.free = 100);
            assert_eq!(core.dead_batch(), DEAD_BATCH, "with little room, half would be less");
        });
    }

    #[test]
    fn checkpoints_that_only_shorten_recovery_are_far_apart() {
        Script::serving(8).core(|core| {
            let pays = |core: &mut VolumeCore, segments: u64| {
                core.gc.since_checkpoint.segments = segments;
                core.checkpoint_pays()
            };
            assert!(!pays(core, 63) && pays(core, 64));
            enlarge(core, 10_000);
            assert!(!pays(core, 159) && pays(core, 160));
        });
    }
}
