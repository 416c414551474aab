//! The slots that the volume may ask a single node for.
//!
//! A node that came back empty does not know how many slots it had promised to each volume, and
//! some of these volumes may be closed. So no volume may take slots there that were promised to
//! another one. The volume's *level* on a node is the smallest number of slots that another node
//! has granted, of those nodes that are no larger. A volume raises its reservation on a single node
//! only up to its level there; beyond that, it asks all nodes together. Take a node that has kept
//! its promises: each volume's level on the empty node is at most what this node has granted. So
//! the levels of all volumes fit into the empty node together, in any order of asking.
//!
//! There are three exceptions. A thick volume asks for the slots of its whole size, which every
//! node has promised. A thin volume asks for the slots that its data takes, but not for more than
//! most of the other nodes have granted: users' blocks must be rebuilt. When rebuild still lacks
//! room, the volume also asks for slots that only some of the other nodes have granted. Until the
//! volume uses these slots, it gives them to any volume that needs them (`spare`).
//!
//! A request replaces the reservation on the node. So unless the volume gives slots back, it asks
//! for no fewer than the node has granted (`slots_kept`).

use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::status::NodeHealth;

/// The largest number of slots that most nodes grant, when the nodes grant these numbers.
fn granted_by_most(granted: &[u32]) -> Option<u32> {
    let mut granted = granted.to_vec();
    granted.sort_unstable();
    granted.get(granted.len().saturating_sub(1) / 2).copied()
}

impl VolumeCore {
    /// What other nodes have granted: those that are up, are no larger than this node, and whose
    /// disks have room for more. If no such node is up, the numbers that the absent ones had
    /// granted, each at least the smallest number of a node that is up.
    fn granted_by_others(&self, node: NodeIndex) -> Vec<u32> {
        let size = self.node(node).stat.slots_total;
        let counts = |(index, other): &(NodeIndex, &Node)| {
            *index != node && other.slots.reserved > 0 && !other.slots.disk_limited
        };
        let others = || (0..).map(NodeIndex).zip(&self.nodes).filter(counts);
        let up = || others().filter(|(_, other)| other.health == NodeHealth::Up);
        let comparable = |(_, other): &(NodeIndex, &Node)| other.stat.slots_total <= size;
        let slots = |(_, other): (NodeIndex, &Node)| other.slots.reserved;
        let granted: Vec<u32> = up().filter(comparable).map(slots).collect();
        if !granted.is_empty() {
            return granted;
        }
        let min_slots = up().map(slots).min().unwrap_or(0);
        let absent = others().filter(|(_, other)| other.health != NodeHealth::Up);
        absent.filter(comparable).map(|other| slots(other).max(min_slots)).collect()
    }

    /// Slots that most nodes have granted, up to the volume's reservation. The volume grows from
    /// here, so a few nodes that refuse more do not keep the others from growing.
    pub fn slots_common(&self) -> u32 {
        let counts = |node: &&Node| {
            node.health == NodeHealth::Up && !node.slots.disk_limited && node.slots.reserved > 0
        };
        let granted = self.nodes.iter().filter(counts).map(|node| node.slots.reserved);
        let granted: Vec<u32> = granted.collect();
        granted_by_most(&granted).unwrap_or(u32::MAX).min(self.reservation.slots)
    }

    /// The volume's level on a node, if other nodes tell it: see the module's essay.
    pub fn slots_level(&self, node: NodeIndex) -> Option<u32> {
        self.granted_by_others(node).into_iter().min()
    }

    /// Slots that the volume may ask this node alone for: its level, or what the exceptions to it
    /// permit.
    pub fn slots_alone(&self, node: NodeIndex) -> u32 {
        let granted = self.granted_by_others(node);
        let Some(level) = granted.iter().min() else { return u32::MAX };
        let permitted = match self.reservation.provisioning {
            Provisioning::Thick => self.slots_whole(self.shape.size_bytes()),
            Provisioning::Thin => granted_by_most(&granted).unwrap_or(0).min(self.slots_needed()),
        };
        permitted.max(*level)
    }

    /// The size of the request to this node when the volume wants `slots` on every node: the larger
    /// of [`Self::slots_alone`] and [`Self::slots_kept`], but at most `slots`.
    pub fn slots_to_ask(&self, node: NodeIndex, slots: u32) -> u32 {
        slots.min(self.slots_alone(node).max(self.slots_kept(node)))
    }

    /// The smallest reservation that the volume sends to this node alone: the number of slots that
    /// the node has granted. While a release is in progress, the number may rise again to
    /// [`Self::slots_min_on`], up to the granted and the released slots together.
    ///
    /// A node that has just joined may have granted slots before. Then the number covers at least
    /// the volume's shards there and the slots that it needs there to go on.
    pub fn slots_kept(&self, node: NodeIndex) -> u32 {
        let state = self.node(node);
        if state.slots.reserved > 0 {
            let granted = state.slots.reserved.saturating_add(state.slots.given_up);
            return state.slots.reserved.max(self.slots_min_on(node).min(granted));
        }
        let shards = self.shards_on(node);
        let min_slots = shards.saturating_add(self.slots_min_on(node));
        // A node that has its shards has kept the reservation.
        let kept = if shards > 0 { state.slots.before } else { 0 };
        min_slots.max(kept.min(shards.saturating_add(state.slots.free)))
    }

    /// Slots that rebuild may ask one node for, where the nodes together grant no more: users'
    /// blocks come first. The volume can release them again to another volume that lacks slots.
    pub fn slots_for_rebuild(&self, node: NodeIndex) -> u32 {
        let most = self.granted_by_others(node).into_iter().max().unwrap_or(0);
        self.slots_needed().min(most).min(self.reservation.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::granted_by_most;

    #[test]
    fn slots_that_one_node_grants_beyond_the_others_are_left_out() {
        assert_eq!(granted_by_most(&[66, 68, 66]), Some(66));
        assert_eq!(granted_by_most(&[66, 60, 66]), Some(66), "one node grants less");
        assert_eq!(granted_by_most(&[68, 66]), Some(66));
        assert_eq!(granted_by_most(&[70, 60, 70, 60]), Some(60), "half of the nodes are not most");
        assert_eq!(granted_by_most(&[]), None, "all disks are full");
    }
}
