//! A memory bound for many users that do not know each other.
//!
//! A server promises a total for the payloads that clients announce, send and do not fetch. Each
//! connection has a [`Lease`] on the [`Budget`] of its process. The lease grows before the
//! connection takes memory, and shrinks after it gives memory back. A lease that cannot grow
//! changes nothing; its owner stops reading and tries again later.
//!
//! # The order of waiting leases
//!
//! Small requests would overtake a large one for ever: they take freed memory before the large one
//! fits. So the first lease that fails to grow is first in the queue. Until that lease has grown
//! (or is dropped) no other lease grows. All other leases wait in no particular order. No lease has
//! to grow before it can give memory back, so the first lease gets its memory as long as clients
//! send and fetch. The owner of a lease decides about clients that do neither.
//! [`Budget::is_wanted`] says when it has to decide.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The value for an empty queue. No lease has this id.
const NO_LEASE: u64 = 0;

/// A number of bytes that leases share, on any thread.
#[derive(Debug)]
pub struct Budget {
    total_bytes: usize,
    used_bytes: AtomicUsize,
    /// The lease that is first in the queue.
    first: AtomicU64,
    last_id: AtomicU64,
    returns: AtomicU64,
}

impl Budget {
    /// A budget of `total_bytes`, all of it unused.
    #[must_use]
    pub fn new(total_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            total_bytes,
            used_bytes: AtomicUsize::new(0),
            first: AtomicU64::new(NO_LEASE),
            last_id: AtomicU64::new(NO_LEASE),
            returns: AtomicU64::new(0),
        })
    }

    /// Size of the budget in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Bytes that leases hold.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// A lease of so many bytes that never waits, if there is room now. It does not respect the
    /// queue: use it only for budgets whose leases never wait.
    #[must_use]
    pub fn lease(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        let lease = || Lease { budget: Arc::clone(self), id: NO_LEASE, held_bytes: bytes };
        self.take(bytes).then(lease)
    }

    /// True when, with `more_bytes`, more than half of the budget would be in use. Then a client
    /// has to send data before it gets memory.
    #[must_use]
    pub fn is_scarce(&self, more_bytes: usize) -> bool {
        self.used_bytes().saturating_add(more_bytes) > self.total_bytes / 2
    }

    /// True while a lease waits to grow.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.first.load(Ordering::Relaxed) != NO_LEASE
    }

    /// How often leases gave bytes back or the first lease changed. A lease that could not grow
    /// need not try again before this number changes.
    #[must_use]
    pub fn returns(&self) -> u64 {
        self.returns.load(Ordering::Acquire)
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.total_bytes);
        self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.returns.fetch_add(1, Ordering::Release);
    }

    /// Lets another lease be first in the queue.
    fn step_aside(&self, id: u64) {
        if id != NO_LEASE
            && self.first.load(Ordering::Relaxed) == id
            && self
                .first
                .compare_exchange(id, NO_LEASE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            self.returns.fetch_add(1, Ordering::Release);
        }
    }
}

/// One user's part of a [`Budget`]. Dropping it gives the bytes back.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<Budget>,
    /// The id of the lease in the queue; [`NO_LEASE`] for a lease that never waits.
    id: u64,
    held_bytes: usize,
}

impl Lease {
    /// A lease that holds no bytes yet.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        let id = budget.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        Self { budget: Arc::clone(budget), id, held_bytes: 0 }
    }

    /// The lease's budget.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Bytes that the lease holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Makes the lease hold `bytes` in total, if there is room, and never less than before. False
    /// if there is no room, or another lease is first in the queue. If no lease is first, this one
    /// now is. A number larger than the whole budget never fits: check that before.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.held_bytes).filter(|more| *more > 0) else {
            self.budget.step_aside(self.id);
            return true;
        };
        let first = self.budget.first.load(Ordering::Acquire);
        if (first == NO_LEASE || first == self.id) && self.budget.take(more) {
            self.held_bytes = bytes;
            self.budget.step_aside(self.id);
            return true;
        }
        let free = &self.budget.first;
        let _ = free.compare_exchange(NO_LEASE, self.id, Ordering::AcqRel, Ordering::Relaxed);
        false
    }

    /// Makes the lease hold at most `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if let Some(less) = self.held_bytes.checked_sub(bytes).filter(|less| *less > 0) {
            self.held_bytes = bytes;
            self.budget.give_back(less);
        }
    }

    /// Leaves the queue: the owner no longer needs the memory that the lease waited for.
    pub fn stop_waiting(&mut self) {
        self.budget.step_aside(self.id);
    }

    /// Moves up to `bytes` of the held bytes into a new lease, for memory that outlives this lease.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let held_bytes = bytes.min(self.held_bytes);
        self.held_bytes -= held_bytes;
        Self { budget: Arc::clone(&self.budget), id: NO_LEASE, held_bytes }
    }

    /// Moves the held bytes into a new lease, for memory that outlives this lease.
    #[must_use]
    pub fn split_off(&mut self) -> Self {
        self.split(self.held_bytes)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
        self.budget.step_aside(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_fit_waits_and_nobody_passes_it() {
        let budget = Budget::new(100);
        let (mut small, mut large) = (Lease::new(&budget), Lease::new(&budget));
        assert!(small.grow_to(40));
        assert!(!large.grow_to(80));
        assert!(budget.is_wanted());
        assert!(!small.grow_to(41), "the large one is first");
        let before = budget.returns();
        small.shrink_to(20);
        assert_ne!(budget.returns(), before);
        assert!(large.grow_to(80));
        assert!(!budget.is_wanted());
        assert_eq!(budget.used_bytes(), 100);
        assert!(!small.grow_to(21));
        assert!(budget.is_wanted());
        assert!(small.grow_to(20), "it has that much already, and wants no more");
        assert!(!budget.is_wanted());
        assert!(!small.grow_to(21));
        drop(small);
        assert!(!budget.is_wanted(), "a lease that is gone does not wait");
        assert!(large.grow_to(100));
    }

    #[test]
    fn a_part_that_was_split_off_is_given_back_by_itself() {
        let budget = Budget::new(100);
        let mut lease = Lease::new(&budget);
        assert!(lease.grow_to(60));
        let part = lease.split_off();
        assert_eq!((lease.held_bytes(), part.held_bytes(), budget.used_bytes()), (0, 60, 60));
        assert!(!lease.grow_to(50));
        lease.stop_waiting();
        assert!(!budget.is_wanted());
        drop(part);
        assert!(lease.grow_to(50));
        drop(lease);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_lease_that_finds_no_room_does_not_wait() {
        let budget = Budget::new(100);
        let held = budget.lease(60).expect("room");
        assert!(budget.lease(41).is_none() && !budget.is_wanted());
        let rest = budget.lease(40).expect("room");
        assert_eq!((held.held_bytes(), rest.held_bytes(), budget.used_bytes()), (60, 40, 100));
        assert!(budget.lease(usize::MAX).is_none());
        drop((held, rest));
        assert_eq!(budget.used_bytes(), 0);
    }

    proptest! {
        /// The total is never exceeded. The leases' bytes sum to the used bytes. Once all bytes
        /// were given back, a waiting lease can have all of them.
        #[test]
        fn the_books_agree(
            steps in proptest::collection::vec((0usize..4, 0usize..120, 0u8..3), 0..200),
        ) {
            let budget = Budget::new(100);
            let mut leases: Vec<Lease> = (0..4).map(|_| Lease::new(&budget)).collect();
            for (who, bytes, what) in steps {
                let lease = &mut leases[who];
                match what {
                    0 => drop(lease.grow_to(bytes)),
                    1 => lease.shrink_to(bytes),
                    _ => *lease = Lease::new(&budget),
                }
                let held: usize = leases.iter().map(Lease::held_bytes).sum();
                prop_assert_eq!(held, budget.used_bytes());
                prop_assert!(held <= 100);
            }
            for lease in &mut leases {
                lease.shrink_to(0);
                lease.stop_waiting();
            }
            for lease in &mut leases {
                prop_assert!(lease.grow_to(100));
                lease.shrink_to(0);
            }
        }
    }
}
