//! How many slots each volume may take.
//!
//! # Why
//! The volumes of a pool share its nodes. A volume needs slots to make space: collection moves live
//! blocks into new segments before it deletes the old ones, and an opening writes a checkpoint. If
//! other volumes could take the last slots, a volume could neither collect nor open, and this state
//! would never end. So each volume *reserves* slots on each node
//! ([`fieldstone_proto::RequestBody::Reserve`]), and the node keeps free slots for these
//! reservations.
//!
//! # The rule
//! A volume holds a slot from the moment that the node takes the slot for one of its shards until
//! the slot is on its way out. For each volume let `unheld` be its reservation minus the slots that
//! it holds, at least 0. As long as the disk has the space that it promised, at any time
//!
//! ```text
//!   sum of unheld over all volumes  <=  free slots
//! ```
//!
//! - A volume with a reservation takes a slot while it holds fewer than it reserved. Taking moves
//!   one slot from `unheld` and one from the free slots: the rule still holds.
//! - A volume without a reservation takes a slot while more slots are free than all others have
//!   unheld.
//! - A reservation grows only by slots that are free and not unheld. It may always shrink.
//! - A slot that is given back is free again, and unheld again if its volume is below its
//!   reservation: the rule still holds.
//!
//! # Giving back
//! Each request for a reservation says how many of its slots the volume can do without. A volume
//! may need more slots than are unclaimed, but not more than the others can spare. The node then
//! answers that it should ask again ([`ReserveResult::Later`]), and reports the lacking number in
//! its [`fieldstone_proto::NodeStat`]. The other volumes check this number from time to time, and
//! give slots back. Only a volume with a connected writer can do that: a volume without a writer
//! spares nothing. Nor does a volume that itself needs more than it has: two volumes would each
//! wait for the other.
//!
//! # Restarts
//! A start finds the slots that a volume holds. The volumes' records keep the reservations, stably.
//! So a restart changes nothing here.
//!
//! The disk may break the promise: a slot may become unreadable, or a file system may have less
//! space than the node's size says. Then the node refuses slots although they are reserved. To the
//! volume the node is full. This is a fault of one node like any other.

use std::collections::HashMap;

use fieldstone_proto::VolumeId;

/// The slots of one volume.
#[derive(Clone, Copy, Debug, Default)]
struct Allotment {
    /// Slots that it may hold in total; 0 if it has no reservation.
    reserved: u32,
    /// Slots that it holds.
    held: u32,
    /// Slots of its reservation that its writer can do without.
    spare: u32,
    /// Total number of slots that it needs and that the node refused; 0 if there was no refusal.
    wanted: u32,
}

/// The answer to a volume that asks for slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveResult {
    /// The volume may have the slots.
    Granted,
    /// Other volumes have reserved the slots, but can do without them: the volume may ask again.
    Later,
    /// Other volumes have reserved the slots.
    Refused,
    /// Slots are free, but the disk has no space for them.
    DiskFull,
}

impl Allotment {
    fn unheld(self) -> u32 {
        self.reserved.saturating_sub(self.held)
    }

    /// Slots that the volume waits for.
    fn lacks(self) -> u32 {
        self.wanted.saturating_sub(self.reserved.max(self.held))
    }
}

/// Slots that are free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeSlots {
    /// Slots that hold no shard.
    pub(crate) empty: u32,
    /// Those of the `empty` slots that the disk has space for.
    pub(crate) usable: u32,
}

/// The allotments of all volumes.
#[derive(Debug, Default)]
pub(crate) struct Allotments {
    volumes: HashMap<VolumeId, Allotment>,
    /// The sum of `unheld` over all volumes.
    unheld: u64,
}

impl Allotments {
    fn change(&mut self, volume: VolumeId, change: impl FnOnce(&mut Allotment)) {
        let allotment = self.volumes.entry(volume).or_default();
        self.unheld -= u64::from(allotment.unheld());
        change(allotment);
        self.unheld += u64::from(allotment.unheld());
        if (allotment.reserved, allotment.held, allotment.spare, allotment.wanted) == (0, 0, 0, 0) {
            self.volumes.remove(&volume);
        }
    }

    fn allotment(&self, volume: VolumeId) -> Allotment {
        self.volumes.get(&volume).copied().unwrap_or_default()
    }

    /// Sets a volume's reservation.
    pub(crate) fn reserve(&mut self, volume: VolumeId, slots: u32) {
        self.change(volume, |allotment| {
            allotment.reserved = slots;
            allotment.spare = allotment.spare.min(slots);
        });
    }

    /// The volume asks for `slots` slots in total, and can do without `spare` of these. `free` says
    /// how many slots are free. After [`ReserveResult::Granted`], the caller calls
    /// [`Self::reserve`].
    ///
    /// The node does not grant slots that another volume waits for to a volume that can do without
    /// them. Otherwise the volume that gives slots back could take them again before the volume
    /// that needs them asks.
    pub(crate) fn ask(
        &mut self,
        volume: VolumeId,
        slots: u32,
        spare: u32,
        free: FreeSlots,
    ) -> ReserveResult {
        let allotment = self.allotment(volume);
        let needed = slots.saturating_sub(spare);
        let more_needed = needed.saturating_sub(allotment.reserved.max(allotment.held));
        let kept = if more_needed == 0 { self.waited_for(volume) } else { 0 };
        if more_needed == 0 {
            self.change(volume, |allotment| allotment.wanted = 0);
        }
        if self.grants(volume, slots, free.empty.saturating_sub(kept)) {
            if !self.grants(volume, slots, free.usable.saturating_sub(kept)) {
                self.change(volume, |allotment| allotment.wanted = 0);
                return ReserveResult::DiskFull;
            }
            let grows = more_needed > 0 && slots > allotment.reserved && slots < allotment.wanted;
            let wanted = if grows { allotment.wanted } else { 0 };
            self.change(volume, |allotment| {
                (allotment.spare, allotment.wanted) = (spare.min(slots), wanted);
            });
            return ReserveResult::Granted;
        }
        if more_needed > 0 {
            // It needs all that it has.
            self.change(volume, |allotment| allotment.spare = 0);
        }
        let spared = self.volumes.iter().filter(|(other, _)| **other != volume);
        let spared: u64 = spared.map(|(_, other)| u64::from(other.spare)).sum();
        let (more, unclaimed) = (u64::from(more_needed), u64::from(self.unclaimed(free.usable)));
        if more > unclaimed + spared {
            self.change(volume, |allotment| allotment.wanted = 0);
            return ReserveResult::Refused;
        }
        if more <= unclaimed {
            // The volume needs less than it asks for: a smaller request will be granted.
            self.change(volume, |allotment| allotment.wanted = 0);
            return ReserveResult::Refused;
        }
        // The volume goes on with smaller requests. They must not hide how many slots it needs.
        self.change(volume, |allotment| allotment.wanted = allotment.wanted.max(needed));
        ReserveResult::Later
    }

    /// Slots that all volumes except this one wait for.
    fn waited_for(&self, volume: VolumeId) -> u32 {
        let others = self.volumes.iter().filter(|(other, _)| **other != volume);
        let slots: u64 = others.map(|(_, other)| u64::from(other.lacks())).sum();
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots that volumes wait for beyond the unclaimed ones, with `free` slots free.
    pub(crate) fn lacking(&self, free: u32) -> u32 {
        let more: u64 = self.volumes.values().map(|allotment| u64::from(allotment.lacks())).sum();
        let lacking = more.saturating_sub(u64::from(self.unclaimed(free)));
        u32::try_from(lacking).unwrap_or(u32::MAX)
    }

    /// The volume's writer is gone, so the volume neither waits for slots nor can give any back.
    pub(crate) fn clear_requests(&mut self, volume: VolumeId) {
        self.change(volume, |allotment| (allotment.spare, allotment.wanted) = (0, 0));
    }

    /// True when the reservation may be set to `slots`, with `free` slots free.
    pub(crate) fn grants(&self, volume: VolumeId, slots: u32, free: u32) -> bool {
        let allotment = self.allotment(volume);
        let more = slots.saturating_sub(allotment.reserved.max(allotment.held));
        slots <= allotment.reserved
            || u64::from(more) <= u64::from(free).saturating_sub(self.unheld)
    }

    /// Slots that the volume may still take, with `free` slots free.
    pub(crate) fn left(&self, volume: VolumeId, free: u32) -> u32 {
        let allotment = self.allotment(volume);
        match allotment.reserved {
            0 => self.unclaimed(free),
            _ => allotment.unheld().min(free),
        }
    }

    /// Free slots that no volume has reserved.
    pub(crate) fn unclaimed(&self, free: u32) -> u32 {
        u32::try_from(u64::from(free).saturating_sub(self.unheld)).expect("at most `free`")
    }

    /// The node takes a slot for the volume.
    pub(crate) fn take(&mut self, volume: VolumeId) {
        self.change(volume, |allotment| allotment.held += 1);
    }

    /// A slot of the volume is on its way out.
    pub(crate) fn give_back(&mut self, volume: VolumeId) {
        self.change(volume, |allotment| allotment.held -= 1);
    }

    /// Every volume that has an allotment, with the reserved number and the held number.
    pub(crate) fn all(&self) -> impl Iterator<Item = (VolumeId, u32, u32)> {
        self.volumes.iter().map(|(volume, allotment)| (*volume, allotment.reserved, allotment.held))
    }

    /// Slots that all volumes hold together.
    pub(crate) fn held(&self) -> u64 {
        self.volumes.values().map(|allotment| u64::from(allotment.held)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: VolumeId = VolumeId(1);
    const B: VolumeId = VolumeId(2);
    const FREE: FreeSlots = FreeSlots { empty: 10, usable: 10 };

    fn all(free: u32) -> FreeSlots {
        FreeSlots { empty: free, usable: free }
    }

    #[test]
    fn what_one_has_reserved_the_other_cannot_take() {
        let mut allotments = Allotments::default();
        assert!(allotments.grants(A, 6, 10));
        allotments.reserve(A, 6);
        assert_eq!((allotments.left(A, 10), allotments.left(B, 10)), (6, 4));
        assert!(!allotments.grants(B, 5, 10) && allotments.grants(B, 4, 10));
        allotments.reserve(B, 4);
        for free in (6..10).rev() {
            allotments.take(B);
            assert_eq!(allotments.left(A, free), 6);
        }
        assert_eq!(allotments.left(B, 6), 0, "all that is left is A's");
        assert!(!allotments.grants(B, 5, 6));
        allotments.reserve(A, 5);
        assert!(allotments.grants(B, 5, 6), "A gave a slot up");
    }

    #[test]
    fn a_volume_without_a_reservation_takes_what_nobody_claims() {
        let mut allotments = Allotments::default();
        allotments.reserve(A, 3);
        assert_eq!(allotments.left(B, 4), 1);
        allotments.take(B);
        assert_eq!(allotments.left(B, 3), 0);
        allotments.take(A);
        allotments.give_back(B);
        assert_eq!((allotments.left(A, 3), allotments.left(B, 3)), (2, 1));
        assert!(allotments.grants(B, 1, 3) && !allotments.grants(B, 2, 3));
    }

    #[test]
    fn what_one_can_spare_the_other_may_wait_for() {
        let mut allotments = Allotments::default();
        assert_eq!(allotments.ask(A, 8, 3, FREE), ReserveResult::Granted);
        allotments.reserve(A, 8);
        assert_eq!(
            allotments.ask(B, 6, 0, FREE),
            ReserveResult::Refused,
            "2 are unclaimed and 3 to spare"
        );
        assert_eq!(allotments.lacking(10), 0, "nothing is gained by giving back");
        assert_eq!(
            allotments.ask(B, 6, 4, FREE),
            ReserveResult::Refused,
            "the 2 that it needs are there"
        );
        assert_eq!(allotments.ask(B, 6, 1, FREE), ReserveResult::Later, "it can do with 5");
        assert_eq!(allotments.lacking(10), 3);
        assert_eq!(allotments.ask(B, 2, 0, FREE), ReserveResult::Granted);
        allotments.reserve(B, 2);
        assert_eq!(allotments.lacking(10), 3, "it goes on waiting for the rest");
        assert_eq!(allotments.ask(B, 4, 0, FREE), ReserveResult::Later);
        assert_eq!(allotments.lacking(10), 3, "what it needs stays known");
        assert_eq!(allotments.ask(A, 5, 0, FREE), ReserveResult::Granted);
        allotments.reserve(A, 5);
        assert_eq!(allotments.lacking(10), 0);
        assert_eq!(allotments.ask(A, 7, 2, FREE), ReserveResult::Refused, "the other needs them");
        assert_eq!(allotments.lacking(10), 0);
        assert_eq!(allotments.ask(B, 5, 0, FREE), ReserveResult::Granted);
        allotments.reserve(B, 5);
    }

    #[test]
    fn a_full_disk_refuses_and_changes_nothing() {
        let mut allotments = Allotments::default();
        let free = FreeSlots { empty: 10, usable: 4 };
        assert_eq!(allotments.ask(A, 4, 4, free), ReserveResult::Granted);
        allotments.reserve(A, 4);
        assert_eq!(allotments.ask(B, 6, 6, free), ReserveResult::DiskFull);
        assert_eq!(allotments.ask(A, 9, 9, free), ReserveResult::DiskFull);
        assert_eq!(
            allotments.ask(B, 8, 0, free),
            ReserveResult::Refused,
            "4 is all that there can be"
        );
        assert_eq!(allotments.lacking(4), 0);
    }

    #[test]
    fn a_request_that_cannot_be_granted_is_cleared() {
        let mut allotments = Allotments::default();
        assert_eq!(allotments.ask(A, 8, 4, FREE), ReserveResult::Granted);
        allotments.reserve(A, 8);
        assert_eq!(allotments.ask(B, 6, 0, FREE), ReserveResult::Later);
        assert_eq!(
            allotments.ask(A, 8, 0, FREE),
            ReserveResult::Granted,
            "it needs all of them now"
        );
        assert_eq!(allotments.ask(B, 6, 0, FREE), ReserveResult::Refused);
        assert_eq!(allotments.lacking(10), 0);
    }

    #[test]
    fn a_volume_that_needs_more_than_it_has_spares_nothing() {
        let mut allotments = Allotments::default();
        assert_eq!(allotments.ask(A, 6, 2, FREE), ReserveResult::Granted);
        allotments.reserve(A, 6);
        assert_eq!(allotments.ask(B, 4, 1, FREE), ReserveResult::Granted);
        allotments.reserve(B, 4);
        assert_eq!(
            allotments.ask(A, 8, 1, FREE),
            ReserveResult::Later,
            "B can spare one of its four"
        );
        assert_eq!(
            allotments.ask(B, 5, 0, FREE),
            ReserveResult::Refused,
            "A needs all that it has"
        );
    }

    #[test]
    fn without_a_writer_a_volume_neither_waits_nor_gives_back() {
        let mut allotments = Allotments::default();
        assert_eq!(allotments.ask(A, 8, 8, FREE), ReserveResult::Granted);
        allotments.reserve(A, 8);
        assert_eq!(allotments.ask(B, 4, 0, FREE), ReserveResult::Later);
        assert_eq!(allotments.lacking(10), 2);
        allotments.clear_requests(B);
        assert_eq!(allotments.lacking(10), 0);
        allotments.clear_requests(A);
        assert_eq!(allotments.ask(B, 4, 0, FREE), ReserveResult::Refused);
    }

    proptest! {
        /// The module's rule holds after every permitted step.
        #[test]
        fn unheld_slots_are_always_free(
            steps in proptest::collection::vec((0u8..4, 0u128..4, 0u32..40), 0..200)
        ) {
            let (mut allotments, mut free) = (Allotments::default(), 32u32);
            let mut held = [0u32; 4];
            for (kind, volume, slots) in steps {
                let (id, mine) = (VolumeId(volume), &mut held[volume as usize]);
                match kind {
                    0 => {
                        let result = allotments.ask(id, slots, slots / 2, all(free));
                        if result == ReserveResult::Granted {
                            allotments.reserve(id, slots);
                        }
                    }
                    3 => allotments.clear_requests(id),
                    1 if allotments.left(id, free) > 0 => {
                        allotments.take(id);
                        (*mine, free) = (*mine + 1, free - 1);
                    }
                    2 if *mine > 0 => {
                        allotments.give_back(id);
                        (*mine, free) = (*mine - 1, free + 1);
                    }
                    _ => {}
                }
                prop_assert!(allotments.unheld <= u64::from(free));
                let total: u64 = held.iter().map(|held| u64::from(*held)).sum();
                prop_assert_eq!(allotments.held(), total);
            }
        }
    }
}
