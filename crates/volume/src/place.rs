//! Placement of shards: CRUSH draws nodes, and the pool's map then fills the result up.
//!
//! A draw is a job of the world, so that a device can do it. But rows and seals need their nodes at
//! once. So the volume asks for the draw of the next segment when a segment begins. If the result
//! has arrived when the volume needs the nodes, and the same nodes can take shards then, the volume
//! uses this result. Otherwise it draws in place. A draw depends only on its input, so both give
//! the same nodes. (A device may give other nodes by a fault. That is harmless: the volume notes
//! where each shard is.)

use std::sync::Arc;

use fieldstone_accel::Job;
use fieldstone_crush::{NodeWeight, Osds, PoolMap};
use fieldstone_proto::{NodeIndex, SegmentId, SegmentKind};
use smallvec::SmallVec;

use crate::core::VolumeCore;
use crate::node::Node;
use crate::segment::{Segment, SegmentIndex};
use crate::status::NodeHealth;

/// The inputs of a draw.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PlacementInput {
    /// The key of the segment.
    key: u64,
    /// Shards of the segment.
    width: usize,
    /// The weights of the nodes, 16.16; 0 for nodes that take nothing.
    in_weights: Arc<[u32]>,
}

/// The result of a draw that was made ahead of its use.
pub struct PrecomputedDraw {
    input: PlacementInput,
    drawn: Osds,
}

/// Where shards and journals go: the map of the pool, and the draw that was made ahead.
pub struct Placement {
    pool: PoolMap,
    /// The nodes for the segment that begins next. A draw for another segment is of no use.
    next_draw: Option<(SegmentId, PrecomputedDraw)>,
}

impl Placement {
    /// The placement in a pool of this number of nodes, all of the same weight.
    #[must_use]
    pub fn new(nodes: u16) -> Self {
        let weights = vec![NodeWeight::ONE; usize::from(nodes)];
        let pool = PoolMap::new(&weights).expect("a pool of at least one node");
        Self { pool, next_draw: None }
    }

    /// The map of the pool.
    #[must_use]
    pub fn pool(&self) -> &PoolMap {
        &self.pool
    }
}

impl VolumeCore {
    /// A node for each shard of a segment.
    fn place_shards(&self, handle: SegmentIndex, input: &PlacementInput) -> Vec<Option<usize>> {
        let PlacementInput { key, width, in_weights } = input;
        let contents = self.segments.get(handle).and_then(|segment| segment.contents.as_ref());
        let draw = contents.and_then(|contents| contents.draw.as_ref());
        match draw.filter(|draw| draw.input == *input) {
            Some(draw) => self.placement.pool.shards_from(*key, *width, in_weights, &draw.drawn),
            None => self.placement.pool.place_shards(*key, *width, in_weights),
        }
    }

    /// A segment begins: it takes the draw that was made ahead for it. Asks the world for the draw
    /// of the next one.
    pub fn take_draw(&mut self, id: SegmentId) -> Option<PrecomputedDraw> {
        let ready = self.placement.next_draw.take().filter(|(of, _)| *of == id);
        let next = self.segments.upcoming_id(self.writer.epoch());
        let input = self.placement_input(
            self.placement_key(next, 0),
            &[],
            self.shape.layout().width(),
            &self.nodes_to_avoid(),
            |core, n| core.has_room_for_data(n),
        );
        let result = self.start_job(Job::Place {
            map: Arc::clone(self.placement.pool.map()),
            rule: PoolMap::SHARDS,
            width: self.placement.pool.draw_width(input.width),
            xs: vec![PoolMap::input(input.key)],
            weights: Arc::clone(&input.in_weights),
        });
        self.spawn_with(move |ctx| async move {
            let output = result.await.expect("the rule is made with the map");
            let placements = output.into_placements().expect("a placement places");
            let drawn = placements.into_iter().next();
            ctx.with(|core| {
                core.placement.next_draw =
                    drawn.map(|drawn| (next, PrecomputedDraw { input, drawn }));
            });
        });
        ready.map(|(_, draw)| draw)
    }

    /// Chooses a node for each shard of the segment that is not written yet, as far as nodes have
    /// room. Room that is kept for checkpoints is no room for data. While nodes are lost, a segment
    /// may do with fewer shards: where other segments that have begun need the room, it gets no
    /// more than it must have.
    pub fn place_missing(&mut self, handle: SegmentIndex, attempt: u64) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let (id, kind) = (segment.id, segment.kind);
        let counted = kind == SegmentKind::Data && !self.life.is_opening();
        let most = match counted && !self.all_fit_whole() {
            true => self.shards_lacking(handle, &[]),
            false => usize::MAX,
        };
        let avoided = if counted { self.nodes_to_avoid() } else { Vec::new() };
        self.place(handle, attempt, most, &avoided, |core, node| {
            kind == SegmentKind::Checkpoint
                || core.has_room_for_data(node)
                || core.has_bad(id, node)
        })
    }

    /// The node holds a shard of the segment, or a write of such a shard to the node is under way.
    /// Rebuild gives such a node no second shard: the node could not delete one of two alone.
    pub fn has_or_gets_shard(&self, segment: &Segment, node: NodeIndex) -> bool {
        segment.has_shard_on(node) || self.node(node).slots.claimed.contains_key(&segment.id)
    }

    /// As [`Self::place_missing`], on some of the nodes only, however short room is.
    pub fn place_missing_on(
        &mut self,
        handle: SegmentIndex,
        attempt: u64,
        chosen: impl Fn(&Self, NodeIndex) -> bool,
    ) -> Vec<(usize, NodeIndex)> {
        self.place(handle, attempt, usize::MAX, &[], chosen)
    }

    /// Chooses nodes for at most `most` missing shards of the segment, and for those with rows.
    fn place(
        &mut self,
        handle: SegmentIndex,
        attempt: u64,
        most: usize,
        avoided: &[NodeIndex],
        chosen: impl Fn(&Self, NodeIndex) -> bool,
    ) -> Vec<(usize, NodeIndex)> {
        let Some(segment) = self.segments.get(handle) else { return Vec::new() };
        let is_missing: SmallVec<[bool; 8]> =
            segment.shards.iter().map(|node| node.is_none()).collect();
        let missing = |shard: &usize| is_missing[*shard];
        let kept = self.nodes_with_rows(segment);
        let mut used: SmallVec<[NodeIndex; 8]> =
            segment.shards.iter().chain(&kept).flatten().copied().collect();
        let with_rows = kept.iter().flatten().count();
        let wanted = (segment.shards.len() - used.len()).min(most.saturating_sub(with_rows));
        // A node that has a shard or rows left over, or to which a write of such a shard is under
        // way, gets no second shard: the node could not delete one of two alone.
        used.extend_from_slice(&segment.left_on);
        used.extend(self.nodes_that(|node| node.slots.claimed.contains_key(&segment.id)));
        let key = self.placement_key(segment.id, attempt);
        let input = self.placement_input(key, &used, wanted, avoided, chosen);
        let none = input.in_weights.iter().all(|weight| *weight == 0);
        if none && kept.iter().all(Option::is_none) {
            return Vec::new();
        }
        let placed = self.place_shards(handle, &input);
        let node = |placed: usize| NodeIndex(u16::try_from(placed).expect("nodes are 16 bits"));
        // A missing shard goes to the node that placement gives it. Placement may leave a missing
        // shard without a node; it then takes a node that placement gave to a shard that is already
        // written.
        let settled = |shard: &usize| !missing(shard) || kept[*shard].is_some();
        let mut spare = (0..placed.len()).filter(settled).filter_map(|shard| placed[shard]);
        let mut other = |shard: usize| Some(node(placed[shard].or_else(|| spare.next())?));
        (0..placed.len())
            .filter(missing)
            .filter_map(|shard| Some((shard, kept[shard].or_else(|| other(shard))?)))
            .collect()
    }

    /// For each missing shard of the segment, the node that has rows of the shard.
    fn nodes_with_rows(&self, segment: &Segment) -> SmallVec<[Option<NodeIndex>; 8]> {
        let node = |(shard, placed): (usize, &Option<NodeIndex>)| match placed {
            None => self.row_node(segment, shard),
            Some(_) => None,
        };
        segment.shards.iter().enumerate().map(node).collect()
    }

    /// The inputs for the placement of a segment's shards. `used` are the nodes that have shards
    /// of it, `wanted` is the number of shards without a node, and `chosen` says which nodes take
    /// one. The `avoided` nodes take none, the first ones before the others, as far as enough other
    /// nodes are left.
    fn placement_input(
        &self,
        key: u64,
        used: &[NodeIndex],
        wanted: usize,
        avoided: &[NodeIndex],
        chosen: impl Fn(&Self, NodeIndex) -> bool,
    ) -> PlacementInput {
        let usable = |(index, node): &(NodeIndex, &Node)| {
            let up = node.health == NodeHealth::Up && !node.slots.full;
            up && !used.contains(index) && chosen(self, *index)
        };
        let nodes = (0u16..).map(NodeIndex).zip(&self.nodes).filter(usable);
        let mut usable: Vec<(u64, NodeIndex)> =
            nodes.map(|(index, _)| (self.slots_for_data(index), index)).collect();
        if self.is_tight() {
            // Uses only the nodes with most room, so that as many segments fit as `space` counts.
            usable.sort_unstable_by_key(|(slots, _)| std::cmp::Reverse(*slots));
            usable.truncate(wanted);
        }
        let avoidable = usable.len().saturating_sub(wanted);
        for avoided in avoided.iter().take(avoidable) {
            usable.retain(|(_, node)| node != avoided);
        }
        let mut weights = vec![0; self.nodes.len()];
        for (_, node) in usable {
            weights[usize::from(node.0)] = 0x1_0000;
        }
        PlacementInput { key, width: self.shape.layout().width(), in_weights: weights.into() }
    }

    /// The key for the placement of a segment. Each attempt places it elsewhere.
    pub fn placement_key(&self, id: SegmentId, attempt: u64) -> u64 {
        let volume = self.config.volume.0;
        (id.0 ^ attempt << 56).wrapping_add((volume as u64) ^ ((volume >> 64) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;
    use crate::segment::State;

    /// A node could not delete one of two shards of a segment alone.
    #[test]
    fn no_node_gets_a_second_shard_of_a_segment() {
        let mut script = Script::serving(6);
        let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), None, None]);
        script.core(|core| {
            let nodes = |core: &mut VolumeCore| -> Vec<u16> {
                let mut nodes: Vec<u16> =
                    core.place_missing(handle, 0).iter().map(|(_, node)| node.0).collect();
                nodes.sort_unstable();
                nodes
            };
            assert_eq!(nodes(core), [4, 5]);
            // Rebuild's write of a shard is under way there.
            let id = core.segments.get(handle).expect("it was added").id;
            core.node_mut(NodeIndex(4)).slots.claimed.insert(id, 1);
            assert_eq!(nodes(core), [5]);
            // The node came back with a shard that an opening may need.
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.left_on.push(NodeIndex(5));
            assert!(nodes(core).is_empty());
            let session = core.node(NodeIndex(3)).link.session;
            core.shard_written(handle, 5, (NodeIndex(3), session), Ok(()));
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!(segment.shards[5], None, "the node has another shard already");
        });
    }

    /// Seed 7130522. Of seven nodes one is lost, so five shards of a segment are enough.
    #[test]
    fn a_segment_leaves_the_room_that_others_need() {
        let mut script = Script::serving(7);
        let handles = [script.add_segment(&[None; 6]), script.add_segment(&[None; 6])];
        script.core(|core| {
            core.node_mut(NodeIndex(6)).health = NodeHealth::Down;
            handles.iter().for_each(|handle| core.segments.set_state(*handle, State::Closed));
            let kept = u32::try_from(core.checkpoint_slots_kept_on(NodeIndex(0))).expect("small");
            let mut place = |free: [u32; 6]| -> Vec<u16> {
                for (node, free) in core.nodes.iter_mut().zip(free) {
                    node.slots.free = kept + free;
                }
                let placed = core.place_missing(handles[0], 0);
                let mut nodes: Vec<u16> = placed.iter().map(|(_, node)| node.0).collect();
                nodes.sort_unstable();
                nodes
            };
            assert_eq!(place([2, 2, 2, 2, 2, 2]), [0, 1, 2, 3, 4, 5], "each has room for both");
            assert_eq!(place([1, 2, 2, 2, 2, 1]), [0, 1, 2, 3, 4], "the other one takes the rest");
        });
    }
}
