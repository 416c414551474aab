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
//! | `victims`    | the segments that collection can free |
//! | `moving`     | the move of a segment's live blocks |
//! | `checkpoint` | the steps of a checkpoint |
//! | `free`       | the deletion of segments |
//! | `worth`      | when a checkpoint is worth its cost |

mod checkpoint;
mod collect;
mod free;
mod house;
mod moving;
mod relieve;
mod start;
mod victims;
mod worth;

use fieldstone_block::Nanos;

pub use checkpoint::{store_checkpoint, write_checkpoint};
pub use free::{SEGMENTS_PER_DELETE, free_segments, request_deletion};
pub use house::keep_house;
pub use moving::read_footer;
pub use worth::SinceCheckpoint;

/// Pause before disturbed collection begins anew, before the volume asks a busy node again to
/// delete segments, and before it writes a root again that too few nodes have taken.
pub const RETRY_MS: u64 = 20;
/// Pause before a serving volume checks again for something to collect or to give back, when the
/// last check found something. The pause doubles after each check that found nothing.
const HOUSEKEEPING_MS: u64 = 1_000;

/// The volume's collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collection {
    /// Collection can start.
    #[default]
    Idle,
    /// Collection has gained nothing. It does not start for lack of space before this time, unless
    /// users wait for space.
    Resting {
        /// The end of the rest.
        until: Nanos,
        /// Users waited for space, and collection found nothing more to free. As long as nothing
        /// changes, users get the error that there is no space.
        in_vain: bool,
    },
    /// Collection runs.
    Running,
}

impl Collection {
    /// Returns whether collection runs.
    pub fn is_running(self) -> bool {
        self == Self::Running
    }

    /// Collection has found nothing more to free although users wait for space.
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::Resting { in_vain: true, .. })
    }

    /// Notes that there may be segments to free again.
    pub fn note_change(&mut self) {
        if let Self::Resting { in_vain, .. } = self {
            *in_vain = false;
        }
    }

    fn rests(self, now: Nanos) -> bool {
        matches!(self, Self::Resting { until, .. } if now < until)
    }
}
