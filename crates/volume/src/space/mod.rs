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

mod capacity;

use fieldstone_proto::{BLOCK_BYTES, NodeIndex, SegmentKind};
use smallvec::SmallVec;

use crate::core::VolumeCore;
use crate::failure::TooLarge;
use crate::node::Node;
use crate::record::RECORD_ENTRIES_MAX;
use crate::root::CHECKPOINT_SEGMENTS_MAX;
use crate::status::NodeHealth;
pub use capacity::{CapacityParams, Marks, slots_whole};
use capacity::{RESERVE_SEGMENTS, segments_fitting};

/// A predicate that decides whether a node belongs to a set.
type NodeSet<'a> = &'a dyn Fn(&Node) -> bool;

impl VolumeCore {
    /// The parameters of this volume's room.
    #[must_use]
    pub fn capacity_params(&self) -> CapacityParams {
        CapacityParams {
            nodes: self.nodes.len() as u64,
            missing_max: u64::from(self.config.missing_max),
            width: self.shape.layout().width() as u64,
            segment_blocks: self.shape.layout().segment_blocks(),
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
        let taken = self.life.is_opening() && !self.log.nodes.is_empty();
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
    pub fn too_large(&self, size_bytes: u64) -> Option<TooLarge> {
        let params = self.capacity_params();
        let segments = |bytes: u64| params.segments_for(bytes / BLOCK_BYTES as u64).1;
        if segments(size_bytes) <= CHECKPOINT_SEGMENTS_MAX {
            return None;
        }
        let bytes = u64::from(self.shape.layout().segment_blocks()) * BLOCK_BYTES as u64;
        // The largest power of two that fits.
        let most = (0..63)
            .rev()
            .map(|bit| 1 << bit)
            .find(|most| *most <= size_bytes && segments(*most) <= CHECKPOINT_SEGMENTS_MAX);
        Some(TooLarge { size_bytes, segment_bytes: bytes, fit_bytes: most.unwrap_or(0) })
    }

    /// The same when users have reserved `more` blocks, and all segments are sealed that have begun
    /// and that may begin now. A segment that begins must still find its slots when it is sealed.
    fn checkpoint_segments_to_come(&self, more: u64) -> u64 {
        let params = self.capacity_params();
        let begun =
            (self.segments.unsealed() + 1) * u64::from(self.shape.layout().segment_blocks());
        let size_blocks = self.shape.size_blocks();
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
        let early = self.repair.rebuild.lacks_room || high > marks.high;
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
        let begun =
            self.capacity_params().slots(self.segments.unsealed() + self.gc.segments_freeing());
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
        self.life.is_opening() || open || self.segments_not_borrowed() > 0
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
mod tests;
