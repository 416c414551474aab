//! The slots for checkpoints: each node keeps those for two.
//!
//! Let `C` be the number of segments that a checkpoint takes. Each node has `2C` slots that no
//! segment of data takes: `C` for the present checkpoint and `C` for the next one. So a checkpoint
//! always finds its slots, no matter which nodes are there: it takes at most `C` slots of a node,
//! and needs k nodes. When the root names the new checkpoint, the slots of the old one become free.
//! A node keeps slots for the present checkpoint also if it holds none of its shards. Otherwise the
//! next checkpoint, on other nodes because some are lost, would take slots there that were counted
//! as room for data.

use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::segment::{SegmentIndex, epoch_of};

impl VolumeCore {
    /// Free slots that a node keeps for checkpoints; see the module's essay.
    pub fn checkpoint_slots_kept_on(&self, node: NodeIndex) -> u64 {
        self.checkpoint_slots_kept(self.checkpoint_segments(), node)
    }

    /// The same if the next checkpoint takes `next` segments. Shards of the present checkpoint that
    /// the node holds are in their slots already, and so are those of the next one while the volume
    /// writes it.
    pub fn checkpoint_slots_kept(&self, next: u64, node: NodeIndex) -> u64 {
        let held = self.segments.checkpoint_shards_on(node);
        (2 * next.max(self.checkpoint_named())).saturating_sub(held)
    }

    /// Slots that a node keeps free for shards of the present checkpoint which it does not hold.
    #[must_use]
    pub fn checkpoint_slots_unused_on(&self, node: NodeIndex) -> u64 {
        self.checkpoint_slots_kept_on(node).saturating_sub(self.checkpoint_segments())
    }

    /// Segments of the present checkpoint.
    #[must_use]
    pub fn checkpoint_named(&self) -> u64 {
        match self.committed.root() {
            Some(root) => root.checkpoint_segments.len() as u64,
            // An opening keeps the earlier writer's checkpoint until it has written its own.
            None => {
                let earlier = |handle: &&SegmentIndex| {
                    let segment = self.segments.get(**handle);
                    segment.is_some_and(|segment| epoch_of(segment.id) != self.writer.epoch())
                };
                self.segments.checkpoints().iter().filter(earlier).count() as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    /// The next checkpoint may lie on other nodes than the present one.
    #[test]
    fn a_node_keeps_slots_for_two_checkpoints_also_if_it_holds_none() {
        let mut script = Script::serving(8);
        let present = script.add_checkpoint(&[0, 1, 2, 3, 4, 5].map(Some));
        script.core(|core| {
            let id = core.segments.get(present).expect("it was added").id;
            core.committed.root_mut().checkpoint_segments = vec![id];
            let next = core.checkpoint_segments();
            assert_eq!(next, 1);
            core.nodes.iter_mut().for_each(|node| node.slots.free = 9);
            let room = |core: &VolumeCore, node| core.slots_for_data(NodeIndex(node));
            assert_eq!([room(core, 0), room(core, 6)], [8, 7]);
            assert_eq!(core.checkpoint_slots_unused_on(NodeIndex(0)), 0);
            assert_eq!(core.checkpoint_slots_unused_on(NodeIndex(6)), 1);
        });
        // While the volume writes the next one, and when it has deleted the old one.
        let next = script.add_checkpoint(&[1, 2, 3, 4, 5, 6].map(Some));
        script.core(|core| {
            let taken = |core: &mut VolumeCore, nodes: &[u16], free| {
                nodes.iter().for_each(|n| core.node_mut(NodeIndex(*n)).slots.free = free);
            };
            let room = |core: &VolumeCore| [0, 1, 6].map(|n| core.slots_for_data(NodeIndex(n)));
            taken(core, &[1, 2, 3, 4, 5, 6], 8);
            assert_eq!(room(core), [8, 8, 7], "no room for data is lost");
            let id = core.segments.get(next).expect("it was added").id;
            core.committed.root_mut().checkpoint_segments = vec![id];
            assert_eq!(room(core), [8, 8, 7]);
            core.segments.remove(present);
            taken(core, &[0], 10);
            taken(core, &[1, 2, 3, 4, 5], 9);
            assert_eq!(room(core), [8, 8, 7]);
        });
    }
}
