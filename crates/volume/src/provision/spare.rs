//! The slots that other volumes may have.
//!
//! The volume can do without the slots beyond its needs, and its requests tell the nodes how many
//! these are. When the number has grown, it sends a request for this reason alone. It can also do
//! without slots on a single node that it may not ask that node for (`level`), unless it holds
//! them. It gives these back when another volume lacks slots there. If they hold garbage, the node
//! is *crowded*: the volume first collects segments that have shards on it.

use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::interface::Provisioning;

impl VolumeCore {
    /// Whether the volume has reserved more than it needs, or more on single nodes than it may ask
    /// them for.
    pub fn may_release_slots(&self) -> bool {
        let more = |node: &NodeIndex| self.node(*node).slots.reserved > self.slots_alone(*node);
        self.slots_surplus() > 0 || self.up_nodes().iter().any(more)
    }

    /// Half of the slots that the volume has beyond its needs.
    pub fn half_of_surplus(&self) -> u32 {
        self.slots_surplus().div_ceil(2)
    }

    /// The number of slots on a node that the volume can release if it has `slots` there. These are
    /// the slots beyond its needs, also if they hold garbage: the volume can release those after a
    /// collection. And these are the slots beyond [`Self::slots_alone`] that the volume neither
    /// holds nor is about to take.
    pub fn slots_spare(&self, node: NodeIndex, slots: u32) -> u32 {
        let holds = self.slots_min_on(node);
        slots.saturating_sub(self.slots_needed().min(self.slots_alone(node).max(holds)))
    }

    /// The same when the volume asks all nodes for as many slots together. A thick volume needs
    /// more than its whole size while nodes are lost.
    pub fn slots_spare_on_all(&self, node: NodeIndex, slots: u32) -> u32 {
        match self.reservation.provisioning {
            Provisioning::Thick => slots.saturating_sub(self.slots_needed()),
            Provisioning::Thin => self.slots_spare(node, slots),
        }
    }

    /// The nodes that do not know how many of their slots the volume can do without by now: users
    /// have trimmed, or collection has moved shards away, since the volume last asked these nodes.
    /// A node lets no other volume wait for slots that it does not know to be spare.
    pub fn nodes_to_tell(&self) -> Vec<NodeIndex> {
        let tells = |node: &NodeIndex| {
            let slots = &self.node(*node).slots;
            let settled = slots.reserved > 0 && slots.announced == 0 && !slots.disk_limited;
            settled && self.slots_spare(*node, slots.reserved) > slots.spare
        };
        self.up_nodes().into_iter().filter(tells).collect()
    }

    /// Slots that other volumes wait for on a node, as far as the node's last answer says.
    pub fn slots_lacking(&self, node: NodeIndex) -> u32 {
        let state = self.node(node);
        let own = state.slots.announced.saturating_sub(state.slots.reserved);
        state.stat.slots_lacking.saturating_sub(own)
    }

    /// The nodes on which other volumes lack slots, and on which the volume has more than it may
    /// ask for, each with the number of slots that it keeps there. They include a node that has
    /// granted less than the volume has reserved, if the node has granted more than the volume
    /// needs: a smaller reservation on all nodes would take long to come down to this number.
    pub fn nodes_with_more(&self) -> Vec<(NodeIndex, u32)> {
        if self.reservation_changes() {
            return Vec::new();
        }
        let kept = |index: NodeIndex| {
            let node = self.node(index);
            let kept = self.slots_kept_for_others(index)?.max(self.slots_min_on(index));
            (kept < node.slots.reserved).then_some((index, kept))
        };
        self.up_nodes().into_iter().filter_map(kept).collect()
    }

    /// The same, where the volume has to collect first: its garbage lies in the slots that it could
    /// give back.
    pub fn crowded_nodes(&self) -> Vec<(NodeIndex, u32)> {
        let kept = |index: NodeIndex| {
            let kept = self.slots_kept_for_others(index)?;
            (kept < self.slots_min_on(index)).then_some((index, kept))
        };
        self.up_nodes().into_iter().filter_map(kept).collect()
    }

    /// Slots that the volume keeps on a node on which other volumes lack slots, if these are fewer
    /// than it has, and if it holds no garbage there.
    fn slots_kept_for_others(&self, index: NodeIndex) -> Option<u32> {
        let lacking = self.slots_lacking(index);
        if lacking == 0 {
            return None;
        }
        let reserved = self.node(index).slots.reserved;
        let less = reserved.saturating_sub(lacking);
        let min_slots = match reserved < self.reservation.slots {
            true => self.slots_alone(index).min(self.slots_needed()),
            false => self.slots_alone(index),
        };
        let kept = less.max(min_slots);
        (kept < reserved).then_some(kept)
    }
}
