//! Space: how much is left, when collection starts, when users have to wait, when the pool is full.
//!
//! A segment takes one slot on each of its nodes. From the free slots that nodes report follows how
//! many more segments fit: as many as that is only if, when room gets short, the nodes with the most
//! of it are taken. Of those segments a reserve is kept from users, so that collection, trims and
//! checkpoints can always go on: a full pool must still be able to give space back. Rebuild leaves it
//! alone as well.
//!
//! Collection begins when fewer than `low` segments are free and ends at `high`. Users wait
//! (briefly: one segment has to be freed) only when the reserve is reached.

use crate::core::{Core, Node};
use crate::footer::footer_blocks;
use crate::status::NodeHealth;

/// Free segments that only collection, trims and checkpoints may use, beside those that a
/// checkpoint takes.
const RESERVE_SEGMENTS: u64 = 4;

/// Free-segment marks.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Below this, users wait.
    pub reserve: u64,
    /// Below this, collection runs.
    pub low: u64,
    /// Collection stops here.
    pub high: u64,
}

impl Core {
    /// Segments that still fit on the nodes that are up.
    #[must_use]
    pub fn segments_free(&self) -> u64 {
        self.segments_fitting(|node| node.health == NodeHealth::Up)
    }

    fn segments_fitting(&self, counts: impl Fn(&Node) -> bool) -> u64 {
        let mut free: Vec<u64> = self
            .nodes
            .iter()
            .filter(|node| counts(node))
            .map(|node| u64::from(node.slots_free))
            .collect();
        let width = self.layout.width().min(free.len());
        if width == 0 {
            return 0;
        }
        free.sort_unstable();
        // The largest t with sum(min(free, t)) >= t * width: each segment takes at most one slot
        // of a node.
        let (mut low, mut high) = (0, *free.last().expect("not empty"));
        while low < high {
            let t = (low + high).div_ceil(2);
            let sum: u64 = free.iter().map(|f| (*f).min(t)).sum();
            if sum >= t * width as u64 { low = t } else { high = t - 1 }
        }
        low.saturating_sub(self.segments.unsealed())
    }

    /// Segments that a checkpoint takes at most, given the map's present size.
    #[must_use]
    pub fn checkpoint_segments(&self) -> u64 {
        let per_segment = 24 + 3 * self.layout.width() as u64;
        let bytes = self.map.used_blocks() * 8 + self.segments.len() as u64 * per_segment + 4096;
        bytes.div_ceil(u64::from(self.layout.segment_blocks()) * 4096)
    }

    /// The marks at present.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let own = self.segments.len() as u64;
        let reserve = RESERVE_SEGMENTS + self.checkpoint_segments();
        let low = reserve + 2 + (own + self.segments_free()) / 32;
        Marks { reserve, low, high: low + 3 }
    }

    /// A node's part of the reserve, in slots.
    #[must_use]
    pub fn slots_reserved(&self) -> u64 {
        (self.marks().reserve * self.layout.width() as u64).div_ceil(self.nodes.len() as u64)
    }

    /// Blocks of users that fit into a segment with the worst footer that it may have.
    fn data_blocks(&self) -> u64 {
        let blocks = self.layout.segment_blocks();
        u64::from(blocks - footer_blocks(blocks as usize).min(blocks / 2))
    }

    /// Blocks that the volume can hold in all before the pool is full.
    #[must_use]
    pub fn capacity_blocks(&self) -> u64 {
        let own = self.segments.data();
        // Nodes that are away for a while count with what they last had: the pool does not become
        // smaller by it.
        let fitting = self.segments_free().max(self.segments_fitting(|_| true));
        let segments = own + self.segments_freeing + fitting;
        // What collection needs to find garbage worth moving is kept from users as well.
        let keep = self.marks().high + segments / 32;
        segments.saturating_sub(keep) * self.data_blocks()
    }

    /// Blocks that users may still fill.
    #[must_use]
    pub fn space_for_user(&self) -> u64 {
        self.capacity_blocks().saturating_sub(self.map.used_blocks())
    }

    /// What is left beyond the reserve is lent to segments whose blocks only their own shards hold:
    /// an opening stores those once more before it gives them up. They need to become durable, which
    /// takes no room, before more is written.
    #[must_use]
    pub fn room_is_lent(&self) -> bool {
        let lent = self.segments.row_backed();
        lent > 0 && !self.starved() && self.segments_free() < self.marks().reserve + lent
    }

    /// Collection runs, or will soon: shards go where there is most room, not where placement has them.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.segments_free() < self.marks().high
    }

    /// Only the reserve is left.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.segments_free() < self.marks().reserve
    }
}
