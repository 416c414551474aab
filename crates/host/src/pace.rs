//! Whether a disk keeps pace: the rule by which a core makes writes that may block.
//!
//! On file systems that cannot promise not to block, a short write is cheapest where it stands, and
//! blocks its core if the disk does not take it (`reactor::inline`). So such a write is made only
//! while the disk shows that it works:
//!
//! - No operation of the disk has been on the ring for longer than [`OVERDUE_MS`]. A node syncs
//!   what it acknowledges, so while there is anything to write, there is nearly always a sync or a
//!   read under way. When the disk hangs, this operation hangs first.
//! - No write has blocked for longer than [`BLOCKED_MS`] lately. One that has is followed by a rest
//!   of [`REST_FACTOR`] times as long.
//! - All such writes together, however short, take about one part in [`SHARE`] of the core's time
//!   at most. Their time is summed up, and this part of the time that goes by is taken off. When
//!   the sum exceeds [`BURST_MS`], a rest follows in which all of it is worked off. A disk that is
//!   slow but not silent so costs its core a bounded share. Writes that only copy count as well,
//!   and stay far below the share even at half a GB per second.
//!
//! Otherwise the write goes to the ring, which costs about three times the CPU time and blocks a
//! kernel thread at worst.
//!
//! **What risk is left.** In the first [`OVERDUE_MS`] of a hang, and on a disk that hangs while
//! nothing at all is under way on it, a write is made where it stands. In most cases it only copies
//! into memory. If it meets a page or an inode that is on its way to the disk, the core waits for
//! as long as the disk hangs, with all that lives on the core: one write, and the last one. With
//! `--direct` no write is made like this, nor on XFS or btrfs.
//!
//! # How overdue operations are found
//!
//! Operations come back in any order, so the oldest one is not known without a search. Instead,
//! each belongs to one of two groups: those that began before a *mark*, and those that began after
//! it. When the last one before the mark has come back, the mark is set to now, and the others are
//! before it. So the age of the mark is at most the age of the oldest operation, and a disk that
//! works moves it on all the time. An operation that hangs is found after two times [`OVERDUE_MS`]
//! at most.

use fieldstone_block::Nanos;

/// An operation that takes longer is taken for a sign that the disk hangs. Disks that are well take
/// less than this for a read or a sync, even when they are busy.
const OVERDUE_MS: u64 = 100;
/// A write that takes longer has blocked. Well above two ticks of the slowest clock: see
/// [`Inlined::Blocking`](fieldstone_uring::Inlined::Blocking).
const BLOCKED_MS: u64 = 25;
/// So many times as long as it blocked, none follows.
const REST_FACTOR: u64 = 20;

/// Writes take at most one part in so many of the time of their core.
const SHARE: u64 = 4;
/// They may take so much before they rest. Ten ticks of the slowest clock: a tick that is not seen
/// at the begin of a burst is a small part of it.
const BURST_MS: u64 = 100;

/// The group of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(bool);

/// How a disk has done lately.
#[derive(Debug, Default)]
pub struct Pace {
    /// Operations that began before the mark. None only if none is under way.
    before: u32,
    after: u32,
    /// The group of those that begin now.
    group: bool,
    mark: Nanos,
    rest_until: Nanos,
    /// The time that writes took, less what was allowed, up to `spent_at`.
    spent: Nanos,
    spent_at: Nanos,
}

impl Pace {
    /// An operation is put to the ring. Its group is to be given to [`Pace::end`].
    pub fn begin(&mut self, now: Nanos) -> Group {
        let group = Group(self.group);
        self.after += 1;
        if self.before == 0 {
            self.set_mark(now);
        }
        group
    }

    /// An operation of this group has come back.
    pub fn end(&mut self, group: Group, now: Nanos) {
        if group.0 == self.group {
            self.after -= 1;
            return;
        }
        self.before -= 1;
        if self.before == 0 {
            self.set_mark(now);
        }
    }

    fn set_mark(&mut self, now: Nanos) {
        self.before = std::mem::take(&mut self.after);
        self.group = !self.group;
        self.mark = now;
    }

    /// A write that could block took so long. The clock may be coarse: whether a short write shows
    /// as a tick or as nothing evens out in the sum.
    pub fn blocked(&mut self, took: Nanos, now: Nanos) {
        let allowed = now.since(self.spent_at).0 / SHARE;
        self.spent = Nanos(self.spent.0.saturating_sub(allowed)).plus(took);
        self.spent_at = now;
        if self.spent > Nanos::from_ms(BURST_MS) {
            let spent = std::mem::take(&mut self.spent);
            self.rest(now, spent, SHARE);
        }
        if took > Nanos::from_ms(BLOCKED_MS) {
            // `now` may be of before the write.
            self.rest(now.plus(took), took, REST_FACTOR);
        }
    }

    /// No write follows for `factor` times as long as `spent`.
    fn rest(&mut self, from: Nanos, spent: Nanos, factor: u64) {
        let until = from.plus(Nanos(spent.0.saturating_mul(factor)));
        self.rest_until = self.rest_until.max(until);
    }

    /// Whether a write that may block is made where it stands.
    #[must_use]
    pub fn is_kept(&self, now: Nanos) -> bool {
        let overdue = self.before > 0 && now.since(self.mark) > Nanos::from_ms(OVERDUE_MS);
        !overdue && now >= self.rest_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn an_operation_that_hangs_is_noticed_among_others_that_do_not() {
        let mut pace = Pace::default();
        assert!(pace.is_kept(ms(5)));
        let mut now = 1_000;
        let mut others: std::collections::VecDeque<Group> = Default::default();
        // Three are always under way, and each takes 30 ms.
        let mut step = |pace: &mut Pace, now: u64| {
            others.push_back(pace.begin(ms(now)));
            if others.len() > 3 {
                pace.end(others.pop_front().expect("four"), ms(now));
            }
        };
        for _ in 0..200 {
            now += 10;
            step(&mut pace, now);
            assert!(pace.is_kept(ms(now)));
        }
        let hung = pace.begin(ms(now));
        let began = now;
        while pace.is_kept(ms(now)) {
            now += 10;
            step(&mut pace, now);
            assert!(now <= began + 2 * OVERDUE_MS + 10, "the hang is not noticed");
        }
        assert!(now > began + OVERDUE_MS);
        pace.end(hung, ms(now));
        assert!(pace.is_kept(ms(now)), "the disk works again");
        // Nothing is under way for long: no sign of a hang.
        while let Some(group) = others.pop_front() {
            pace.end(group, ms(now));
        }
        assert!(pace.is_kept(ms(now + 100 * OVERDUE_MS)));
        let _ = pace.begin(ms(now + 100 * OVERDUE_MS));
        assert!(pace.is_kept(ms(now + 101 * OVERDUE_MS)));
        assert!(!pace.is_kept(ms(now + 101 * OVERDUE_MS + 1)));
    }

    #[test]
    fn writes_that_block_take_a_bounded_part_of_the_time() {
        let mut pace = Pace::default();
        pace.blocked(ms(BLOCKED_MS), ms(10));
        assert!(pace.is_kept(ms(10)), "a tick of the clock is no block");
        let took = BLOCKED_MS + 5;
        pace.blocked(ms(took), ms(10));
        assert!(!pace.is_kept(ms(10 + took * REST_FACTOR)));
        assert!(pace.is_kept(ms(10 + took * (REST_FACTOR + 1))));
    }

    /// Writes `took` long, back to back, as seen by a clock that ticks every `tick` ns. Returns the
    /// part of the time, in percent, that they took, and how many of 100 were made where they
    /// stand.
    fn written(took: Nanos, pause: Nanos, tick: u64) -> (u64, u64) {
        const SECONDS: u64 = 60;
        let coarse = |at: Nanos| Nanos(at.0 / tick * tick);
        let mut pace = Pace::default();
        let (mut now, mut spent, mut made, mut all) = (ms(1_000), 0, 0, 0);
        let end = now.plus(ms(SECONDS * 1_000));
        while now < end {
            all += 1;
            let began = now;
            if pace.is_kept(coarse(began)) {
                now = now.plus(took);
                spent += took.0;
                made += 1;
                pace.blocked(coarse(now).since(coarse(began)), coarse(began));
            }
            now = now.plus(pause);
        }
        (spent * 100 / ms(SECONDS * 1_000).0, made * 100 / all)
    }

    #[test]
    fn short_writes_that_block_take_a_bounded_share_too() {
        for tick_ms in [1, 4, 10] {
            let tick = ms(tick_ms).0;
            for took_ms in [1, 5, 20, 24] {
                let (share, _) = written(ms(took_ms), Nanos(50_000), tick);
                let allowed = 100 / SHARE + 3;
                assert!(share <= allowed, "{share} % for {took_ms} ms, ticks of {tick_ms} ms");
            }
            // A disk that is well: 128 KiB every 250 us, half a GB per second.
            let (_, made) = written(Nanos(30_000), Nanos(223_000), tick);
            assert_eq!(made, 100, "ticks of {tick_ms} ms");
        }
    }
}
