//! The time of day, by which a volume or a pool's metadata service issues capabilities.
//!
//! The world tells a volume ([`VolumeEvent::WallClock`](crate::VolumeEvent::WallClock)). The clocks
//! of several machines jump one after the other. So after a jump backwards, an issuer may know the
//! new time a moment before nodes on other machines do. For them, a capability that it issues by
//! the new time may be over already. So for [`GRACE_NS`] after a jump backwards, the issuer signs
//! by the time before it. (Nodes do the same for a jump forwards.) A capability of before the jump
//! outlives its lifetime anyway.

use fieldstone_block::Nanos;

/// How long the time before a jump backwards counts. Machines that are set together jump within it.
const GRACE_NS: u64 = 3_000_000_000;
/// A smaller step backwards is no jump: it is less than capabilities have left.
const JUMP_NS: u64 = 1_000_000_000;

/// An issuer's knowledge of the time of day.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// The time of day minus the issuer's clock.
    offset_ns: u64,
    /// The offset before the last jumps, and until when it counts, by the issuer's clock.
    later: Option<(u64, Nanos)>,
}

impl WallClock {
    /// The knowledge of an issuer that starts. `offset_ns` is the time of day minus its own clock.
    #[must_use]
    pub fn new(offset_ns: u64) -> Self {
        Self { offset_ns, later: None }
    }

    /// Takes the offset, at `now` of the issuer's clock.
    pub fn set(&mut self, now: Nanos, offset_ns: u64) {
        if offset_ns.saturating_add(JUMP_NS) < self.offset_ns {
            self.later = Some((self.offset_for_issue(now), now.plus(Nanos(GRACE_NS))));
        }
        self.offset_ns = offset_ns;
    }

    /// The time of day by which the issuer signs, at `now` of its clock.
    #[must_use]
    pub fn for_issue(&self, now: Nanos) -> u64 {
        now.0.saturating_add(self.offset_for_issue(now))
    }

    fn offset_for_issue(&self, now: Nanos) -> u64 {
        match self.later {
            Some((later_ns, until)) if now < until => later_ns.max(self.offset_ns),
            _ => self.offset_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * S;

    #[test]
    fn after_a_jump_backwards_the_time_before_counts_for_a_moment() {
        let mut clock = WallClock::new(9 * HOUR);
        clock.set(Nanos(10 * S), 3 * HOUR);
        assert_eq!(clock.for_issue(Nanos(10 * S)), 9 * HOUR + 10 * S);
        assert_eq!(clock.for_issue(Nanos(13 * S - 1)), 9 * HOUR + 13 * S - 1);
        assert_eq!(clock.for_issue(Nanos(13 * S)), 3 * HOUR + 13 * S);
    }

    #[test]
    fn jumps_in_a_row_count_from_the_first() {
        let mut clock = WallClock::new(9 * HOUR);
        clock.set(Nanos(S), 5 * HOUR);
        clock.set(Nanos(2 * S), 2 * HOUR);
        assert_eq!(clock.for_issue(Nanos(2 * S)), 9 * HOUR + 2 * S);
        assert_eq!(clock.for_issue(Nanos(5 * S)), 2 * HOUR + 5 * S);
    }

    #[test]
    fn a_clock_that_is_slewed_or_set_forwards_counts_at_once() {
        let mut clock = WallClock::new(9 * HOUR);
        for step in 1..100 {
            clock.set(Nanos(step * S), 9 * HOUR - step * S / 2);
            assert_eq!(clock.for_issue(Nanos(step * S)), 9 * HOUR + step * S - step * S / 2);
        }
        clock.set(Nanos(100 * S), 20 * HOUR);
        assert_eq!(clock.for_issue(Nanos(100 * S)), 20 * HOUR + 100 * S);
        clock.set(Nanos(101 * S), 3 * HOUR);
        clock.set(Nanos(102 * S), 30 * HOUR);
        assert_eq!(clock.for_issue(Nanos(102 * S)), 30 * HOUR + 102 * S, "the latest of them");
    }
}
