//! The slots on each node that the volume holds, needs, and can use at most.
//!
//! All other numbers of slots follow from these. The volume *holds* slots with data and with
//! garbage. It never reserves fewer than these, those that it is about to take, and those that it
//! always leaves free (`slots_min`). With the slots that it *needs* it can go on for ever, once
//! collection has freed the garbage (`slots_needed`). A larger reservation than the one that it can
//! *use* only makes collection cheaper (`slots_useful`).

use fieldstone_proto::{BLOCK_BYTES, NodeIndex};

use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::status::NodeHealth;

/// The slots that the volume holds on a node, as far as the node's last answer says.
fn held_on(node: &Node) -> u32 {
    node.slots.reserved.saturating_sub(node.slots.free)
}

impl VolumeCore {
    /// Slots on each node that the whole volume takes.
    pub fn slots_whole(&self, size_bytes: u64) -> u32 {
        let slots = self.capacity_params().slots_for(size_bytes / BLOCK_BYTES as u64);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Segments that the journal holds at most. This many are being written when users write as
    /// fast as they can.
    pub fn ring_segments(&self) -> u64 {
        let segment_bytes = u64::from(self.shape.layout().segment_blocks()) * BLOCK_BYTES as u64;
        self.shape.geometry().ring_bytes.div_ceil(segment_bytes.max(1))
    }

    /// The largest number of slots on each node that the volume can use: its full size after the
    /// loss of the tolerated nodes, and the segments that it is writing.
    pub(super) fn slots_useful(&self) -> u32 {
        let blocks = self.shape.size_blocks();
        let writing = self.capacity_params().slots(2 * self.ring_segments());
        let slots = self.capacity_params().slots_for_with_losses(blocks).saturating_add(writing);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots on each node with which the volume can go on for ever: a thick volume with its whole
    /// size, a thin volume with the data that it holds. While a node is lost, or its disk is full,
    /// the other nodes take the shards of that node: the volume needs more slots on each of them. A
    /// node that granted less because of other volumes does not change the number. Otherwise, in a
    /// full pool, all volumes would need more slots for that reason, and no volume would give any
    /// back.
    pub fn slots_needed(&self) -> u32 {
        let full = |node: &Node| self.is_limited_by_disk(node) || node.is_disk_full();
        let lost = |node: &Node| node.health != NodeHealth::Up || full(node);
        match self.nodes.iter().any(lost) {
            false => self.slots_needed_without_losses(),
            true => {
                let slots = self.capacity_params().slots_for_with_losses(self.blocks_provisioned());
                u32::try_from(slots).unwrap_or(u32::MAX)
            }
        }
    }

    /// The same when every node takes shards.
    pub fn slots_needed_without_losses(&self) -> u32 {
        let slots = self.capacity_params().slots_for(self.blocks_provisioned());
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Blocks that the volume must have room for.
    fn blocks_provisioned(&self) -> u64 {
        match self.reservation.provisioning {
            Provisioning::Thick => self.shape.size_blocks(),
            Provisioning::Thin => self.map.used_blocks(),
        }
    }

    /// Slots on each node that the volume has reserved beyond what it needs.
    pub(super) fn slots_surplus(&self) -> u32 {
        self.reservation.slots.saturating_sub(self.slots_needed())
    }

    /// The volume never reserves fewer slots on each node: the slots that it holds or is about to
    /// hold, with garbage, and those that it always leaves free. An opening may have to work with
    /// this number.
    pub fn slots_min(&self) -> u32 {
        let up = (0..).map(NodeIndex).zip(&self.nodes);
        let up = up.filter(|(_, node)| node.health == NodeHealth::Up);
        let held = |(index, node): (NodeIndex, &Node)| {
            let unused = u32::try_from(self.checkpoint_slots_unused_on(index)).unwrap_or(u32::MAX);
            held_on(node).saturating_add(unused)
        };
        let held = up.map(held).max().unwrap_or(0);
        let min_slots = u32::try_from(self.slots_min_known()).unwrap_or(u32::MAX);
        min_slots
            .max(held.saturating_add(u32::try_from(self.slots_always_free()).unwrap_or(u32::MAX)))
    }

    /// The slots on a node that the volume holds or may be about to take, and those that it always
    /// leaves free. Every segment that has begun may come to this node.
    pub fn slots_min_on(&self, node: NodeIndex) -> u32 {
        let free = self.slots_always_free() + self.checkpoint_slots_unused_on(node);
        let moving = self.segments.unsealed() + self.gc.segments_freeing() + free;
        held_on(self.node(node)).saturating_add(u32::try_from(moving).unwrap_or(u32::MAX))
    }

    /// The smallest reservation with which collection and users' writes go on: the node with the
    /// most shards sets it.
    pub fn slots_to_write(&self) -> u32 {
        self.slots_min().saturating_add(self.slots_for_writes())
    }

    /// Slots on each node that users' writes take while collection goes on.
    pub fn slots_for_writes(&self) -> u32 {
        let marks = self.marks_at_rest();
        let slots = self.capacity_params().slots(marks.low - marks.reserve);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }
}
