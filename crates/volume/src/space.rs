//! Space: how much is left, when collection starts, when users have to wait, when the volume is full.
//!
//! A segment takes one slot on each of its nodes. Each node says with every answer how many more
//! slots this volume may take: those that it has reserved there and does not hold (see
//! `provision`). From that follows how many more segments fit, if the nodes with the most room are
//! taken when room gets short. No other volume changes that number, so all that follows holds for
//! each volume of a pool by itself.
//!
//! # Marks
//! From few free segments to many, with `C` the segments that a checkpoint takes:
//!
//! ```text
//!   0 ......... floor .............. reserve ......... low ........ high
//!     opening          trims, moves          users wait    collection   collection ends
//!     and checkpoint
//! ```
//!
//! - At `floor` = C + 1 and below no change opens a new segment. What is left there belongs to a checkpoint
//!   and to the next opening.
//! - Between `floor` and `reserve` only trims and collection open segments. A user opens the last
//!   one at `reserve`, which leaves one above the floor: what a move of a segment takes at most. A
//!   move that finds it taken by a trim is given up; nothing is lost by that.
//! - Users wait while fewer than `reserve` are free, until collection has freed a segment, and are
//!   told that there is no space when collection finds nothing more to free.
//!
//! A trim changes no block but of the footer, so trims alone do not reach the floor before what
//! they free is worth a checkpoint. A pool of more nodes than a segment has shards loses room for
//! segments with each lost node; the reserve is larger there, so that the floor is left after m
//! losses.
//!
//! # Why an opening never needs more room than it finds
//! Let a writer die at any moment, with `f` free segments by its own count, so `f >= floor - C`:
//! only a checkpoint of its own goes below the floor, by at most the C segments that it writes.
//! Segments that were not written completely count as taken from the moment that they are begun.
//! The next opening finds on the nodes:
//!
//! - what the last root names: the segments in use, and the checkpoint before;
//! - the segments of a checkpoint that was being written: no root names them, so they are deleted
//!   before anything is written, and `f >= floor` holds again;
//! - dead segments whose deletion was lost, and segments whose records the journal still has: both
//!   are deleted before anything is written.
//!
//! It then writes a new checkpoint, which takes C, and appends the records of the journal again.
//! Those fill no more segments than they did before: each was counted as taken, or was deleted just
//! now; one more may be begun because they are packed anew, which is the 1 in `floor`. Segments
//! whose blocks only their own shards hold stay until their records are in the log again: users
//! leave as many segments free beside the reserve ([`Core::room_is_lent`]). So the opening ends
//! without a slot that the writer did not have. An opening that dies leaves nothing that a root
//! names, and the argument begins anew.

use fieldstone_codes::Profile;
use fieldstone_proto::BLOCK_BYTES;
use smallvec::SmallVec;

use crate::core::{Core, Node, layout_of};
use crate::footer::footer_blocks;
use crate::record::RECORD_ENTRIES_MAX;
use crate::seam::Geometry;
use crate::status::{NodeHealth, Phase};

/// Free segments above what a checkpoint takes below which no segment is opened.
const FLOOR_SEGMENTS: u64 = 1;
/// Free segments above what a checkpoint takes that users leave alone.
const RESERVE_SEGMENTS: u64 = 3;
/// Fewest segments beyond the reserve that hold no data when the volume is full: collection lives
/// on the garbage in them.
const SLACK_SEGMENTS_MIN: u64 = 2;
/// One in so many segments is kept for garbage in large volumes.
const SLACK_FRACTION: u64 = 12;

/// Free-segment marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// At this and below, no segment is opened.
    pub floor: u64,
    /// Below this, users wait.
    pub reserve: u64,
    /// Below this, collection runs.
    pub low: u64,
    /// Collection stops here.
    pub high: u64,
}

/// What a volume's room follows from, beside the free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Nodes of the pool.
    pub nodes: u64,
    /// Nodes that may be lost.
    pub missing_max: u64,
    /// Shards of a segment.
    pub width: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
}

impl Shape {
    /// Blocks of users that fit into a segment with the worst footer that it may have.
    fn data_blocks(self) -> u64 {
        let blocks = self.segment_blocks;
        u64::from(blocks - footer_blocks(blocks as usize).min(blocks / 2))
    }

    /// Segments that a checkpoint of so many blocks and segments takes at most.
    fn checkpoint_segments(self, blocks: u64, segments: u64) -> u64 {
        let bytes = blocks * 8 + segments * (24 + 3 * self.width) + 4096;
        bytes.div_ceil(u64::from(self.segment_blocks) * 4096)
    }

    /// Nodes that are left when as many as may be are lost, and that make room for segments: with
    /// fewer nodes than a segment has shards, segments are narrower instead.
    fn nodes_left(self) -> u64 {
        let left = self.nodes.saturating_sub(self.missing_max);
        left.max(self.width.min(self.nodes)).max(1)
    }

    /// Free segments that users leave alone, for checkpoints of `checkpoint` segments.
    fn reserve(self, checkpoint: u64) -> u64 {
        // The floor has to be left of it when nodes are lost.
        let floor = ((checkpoint + FLOOR_SEGMENTS) * self.nodes).div_ceil(self.nodes_left());
        floor.max(checkpoint + RESERVE_SEGMENTS)
    }

    /// Segments that hold no data when a volume of `total` segments is full: the checkpoint, the
    /// reserve, and the garbage that collection lives on.
    fn overhead(self, checkpoint: u64, total: u64) -> u64 {
        checkpoint + self.reserve(checkpoint) + slack(total)
    }

    /// The marks of a volume that has `total` segments, free ones included.
    fn marks(self, checkpoint: u64, total: u64) -> Marks {
        let (reserve, slack) = (self.reserve(checkpoint), slack(total));
        Marks {
            floor: checkpoint + FLOOR_SEGMENTS,
            reserve,
            low: reserve + (slack / 3).max(1),
            high: reserve + (slack * 2 / 3).max(2),
        }
    }

    /// Segments with which a volume of `blocks` blocks can be filled and overwritten for ever.
    fn segments_for(self, blocks: u64) -> u64 {
        let data = blocks.div_ceil(self.data_blocks().max(1));
        let mut total = data;
        loop {
            let checkpoint = self.checkpoint_segments(blocks, total);
            let wanted = data + self.overhead(checkpoint, total);
            if wanted <= total {
                return total;
            }
            total = wanted;
        }
    }

    /// Slots on each node that hold so many segments.
    #[must_use]
    pub fn slots(self, segments: u64) -> u64 {
        (segments * self.width).div_ceil(self.nodes.max(1))
    }

    /// Slots on each node with which a volume of `blocks` blocks can be filled and overwritten for
    /// ever.
    #[must_use]
    pub fn slots_for(self, blocks: u64) -> u64 {
        self.slots(self.segments_for(blocks))
    }

    /// As [`Self::slots_for`], with as many nodes lost for good as may be: what they had is made
    /// anew on the others.
    #[must_use]
    pub fn slots_for_with_losses(self, blocks: u64) -> u64 {
        (self.segments_for(blocks) * self.width).div_ceil(self.nodes_left())
    }

    /// Segments that fit into the free slots of nodes: each takes at most one slot of a node.
    fn segments_fitting(self, free: &[u64]) -> u64 {
        let width = self.width.min(free.len() as u64);
        if width == 0 {
            return 0;
        }
        // The largest t with sum(min(free, t)) >= t * width.
        let (mut low, mut high) = (0, free.iter().sum::<u64>() / width);
        while low < high {
            let t = (low + high).div_ceil(2);
            let sum: u64 = free.iter().map(|f| (*f).min(t)).sum();
            if sum >= t * width { low = t } else { high = t - 1 }
        }
        low
    }
}

/// Segments beyond the reserve that hold no data when a volume of `total` segments is full.
fn slack(total: u64) -> u64 {
    SLACK_SEGMENTS_MIN.max(total / SLACK_FRACTION)
}

/// Slots on each node with which a volume of these sizes can be filled and overwritten for ever, in a
/// pool of `nodes` nodes: what a thick volume reserves.
#[must_use]
pub fn slots_whole(geometry: &Geometry, profile: Profile, nodes: u16) -> u64 {
    let code = profile.code();
    let missing_max = u64::try_from(code.m()).unwrap_or(u64::MAX);
    let layout = layout_of(&*code, geometry);
    let shape = Shape {
        nodes: u64::from(nodes),
        missing_max: missing_max.min(u64::from(nodes.saturating_sub(1))),
        width: layout.width() as u64,
        segment_blocks: layout.segment_blocks(),
    };
    shape.slots_for(geometry.size_bytes / BLOCK_BYTES as u64)
}

impl Core {
    /// What room follows from.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            nodes: self.nodes.len() as u64,
            missing_max: u64::from(self.config.missing_max),
            width: self.layout.width() as u64,
            segment_blocks: self.layout.segment_blocks(),
        }
    }

    /// Segments that still fit on the nodes that are up.
    #[must_use]
    pub fn segments_free(&self) -> u64 {
        let leave_out = self.leaves_short_out();
        let counts = |node: &&Node| node.health == NodeHealth::Up && !(leave_out && node.short);
        let slots = self.nodes.iter().filter(counts).map(|node| u64::from(node.slots_free));
        let mut free: SmallVec<[u64; 16]> = slots.collect();
        let shape = self.shape();
        let now = shape.segments_fitting(&free);
        // With nodes of unlike room, the loss of the roomiest may leave less than the marks allow
        // for: what is left then, and one more, is all that counts.
        let lost = self.nodes.len() - free.len();
        let more = usize::from(self.config.missing_max).saturating_sub(lost);
        free.sort_unstable();
        free.truncate(free.len().saturating_sub(more).max(1));
        let then = shape.segments_fitting(&free);
        now.min(then + 1).saturating_sub(self.segments.unsealed())
    }

    /// A node whose disk is full takes no shards, as if it were lost; more such nodes than may be
    /// lost make the volume full.
    fn leaves_short_out(&self) -> bool {
        let lost = |node: &&Node| node.health != NodeHealth::Up || node.short;
        self.nodes.iter().any(|node| node.short)
            && self.nodes.iter().filter(lost).count() <= usize::from(self.config.missing_max)
    }

    fn segments_fitting(&self, slots: impl Fn(&Node) -> Option<u64>) -> u64 {
        let free: Vec<u64> = self.nodes.iter().filter_map(slots).collect();
        self.shape().segments_fitting(&free)
    }

    /// Segments that a checkpoint takes at most, given the map's present size.
    #[must_use]
    pub fn checkpoint_segments(&self) -> u64 {
        self.shape().checkpoint_segments(self.map.used_blocks(), self.segments.len() as u64)
    }

    /// The marks at present.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let total = self.segments.len() as u64 + self.segments_free();
        self.shape().marks(self.checkpoint_segments(), total)
    }

    /// A node's part of the reserve, in slots.
    #[must_use]
    pub fn slots_reserved(&self) -> u64 {
        self.shape().slots(self.marks().reserve)
    }

    /// There is an open segment, or one may be opened without going below the floor. An opening may
    /// always: the module's essay says why there is room for what it appends.
    #[must_use]
    pub fn room_for_segment(&self) -> bool {
        self.phase == Phase::Opening || self.log.open.is_some() || self.segments_above_floor() > 0
    }

    /// A segment with so many live blocks may be moved: they take at most one new segment, or none
    /// if they fit into the open one.
    #[must_use]
    pub fn room_to_move(&self, live_blocks: u32) -> bool {
        let entries = live_blocks as usize;
        let fits = |open| self.segment_room(open, entries + RECORD_ENTRIES_MAX) >= live_blocks;
        self.segments_above_floor() > 0 || self.log.open.is_some_and(fits)
    }

    fn segments_above_floor(&self) -> u64 {
        let floor = self.marks().floor + self.segments.row_backed();
        self.segments_free().saturating_sub(floor)
    }

    /// Blocks that the volume can hold in all before it is full: with what it has reserved, and
    /// what it could still reserve.
    #[must_use]
    pub fn capacity_blocks(&self) -> u64 {
        let leave_out = self.leaves_short_out();
        let counts = |node: &Node| !(leave_out && node.short);
        // Nodes that are away count as well: the volume does not become smaller by it.
        let segments = self.segments_fitting(|node| {
            let slots = match node.slots_reserved {
                0 => u64::from(self.reservation.slots),
                slots => u64::from(slots) + self.slots_to_gain(node),
            };
            counts(node).then_some(slots)
        });
        let keep = self.shape().overhead(self.checkpoint_segments(), segments);
        segments.saturating_sub(keep) * self.shape().data_blocks()
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

#[cfg(test)]
mod tests {
    use super::*;

    const RS42: Shape = Shape { nodes: 6, missing_max: 2, width: 6, segment_blocks: 1024 };

    #[test]
    fn free_slots_become_segments_as_far_as_each_finds_enough_nodes() {
        let fit = |free: &[u64]| RS42.segments_fitting(free);
        assert_eq!(fit(&[5; 6]), 5);
        assert_eq!(fit(&[5, 5, 5, 5, 5, 100]), 5);
        assert_eq!(fit(&[0, 5, 5, 5, 5, 5]), 0);
        assert_eq!(fit(&[5; 4]), 5, "with nodes lost segments are narrower");
        assert_eq!(fit(&[10; 12]), 20, "twice the nodes hold twice the segments");
        assert_eq!(fit(&[]), 0);
    }

    #[test]
    fn marks_are_in_order_and_leave_a_checkpoint() {
        for nodes in 6..20 {
            for (checkpoint, total) in [(1, 10), (1, 100), (3, 1000), (9, 100_000)] {
                let shape = Shape { nodes, ..RS42 };
                let marks = shape.marks(checkpoint, total);
                assert!(checkpoint < marks.floor && marks.floor + 2 <= marks.reserve);
                assert!(marks.reserve < marks.low && marks.low < marks.high);
                // After m losses the floor is left of the reserve.
                let left = (nodes - 2).max(6);
                assert!(marks.reserve * left / nodes >= marks.floor, "{nodes} {marks:?}");
            }
        }
    }

    #[test]
    fn what_is_reserved_for_a_size_holds_that_size() {
        for nodes in [6, 7, 9, 12] {
            for blocks in [1, 1000, 6144, 16384, 262_144, 1 << 28] {
                let shape = Shape { nodes, ..RS42 };
                let total = shape.segments_for(blocks);
                let checkpoint = shape.checkpoint_segments(blocks, total);
                let keep = shape.overhead(checkpoint, total);
                assert!((total - keep) * shape.data_blocks() >= blocks);
                let free = vec![shape.slots_for(blocks); usize::try_from(nodes).expect("few")];
                assert!(shape.segments_fitting(&free) >= total);
            }
        }
        // Two volumes of 24 MiB fit on six nodes of 28 slots of 1 MiB.
        assert_eq!(RS42.slots_for(6144), 14);
    }
}
