//! How long the turns of a core take.
//!
//! All parts of a core wait while one part works. So the longest turn is the longest time for which
//! one part has kept an event of another part waiting. A turn lasts from the end of a wait for
//! events to the beginning of the next wait. It is real time: it includes time for which the kernel
//! gives the CPU to another thread, but not the system call that submits the turn's operations and
//! then waits.
//!
//! ```text
//!             |<---------- turn --------->|                        |<-- turn -->
//!  wait ──────┤ events, parts, operations ├─ submit, wait ─────────┤
//! ```
//!
//! The measurement reads the clock once per turn. The reactor knows the beginning already.

use fieldstone_block::Nanos;

/// The length of a period for the recent maximum.
const PERIOD: Nanos = Nanos::from_ms(10_000);

/// The turns of one core since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnSummary {
    /// Number of turns.
    pub turns: u64,
    /// The time of all turns together.
    pub busy: Nanos,
    /// The longest turn.
    pub longest: Nanos,
    /// The longest turn of the last 10 to 20 seconds.
    pub longest_recent: Nanos,
}

/// Measures the turns of one core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnTimes {
    turns: u64,
    busy: Nanos,
    longest: Nanos,
    /// The longest turn of the present period.
    present: Nanos,
    /// The longest turn of the period before.
    previous: Nanos,
    /// When the present period began.
    since: Nanos,
}

impl TurnTimes {
    /// Notes a turn. Times never go back.
    pub fn note(&mut self, begin: Nanos, end: Nanos) {
        let length = end.since(begin);
        self.turns += 1;
        self.busy = self.busy.plus(length);
        self.longest = self.longest.max(length);
        (self.previous, self.present, self.since) = self.periods(end);
        self.present = self.present.max(length);
    }

    /// The turns so far.
    pub fn summary(&self, now: Nanos) -> TurnSummary {
        let (previous, present, _) = self.periods(now);
        TurnSummary {
            turns: self.turns,
            busy: self.busy,
            longest: self.longest,
            longest_recent: previous.max(present),
        }
    }

    /// The longest turns of the period before and of the present one, and when the latter began. A
    /// core at rest has no turns that would end a period.
    fn periods(&self, now: Nanos) -> (Nanos, Nanos, Nanos) {
        let age = now.since(self.since);
        if age < PERIOD {
            (self.previous, self.present, self.since)
        } else if age < PERIOD.plus(PERIOD) {
            (self.present, Nanos(0), self.since.plus(PERIOD))
        } else {
            (Nanos(0), Nanos(0), now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn turns_add_up() {
        let mut times = TurnTimes::default();
        assert_eq!(times.summary(ms(5)), TurnSummary::default());
        times.note(ms(100_000), ms(100_003));
        times.note(ms(100_010), ms(100_011));
        let (busy, longest) = (ms(4), ms(3));
        let expected = TurnSummary { turns: 2, busy, longest, longest_recent: longest };
        assert_eq!(times.summary(ms(100_012)), expected);
    }

    #[test]
    fn the_recent_maximum_covers_the_last_10_to_20_seconds() {
        let recent = |times: &TurnTimes, at| times.summary(at).longest_recent;
        for start_ms in [50_000, 57_123] {
            let mut times = TurnTimes::default();
            times.note(ms(start_ms), ms(start_ms + 9));
            // Without any more turns, as on a core at rest.
            assert_eq!(recent(&times, ms(start_ms + 9 + 9_999)), ms(9));
            assert_eq!(recent(&times, ms(start_ms + 9 + 20_000)), Nanos(0));
            // With short turns, one every 100 ms.
            let mut now_ms = start_ms + 9;
            let mut forgotten_ms = None;
            while now_ms < start_ms + 30_000 {
                now_ms += 100;
                times.note(ms(now_ms - 1), ms(now_ms));
                if recent(&times, ms(now_ms)) < ms(9) && forgotten_ms.is_none() {
                    forgotten_ms = Some(now_ms - start_ms - 9);
                }
            }
            let forgotten_ms = forgotten_ms.expect("it is forgotten");
            assert!((10_000..=20_100).contains(&forgotten_ms), "{forgotten_ms}");
            assert_eq!(times.summary(ms(now_ms)).longest, ms(9));
        }
    }
}
