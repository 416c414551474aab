//! The width of a segment: how many shards it has before the journal forgets its records.
//!
//! A sealed segment survives the loss of m nodes, like the journal before it. Each of its k + m
//! shards is on a node that is up, except the shards for nodes that are lost now, at most m. These
//! nodes count as lost:
//! - a node that is down;
//! - a node whose disk is full, or that refused a shard although it had granted the slot;
//! - a late node, as far as the other nodes do not take enough shards. It has come back after the
//!   segment began, and has no room for the segment, or it keeps rows of the segment that an
//!   opening may need. Such a node is not whole again: that takes room, too. For a segment that an
//!   opening has replayed, each node without room is late: the earlier writer had room there, or
//!   had lost the node.
//!
//! A node that granted less because of other volumes does not count as lost: nothing has failed
//! there. Nor does a node whose room the volume's own shards have taken.
//!
//! # Why the wait for these shards ends
//! Until so many shards are written, the volume retries, and the journal keeps the segment's
//! records. A checkpoint waits for the segment, so collection waits, too. The segment must find its
//! room without them:
//! - When it began, the nodes that were up had room for it, also after the losses that may come
//!   (`space`).
//! - Other segments leave it that room. While nodes are lost, a segment may have fewer shards, and
//!   where room is short it gets no more than it must have (`place`).
//! - Rebuild leaves it that room, too (`space`), and checkpoints have slots of their own
//!   (`checkpoint_slots`).
//! - A node that was lost since then counts as lost. A node that came back since then has room, or
//!   is late.
//!
//! So room is missing only if more than m nodes are lost at once. Then users' changes get the error
//! that there is no space (`log/admission`), and a volume that closes leaves the records in the
//! journal for the next opening (`gc/checkpoint`).

use fieldstone_proto::{NodeIndex, SegmentKind};

use crate::core::VolumeCore;
use crate::node::Node;
use crate::segment::{Segment, SegmentIndex, State};
use crate::status::NodeHealth;

/// How many nodes there are of each kind, for the shards of one segment.
#[derive(Default)]
struct Places {
    /// Up, with a shard of the segment.
    holding: usize,
    /// Up, without a shard, and with room for one.
    roomy: usize,
    /// Lost, or as good as lost: see the module's essay.
    lost: usize,
    /// Late: see the module's essay.
    late: usize,
    /// Up, without a shard, and without room for one. Nodes with full disks and late nodes are
    /// among them.
    full: Vec<NodeIndex>,
}

impl VolumeCore {
    /// So many shards of the segment are written that the volume can rely on it. With fewer nodes
    /// than an opening needs, it relies on no segment.
    pub fn stored(&self, handle: SegmentIndex) -> bool {
        let written = |s: &Segment| s.shards.len() - s.missing() >= self.shape.code().k();
        self.segments.get(handle).is_some_and(written) && self.writable()
    }

    /// As [`Self::stored`], and no node could take a missing shard.
    pub fn stored_well(&mut self, handle: SegmentIndex) -> bool {
        let whole = self.segments.get(handle).is_some_and(|segment| segment.missing() == 0);
        self.stored(handle) && (whole || self.place_missing(handle, 0).is_empty())
    }

    /// A segment of data lies on fewer nodes than it must; see [`Self::shards_lacking`]. An opening
    /// has to go on with the room that it finds.
    pub fn is_narrow(&self, handle: SegmentIndex, refusing: &[NodeIndex]) -> bool {
        let data = |segment: &Segment| segment.kind == SegmentKind::Data;
        self.segments.get(handle).is_some_and(data)
            && !self.life.is_opening()
            && self.shards_lacking(handle, refusing) > 0
    }

    /// Shards that the segment lacks to survive the loss of m nodes. A shard counts while its node
    /// is up. The module's essay says which nodes count as lost; those that refused the segment
    /// (`refusing`) do.
    pub fn shards_lacking(&self, handle: SegmentIndex, refusing: &[NodeIndex]) -> usize {
        let Some(segment) = self.segments.get(handle) else { return 0 };
        let Places { holding, roomy, lost, late, .. } = self.places(segment, refusing);
        // A pool may have fewer nodes than a segment has shards.
        let width = segment.shards.len().min(self.nodes.len());
        let wanted = |lost: usize| width.saturating_sub(lost.min(self.shape.code().m()));
        let possible = (holding + roomy).max(wanted(lost + late));
        wanted(lost).min(possible).saturating_sub(holding)
    }

    /// The nodes without room for a shard of the segment, if the segment cannot become as wide as
    /// it must before one of them has room. If it can, the list is empty.
    #[must_use]
    pub fn lacks_room_on(&self, handle: SegmentIndex) -> Vec<NodeIndex> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let places = self.places(segment, &[]);
        let lacking = match segment.kind {
            SegmentKind::Data => self.shards_lacking(handle, &[]),
            SegmentKind::Checkpoint => self.shape.code().k().saturating_sub(places.holding),
        };
        if lacking > places.roomy { places.full } else { Vec::new() }
    }

    /// The places of the segment's shards among all nodes.
    fn places(&self, segment: &Segment, refusing: &[NodeIndex]) -> Places {
        let mut places = Places::default();
        for (index, node) in (0..).map(NodeIndex).zip(&self.nodes) {
            let up = node.health == NodeHealth::Up;
            let faulty = node.is_disk_full() || self.is_limited_by_disk(node);
            if up && segment.has_shard_on(index) {
                places.holding += 1;
            } else if !up || faulty || refusing.contains(&index) {
                places.lost += 1;
                if up {
                    places.full.push(index);
                }
            } else if self.takes_shard_of(segment, index, node) {
                places.roomy += 1;
            } else {
                let came_back = |begun| node.slots.back_since >= Some(begun);
                // The node is about to delete an old shard or rows of the segment. That frees a
                // slot.
                let clears = segment.left_on.contains(&index) && !segment.needs_rows();
                let late = segment.begun_at.is_none_or(came_back) && !clears;
                places.late += usize::from(late);
                places.full.push(index);
            }
        }
        places
    }

    /// A node that is up can take a shard of the segment: it has a free slot, or it keeps rows of
    /// the segment in a slot, or a shard of the segment is on its way to it.
    fn takes_shard_of(&self, segment: &Segment, index: NodeIndex, node: &Node) -> bool {
        let free = || match segment.kind {
            SegmentKind::Data => self.has_room_for_data(index),
            SegmentKind::Checkpoint => self.slots_beyond(index) > 0,
        };
        let room = || free() || self.has_bad(segment.id, index);
        let has_room = || !node.slots.full && !segment.left_on.contains(&index) && room();
        let has_slot =
            node.slots.claimed.contains_key(&segment.id) || self.keeps_rows(segment, index);
        has_slot || has_room()
    }

    /// The closed segments that cannot be stored before some node has room.
    #[must_use]
    pub fn segments_without_room(&self) -> Vec<SegmentIndex> {
        let unsealed = self.segments.unsealed_segments();
        // While shards are on their way, the nodes that have answered hold shards that nothing has
        // noted yet.
        let at_rest = |segment: &Segment| segment.state == State::Closed && !segment.sending;
        let closed = unsealed.filter(|(_, segment)| at_rest(segment));
        let without = |handle: &SegmentIndex| !self.lacks_room_on(*handle).is_empty();
        closed.map(|(handle, _)| handle).filter(without).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_block::Nanos;

    use crate::node::Shortage;
    use crate::script::Script;

    /// A segment is as wide as the nodes that are up allow, although the code needs fewer shards.
    #[test]
    fn a_segment_is_narrow_if_fewer_nodes_are_lost_than_shards() {
        let mut script = Script::serving(8);
        let whole = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
        let five = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        let four = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        let narrow = |script: &mut Script, refusing: &[u16]| {
            let refusing: Vec<NodeIndex> = refusing.iter().copied().map(NodeIndex).collect();
            script.core(|core| [whole, five, four].map(|handle| core.is_narrow(handle, &refusing)))
        };
        assert_eq!(narrow(&mut script, &[]), [false, true, true], "all nodes are up");
        assert_eq!(narrow(&mut script, &[6]), [false, false, true], "one refused");
        assert_eq!(narrow(&mut script, &[6, 7]), [false, false, false]);
        script.core(|core| core.node_mut(NodeIndex(7)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, false, true], "one is lost");
        assert_eq!(narrow(&mut script, &[7]), [false, false, true], "it counts once");
        script.core(|core| core.node_mut(NodeIndex(6)).slots.shortage = Shortage::DiskFull);
        assert_eq!(narrow(&mut script, &[]), [false, false, false], "a full disk is like a loss");
        script.core(|core| core.node_mut(NodeIndex(7)).health = NodeHealth::Up);
        script.core(|core| core.node_mut(NodeIndex(0)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, false, true], "its shard counts no more");
        script.core(|core| core.node_mut(NodeIndex(1)).health = NodeHealth::Down);
        assert_eq!(narrow(&mut script, &[]), [false, true, true], "no more than m are lost");
    }

    /// A segment began at `begun` ns, and has five shards, on nodes 0 to 4 of six. The last node
    /// came back at `back_ns`, and has `free` slots for data. Returns the shards that the segment
    /// lacks.
    fn lacking(begun: Option<u64>, back_ns: Option<u64>, free: u32) -> usize {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = begun.map(Nanos);
            let kept = u32::try_from(core.checkpoint_slots_kept_on(NodeIndex(5))).expect("small");
            let node = core.node_mut(NodeIndex(5));
            node.slots.back_since = back_ns.map(Nanos);
            node.slots.free = kept + free;
            core.shards_lacking(handle, &[])
        })
    }

    #[test]
    fn a_node_that_came_back_without_room_counts_as_lost_for_older_segments() {
        assert_eq!(lacking(Some(10), Some(20), 0), 0, "it came back, and has no room");
        assert_eq!(lacking(Some(10), Some(20), 1), 1, "it has room");
        assert_eq!(lacking(Some(10), Some(5), 0), 1, "the segment began when it was there");
        assert_eq!(lacking(Some(10), None, 0), 1, "it was always there");
        assert_eq!(lacking(None, None, 0), 0, "an opening replayed the segment");
    }

    /// Four shards of a replayed segment are written. Two of the other four nodes have room.
    #[test]
    fn a_late_node_does_not_count_while_others_take_the_shards() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            for node in [4, 5] {
                core.node_mut(NodeIndex(node)).slots.free = 0;
            }
            assert_eq!(core.shards_lacking(handle, &[]), 2);
            core.node_mut(NodeIndex(6)).slots.free = 0;
            assert_eq!(core.shards_lacking(handle, &[]), 1, "one node is left");
            core.node_mut(NodeIndex(7)).health = NodeHealth::Down;
            assert_eq!(core.shards_lacking(handle, &[]), 0);
        });
    }

    /// Such a node has lost nothing, and the segment finds room on other nodes.
    #[test]
    fn a_node_where_other_volumes_have_the_room_does_not_count_as_lost() {
        let mut script = Script::serving(7);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        script.core(|core| {
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            core.node_mut(NodeIndex(6)).slots.shortage = Shortage::OtherVolumes;
            assert!(core.is_narrow(handle, &[]));
            core.node_mut(NodeIndex(6)).slots.shortage = Shortage::DiskFull;
            assert!(!core.is_narrow(handle, &[]));
        });
    }

    /// The journal lacks the blocks of the segment, so the rows on the node have to stay.
    #[test]
    fn a_node_that_came_back_with_rows_that_stay_counts_as_lost() {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(4), None]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").leave_on(NodeIndex(5));
            assert!(core.is_narrow(handle, &[]), "it deletes them, and then takes a shard");
            core.segments.set_detached(handle, true);
            assert!(!core.is_narrow(handle, &[]));
        });
    }

    /// A checkpoint has slots of its own, and needs k nodes.
    #[test]
    fn a_checkpoint_lacks_room_when_fewer_than_k_nodes_take_its_shards() {
        let mut script = Script::serving(6);
        let handle = script.add_checkpoint(&[Some(0), Some(1), None, None, None, None]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.nodes.iter_mut().for_each(|node| node.slots.free = 1);
            for node in [2, 3] {
                core.node_mut(NodeIndex(node)).slots.full = true;
            }
            assert!(core.lacks_room_on(handle).is_empty());
            core.node_mut(NodeIndex(4)).slots.full = true;
            assert_eq!(core.lacks_room_on(handle), [2, 3, 4].map(NodeIndex));
        });
    }

    #[test]
    fn a_segment_lacks_room_when_too_few_nodes_take_its_shards() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
            assert!(core.lacks_room_on(handle).is_empty());
            for node in [4, 5] {
                core.node_mut(NodeIndex(node)).slots.full = true;
            }
            assert!(core.lacks_room_on(handle).is_empty(), "two other nodes have room");
            core.node_mut(NodeIndex(6)).slots.full = true;
            assert_eq!(core.lacks_room_on(handle), [4, 5, 6].map(NodeIndex));
            assert_eq!(core.segments_without_room(), [handle]);
            let id = core.segments.get(handle).expect("it was added").id;
            core.node_mut(NodeIndex(6)).slots.claimed.insert(id, 1);
            assert!(core.lacks_room_on(handle).is_empty(), "a shard is on its way");
            core.node_mut(NodeIndex(6)).slots.claimed.clear();
            core.node_mut(NodeIndex(6)).health = NodeHealth::Down;
            assert!(core.lacks_room_on(handle).is_empty(), "the last node takes the fifth shard");
            for node in [3, 4, 5] {
                core.node_mut(NodeIndex(node)).slots.shortage = Shortage::DiskFull;
            }
            core.segments.get_mut(handle).expect("it was added").shards[3] = None;
            assert!(core.lacks_room_on(handle).is_empty(), "the last node takes the fourth shard");
            core.node_mut(NodeIndex(7)).slots.shortage = Shortage::DiskFull;
            assert_eq!(core.lacks_room_on(handle), [3, 4, 5, 7].map(NodeIndex));
        });
    }
}
