//! How many slots each volume may take.
//!
//! # Why
//! The volumes of a pool share its nodes. A volume needs slots to make room: collection moves live
//! blocks into new segments before it deletes the old ones, and an opening writes a checkpoint. If
//! other volumes could take the last slots, a volume could neither collect nor open, and this state
//! would never end. So each volume *reserves* slots on each node
//! ([`fieldstone_proto::RequestBody::Reserve`]), and the node keeps free slots for these
//! reservations.
//!
//! # The rule
//! A volume holds a slot from the moment that the node takes the slot for one of its shards until
//! the slot is on its way out. For each volume let `unheld` be its reservation minus the slots that
//! it holds, at least 0. As long as the disk has the room that it promised, at any time
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
//! answers that it should ask again ([`Answer::Later`]), and reports the lacking number in its
//! [`fieldstone_proto::NodeStat`]. The other volumes check this number from time to time, and give
//! slots back. Only a volume with a connected writer can do that: a volume without a writer spares
//! nothing. Nor does a volume that itself needs more than it has: two volumes would each wait for
//! the other.
//!
//! # Restarts
//! A start finds the slots that a volume holds. The volumes' records keep the reservations, stably.
//! So a restart changes nothing here.
//!
//! The disk may break the promise: a slot may become unreadable, or a file system may have less
//! room than the node's size says. Then the node refuses slots although they are reserved. To the
//! volume the node is full. This is a fault of one node like any other.

use std::collections::HashMap;

use fieldstone_proto::VolumeId;

/// The slots of one volume.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
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
pub(crate) enum Answer {
    /// The volume may have the slots.
    Granted,
    /// Other volumes have reserved the slots, but can do without them: the volume may ask again.
    Later,
    /// Other volumes have reserved the slots.
    Refused,
    /// Slots are free, but the disk has no room for them.
    DiskFull,
}

impl Share {
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
pub(crate) struct Room {
    /// Slots that hold no shard.
    pub(crate) empty: u32,
    /// Those of the `empty` slots that the disk has room for.
    pub(crate) usable: u32,
}

/// The shares of all volumes.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    volumes: HashMap<VolumeId, Share>,
    /// The sum of `unheld` over all volumes.
    unheld: u64,
}

impl Shares {
    fn change(&mut self, volume: VolumeId, change: impl FnOnce(&mut Share)) {
        let share = self.volumes.entry(volume).or_default();
        self.unheld -= u64::from(share.unheld());
        change(share);
        self.unheld += u64::from(share.unheld());
        if (share.reserved, share.held, share.spare, share.wanted) == (0, 0, 0, 0) {
            self.volumes.remove(&volume);
        }
    }

    fn share(&self, volume: VolumeId) -> Share {
        self.volumes.get(&volume).copied().unwrap_or_default()
    }

    /// Sets a volume's reservation.
    pub(crate) fn reserve(&mut self, volume: VolumeId, slots: u32) {
        self.change(volume, |share| {
            share.reserved = slots;
            share.spare = share.spare.min(slots);
        });
    }

    /// The volume asks for `slots` slots in total, and can do without `spare` of these. `room` says
    /// how many slots are free. After [`Answer::Granted`], the caller calls [`Self::reserve`].
    ///
    /// The node does not grant slots that another volume waits for to a volume that can do without
    /// them. Otherwise the volume that gives slots back could take them again before the volume
    /// that needs them asks.
    pub(crate) fn ask(&mut self, volume: VolumeId, slots: u32, spare: u32, room: Room) -> Answer {
        let share = self.share(volume);
        let needed = slots.saturating_sub(spare);
        let more_needed = needed.saturating_sub(share.reserved.max(share.held));
        let kept = if more_needed == 0 { self.waited_for(volume) } else { 0 };
        if more_needed == 0 {
            self.change(volume, |share| share.wanted = 0);
        }
        if self.grants(volume, slots, room.empty.saturating_sub(kept)) {
            if !self.grants(volume, slots, room.usable.saturating_sub(kept)) {
                self.change(volume, |share| share.wanted = 0);
                return Answer::DiskFull;
            }
            let grows = more_needed > 0 && slots > share.reserved && slots < share.wanted;
            let wanted = if grows { share.wanted } else { 0 };
            self.change(volume, |share| (share.spare, share.wanted) = (spare.min(slots), wanted));
            return Answer::Granted;
        }
        if more_needed > 0 {
            // It needs all that it has.
            self.change(volume, |share| share.spare = 0);
        }
        let spared = self.volumes.iter().filter(|(other, _)| **other != volume);
        let spared: u64 = spared.map(|(_, other)| u64::from(other.spare)).sum();
        let (more, unclaimed) = (u64::from(more_needed), u64::from(self.unclaimed(room.usable)));
        if more > unclaimed + spared {
            self.change(volume, |share| share.wanted = 0);
            return Answer::Refused;
        }
        if more <= unclaimed {
            // The volume needs less than it asks for: a smaller request will be granted.
            self.change(volume, |share| share.wanted = 0);
            return Answer::Refused;
        }
        // The volume goes on with smaller requests. They must not hide how many slots it needs.
        self.change(volume, |share| share.wanted = share.wanted.max(needed));
        Answer::Later
    }

    /// Slots that all volumes except this one wait for.
    fn waited_for(&self, volume: VolumeId) -> u32 {
        let others = self.volumes.iter().filter(|(other, _)| **other != volume);
        let slots: u64 = others.map(|(_, other)| u64::from(other.lacks())).sum();
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Slots that volumes wait for beyond the unclaimed ones, with `free` slots free.
    pub(crate) fn lacking(&self, free: u32) -> u32 {
        let more: u64 = self.volumes.values().map(|share| u64::from(share.lacks())).sum();
        let lacking = more.saturating_sub(u64::from(self.unclaimed(free)));
        u32::try_from(lacking).unwrap_or(u32::MAX)
    }

    /// The volume's writer is gone, so the volume neither waits for slots nor can give any back.
    pub(crate) fn forget_wishes(&mut self, volume: VolumeId) {
        self.change(volume, |share| (share.spare, share.wanted) = (0, 0));
    }

    /// True when the reservation may be set to `slots`, with `free` slots free.
    pub(crate) fn grants(&self, volume: VolumeId, slots: u32, free: u32) -> bool {
        let share = self.share(volume);
        let more = slots.saturating_sub(share.reserved.max(share.held));
        slots <= share.reserved || u64::from(more) <= u64::from(free).saturating_sub(self.unheld)
    }

    /// Slots that the volume may still take, with `free` slots free.
    pub(crate) fn left(&self, volume: VolumeId, free: u32) -> u32 {
        let share = self.share(volume);
        match share.reserved {
            0 => self.unclaimed(free),
            _ => share.unheld().min(free),
        }
    }

    /// Free slots that no volume has reserved.
    pub(crate) fn unclaimed(&self, free: u32) -> u32 {
        u32::try_from(u64::from(free).saturating_sub(self.unheld)).expect("at most `free`")
    }

    /// The node takes a slot for the volume.
    pub(crate) fn take(&mut self, volume: VolumeId) {
        self.change(volume, |share| share.held += 1);
    }

    /// A slot of the volume is on its way out.
    pub(crate) fn give_back(&mut self, volume: VolumeId) {
        self.change(volume, |share| share.held -= 1);
    }

    /// Every volume that has a share, with the reserved number and the held number.
    pub(crate) fn all(&self) -> impl Iterator<Item = (VolumeId, u32, u32)> {
        self.volumes.iter().map(|(volume, share)| (*volume, share.reserved, share.held))
    }

    /// Slots that all volumes hold together.
    pub(crate) fn held(&self) -> u64 {
        self.volumes.values().map(|share| u64::from(share.held)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: VolumeId = VolumeId(1);
    const B: VolumeId = VolumeId(2);
    const FREE: Room = Room { empty: 10, usable: 10 };

    fn all(free: u32) -> Room {
        Room { empty: free, usable: free }
    }

    #[test]
    fn what_one_has_reserved_the_other_cannot_take() {
        let mut shares = Shares::default();
        assert!(shares.grants(A, 6, 10));
        shares.reserve(A, 6);
        assert_eq!((shares.left(A, 10), shares.left(B, 10)), (6, 4));
        assert!(!shares.grants(B, 5, 10) && shares.grants(B, 4, 10));
        shares.reserve(B, 4);
        for free in (6..10).rev() {
            shares.take(B);
            assert_eq!(shares.left(A, free), 6);
        }
        assert_eq!(shares.left(B, 6), 0, "all that is left is A's");
        assert!(!shares.grants(B, 5, 6));
        shares.reserve(A, 5);
        assert!(shares.grants(B, 5, 6), "A gave a slot up");
    }

    #[test]
    fn a_volume_without_a_reservation_takes_what_nobody_claims() {
        let mut shares = Shares::default();
        shares.reserve(A, 3);
        assert_eq!(shares.left(B, 4), 1);
        shares.take(B);
        assert_eq!(shares.left(B, 3), 0);
        shares.take(A);
        shares.give_back(B);
        assert_eq!((shares.left(A, 3), shares.left(B, 3)), (2, 1));
        assert!(shares.grants(B, 1, 3) && !shares.grants(B, 2, 3));
    }

    #[test]
    fn what_one_can_spare_the_other_may_wait_for() {
        let mut shares = Shares::default();
        assert_eq!(shares.ask(A, 8, 3, FREE), Answer::Granted);
        shares.reserve(A, 8);
        assert_eq!(shares.ask(B, 6, 0, FREE), Answer::Refused, "2 are unclaimed and 3 to spare");
        assert_eq!(shares.lacking(10), 0, "nothing is gained by giving back");
        assert_eq!(shares.ask(B, 6, 4, FREE), Answer::Refused, "the 2 that it needs are there");
        assert_eq!(shares.ask(B, 6, 1, FREE), Answer::Later, "it can do with 5");
        assert_eq!(shares.lacking(10), 3);
        assert_eq!(shares.ask(B, 2, 0, FREE), Answer::Granted);
        shares.reserve(B, 2);
        assert_eq!(shares.lacking(10), 3, "it goes on waiting for the rest");
        assert_eq!(shares.ask(B, 4, 0, FREE), Answer::Later);
        assert_eq!(shares.lacking(10), 3, "what it needs stays known");
        assert_eq!(shares.ask(A, 5, 0, FREE), Answer::Granted);
        shares.reserve(A, 5);
        assert_eq!(shares.lacking(10), 0);
        assert_eq!(shares.ask(A, 7, 2, FREE), Answer::Refused, "the other needs them");
        assert_eq!(shares.lacking(10), 0);
        assert_eq!(shares.ask(B, 5, 0, FREE), Answer::Granted);
        shares.reserve(B, 5);
    }

    #[test]
    fn a_full_disk_refuses_and_changes_nothing() {
        let mut shares = Shares::default();
        let room = Room { empty: 10, usable: 4 };
        assert_eq!(shares.ask(A, 4, 4, room), Answer::Granted);
        shares.reserve(A, 4);
        assert_eq!(shares.ask(B, 6, 6, room), Answer::DiskFull);
        assert_eq!(shares.ask(A, 9, 9, room), Answer::DiskFull);
        assert_eq!(shares.ask(B, 8, 0, room), Answer::Refused, "4 is all that there can be");
        assert_eq!(shares.lacking(4), 0);
    }

    #[test]
    fn a_wish_that_cannot_come_true_is_forgotten() {
        let mut shares = Shares::default();
        assert_eq!(shares.ask(A, 8, 4, FREE), Answer::Granted);
        shares.reserve(A, 8);
        assert_eq!(shares.ask(B, 6, 0, FREE), Answer::Later);
        assert_eq!(shares.ask(A, 8, 0, FREE), Answer::Granted, "it needs all of them now");
        assert_eq!(shares.ask(B, 6, 0, FREE), Answer::Refused);
        assert_eq!(shares.lacking(10), 0);
    }

    #[test]
    fn a_volume_that_needs_more_than_it_has_spares_nothing() {
        let mut shares = Shares::default();
        assert_eq!(shares.ask(A, 6, 2, FREE), Answer::Granted);
        shares.reserve(A, 6);
        assert_eq!(shares.ask(B, 4, 1, FREE), Answer::Granted);
        shares.reserve(B, 4);
        assert_eq!(shares.ask(A, 8, 1, FREE), Answer::Later, "B can spare one of its four");
        assert_eq!(shares.ask(B, 5, 0, FREE), Answer::Refused, "A needs all that it has");
    }

    #[test]
    fn without_a_writer_a_volume_neither_waits_nor_gives_back() {
        let mut shares = Shares::default();
        assert_eq!(shares.ask(A, 8, 8, FREE), Answer::Granted);
        shares.reserve(A, 8);
        assert_eq!(shares.ask(B, 4, 0, FREE), Answer::Later);
        assert_eq!(shares.lacking(10), 2);
        shares.forget_wishes(B);
        assert_eq!(shares.lacking(10), 0);
        shares.forget_wishes(A);
        assert_eq!(shares.ask(B, 4, 0, FREE), Answer::Refused);
    }

    proptest! {
        /// The module's rule holds after every permitted step.
        #[test]
        fn unheld_slots_are_always_free(
            steps in proptest::collection::vec((0u8..4, 0u128..4, 0u32..40), 0..200)
        ) {
            let (mut shares, mut free) = (Shares::default(), 32u32);
            let mut held = [0u32; 4];
            for (kind, volume, slots) in steps {
                let (id, mine) = (VolumeId(volume), &mut held[volume as usize]);
                match kind {
                    0 if shares.ask(id, slots, slots / 2, all(free)) == Answer::Granted => {
                        shares.reserve(id, slots);
                    }
                    3 => shares.forget_wishes(id),
                    1 if shares.left(id, free) > 0 => {
                        shares.take(id);
                        (*mine, free) = (*mine + 1, free - 1);
                    }
                    2 if *mine > 0 => {
                        shares.give_back(id);
                        (*mine, free) = (*mine - 1, free + 1);
                    }
                    _ => {}
                }
                prop_assert!(shares.unheld <= u64::from(free));
                prop_assert_eq!(shares.held(), held.iter().map(|held| u64::from(*held)).sum::<u64>());
            }
        }
    }
}
