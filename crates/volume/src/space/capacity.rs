//! The arithmetic of space: slots, segments and blocks of a pool with so many nodes.

use fieldstone_codes::Profile;
use fieldstone_proto::BLOCK_BYTES;
use smallvec::SmallVec;

use crate::footer::footer_blocks;
use crate::interface::Geometry;
use crate::shape::layout_of;

/// Free segments that users' writes do not take.
pub(super) const RESERVE_SEGMENTS: u64 = 3;
/// Fewest segments beyond the reserve that hold no data when the volume is full. Collection needs
/// the garbage in them to make progress.
const SLACK_SEGMENTS_MIN: u64 = 2;
/// In large volumes, one in this many segments is kept for garbage.
const SLACK_FRACTION: u64 = 12;

/// Free-segment marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Below this, users wait.
    pub reserve: u64,
    /// Below this, collection runs.
    pub low: u64,
    /// Collection stops here.
    pub high: u64,
}

/// The parameters that, with the free slots, decide how much room a volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityParams {
    /// Nodes of the pool.
    pub nodes: u64,
    /// Nodes that may be lost.
    pub missing_max: u64,
    /// Shards of a segment.
    pub width: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
}

impl CapacityParams {
    /// Blocks of users that fit into a segment with the largest possible footer.
    pub(super) fn data_blocks(self) -> u64 {
        let blocks = self.segment_blocks;
        u64::from(blocks - footer_blocks(blocks as usize).min(blocks / 2))
    }

    /// Segments that a checkpoint of this many blocks and segments takes at most.
    pub(super) fn checkpoint_segments(self, blocks: u64, segments: u64) -> u64 {
        let bytes = blocks * 8 + segments * (24 + 3 * self.width) + 4096;
        bytes.div_ceil(u64::from(self.segment_blocks) * 4096)
    }

    /// Nodes that remain after the largest permitted loss, and that make room for segments. With
    /// fewer nodes than a segment has shards, segments are narrower instead.
    pub(super) fn nodes_left(self) -> u64 {
        let left = self.nodes.saturating_sub(self.missing_max);
        left.max(self.width.min(self.nodes)).max(1)
    }

    /// The marks of a volume that has `total` segments, including free ones.
    pub(super) fn marks(total: u64) -> Marks {
        let slack = slack(total);
        Marks {
            reserve: RESERVE_SEGMENTS,
            low: RESERVE_SEGMENTS + (slack / 3).max(1),
            high: RESERVE_SEGMENTS + (slack * 2 / 3).max(2),
        }
    }

    /// Segments of garbage that collection needs when a volume has `total` segments of data and
    /// garbage, and is full. When nodes are lost, that garbage gives less room.
    pub(super) fn garbage(self, total: u64) -> u64 {
        (slack(total) * self.nodes).div_ceil(self.nodes_left())
    }

    /// Slots on each node with which `free` segments find room even when nodes are lost.
    pub(super) fn slots_for_free(self, free: u64) -> u64 {
        (free * self.width).div_ceil(self.nodes_left())
    }

    /// Slots on each node that neither data nor garbage takes: those for the present and the next
    /// checkpoint, and those for `free` segments.
    pub(super) fn slots_left(self, checkpoint: u64, free: u64) -> u64 {
        2 * checkpoint + self.slots_for_free(free)
    }

    /// Segments of data and garbage when a volume of `blocks` blocks is full, and segments of its
    /// checkpoint.
    pub(super) fn segments_for(self, blocks: u64) -> (u64, u64) {
        let data = blocks.div_ceil(self.data_blocks().max(1));
        let mut total = data;
        loop {
            let checkpoint = self.checkpoint_segments(blocks, total);
            // A checkpoint names every segment that can exist, including those in free slots.
            let slots = self.slots(total) + self.slots_left(checkpoint, RESERVE_SEGMENTS);
            let checkpoint = self.checkpoint_segments(blocks, slots * self.nodes / self.width);
            let wanted = data + self.garbage(total);
            if wanted <= total {
                return (total, checkpoint);
            }
            total = wanted;
        }
    }

    /// Slots on each node that hold this many segments.
    #[must_use]
    pub fn slots(self, segments: u64) -> u64 {
        (segments * self.width).div_ceil(self.nodes.max(1))
    }

    /// Slots on each node with which users can fill a volume of `blocks` blocks and overwrite it
    /// for ever.
    #[must_use]
    pub fn slots_for(self, blocks: u64) -> u64 {
        let (total, checkpoint) = self.segments_for(blocks);
        self.slots(total) + self.slots_left(checkpoint, RESERVE_SEGMENTS)
    }

    /// As [`Self::slots_for`], with the largest permitted loss of nodes for good: the other nodes
    /// also hold the rebuilt shards of the lost nodes.
    #[must_use]
    pub fn slots_for_with_losses(self, blocks: u64) -> u64 {
        let (total, checkpoint) = self.segments_for(blocks);
        let slots = (total * self.width).div_ceil(self.nodes_left());
        slots + self.slots_left(checkpoint, RESERVE_SEGMENTS)
    }

    /// Blocks that fit into nodes with these numbers of slots.
    pub(super) fn capacity_blocks(self, slots: &[u64], checkpoint: u64) -> u64 {
        let left = self.slots_left(checkpoint, RESERVE_SEGMENTS);
        let slots: SmallVec<[u64; 16]> =
            slots.iter().map(|slots| slots.saturating_sub(left)).collect();
        let total = segments_fitting(&slots, self.width);
        // Garbage grows in steps. At a step, one more segment takes more room for garbage than it
        // gives. So the volume does not use that segment.
        let before_step = (total / SLACK_FRACTION * SLACK_FRACTION).saturating_sub(1);
        let data = |total: u64| total.saturating_sub(self.garbage(total));
        data(total).max(data(before_step)) * self.data_blocks()
    }

    /// Segments that fit into the free slots of the remaining nodes, now and after as many more
    /// losses as the code survives, where the nodes with the most room are lost first. With each
    /// lost node, a segment may have `fewer_shards_per_loss` shards less.
    pub(super) fn segments_fitting_after_losses(
        self,
        mut free: SmallVec<[u64; 16]>,
        fewer_shards_per_loss: u64,
    ) -> u64 {
        free.sort_unstable();
        let mut fitting = segments_fitting(&free, self.width);
        let lost = self.nodes - free.len() as u64;
        for lost in lost + 1..=self.missing_max {
            if free.len() > 1 {
                free.pop();
            }
            let width = self.width - lost * fewer_shards_per_loss;
            fitting = fitting.min(segments_fitting(&free, width));
        }
        fitting
    }
}

/// Segments that fit into the free slots of nodes, with `width` shards each, or with one shard per
/// node if there are fewer nodes. Each segment takes at most one slot of a node.
pub(super) fn segments_fitting(free: &[u64], width: u64) -> u64 {
    let width = width.min(free.len() as u64);
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

/// Segments beyond the reserve that hold no data when a volume of `total` segments is full.
pub(super) fn slack(total: u64) -> u64 {
    SLACK_SEGMENTS_MIN.max(total / SLACK_FRACTION)
}

/// Slots on each node with which users can fill a volume of these sizes and overwrite it for ever,
/// in a pool of `nodes` nodes. A thick volume reserves this number.
#[must_use]
pub fn slots_whole(geometry: &Geometry, profile: Profile, nodes: u16) -> u64 {
    let code = profile.code();
    let missing_max = u64::try_from(code.m()).unwrap_or(u64::MAX);
    let layout = layout_of(&*code, geometry);
    let params = CapacityParams {
        nodes: u64::from(nodes),
        missing_max: missing_max.min(u64::from(nodes.saturating_sub(1))),
        width: layout.width() as u64,
        segment_blocks: layout.segment_blocks(),
    };
    params.slots_for(geometry.size_bytes / BLOCK_BYTES as u64)
}
