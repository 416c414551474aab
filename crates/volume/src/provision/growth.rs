//! A larger reservation: when the volume asks nodes for more slots, and which nodes it asks.
//!
//! It asks when room is short, in steps of several segments. Nodes that have granted less than the
//! others come first: a segment takes a slot on each of its nodes, so these limit the volume. After
//! a refusal the volume waits for a moment, and meanwhile collection has to make room. Rebuild asks
//! for room of its own, and its refusals count only for rebuild.

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::reserve::{reserve_at_start, reserve_missing, reserve_more, reserve_on_low};
use crate::status::NodeHealth;

/// How long a refusal counts before the volume asks nodes again.
const ASK_AGAIN_MS: u64 = 200;

impl VolumeCore {
    /// The volume begins to serve: it reserves the slots that its present state asks for.
    pub fn start_reservation(&mut self) {
        self.reservation.slots = self.slots_wanted();
        self.reservation.begin_change();
        self.spawn_with(reserve_at_start);
    }

    /// Acts against a lack of room: collects, and asks nodes for more.
    pub fn make_room(&mut self) {
        self.grow_reservation();
        self.start_gc();
    }

    /// Asks nodes for more room, if there may be more and no node has refused just now. It first
    /// asks single nodes that have granted less than the others, then these nodes together, then
    /// all.
    pub fn grow_reservation(&mut self) {
        if self.reservation_changes() || self.was_refused_lately() || !self.life.serves() {
            return;
        }
        let missing =
            self.nodes_with_less().iter().any(|node| !self.node(*node).slots.disk_limited);
        let low = !self.low_nodes().is_empty();
        let more = self.may_grow();
        if !missing && !low && !more {
            return;
        }
        let step = self.slots_common().saturating_add(self.step().max(1));
        let wanted = self.slots_wanted().max(step).min(self.slots_max());
        self.reservation.begin_change();
        self.spawn_with(move |ctx| async move {
            let gained = (missing && reserve_missing(&ctx).await)
                || (low && reserve_on_low(&ctx).await)
                || (more && reserve_more(&ctx, wanted).await);
            ctx.with(|core| core.asked_for_more(gained));
        });
    }

    /// The volume may ask all nodes for more. For a while after a release, the volume asks only for
    /// slots that it needs.
    fn may_grow(&self) -> bool {
        // A thick volume can work with the slots that it needs as soon as collection has made room.
        // A thin one grows with its data.
        let thick = self.reservation.provisioning == Provisioning::Thick;
        let can_wait = self.slots_surplus() >= self.step() || (thick && !self.starved());
        self.slots_common() < self.slots_max() && !(self.released_lately() && can_wait)
    }

    /// The nodes that could not grant as many slots as the volume may ask them for.
    pub fn nodes_with_less(&self) -> Vec<NodeIndex> {
        let slots = self.reservation.slots;
        let less =
            |node: &NodeIndex| self.node(*node).slots.reserved < self.slots_to_ask(*node, slots);
        self.up_nodes().into_iter().filter(less).collect()
    }

    /// The nodes that have granted less than the volume has reserved. Empty for a while after the
    /// volume released slots for other volumes.
    pub fn low_nodes(&self) -> Vec<NodeIndex> {
        let reserved = self.reservation.slots;
        let low = |node: &Node| {
            let asks = node.health == NodeHealth::Up && !node.slots.disk_limited;
            asks && node.slots.reserved > 0 && node.slots.reserved < reserved
        };
        if self.released_lately() { Vec::new() } else { self.nodes_that(low) }
    }

    /// Slots of a node that the volume could still reserve.
    pub fn slots_to_gain(&self, node: &Node) -> u64 {
        if node.slots.reserved == 0 {
            return 0;
        }
        let more = self.slots_useful().saturating_sub(node.slots.reserved);
        u64::from(more.min(node.stat.slots_free))
    }

    /// The nodes have answered a request for more slots.
    pub fn asked_for_more(&mut self, gained: bool) {
        self.reservation.end_change();
        self.reservation.refused_at = (!gained).then_some(self.now);
        if gained {
            self.gc.note_change();
        }
    }

    /// Nodes have refused to grant more, and the volume does not ask again yet.
    pub fn was_refused_lately(&self) -> bool {
        self.is_lately(self.reservation.refused_at)
    }

    /// The refusal at this time was too recent to ask again.
    fn is_lately(&self, refused_at: Option<Nanos>) -> bool {
        refused_at.is_some_and(|at| self.now.since(at) < Nanos::from_ms(ASK_AGAIN_MS))
    }

    /// Rebuild lacks room, and some nodes keep fewer slots for the volume than the others.
    pub fn rebuild_asks_for_room(&self) -> bool {
        let less = || !self.nodes_with_less().is_empty() || !self.low_nodes().is_empty();
        let asks = self.repair.rebuild.lacks_room && less();
        asks && !self.reservation_changes() && !self.is_lately(self.reservation.rebuild_refused_at)
    }

    /// The nodes have answered a request for rebuild's room.
    pub fn rebuild_asked_for_room(&mut self, gained: bool) {
        self.reservation.rebuild_refused_at = (!gained).then_some(self.now);
        match gained {
            true => self.asked_for_more(true),
            false => self.reservation.end_change(),
        }
    }
}
