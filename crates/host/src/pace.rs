//! Whether a disk keeps pace: the rule for writes that may block their core.
//!
//! Some file systems cannot promise not to block. On these, a short write costs least CPU time when
//! the core makes it itself, but it blocks the core if the disk does not take it
//! (`fieldstone_uring`, `reactor::inline`). So the core makes such a write itself only while the
//! disk shows that it works:
//!
//! - No counted operation has been on the ring for longer than [`OVERDUE_MS`]. A node counts all
//!   its operations, and syncs the writes that it acknowledges. So while there are writes, a sync
//!   or a read is nearly always under way. When the disk hangs, that operation hangs first. A file
//!   store counts only the first operation of each request, and no syncs.
//! - No recent write has blocked for longer than [`BLOCKED_MS`]. After such a write the core rests:
//!   it makes no such write for [`REST_FACTOR`] times as long.
//! - All such writes to one disk, also short ones, take at most about one part in [`SHARE`] of the
//!   core's time. The core adds up their time, and subtracts this part of the time that passes.
//!   When the sum exceeds [`BURST_MS`], the core rests until the whole sum is worked off. So a slow
//!   disk that still works costs its core a bounded share. Writes that only copy count too, but
//!   take far less than the share even at half a GB per second.
//!
//! In all other cases the write goes to the ring. This costs about three times the CPU time, and
//! blocks at worst a kernel thread.
//!
//! **The remaining risk.** At the start of a hang, the overdue operation is not found yet. If no
//! operation is under way on the disk, none will be found. In both cases the core still makes a
//! write itself. In most cases the write only copies into memory. If it needs a page or an inode
//! that is being written to the disk, the core and all its parts wait for as long as the disk
//! hangs. This happens for at most one write. The core makes no such write with `--direct`, nor on
//! XFS or btrfs.
//!
//! # How overdue operations are found
//!
//! Operations return in any order, so only a search would find the oldest one. Instead, each
//! operation belongs to one of two groups: those that began before a *mark*, and those that began
//! after it. When the last operation from before the mark has returned, the mark moves to the
//! present time, and all other operations are then before it. So the oldest operation is at least
//! as old as the mark, and a working disk moves the mark on all the time. A hanging operation is
//! found after at most twice [`OVERDUE_MS`].

use fieldstone_block::Nanos;

/// A longer operation is a sign that the disk hangs. A sound disk takes less than this for a read
/// or a sync, even when it is busy.
const OVERDUE_MS: u64 = 100;
/// A longer write has blocked. This is well above two ticks of the slowest clock: see
/// [`Inlined::Blocking`](fieldstone_uring::Inlined::Blocking).
const BLOCKED_MS: u64 = 25;
/// The rest after a write that blocked, as a multiple of its length.
const REST_FACTOR: u64 = 20;

/// Writes take at most one part in this many of their core's time.
const SHARE: u64 = 4;
/// How much time writes may take before a rest. This is ten ticks of the slowest clock, so a tick
/// that is missed at the start of a burst is a small part of it.
const BURST_MS: u64 = 100;

/// The group of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(bool);

/// The recent performance of a disk.
#[derive(Debug, Default)]
pub struct Pace {
    /// Operations that began before the mark. Zero only if no operation is under way.
    before: u32,
    after: u32,
    /// The group of operations that begin now.
    group: bool,
    mark: Nanos,
    rest_until: Nanos,
    /// The time that writes took, minus the allowed time, up to `spent_at`.
    spent: Nanos,
    spent_at: Nanos,
}

impl Pace {
    /// An operation goes to the ring. The caller gives the group to [`Pace::end`].
    pub fn begin(&mut self, now: Nanos) -> Group {
        let group = Group(self.group);
        self.after += 1;
        if self.before == 0 {
            self.set_mark(now);
        }
        group
    }

    /// An operation of this group has returned.
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

    /// Notes that a write that can block took this long. The clock may be coarse: it shows a short
    /// write as a tick or as nothing, and the sum averages this out.
    pub fn blocked(&mut self, took: Nanos, now: Nanos) {
        let allowed = now.since(self.spent_at).0 / SHARE;
        self.spent = Nanos(self.spent.0.saturating_sub(allowed)).plus(took);
        self.spent_at = now;
        if self.spent > Nanos::from_ms(BURST_MS) {
            let spent = std::mem::take(&mut self.spent);
            self.rest(now, spent, SHARE);
        }
        if took > Nanos::from_ms(BLOCKED_MS) {
            // `now` may be from before the write.
            self.rest(now.plus(took), took, REST_FACTOR);
        }
    }

    /// Lets no write follow for `factor` times `spent`.
    fn rest(&mut self, from: Nanos, spent: Nanos, factor: u64) {
        let until = from.plus(Nanos(spent.0.saturating_mul(factor)));
        self.rest_until = self.rest_until.max(until);
    }

    /// Whether the core may make a write that can block.
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
        // Three operations are always under way, and each takes 30 ms.
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
        // A long time without operations is no sign of a hang.
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

    /// Makes writes that take `took`, with pauses between them, on a clock that ticks every `tick`
    /// ns. Returns the percentage of the time that the core's own writes took, and the percentage
    /// of writes that the core made itself.
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
            // A sound disk: 128 KiB every 250 us, half a GB per second.
            let (_, made) = written(Nanos(30_000), Nanos(223_000), tick);
            assert_eq!(made, 100, "ticks of {tick_ms} ms");
        }
    }
}
