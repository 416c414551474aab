//! Garbage collection and checkpoints: how the volume frees space.
//!
//! Collection takes the durable segment with the fewest live blocks. It reads the segment's footer
//! to learn which blocks of the device may lie in it, and appends the live ones to the log again.
//! The segment is then dead, and the volume deletes it once a checkpoint no longer needs its
//! footer. Collection moves one segment at a time, and its blocks go through the log like any
//! write, so users' writes go on in between. A counter keeps the longest time that such a write
//! waited.
//!
//! A checkpoint closes the open segment, notes the map at that position of the log, waits until
//! everything before the position is durable, writes the map to segments of its own and names them
//! in the root. Then the volume deletes the old checkpoint and the segments that were dead.
//!
//! Each part uses only parts below it in this table:
//!
//! | module       | idea |
//! |--------------|------|
//! | `house`      | periodic work, also of an idle volume |
//! | `start`      | when collection starts, and when it rests |
//! | `collect`    | one run of collection, round by round |
//! | `relieve`    | collection for other volumes, on the nodes where they lack slots |
//! | `even`       | moves for other volumes, away from the nodes with the most shards |
//! | `victims`    | the segments that collection can free |
//! | `moving`     | the move of a segment's live blocks |
//! | `checkpoint` | the steps of a checkpoint |
//! | `free`       | the deletion of segments |
//! | `worth`      | when a checkpoint is worth its cost |
//!
//! # Invariants
//! - Collection and the checkpoint of a volume that closes hold one lock, so at most one of them
//!   runs, and one checkpoint is written at a time.
//! - At most one run of collection is under way. After every run the state is `Resting`. Its time
//!   lies ahead only if the run found nothing left to free, or if an earlier rest is not over.
//! - Collection is *stuck* if the last run found no space for users that waited, or that would have
//!   to wait with their next write. It is stuck until anything changes that may free space
//!   ([`Gc::note_change`]). This is one reason why users get the error that there is no space;
//!   `log/admission` has the others.
//! - Slots of segments that left the table count as taken until the nodes have deleted them.

mod checkpoint;
mod collect;
mod even;
mod free;
mod house;
mod moving;
mod relieve;
mod start;
mod victims;
mod worth;

use fieldstone_block::Nanos;
use fieldstone_tasks::Lock;

pub use checkpoint::{store_checkpoint, write_checkpoint};
pub use free::{SEGMENTS_PER_DELETE, free_segments, request_deletion};
pub use house::keep_house;
pub use moving::read_footer;
pub use worth::SinceCheckpoint;

/// Pause before disturbed collection begins anew, before the volume asks a busy node again to
/// delete segments, and before it writes a root again that too few nodes have taken.
pub const RETRY_MS: u64 = 20;
/// Pause before a serving volume checks again for something to collect or to give back, when the
/// last check found something. The pause doubles after each check that found nothing. Also how long
/// collection rests if it found nothing more to free, and no user wrote meanwhile.
const HOUSEKEEPING_MS: u64 = 1_000;

/// The state of collection and checkpoints.
pub struct Gc {
    collection: Collection,
    relief_rests_until: Nanos,
    evening_rests_until: Nanos,
    /// What has changed since the last checkpoint.
    pub since_checkpoint: SinceCheckpoint,
    segments_freeing: u64,
    lock: Lock,
}

impl Gc {
    /// The state of a volume that starts at `now`.
    #[must_use]
    pub fn new(now: Nanos) -> Self {
        Self {
            collection: Collection::default(),
            relief_rests_until: now,
            evening_rests_until: now,
            since_checkpoint: SinceCheckpoint::default(),
            segments_freeing: 0,
            lock: Lock::default(),
        }
    }

    /// The maintenance lock: its holder collects or writes a checkpoint.
    #[must_use]
    pub fn lock(&self) -> Lock {
        self.lock.clone()
    }

    /// Collection runs.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        self.collection == Collection::Running
    }

    /// Collection has found nothing more to free although users wait for space.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        matches!(self.collection, Collection::Resting { in_vain: true, .. })
    }

    /// There may be segments to free again.
    pub fn note_change(&mut self) {
        if let Collection::Resting { in_vain, .. } = &mut self.collection {
            *in_vain = false;
        }
    }

    /// Segments that the table no longer has, but that the nodes may still have.
    #[must_use]
    pub fn segments_freeing(&self) -> u64 {
        self.segments_freeing
    }

    /// A test sets this number.
    #[cfg(test)]
    pub fn put_segments_freeing(&mut self, segments: u64) {
        self.segments_freeing = segments;
    }

    /// The volume does not collect for other volumes at present.
    fn relief_rests(&self, now: Nanos) -> bool {
        now < self.relief_rests_until
    }

    /// The volume does not even out its shards at present.
    fn evening_rests(&self, now: Nanos) -> bool {
        now < self.evening_rests_until
    }

    /// The volume does not even out its shards before this time.
    fn rest_evening_until(&mut self, until: Nanos) {
        self.evening_rests_until = until;
    }

    /// The volume does not collect for other volumes before this time.
    pub fn rest_relief_until(&mut self, until: Nanos) {
        self.relief_rests_until = until;
    }
}

/// The volume's collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Collection {
    /// Collection can start.
    #[default]
    Idle,
    /// A run has ended. If it gained nothing, collection does not start for lack of space before
    /// this time, unless users wait for space.
    Resting {
        /// The end of the rest.
        until: Nanos,
        /// Users wait for space, or would with their next write, and collection found nothing more
        /// to free, or users have waited for too long. As long as nothing changes, users that wait
        /// get the error that there is none.
        in_vain: bool,
    },
    /// Collection runs.
    Running,
}

impl Collection {
    fn rests(self, now: Nanos) -> bool {
        matches!(self, Self::Resting { until, .. } if now < until)
    }
}
