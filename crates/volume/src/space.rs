//! Space: how much is left, when collection starts, when users have to wait, when the volume is
//! full.
//!
//! A segment takes one slot on each of its nodes. Each answer of a node says how many more slots
//! this volume may take: the slots that the volume has reserved there and does not hold (see
//! `provision`). No other volume changes that number, so the rest of this text holds for each
//! volume of a pool by itself.
//!
//! # Room for data
//! Each node keeps slots for two checkpoints (`checkpoint_slots`). The slots beyond those make room
//! for segments of data. Their number follows from the free slots of each node, if segments go to
//! the nodes with the most room when room gets short. The count assumes that as many more nodes are
//! lost as the code survives, and first those with the most room: a segment that begins now must
//! fit also then.
//!
//! Collection may go on with less room. With each lost node, a segment may have one shard less: it
//! still survives the losses that may come. So collection moves data to a node that came back empty
//! in a pool whose other nodes are full, although that node may be lost again.
//!
//! # Marks
//! From few free segments to many:
//!
//! ```text
//!   0 ............. reserve ............. low ............ high
//!       users wait           collection        it ends
//! ```
//!
//! - Below `reserve` only collection opens segments. A user's write opens the last segment at
//!   `reserve`; the rest is enough for two moves of a segment. A moved segment gives its slots back
//!   with the next checkpoint, so collection also goes on with the last one.
//! - Users wait while fewer than `reserve` segments are free, until collection has freed one. When
//!   collection finds nothing more to free, users get the error that there is no space.
//! - Rebuild leaves `low` segments free, so that users can still overwrite.
//!
//! A trim needs no segment. Its record goes into the journal. The volume stores a segment that has
//! only trims if there is room. If there is none, the next checkpoint records the effect of the
//! trims, and the volume forgets the segment (`gc`).
//!
//! # Why an opening never needs more room than it finds
//! Let a writer die at any moment. The next opening finds on the nodes:
//!
//! - the segments that the last root names: the segments in use, and one checkpoint;
//! - shards of a checkpoint that no root names. The opening deletes them before it writes anything,
//!   so each node has `C` slots for the next checkpoint again;
//! - dead segments whose deletion was lost, and segments whose records the journal still has. The
//!   opening deletes both before it writes anything.
//!
//! The opening then writes a checkpoint, which takes those `C` slots. It copies the records that it
//! replays to a new journal, which has its own place on the node. A ring has room for all records
//! that a ring held, so no segment has to be stored before the volume serves. When the volume
//! serves, it stores those segments. The earlier writer would also have stored them, and had
//! counted their slots as taken. Their number does not grow, because the opening packs the records
//! as densely as possible. Nodes that were lost in between had been counted as lost.
//!
//! One kind of record is larger in the new journal than in the old one: a record whose blocks only
//! the shards of its segment hold (`rows`). The opening stores as many segments as do not fit into
//! the ring, while the segments with these blocks still exist. For this, users leave as many
//! segments free in addition to the reserve ([`VolumeCore::space_is_borrowed`]).
//!
//! If an opening dies, no root names its leftovers, and the argument begins anew.
//!
//! A node may have less reserved than the argument assumes: it came back empty, and the writer died
//! before it had asked the node. An opening asks such a node for the `C` slots. If other volumes
//! have reserved them, the node takes no shard of the checkpoint, like a lost node.

use fieldstone_codes::Profile;
use fieldstone_proto::{BLOCK_BYTES, NodeIndex, SegmentKind};
use smallvec::SmallVec;

use crate::core::{VolumeCore, layout_of};
use crate::footer::footer_blocks;
use crate::interface::Geometry;
use crate::node::Node;
use crate::record::RECORD_ENTRIES_MAX;
use crate::root::CHECKPOINT_SEGMENTS_MAX;
use crate::status::{NodeHealth, VolumePhase};

/// Free segments that users' writes do not take.
const RESERVE_SEGMENTS: u64 = 3;
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
    fn data_blocks(self) -> u64 {
        let blocks = self.segment_blocks;
        u64::from(blocks - footer_blocks(blocks as usize).min(blocks / 2))
    }

    /// Segments that a checkpoint of this many blocks and segments takes at most.
    fn checkpoint_segments(self, blocks: u64, segments: u64) -> u64 {
        let bytes = blocks * 8 + segments * (24 + 3 * self.width) + 4096;
        bytes.div_ceil(u64::from(self.segment_blocks) * 4096)
    }

    /// Nodes that remain after the largest permitted loss, and that make room for segments. With
    /// fewer nodes than a segment has shards, segments are narrower instead.
    fn nodes_left(self) -> u64 {
        let left = self.nodes.saturating_sub(self.missing_max);
        left.max(self.width.min(self.nodes)).max(1)
    }

    /// The marks of a volume that has `total` segments, including free ones.
    fn marks(total: u64) -> Marks {
        let slack = slack(total);
        Marks {
            reserve: RESERVE_SEGMENTS,
            low: RESERVE_SEGMENTS + (slack / 3).max(1),
            high: RESERVE_SEGMENTS + (slack * 2 / 3).max(2),
        }
    }

    /// Segments of garbage that collection needs when a volume has `total` segments of data and
    /// garbage, and is full. When nodes are lost, that garbage gives less room.
    fn garbage(self, total: u64) -> u64 {
        (slack(total) * self.nodes).div_ceil(self.nodes_left())
    }

    /// Slots on each node with which `free` segments find room even when nodes are lost.
    fn slots_for_free(self, free: u64) -> u64 {
        (free * self.width).div_ceil(self.nodes_left())
    }

    /// Slots on each node that neither data nor garbage takes: those for the present and the next
    /// checkpoint, and those for `free` segments.
    fn slots_left(self, checkpoint: u64, free: u64) -> u64 {
        2 * checkpoint + self.slots_for_free(free)
    }

    /// Segments of data and garbage when a volume of `blocks` blocks is full, and segments of its
    /// checkpoint.
    fn segments_for(self, blocks: u64) -> (u64, u64) {
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
    fn capacity_blocks(self, slots: &[u64], checkpoint: u64) -> u64 {
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
    fn segments_fitting_after_losses(
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
fn segments_fitting(free: &[u64], width: u64) -> u64 {
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
fn slack(total: u64) -> u64 {
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

/// A predicate that decides whether a node belongs to a set.
type NodeSet<'a> = &'a dyn Fn(&Node) -> bool;

impl VolumeCore {
    /// The parameters of this volume's room.
    #[must_use]
    pub fn capacity_params(&self) -> CapacityParams {
        CapacityParams {
            nodes: self.nodes.len() as u64,
            missing_max: u64::from(self.config.missing_max),
            width: self.layout.width() as u64,
            segment_blocks: self.layout.segment_blocks(),
        }
    }

    /// Segments of data that still fit on the nodes that are up, even after as many more losses as
    /// the code survives.
    #[must_use]
    pub fn segments_free(&self) -> u64 {
        self.segments_free_after_losses(0)
    }

    /// The same for collection: with each lost node, segments may have one shard less.
    #[must_use]
    pub fn segments_free_to_move(&self) -> u64 {
        self.segments_free_after_losses(1)
    }

    /// See [`CapacityParams::segments_fitting_after_losses`].
    fn segments_free_after_losses(&self, fewer_shards_per_loss: u64) -> u64 {
        self.segments_free_after_checkpoint(
            self.checkpoint_segments_to_come(0),
            fewer_shards_per_loss,
        )
    }

    /// The same after a checkpoint of `kept` segments.
    fn segments_free_after_checkpoint(&self, kept: u64, fewer_shards_per_loss: u64) -> u64 {
        let fitting = self.fitting_on_most(|left_out| {
            let counts =
                |(_, node): &(NodeIndex, &Node)| node.health == NodeHealth::Up && !left_out(node);
            let slots = |(index, node): (NodeIndex, &Node)| {
                let kept = self.checkpoint_slots_kept(kept, index);
                u64::from(node.slots.free).saturating_sub(kept)
            };
            let nodes = (0..).map(NodeIndex).zip(&self.nodes);
            let free = nodes.filter(counts).map(slots).collect();
            self.capacity_params().segments_fitting_after_losses(free, fewer_shards_per_loss)
        });
        fitting.saturating_sub(self.segments_begun())
    }

    /// Each segment that has begun finds nodes for all its shards, among the nodes that are up.
    #[must_use]
    pub fn all_fit_whole(&self) -> bool {
        let nodes = self.up_nodes();
        let free: SmallVec<[u64; 16]> = nodes.iter().map(|n| self.slots_for_data(*n)).collect();
        segments_fitting(&free, self.capacity_params().width) >= self.segments_begun()
    }

    /// Segments that have begun, and still have to find their slots.
    fn segments_begun(&self) -> u64 {
        self.segments.unsealed() - u64::from(self.log_is_of_trims())
    }

    /// The largest value of `fits`, with and without the nodes that are short of room.
    ///
    /// A node whose disk is full takes no shards, as if it were lost. A node that granted less than
    /// the others, or whose disk has less room than the others, takes shards until its slots are
    /// used up. With such a node, segments are wider or find more room; without it, the remaining
    /// nodes may have more room in common. The volume leaves out at most `missing_max` nodes,
    /// because more such nodes make the volume full.
    fn fitting_on_most(&self, fits: impl Fn(NodeSet) -> u64) -> u64 {
        let full: NodeSet = &|node| node.is_disk_full();
        let short: NodeSet = &|node| node.is_short();
        let limited: NodeSet = &|node| node.is_short() || self.is_limited_by_disk(node);
        let with_most = if self.leaves_out(full) { fits(full) } else { fits(&|_| false) };
        let without = [short, limited].into_iter().filter(|set| self.leaves_out(set)).map(fits);
        without.fold(with_most, u64::max)
    }

    /// The open segment has no blocks. The volume may never store it.
    #[must_use]
    pub fn log_is_of_trims(&self) -> bool {
        let open = self.log.open.and_then(|open| self.segments.get(open));
        open.is_some_and(|segment| segment.contents_blocks() == 0)
    }

    /// A node has a slot for a shard of data: a slot that is not kept for a checkpoint, and that no
    /// shard under way takes.
    #[must_use]
    pub fn has_room_for_data(&self, node: NodeIndex) -> bool {
        self.slots_for_data(node) > 0
    }

    /// Slots of a node for shards of data, beyond those that shards under way take.
    #[must_use]
    pub fn slots_for_data(&self, node: NodeIndex) -> u64 {
        // An opening that has written its checkpoint has used the slots for it. It gets the slots
        // of the old checkpoint.
        let taken = self.phase == VolumePhase::Opening && !self.log.nodes.is_empty();
        let kept = if taken { 0 } else { self.checkpoint_slots_kept_on(node) };
        self.slots_beyond(node).saturating_sub(kept)
    }

    /// A node has a slot for a shard that rebuild makes: see the marks in the module's essay. It
    /// leaves the room of the segments that have begun, too.
    #[must_use]
    pub fn has_room_for_rebuild(&self, node: NodeIndex) -> bool {
        let total = self.segments.len() as u64 + self.segments_free();
        let low = CapacityParams::marks(total).low;
        let begun = self.segments_begun();
        self.slots_for_data(node) > self.capacity_params().slots_for_free(low + begun)
    }

    /// Slots that remain on a node when the shards under way have arrived.
    #[must_use]
    pub fn slots_beyond(&self, node: NodeIndex) -> u64 {
        let state = self.node(node);
        u64::from(state.slots.free).saturating_sub(state.slots.claimed.len() as u64)
    }

    /// Some nodes are `such`, and together with the lost nodes they are at most `missing_max`.
    fn leaves_out(&self, such: impl Fn(&Node) -> bool) -> bool {
        let lost = |node: &&Node| node.health != NodeHealth::Up || such(node);
        self.nodes.iter().any(&such)
            && self.nodes.iter().filter(lost).count() <= usize::from(self.config.missing_max)
    }

    /// Segments that a checkpoint takes at most, given the map's present size.
    #[must_use]
    pub fn checkpoint_segments(&self) -> u64 {
        self.capacity_params()
            .checkpoint_segments(self.map.used_blocks(), self.segments.len() as u64)
    }

    /// Why the root could not name the checkpoint of a volume of this size, if so.
    #[must_use]
    pub fn too_large(&self, size_bytes: u64) -> Option<String> {
        let params = self.capacity_params();
        let segments = |bytes: u64| params.segments_for(bytes / BLOCK_BYTES as u64).1;
        if segments(size_bytes) <= CHECKPOINT_SEGMENTS_MAX {
            return None;
        }
        let bytes = u64::from(self.layout.segment_blocks()) * BLOCK_BYTES as u64;
        // The largest power of two that fits.
        let most = (0..63)
            .rev()
            .map(|bit| 1 << bit)
            .find(|most| *most <= size_bytes && segments(*most) <= CHECKPOINT_SEGMENTS_MAX);
        Some(format!(
            "a volume of {size_bytes} bytes is too large for segments of {bytes} bytes: its \
             checkpoint could have more segments than its root can name; {} bytes fit",
            most.unwrap_or(0)
        ))
    }

    /// The same when users have reserved `more` blocks, and all segments are sealed that have begun
    /// and that may begin now. A segment that begins must still find its slots when it is sealed.
    fn checkpoint_segments_to_come(&self, more: u64) -> u64 {
        let params = self.capacity_params();
        let begun = (self.segments.unsealed() + 1) * u64::from(self.layout.segment_blocks());
        let size_blocks = self.geometry.size_bytes / BLOCK_BYTES as u64;
        let used = self.map.used_blocks() + more;
        let blocks = (used + begun).min(size_blocks).max(used);
        let len = self.segments.len() as u64;
        let slots = u64::from(self.reservation.slots);
        let segments = len + RESERVE_SEGMENTS + self.checkpoint_segments();
        let segments = segments.min(slots * params.nodes / params.width).max(len);
        params.checkpoint_segments(blocks, segments)
    }

    /// The present marks. When rebuild lacks room, a reservation of blocks waits for room, or the
    /// volume wants to give slots back, collection begins earlier.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let marks = self.marks_at_rest();
        let growth = self.checkpoint_growth(self.log.reserving_blocks);
        let high = marks.high + self.segments_to_release() + growth;
        let early = self.rebuild.lacks_room || high > marks.high;
        let low = if early { high } else { marks.low };
        Marks { low, high, ..marks }
    }

    /// The marks of a volume that has no other reason to collect than its own lack of room.
    #[must_use]
    pub fn marks_at_rest(&self) -> Marks {
        CapacityParams::marks(self.segments.len() as u64 + self.segments_free())
    }

    /// Slots on each node that the volume takes with `more` segments more than it has, and with the
    /// slots that it leaves free.
    #[must_use]
    pub fn slots_with(&self, more: u64) -> u64 {
        let params = self.capacity_params();
        let data = self.segments.len() - self.segments.checkpoints().len();
        let held = params.slots(data as u64).max(self.slots_of_data_max());
        let free = self.marks_at_rest().high;
        held + params.slots(more) + params.slots_left(self.checkpoint_segments(), free)
    }

    /// The same for a volume that has no segments and no free slots of its own.
    #[must_use]
    pub fn slots_when_empty(&self, more: u64) -> u64 {
        let (params, free) = (self.capacity_params(), CapacityParams::marks(0).high);
        params.slots(more) + params.slots_left(self.checkpoint_segments(), free)
    }

    /// Slots on each node that the volume leaves free whenever it can: those for the next
    /// checkpoint, and the reserve. A node without shards of the present checkpoint has more; see
    /// [`Self::checkpoint_slots_unused_on`].
    #[must_use]
    pub fn slots_always_free(&self) -> u64 {
        self.checkpoint_segments() + self.capacity_params().slots_for_free(RESERVE_SEGMENTS)
    }

    /// Slots that the volume must reserve on each node, as far as the volume knows: one for each
    /// shard of data on the fullest node, those of the segments that it has begun, and those for
    /// checkpoints and the reserve.
    #[must_use]
    pub fn slots_min_known(&self) -> u64 {
        let begun = self.capacity_params().slots(self.segments.unsealed() + self.segments_freeing);
        let checkpoint = self.checkpoint_segments().max(self.checkpoint_named());
        self.slots_of_data_max() + checkpoint + begun + self.slots_always_free()
    }

    /// The number of the volume's data shards on the node that holds the most data shards.
    fn slots_of_data_max(&self) -> u64 {
        let mut held: SmallVec<[u64; 16]> = SmallVec::from_elem(0, self.nodes.len());
        let data = self.segments.iter().filter(|(_, s)| s.kind == SegmentKind::Data);
        for node in data.flat_map(|(_, segment)| segment.shards.iter().flatten()) {
            held[usize::from(node.0)] += 1;
        }
        held.into_iter().max().unwrap_or(0)
    }

    /// The log may append blocks: an open segment takes them, or there is room for a new one. An
    /// opening always may: the module's essay says why there is room.
    #[must_use]
    pub fn room_for_blocks(&self) -> bool {
        let open = self.log.open.is_some() && !self.log_is_of_trims();
        self.phase == VolumePhase::Opening || open || self.segments_not_borrowed() > 0
    }

    /// Collection may move a segment with `live_blocks` live blocks. The blocks take at most one
    /// new segment, and none if they fit into the open segment.
    #[must_use]
    pub fn room_to_move(&self, live_blocks: u32) -> bool {
        let entries = live_blocks as usize;
        let fits = |open| self.segment_room(open, entries + RECORD_ENTRIES_MAX) >= live_blocks;
        let open = self.log.open.filter(|_| !self.log_is_of_trims());
        self.segments_not_borrowed() > 0 || open.is_some_and(fits)
    }

    fn segments_not_borrowed(&self) -> u64 {
        self.segments_free_to_move().saturating_sub(self.segments.row_backed())
    }

    /// Blocks that the volume can hold in all before it is full, in the slots that it has reserved
    /// and those that it could still reserve.
    #[must_use]
    pub fn capacity_blocks(&self) -> u64 {
        self.fitting_on_most(|left_out| self.capacity_without(left_out))
    }

    /// The same, on the nodes that are not left out.
    fn capacity_without(&self, left_out: NodeSet) -> u64 {
        let granted = |node: &Node| match node.slots.reserved {
            0 => u64::from(self.reservation.slots),
            slots => u64::from(slots) + self.slots_to_gain(node),
        };
        // The sum includes absent nodes: their absence does not make the volume smaller. Nor does
        // their absence keep the volume small when the other nodes grant more: the volume asks an
        // absent node for the same number when the node is back.
        let is_up = |node: &&Node| node.health == NodeHealth::Up;
        let most = self.nodes.iter().filter(is_up).map(granted).max().unwrap_or(0);
        let slots =
            |node: &Node| if is_up(&node) { granted(node) } else { granted(node).max(most) };
        let slots: SmallVec<[u64; 16]> =
            self.nodes.iter().filter(|node| !left_out(node)).map(slots).collect();
        self.capacity_params().capacity_blocks(&slots, self.checkpoint_segments())
    }

    /// Blocks that users may still fill.
    #[must_use]
    pub fn space_for_user(&self) -> u64 {
        self.capacity_blocks().saturating_sub(self.map.used_blocks())
    }

    /// Segments whose blocks only their own shards hold borrow space beyond the reserve: an opening
    /// stores these blocks once more before it deletes the segments. So these segments have to
    /// become durable, which takes no space, before the volume writes more.
    #[must_use]
    pub fn space_is_borrowed(&self) -> bool {
        let borrowed = self.segments.row_backed();
        borrowed > 0 && !self.starved() && self.segments_free() < self.marks().reserve + borrowed
    }

    /// Collection runs, or will run soon. Shards go to the nodes with the most room, not to the
    /// nodes that placement gives.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.segments_free() < self.marks_at_rest().high
    }

    /// Less than the reserve is left.
    #[must_use]
    pub fn starved(&self) -> bool {
        self.segments_free() < self.marks().reserve
    }

    /// Less than the reserve is left if a user reserves `blocks` more blocks. A reserved block
    /// takes no room in a segment, but the checkpoint names it, and may take one more segment for
    /// it.
    #[must_use]
    pub fn starves_if_reserved(&self, blocks: u64) -> bool {
        let kept = self.checkpoint_segments_to_come(blocks);
        self.checkpoint_growth(blocks) > 0
            && self.segments_free_after_checkpoint(kept, 0) < RESERVE_SEGMENTS
    }

    /// Segments that fit into the slots by which the checkpoint grows if a user reserves `blocks`
    /// more blocks.
    fn checkpoint_growth(&self, blocks: u64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        let params = self.capacity_params();
        let kept = self.checkpoint_segments_to_come(blocks);
        let slots = 2 * (kept - self.checkpoint_segments_to_come(0));
        (slots * params.nodes).div_ceil(params.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{SLOTS, Script};
    use crate::segment::State;

    const RS42: CapacityParams =
        CapacityParams { nodes: 6, missing_max: 2, width: 6, segment_blocks: 1024 };

    #[test]
    fn free_slots_become_segments_as_far_as_each_finds_enough_nodes() {
        let fit = |free: &[u64]| segments_fitting(free, RS42.width);
        assert_eq!(fit(&[5; 6]), 5);
        assert_eq!(fit(&[5, 5, 5, 5, 5, 100]), 5);
        assert_eq!(fit(&[0, 5, 5, 5, 5, 5]), 0);
        assert_eq!(fit(&[5; 4]), 5, "with nodes lost segments are narrower");
        assert_eq!(fit(&[10; 12]), 20, "twice the nodes hold twice the segments");
        assert_eq!(fit(&[]), 0);
    }

    #[test]
    fn a_node_that_came_back_empty_makes_room() {
        let copies = CapacityParams { nodes: 5, missing_max: 2, width: 3, segment_blocks: 256 };
        let fit = |free: &[u64]| copies.segments_fitting_after_losses(free.into(), 1);
        assert_eq!(fit(&[3, 3, 0, 3]), 3, "one node is lost");
        assert_eq!(fit(&[3, 3, 0, 3, 30]), 4);
        assert_eq!(fit(&[0, 0, 0, 0, 30]), 0, "one node alone is no room");
        assert_eq!(fit(&[9, 9, 9]), 9, "two nodes are lost");
        let strict = |free: &[u64]| copies.segments_fitting_after_losses(free.into(), 0);
        assert_eq!(strict(&[3, 3, 0, 3, 30]), 0, "users wait until collection has moved data");
        assert_eq!(strict(&[6, 6, 6, 6, 6]), 6);
        // If a segment has a shard on every node, every node has to have room.
        for free in [&[5, 5, 5, 5, 5, 2][..], &[5, 5, 5, 2]] {
            assert_eq!(RS42.segments_fitting_after_losses(free.into(), 0), 2);
            assert_eq!(RS42.segments_fitting_after_losses(free.into(), 1), 2);
        }
    }

    #[test]
    fn a_node_that_granted_less_still_holds_what_a_volume_needs() {
        let copies = CapacityParams { nodes: 4, missing_max: 2, width: 3, segment_blocks: 256 };
        let blocks = 2304;
        let slots = copies.slots_for(blocks);
        let (_, checkpoint) = copies.segments_for(blocks);
        assert!(copies.capacity_blocks(&[slots, slots, slots, slots - 1], checkpoint) >= blocks);
        assert!(copies.capacity_blocks(&[slots; 3], checkpoint) < blocks, "it is not left out");
    }

    #[test]
    fn a_root_names_the_checkpoint_of_every_size_that_is_taken() {
        Script::serving(8).core(|core| {
            assert_eq!(core.too_large(1 << 30), None);
            let why = core.too_large(1 << 50).expect("a checkpoint of millions of segments");
            let most = why.rsplit("; ").next().and_then(|rest| rest.split(' ').next());
            let most: u64 = most.and_then(|most| most.parse().ok()).expect("a number of bytes");
            assert!(most > 1 << 30 && core.too_large(most).is_none(), "{why}");
        });
    }

    #[test]
    fn marks_are_in_order() {
        for total in [1, 10, 100, 1000, 100_000] {
            let marks = CapacityParams::marks(total);
            assert!(marks.reserve >= 3, "two moves and what a user opens");
            assert!(marks.reserve < marks.low && marks.low < marks.high);
            assert!(marks.high <= marks.reserve + slack(total), "collection can end");
        }
    }

    #[test]
    fn what_is_reserved_for_a_size_holds_that_size() {
        for nodes in [6, 7, 9, 12] {
            for blocks in [1, 1000, 6144, 16384, 262_144, 1 << 28] {
                let params = CapacityParams { nodes, ..RS42 };
                let (total, checkpoint) = params.segments_for(blocks);
                let slots = params.slots_for(blocks);
                let all = vec![slots; usize::try_from(nodes).expect("few")];
                assert!(params.capacity_blocks(&all, checkpoint) >= blocks, "{nodes} {blocks}");
                // When the volume is full, the reserve is left, even after m losses.
                let used = params.slots(total) + checkpoint;
                let left = vec![slots - used; usize::try_from(params.nodes_left()).expect("few")];
                let fitting = segments_fitting(&left, params.width);
                assert!(fitting >= RESERVE_SEGMENTS, "{nodes} {blocks}");
            }
        }
        // Two volumes of 24 MiB fit on six nodes of 28 slots of 1 MiB.
        assert_eq!(RS42.slots_for(6144), 14);
    }

    #[test]
    fn every_size_fits_into_the_slots_that_are_reserved_for_it() {
        for (nodes, missing_max, width) in [
            (3, 1, 3),
            (4, 2, 3),
            (5, 2, 3),
            (4, 1, 2),
            (6, 2, 6),
            (7, 2, 6),
            (9, 2, 6),
            (12, 4, 12),
        ] {
            for (segment_blocks, step) in [(8, 1), (64, 7), (1024, 97)] {
                let params = CapacityParams { nodes, missing_max, width, segment_blocks };
                for blocks in (1..300 * step).step_by(step as usize) {
                    let slots = params.slots_for(blocks);
                    let all = vec![slots; usize::try_from(nodes).expect("few")];
                    // The volume may have as many segments as fit into the slots.
                    let checkpoint = params.checkpoint_segments(blocks, slots * nodes / width);
                    let capacity = params.capacity_blocks(&all, checkpoint);
                    assert!(capacity >= blocks, "{blocks} blocks, but {capacity} fit: {params:?}");
                }
            }
        }
    }

    #[test]
    fn rebuild_leaves_the_room_of_segments_that_have_begun() {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[None; 6]);
        script.core(|core| {
            let node = NodeIndex(3);
            let data = core.slots_for_data(node);
            let most = (0..data).find(|taken| {
                core.node_mut(node).slots.free = SLOTS - u32::try_from(*taken).expect("small");
                !core.has_room_for_rebuild(node)
            });
            let most = u32::try_from(most.expect("it has no room at last")).expect("small");
            core.node_mut(node).slots.free = SLOTS - (most - 1);
            assert!(core.has_room_for_rebuild(node));
            core.segments.set_state(handle, State::Closed);
            assert!(!core.has_room_for_rebuild(node));
            core.segments.set_state(handle, State::Open);
            core.log.open = Some(handle);
            assert!(core.has_room_for_rebuild(node), "it has no blocks, and needs no slot");
        });
    }
}
