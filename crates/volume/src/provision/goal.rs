//! A smaller reservation: the volume gives slots back to other volumes.
//!
//! Slots to give back may hold garbage. The volume then sets itself a *goal*: it collects until
//! that many slots are free, and gives back what each checkpoint frees. Meanwhile users' writes go
//! on. A goal counts for a few seconds. In this time the volume asks only for slots that it needs:
//! otherwise it would take back what it has just released. A volume that closes collects for some
//! seconds, and keeps only the slots that it needs or still holds.
//!
//! The volume also gives back slots that it no longer wants, without a goal.

use fieldstone_block::Nanos;

use super::Release;
use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::reserve::reserve_on;
use crate::status::NodeHealth;

/// How long a volume, after a release for other volumes, asks only for slots that it needs, and
/// collects to release the rest.
const RELEASE_MS: u64 = 5_000;

impl VolumeCore {
    /// Gives back `less` slots on each node, or the slots beyond the volume's needs if these are
    /// fewer. Collection frees those that hold garbage.
    pub fn release_slots(&mut self, less: u32) {
        let less = less.min(self.slots_surplus());
        if less == 0 || self.reservation_changes() || !self.life.serves() {
            return;
        }
        let goal = self.reservation.slots - less;
        self.reservation.release = Some(Release { at: self.now, goal });
        self.pursue_goal();
        self.consider_gc();
    }

    /// Begins to give back all slots that the volume does not need while it is closed.
    pub fn release_unneeded(&mut self) {
        let needed = self.slots_needed_without_losses();
        self.release_slots(self.reservation.slots.saturating_sub(needed));
    }

    /// The volume gives slots back on single nodes.
    pub fn release_on_nodes(&mut self) {
        self.reservation.begin_change();
        let goal = self.reservation.slots;
        self.reservation.release = Some(Release { at: self.now, goal });
    }

    /// Slots on each node that the volume still has to give back. It may need more than when it set
    /// its goal: it may have grown since.
    fn slots_to_release(&self) -> u32 {
        match self.released_lately() {
            true => self.reservation.slots.saturating_sub(self.goal()),
            false => 0,
        }
    }

    fn goal(&self) -> u32 {
        self.reservation.last_goal().max(self.slots_needed())
    }

    /// The volume released slots for other volumes lately.
    pub(super) fn released_lately(&self) -> bool {
        let release = self.reservation.release;
        release.is_some_and(|last| self.now.since(last.at) < Nanos::from_ms(RELEASE_MS))
    }

    /// Segments that collection has to free so that the volume can give back its slots.
    pub fn segments_to_release(&self) -> u64 {
        let params = self.capacity_params();
        u64::from(self.slots_to_release()) * params.nodes / params.width
    }

    /// Collection may still free slots for [`Self::release_slots`].
    pub fn is_releasing(&self) -> bool {
        self.slots_to_release() > 0 && (self.gc.is_collecting() || self.reservation_changes())
    }

    /// Gives back the slots that are free of those that the volume wants to give back. It keeps
    /// enough for users' writes while collection goes on.
    pub fn pursue_goal(&mut self) {
        let min_slots = self.slots_to_write();
        let slots = self.goal().max(min_slots);
        let gives = self.slots_to_release() > 0 && slots < self.reservation.slots;
        if gives && !self.reservation_changes() && self.life.serves() {
            self.set_reservation(slots);
        }
    }

    /// Sets the reservation to `slots` slots on every node, but never to fewer than the volume
    /// holds.
    pub fn set_reservation(&mut self, slots: u32) {
        let slots = slots.max(self.slots_min());
        self.reservation.begin_change();
        self.reservation.slots = slots;
        self.reservation.agreed = true;
        // From here on users can only count on the remaining slots.
        for node in self.nodes.iter_mut().filter(|node| node.health == NodeHealth::Up) {
            node.slots.give_up(slots);
        }
        self.spawn_with(move |ctx| async move {
            for node in ctx.with(|core| core.up_nodes()) {
                let slots = ctx.with(|core| {
                    let min_slots = core.slots_min();
                    core.reservation.slots = core.reservation.slots.max(min_slots);
                    core.slots_to_ask(node, core.reservation.slots)
                });
                reserve_on(&ctx, node, slots).await;
            }
            ctx.with(|core| {
                core.reservation.end_change();
                core.pursue_goal();
                core.consider_gc();
            });
        });
    }

    /// Releases the slots that the volume no longer needs. A thick volume that users write to keeps
    /// its idle slots: it would take them again at once.
    pub fn shrink_reservation(&mut self, at_rest: bool) {
        let keeps = !at_rest && self.reservation.provisioning == Provisioning::Thick;
        let idle = if keeps { self.reservation.slots.min(self.slots_max()) } else { 0 };
        let wanted = self.slots_wanted().max(idle);
        let step = self.step();
        let spare = self.reservation.slots.saturating_sub(wanted);
        let more = |node: &Node| node.slots.reserved > self.reservation.slots;
        let uneven = self.nodes.iter().any(|node| node.health == NodeHealth::Up && more(node));
        if self.reservation_changes() || (spare <= step && !uneven) || !self.life.serves() {
            return;
        }
        let wanted = if spare <= step { self.reservation.slots } else { wanted };
        self.set_reservation(wanted);
    }
}
