//! The slots on each node that the volume wants at present, and the most that it takes.
//!
//! It wants those that it holds and a few to grow into; a thick volume wants at least those for its
//! whole size. Step by step it grows beyond that, up to its share of the idle slots (`slots_max`).
//!
//! # Idle slots
//! Collection costs less if the volume may hold more garbage: with one slot of garbage for each
//! slot of data, overwritten segments often die before collection moves them. So a volume also
//! reserves slots that no volume needs, under three conditions:
//!
//! - It leaves a third as many unclaimed as it takes, so that a small volume can be created at
//!   once. With several volumes, each has the same share. When another volume reserves more, this
//!   one gives back until the shares are equal again.
//! - It takes no more idle slots than it needs for its data: with more, collection becomes little
//!   cheaper, and a lost node has more shards to rebuild.
//! - It gives them back. When nodes have nothing left for others, each volume gives back half of
//!   the slots beyond its needs (`slots_needed`). When a volume that is created or grows lacks
//!   slots on a node, the others give back as many as it lacks.

use crate::core::VolumeCore;
use crate::interface::Provisioning;
use crate::node::Node;
use crate::status::NodeHealth;

/// Fewest segments that a volume grows by.
const GROW_SEGMENTS_MIN: u64 = 2;
/// A volume grows by one in this many of its segments.
const GROW_FRACTION: u64 = 8;
/// Of the idle slots that a volume could reserve, it leaves one in this many unclaimed.
const UNCLAIMED_FRACTION: u32 = 4;

/// Idle slots that a volume may have, when it has `idle` of them, `unclaimed` more are left, and it
/// needs `needed` slots for its data: see the module's essay.
fn share_of_idle(idle: u32, unclaimed: u32, needed: u32) -> u32 {
    let shared = idle.saturating_add(unclaimed);
    (shared - shared.div_ceil(UNCLAIMED_FRACTION)).min(needed)
}

impl VolumeCore {
    /// Slots on each node that the volume wants at present.
    pub fn slots_wanted(&self) -> u32 {
        let now = self.slots_with(self.grow_segments());
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        let now = now.min(self.slots_max()).max(self.slots_min());
        match self.reservation.provisioning {
            Provisioning::Thick => now.max(self.slots_whole(self.shape.size_bytes())),
            Provisioning::Thin => now,
        }
    }

    /// Slots on each node with which a new thin volume begins. It has no reservation yet, so the
    /// free slots that nodes report are not its own, and do not count here.
    pub fn slots_at_creation(&self) -> u32 {
        let slots = self.slots_when_empty(self.grow_segments());
        u32::try_from(slots).unwrap_or(u32::MAX).min(self.slots_useful()).max(self.slots_min())
    }

    /// Slots on each node beyond which the volume never asks for more.
    pub fn slots_max(&self) -> u32 {
        self.slots_useful().saturating_add(self.slots_idle_max())
    }

    /// Segments that the volume grows by when it asks for more.
    fn grow_segments(&self) -> u64 {
        let own = self.segments.len() as u64;
        GROW_SEGMENTS_MIN.max(own / GROW_FRACTION).max(self.ring_segments() / 2)
    }

    /// Slots on each node by which the reservation grows.
    pub(super) fn step(&self) -> u32 {
        u32::try_from(self.capacity_params().slots(self.grow_segments())).unwrap_or(u32::MAX)
    }

    /// Slots on each node that the volume has reserved beyond those that it can have a use for.
    fn slots_idle(&self) -> u32 {
        self.reservation.slots.saturating_sub(self.slots_useful())
    }

    /// The volume has reserved slots that it can have no use for but cheap collection.
    pub fn has_idle_slots(&self) -> bool {
        self.slots_idle() > 0
    }

    /// Idle slots on each node that the volume may have.
    fn slots_idle_max(&self) -> u32 {
        share_of_idle(self.slots_idle(), self.slots_unclaimed(), self.slots_needed())
    }

    /// Slots that no volume has reserved, on the node with the fewest.
    fn slots_unclaimed(&self) -> u32 {
        let known = |node: &&Node| node.health == NodeHealth::Up && node.slots.reserved > 0;
        self.nodes.iter().filter(known).map(|node| node.stat.slots_free).min().unwrap_or(0)
    }

    /// Idle slots on each node that the volume has beyond its share of them, because other volumes
    /// have reserved more since it took them. 0 if there are fewer than the volume grows by: such
    /// differences come and go.
    pub fn slots_beyond_share(&self) -> u32 {
        let beyond = self.slots_idle().saturating_sub(self.slots_idle_max());
        if beyond > self.step() { beyond } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::share_of_idle;
    use crate::script::Script;

    /// Seed 7209286: two new thin volumes took 56 slots for a moment, and a thick one found no
    /// room.
    #[test]
    fn a_new_thin_volume_begins_with_few_slots_in_a_large_pool() {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.reservation.slots = 0;
            let mut begins_with = |free| {
                core.nodes.iter_mut().for_each(|node| {
                    (node.slots.reserved, node.slots.free) = (0, free);
                });
                core.slots_at_creation()
            };
            let slots = begins_with(1_000);
            assert_eq!(begins_with(1_000_000), slots);
            assert!(u64::from(slots) >= core.slots_always_free() && slots < 20, "{slots}");
        });
    }

    #[test]
    fn a_volume_leaves_a_quarter_of_the_idle_slots() {
        assert_eq!(share_of_idle(0, 100, 1000), 75);
        assert_eq!(share_of_idle(75, 25, 1000), 75, "it keeps them");
        assert_eq!(share_of_idle(75, 5, 1000), 60, "another volume took 20");
        assert_eq!(share_of_idle(75, 0, 1000), 56);
        assert_eq!(share_of_idle(0, 1, 1000), 0, "the last one stays unclaimed");
        assert_eq!(share_of_idle(0, 100, 8), 8, "more would be of little use");
    }

    #[test]
    fn volumes_come_to_equal_shares() {
        let mut idle = [0u32; 4];
        let pot = 1000;
        for _ in 0..20 {
            for volume in 0..idle.len() {
                let unclaimed = pot - idle.iter().sum::<u32>();
                idle[volume] = share_of_idle(idle[volume], unclaimed, u32::MAX);
            }
        }
        let share = pot * 3 / (3 * 4 + 1); // four shares, and a third of one is unclaimed
        assert!(idle.iter().all(|idle| idle.abs_diff(share) <= 4), "{idle:?}");
    }
}
