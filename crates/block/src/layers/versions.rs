//! Decides whether the cache may keep a line: whether a change touched the line in the meantime.
//!
//! A clock counts the beginnings and ends of changes. Lines fall into a fixed number of buckets by
//! their number. A bucket knows how many changes of its lines are in flight, and when the last one
//! began or ended. From that:
//!
//! - the cache may keep a line of a *read* if no change is in flight and none began or ended since
//!   the read was sent. Otherwise the line may be from before the change;
//! - the cache may keep a line of a *change* if this change is the only one in flight and no other
//!   began or ended since it began. Otherwise the order of the two is not known.
//!
//! Lines that share a bucket only make the answer "no" more often. The cost per line is a few
//! nanoseconds, whatever the number of requests in flight, and at most one visit of every bucket.

use std::ops::Range;

/// A power of two: `line % BUCKETS` spreads neighbouring lines over all buckets.
const BUCKETS: u64 = 2048;

/// A moment of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

#[derive(Clone, Copy)]
struct Bucket {
    last: Moment,
    in_flight: u32,
}

/// The times of the lines' last changes.
pub(crate) struct Versions {
    clock: Moment,
    buckets: Box<[Bucket]>,
}

impl Versions {
    pub(crate) fn new() -> Self {
        let bucket = Bucket { last: Moment(0), in_flight: 0 };
        Versions { clock: Moment(0), buckets: vec![bucket; BUCKETS as usize].into() }
    }

    fn tick(&mut self) -> Moment {
        self.clock.0 += 1;
        self.clock
    }

    fn bucket(&self, line: u64) -> Bucket {
        self.buckets[(line % BUCKETS) as usize]
    }

    fn touch(&mut self, lines: &Range<u64>, update: impl Fn(&mut Bucket)) {
        let end = lines.end.min(lines.start.saturating_add(BUCKETS));
        for line in lines.start..end {
            update(&mut self.buckets[(line % BUCKETS) as usize]);
        }
    }

    /// Notes that a read is sent now.
    pub(crate) fn begin_read(&mut self) -> Moment {
        self.tick()
    }

    /// True if the bytes that a read sent at `began` gave for `line` are its content now.
    pub(crate) fn read_is_current(&self, line: u64, began: Moment) -> bool {
        let bucket = self.bucket(line);
        bucket.in_flight == 0 && bucket.last < began
    }

    /// Notes that a change of `lines` is sent now.
    pub(crate) fn begin_change(&mut self, lines: &Range<u64>) -> Moment {
        let now = self.tick();
        self.touch(lines, |bucket| {
            bucket.last = now;
            bucket.in_flight += 1;
        });
        now
    }

    /// True if the bytes that a change writes to `line` will be its content when the change ends.
    /// The change began at `began` and has not ended.
    pub(crate) fn change_is_current(&self, line: u64, began: Moment) -> bool {
        let bucket = self.bucket(line);
        bucket.in_flight == 1 && bucket.last == began
    }

    /// Notes that a change of `lines` has completed or failed.
    pub(crate) fn end_change(&mut self, lines: &Range<u64>) {
        let now = self.tick();
        self.touch(lines, |bucket| {
            bucket.last = now;
            bucket.in_flight -= 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_current_only_if_no_change_met_it() {
        let mut versions = Versions::new();
        let before = versions.begin_read();
        assert!(versions.read_is_current(5, before));
        versions.begin_change(&(5..6));
        let during = versions.begin_read();
        assert!(!versions.read_is_current(5, before));
        assert!(!versions.read_is_current(5, during));
        assert!(versions.read_is_current(6, during));
        versions.end_change(&(5..6));
        assert!(!versions.read_is_current(5, during));
        let after = versions.begin_read();
        assert!(versions.read_is_current(5, after));
    }

    #[test]
    fn a_change_is_current_only_if_it_was_alone() {
        let mut versions = Versions::new();
        let first = versions.begin_change(&(0..10));
        assert!(versions.change_is_current(3, first));
        let second = versions.begin_change(&(3..4));
        assert!(!versions.change_is_current(3, first));
        assert!(!versions.change_is_current(3, second));
        assert!(versions.change_is_current(4, first));
        versions.end_change(&(3..4));
        assert!(!versions.change_is_current(3, first));
        versions.end_change(&(0..10));
        let third = versions.begin_change(&(3..4));
        assert!(versions.change_is_current(3, third));
    }

    #[test]
    fn a_huge_change_visits_each_bucket_once() {
        let mut versions = Versions::new();
        versions.begin_change(&(7..1 << 52));
        assert!(versions.buckets.iter().all(|bucket| bucket.in_flight == 1));
        versions.end_change(&(7..1 << 52));
        let read = versions.begin_read();
        assert!(versions.read_is_current(1 << 40, read));
    }
}
