//! The events of a run, in order of time. Events of the same time come in the order in which they
//! were scheduled, so a run is a function of its inputs alone.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Ps;

/// Events to come.
#[derive(Debug)]
pub struct Schedule<E> {
    now: Ps,
    sequence: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    time: Ps,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
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
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { now: Ps::ZERO, sequence: 0, heap: BinaryHeap::new() }
    }
}

impl<E> Schedule<E> {
    /// The time of the last event.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Events scheduled so far.
    pub fn scheduled(&self) -> u64 {
        self.sequence
    }

    /// Schedules an event. A time in the past means now.
    pub fn at(&mut self, time: Ps, event: E) {
        let time = time.max(self.now);
        self.heap.push(Reverse(Entry { time, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// Takes the next event, and moves the time to it. `None` if nothing is to come.
    pub fn next_event(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.time;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_in_order_of_time_then_of_scheduling(
            times in proptest::collection::vec(0u64..20, 1..100),
        ) {
            let mut schedule = Schedule::default();
            for (place, time) in times.iter().enumerate() {
                schedule.at(Ps(*time), place);
            }
            let mut expected: Vec<usize> = (0..times.len()).collect();
            expected.sort_by_key(|place| times[*place]);
            let mut got = Vec::new();
            while let Some(place) = schedule.next_event() {
                prop_assert_eq!(schedule.now(), Ps(times[place]));
                got.push(place);
            }
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn the_past_is_now() {
        let mut schedule = Schedule::default();
        schedule.at(Ps(10), 'a');
        assert_eq!(schedule.next_event(), Some('a'));
        schedule.at(Ps(3), 'b');
        assert_eq!(schedule.next_event(), Some('b'));
        assert_eq!(schedule.now(), Ps(10), "time never runs back");
    }
}
