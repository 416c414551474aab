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
const CHECKPOINT_EVERY: u64 = 64;

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
        let long = CHECKPOINT_EVERY.max(self.checkpoint_segments() * 32);
        let settled = self.since_checkpoint.placement_changed && !self.rebuild.is_running();
        self.segments.any_shelved()
            || self.many_have_died()
            || self.since_checkpoint.segments >= long
            || (settled && self.segments_free() >= self.marks().low)
    }

    /// Many segments have died since the last checkpoint, and their room will be needed: other
    /// volumes may need the room of a thin volume, and a thick volume frees it before users have to
    /// wait for it, and before large writes have to go through the journal (`rows`).
    fn many_have_died(&self) -> bool {
        let many = DEAD_BATCH.max(self.segments.len() as u64 / DEAD_FRACTION);
        let thin = self.reservation.provisioning == Provisioning::Thin;
        let soon = || self.segments_free() < self.segments_ample();
        self.since_checkpoint.segments_died >= many && (thin || soon())
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
