//! Slots that were promised to the volume, and that a node no longer keeps for it.
//!
//! A node that came back empty may keep fewer slots for the volume than the volume needs there. The
//! volume claims them, however much room it has at that moment. A node that cannot grant them
//! announces the need to the other volumes, so that those release slots. When the need has become
//! smaller, the volume withdraws the announcement: otherwise other volumes would give up slots for
//! nothing.

use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::reserve::{reserve_missing, reserve_on};
use crate::status::NodeHealth;

impl VolumeCore {
    /// A node keeps fewer slots for the volume than the volume needs there: it came back empty, and
    /// other volumes had taken more than their share.
    pub fn lacks_promised_slots(&self) -> bool {
        let promised = self.slots_needed_without_losses().min(self.reservation.slots);
        let lacks = |node: &NodeIndex| {
            let state = self.node(*node);
            !state.slots.disk_limited && state.slots.reserved < self.slots_to_ask(*node, promised)
        };
        self.up_nodes().iter().any(lacks)
    }

    /// True if a node has announced this volume's need to the other volumes, so that those may
    /// release slots.
    pub fn awaits_others(&self) -> bool {
        self.nodes.iter().any(|node| node.health == NodeHealth::Up && node.slots.announced > 0)
    }

    /// The nodes on which this volume's announced need is larger than its present need.
    pub fn stale_announcements(&self) -> Vec<NodeIndex> {
        let stale = |node: &NodeIndex| {
            let announced = self.node(*node).slots.announced;
            announced > 0 && announced > self.slots_to_announce(*node)
        };
        self.up_nodes().into_iter().filter(stale).collect()
    }

    /// The node announces a need of this volume, and the volume still has this need.
    pub fn waits_for(&self, node: NodeIndex) -> bool {
        let state = self.node(node);
        let waits = state.slots.announced > state.slots.reserved;
        waits && state.slots.announced <= self.slots_to_announce(node)
    }

    /// Of the slots that the volume may ask this node alone for, those that it needs.
    fn slots_to_announce(&self, node: NodeIndex) -> u32 {
        let wanted = self.slots_to_ask(node, self.reservation.slots);
        wanted - self.slots_spare(node, wanted)
    }

    /// Asks the nodes for slots that they keep too few of, however much room is left: another
    /// volume may need tomorrow the slots that it can spare today.
    pub fn claim_promised_slots(&mut self) {
        if self.reservation_changes() || !self.life.serves() {
            return;
        }
        let stale = self.stale_announcements();
        let lacks = self.lacks_promised_slots() && !self.was_refused_lately();
        if !lacks && stale.is_empty() {
            return;
        }
        self.reservation.begin_change();
        self.spawn_with(move |ctx| async move {
            for node in stale {
                // A node that was lost meanwhile announces nothing, and its reservation is unknown.
                let (announces, granted) = ctx.with(|core| {
                    let state = core.node(node);
                    (state.slots.announced > 0, state.slots.reserved)
                });
                if announces {
                    reserve_on(&ctx, node, granted).await;
                }
            }
            if !lacks {
                return ctx.with(|core| core.reservation.end_change());
            }
            let gained = reserve_missing(&ctx).await;
            ctx.with(|core| core.asked_for_more(gained));
        });
    }
}
