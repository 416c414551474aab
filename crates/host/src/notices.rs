//! Log lines that clients can cause as often as they like: a limited number per cause and period,
//! then one line with the number of lines left out.

use fieldstone_block::Nanos;

/// The most lines per cause and period.
pub const LINES_MAX: u32 = 10;
/// Length of a period. It begins with the first line of its cause.
pub const PERIOD_MS: u64 = 10_000;

/// The cause of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A peer breaks its protocol.
    BadMessage,
    /// A connection broke.
    Lost,
    /// A request has no valid capability.
    Capability,
    /// A connection did not show its purpose in time.
    Silent,
    /// A pending connection was closed to make room for another.
    GaveWay,
    /// There are too many clients to accept another.
    Full,
    /// A client held memory that others wait for.
    Stalled,
    /// Accepting a connection failed.
    Accept,
    /// A client began a write, or a node its part of a parity, and did not go on.
    GivenUp,
    /// A node's table of requests was full.
    Busy,
}

impl Cause {
    const ALL: [Cause; 10] = [
        Cause::BadMessage,
        Cause::Lost,
        Cause::Capability,
        Cause::Silent,
        Cause::GaveWay,
        Cause::Full,
        Cause::Stalled,
        Cause::Accept,
        Cause::GivenUp,
        Cause::Busy,
    ];

    fn words(self) -> &'static str {
        match self {
            Cause::BadMessage => "messages that are not understood",
            Cause::Lost => "connections that broke",
            Cause::Capability => "requests without a valid capability",
            Cause::Silent => "connections that say nothing",
            Cause::GaveWay => "connections that gave way to others",
            Cause::Full => "connections refused for want of places",
            Cause::Stalled => "connections that keep memory from others",
            Cause::Accept => "connections that cannot be accepted",
            Cause::GivenUp => "writes given up because a client or a node was silent",
            Cause::Busy => "full tables of requests",
        }
    }

    /// Lines of these causes are information, not warnings.
    fn is_usual(self) -> bool {
        matches!(self, Cause::Lost | Cause::Silent)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Period {
    /// The end of the period; `None` before the first line.
    end: Option<Nanos>,
    lines: u32,
    left_out: u64,
}

/// Decides which lines to write. It writes none itself.
#[derive(Debug, Default)]
pub struct Limiter {
    periods: [Period; Cause::ALL.len()],
}

impl Limiter {
    /// True if the line may be written now. Otherwise the line is counted.
    pub fn admit(&mut self, cause: Cause, now: Nanos) -> bool {
        let period = &mut self.periods[cause as usize];
        // While lines are left out, the period lasts until `due` has reported their number.
        if period.left_out == 0 && period.end.is_none_or(|end| end <= now) {
            let end = now.plus(Nanos::from_ms(PERIOD_MS));
            *period = Period { end: Some(end), lines: 0, left_out: 0 };
        }
        let admitted = period.lines < LINES_MAX;
        if admitted {
            period.lines += 1;
        } else {
            period.left_out += 1;
        }
        admitted
    }

    /// A cause whose period is over, and the number of lines left out in it. Only causes with such
    /// lines are given. The next line of the cause begins a new period.
    pub fn due(&mut self, now: Nanos) -> Option<(Cause, u64)> {
        Cause::ALL.into_iter().find_map(|cause| {
            let period = &mut self.periods[cause as usize];
            let over = period.left_out > 0 && period.end.is_some_and(|end| end <= now);
            over.then(|| (cause, std::mem::take(period).left_out))
        })
    }

    /// When [`Limiter::due`] will give a cause.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.periods
            .iter()
            .filter(|period| period.left_out > 0)
            .filter_map(|period| period.end)
            .min()
    }
}

/// A limiter that writes to the log.
#[derive(Debug, Default)]
pub struct Notices {
    limiter: Limiter,
}

impl Notices {
    /// Writes a line, or counts it.
    pub fn say(&mut self, cause: Cause, now: Nanos, line: std::fmt::Arguments<'_>) {
        if self.limiter.admit(cause, now) {
            write(cause, line);
        }
    }

    /// Writes the numbers of lines left out in periods that are over.
    pub fn flush(&mut self, now: Nanos) {
        while let Some((cause, count)) = self.limiter.due(now) {
            let seconds = PERIOD_MS / 1000;
            let words = cause.words();
            write(cause, format_args!("{words}: {count} more within {seconds} s, not logged"));
        }
    }

    /// When to flush next.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.limiter.deadline()
    }
}

fn write(cause: Cause, line: std::fmt::Arguments<'_>) {
    if cause.is_usual() {
        tracing::info!("{line}");
    } else {
        tracing::warn!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn every_cause_has_its_own_count() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
            assert!(!cause.words().is_empty());
        }
        let mut limiter = Limiter::default();
        for _ in 0..LINES_MAX {
            assert!(limiter.admit(Cause::Silent, at(1)));
        }
        assert!(!limiter.admit(Cause::Silent, at(2)));
        assert!(limiter.admit(Cause::BadMessage, at(2)));
    }

    #[test]
    fn what_is_left_out_is_told_once_when_the_period_is_over() {
        let mut limiter = Limiter::default();
        let lines = (0..1000).filter(|_| limiter.admit(Cause::Accept, at(5))).count();
        assert_eq!(lines, LINES_MAX as usize);
        assert_eq!(limiter.deadline(), Some(at(5 + PERIOD_MS)));
        assert_eq!(limiter.due(at(4 + PERIOD_MS)), None);
        // A late line is counted too if it comes before the call of `due`.
        assert!(!limiter.admit(Cause::Accept, at(6 + PERIOD_MS)));
        let left_out = 1001 - u64::from(LINES_MAX);
        assert_eq!(limiter.due(at(6 + PERIOD_MS)), Some((Cause::Accept, left_out)));
        assert_eq!((limiter.due(at(1 << 40)), limiter.deadline()), (None, None));
        assert!(limiter.admit(Cause::Accept, at(7 + PERIOD_MS)), "a new period");
    }

    #[test]
    fn few_lines_are_all_written_and_nothing_is_told_of_them() {
        let mut limiter = Limiter::default();
        for round in 0..50 {
            assert!(limiter.admit(Cause::Lost, at(round * PERIOD_MS)));
        }
        assert_eq!((limiter.deadline(), limiter.due(at(1 << 40))), (None, None));
    }
}
