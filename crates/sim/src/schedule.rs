//! The virtual clock: a heap of future events with their times.
//!
//! Events at the same nanosecond happen in the order of insertion, so a run has exactly one order.
//! Time moves only when an event is taken out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fieldstone_block::Nanos;

struct Entry<E> {
    at: Nanos,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The future events, and the time.
pub struct Schedule<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    now: Nanos,
    pushed: u64,
    taken: u64,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), now: Nanos(0), pushed: 0, taken: 0 }
    }
}

impl<E> Schedule<E> {
    /// The present time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of events that have happened.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Schedules `event` at `at`, or now if that time is past.
    pub fn at(&mut self, at: Nanos, event: E) {
        let at = at.max(self.now);
        self.pushed += 1;
        self.heap.push(Reverse(Entry { at, order: self.pushed, event }));
    }

    /// Schedules `event` `delay_ns` from now.
    pub fn after(&mut self, delay_ns: u64, event: E) {
        self.at(self.now.plus(Nanos(delay_ns)), event);
    }

    /// Advances to the next event and returns it.
    pub fn next_event(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        self.taken += 1;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_rises_and_ties_keep_their_order() {
        let mut schedule = Schedule::default();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b'), (5, 'e')] {
            schedule.at(Nanos(at), name);
        }
        let mut seen = String::new();
        while let Some(name) = schedule.next_event() {
            if name == 'b' {
                // A past time means now.
                schedule.at(Nanos(2), 'x');
            }
            seen.push(name);
        }
        assert_eq!(seen, "abxcde");
        assert_eq!(schedule.now(), Nanos(5));
        assert_eq!(schedule.taken(), 6);
    }
}
