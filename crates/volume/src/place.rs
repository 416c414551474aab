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
use fieldstone_crush::{Osds, PoolMap};
use fieldstone_proto::{NodeIndex, SegmentId};

use crate::core::VolumeCore;
use crate::node::Node;
use crate::segment::{SegmentIndex, segment_id};
use crate::status::NodeHealth;

/// The inputs of a draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementInput {
    /// The key of the segment.
    pub key: u64,
    /// Shards of the segment.
    pub width: usize,
    /// The weights of the nodes, 16.16; 0 for nodes that take nothing.
    pub in_weights: Arc<[u32]>,
}

/// The result of a draw that was made ahead of its use.
pub struct PrecomputedDraw {
    input: PlacementInput,
    drawn: Osds,
}

impl VolumeCore {
    /// A node for each shard of a segment.
    pub fn place_shards(&self, handle: SegmentIndex, input: &PlacementInput) -> Vec<Option<usize>> {
        let PlacementInput { key, width, in_weights } = input;
        let contents = self.segments.get(handle).and_then(|segment| segment.contents.as_ref());
        let draw = contents.and_then(|contents| contents.draw.as_ref());
        match draw.filter(|draw| draw.input == *input) {
            Some(draw) => self.pool.shards_from(*key, *width, in_weights, &draw.drawn),
            None => self.pool.place_shards(*key, *width, in_weights),
        }
    }

    /// A segment begins: it takes the draw that was made ahead for it. Asks the world for the draw
    /// of the next one.
    pub fn take_draw(&mut self, id: SegmentId) -> Option<PrecomputedDraw> {
        let ready = self.next_draw.take().filter(|(of, _)| *of == id);
        let next = segment_id(self.epoch, self.segments_made + 1);
        let input = self.placement_input(
            self.placement_key(next, 0),
            &[],
            self.layout.width(),
            |core, n| core.has_room_for_data(n),
        );
        let result = self.start_job(Job::Place {
            map: Arc::clone(self.pool.map()),
            rule: PoolMap::SHARDS,
            width: self.pool.draw_width(input.width),
            xs: vec![PoolMap::input(input.key)],
            weights: Arc::clone(&input.in_weights),
        });
        self.spawn_with(move |ctx| async move {
            let output = result.await.expect("the rule is made with the map");
            let placements = output.into_placements().expect("a placement places");
            let drawn = placements.into_iter().next();
            ctx.with(|core| {
                core.next_draw = drawn.map(|drawn| (next, PrecomputedDraw { input, drawn }));
            });
        });
        ready.map(|(_, draw)| draw)
    }

    /// The inputs for the placement of a segment's shards. `used` are the nodes that have shards
    /// of it, `wanted` is the number of shards without a node, and `chosen` says which nodes take
    /// one.
    pub fn placement_input(
        &self,
        key: u64,
        used: &[NodeIndex],
        wanted: usize,
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
        let mut weights = vec![0; self.nodes.len()];
        for (_, node) in usable {
            weights[usize::from(node.0)] = 0x1_0000;
        }
        PlacementInput { key, width: self.layout.width(), in_weights: weights.into() }
    }

    /// The key for the placement of a segment. Each attempt places it elsewhere.
    pub fn placement_key(&self, id: SegmentId, attempt: u64) -> u64 {
        let volume = self.config.volume.0;
        (id.0 ^ attempt << 56).wrapping_add((volume as u64) ^ ((volume >> 64) as u64))
    }
}
