//! A session's part of the memory that all connections of a server share.
//!
//! Every session has [`OWN_BYTES`] of its own. Requests in flight up to that size never use the
//! shared [`Budget`]. So small requests cost nothing here, and the server serves them while other
//! sessions hold the rest or wait for it. The session leases memory beyond that, in grains, before
//! it accepts a request, and gives the memory back as the client takes replies. If the budget has
//! no memory for a request, the request stays undecoded. The session stops reading until the budget
//! has memory.

use std::sync::Arc;

use fieldstone_buf::{Budget, Lease};

use crate::limits::{BUDGET_SHARE, LEASE_GRAIN_BYTES, OWN_BYTES, SIGN_OF_LIFE_BYTES};

/// The memory lease of one session. Without a budget there is always memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryLease {
    lease: Option<Lease>,
    waiting: bool,
}

impl MemoryLease {
    pub fn of(budget: &Arc<Budget>) -> Self {
        Self { lease: Some(Lease::new(budget)), waiting: false }
    }

    pub fn is_shared(&self) -> bool {
        self.lease.is_some()
    }

    /// True while a request waits for memory.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// True if the session holds shared memory.
    pub fn is_held(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.held_bytes() > 0)
    }

    /// The most memory that this session may hold at a time.
    pub fn share_bytes(&self) -> usize {
        self.lease.as_ref().map_or(usize::MAX, |lease| lease.budget().total_bytes() / BUDGET_SHARE)
    }

    /// False for a request that would not fit even if no other session held memory.
    pub fn fits_ever(&self, bytes: usize) -> bool {
        bytes <= OWN_BYTES
            || self.lease.as_ref().is_none_or(|lease| bytes <= lease.budget().total_bytes())
    }

    /// True if the first bytes of a payload must arrive before the session holds `bytes` in total
    /// for it.
    pub fn wants_sign_of_life(&self, payload_bytes: usize, bytes: usize) -> bool {
        self.lease.as_ref().is_some_and(|lease| {
            let more = bytes.saturating_sub(OWN_BYTES).saturating_sub(lease.held_bytes());
            payload_bytes >= SIGN_OF_LIFE_BYTES || (more > 0 && lease.budget().is_scarce(more))
        })
    }

    /// Leases memory for `bytes` in total; false if the session must wait for it.
    pub fn cover(&mut self, bytes: usize) -> bool {
        let Some(lease) = &mut self.lease else { return true };
        let shared = bytes.saturating_sub(OWN_BYTES);
        if shared > lease.held_bytes() {
            let grains = shared.next_multiple_of(LEASE_GRAIN_BYTES);
            self.waiting = !lease.grow_to(grains.min(lease.budget().total_bytes()));
        } else if self.waiting {
            self.stop_waiting();
        }
        !self.waiting
    }

    /// Gives back the memory beyond `bytes` in total. While the session uses any leased memory, it
    /// keeps one grain too many, so that a steady load does not lease and give back for every
    /// request.
    pub fn settle(&mut self, bytes: usize) {
        let Some(lease) = &mut self.lease else { return };
        if lease.held_bytes() == 0 {
            return;
        }
        let shared = bytes.saturating_sub(OWN_BYTES).next_multiple_of(LEASE_GRAIN_BYTES);
        if shared == 0 || lease.held_bytes() > shared + LEASE_GRAIN_BYTES {
            lease.shrink_to(shared);
        }
    }

    /// The session no longer waits for memory.
    pub fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waiting)
            && let Some(lease) = &mut self.lease
        {
            lease.stop_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_are_never_counted_and_large_ones_in_grains() {
        let budget = Budget::new(16 << 20);
        let mut memory_lease = MemoryLease::of(&budget);
        assert!(memory_lease.cover(OWN_BYTES) && !memory_lease.is_held());
        assert!(memory_lease.cover(OWN_BYTES + 1));
        assert_eq!(budget.used_bytes(), LEASE_GRAIN_BYTES);
        assert!(memory_lease.cover(OWN_BYTES + (5 << 20)));
        memory_lease.settle(OWN_BYTES + (4 << 20));
        assert_eq!(budget.used_bytes(), 5 << 20, "one grain stays");
        memory_lease.settle(OWN_BYTES + (2 << 20));
        assert_eq!(budget.used_bytes(), 2 << 20);
        memory_lease.settle(OWN_BYTES);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn the_whole_budget_fits_and_not_a_byte_more() {
        let budget = Budget::new((3 << 20) + 1);
        let mut memory_lease = MemoryLease::of(&budget);
        assert!(memory_lease.fits_ever((3 << 20) + 1) && !memory_lease.fits_ever((3 << 20) + 2));
        assert!(memory_lease.cover((3 << 20) + 1));
        let mut other = MemoryLease::of(&budget);
        assert!(!other.cover(OWN_BYTES + (1 << 20)) && other.is_waiting() && budget.is_wanted());
        other.stop_waiting();
        assert!(!other.is_waiting() && !budget.is_wanted());
        assert!(other.cover(OWN_BYTES));
    }

    #[test]
    fn long_payloads_and_a_full_house_want_a_sign_of_life() {
        let budget = Budget::new(16 << 20);
        let memory_lease = MemoryLease::of(&budget);
        assert!(memory_lease.wants_sign_of_life(SIGN_OF_LIFE_BYTES, SIGN_OF_LIFE_BYTES));
        assert!(!memory_lease.wants_sign_of_life(1 << 20, 1 << 20));
        let mut other = MemoryLease::of(&budget);
        assert!(other.cover(8 << 20));
        assert!(memory_lease.wants_sign_of_life(1 << 20, 1 << 20));
        assert!(
            !memory_lease.wants_sign_of_life(OWN_BYTES, OWN_BYTES),
            "it needs nothing of the budget"
        );
        assert!(!MemoryLease::default().wants_sign_of_life(32 << 20, 32 << 20));
    }
}
