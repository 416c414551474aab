//! The time of day, by which capabilities expire.
//!
//! The world tells it ([`NodeEvent::WallClock`](crate::NodeEvent::WallClock)) before the first
//! request after a jump. Capabilities that volumes issued by the time before a jump forwards may be
//! over by the new time: requests are on their way, and the clocks of other machines jump later. So
//! for [`GRACE_NS`] after a jump, capabilities expire by the time before it. A jump backwards
//! counts at once: a volume that starts after it issues by the new time.

/// How long the time before a jump forwards counts. Machines that are set together jump within it.
const GRACE_NS: u64 = 3_000_000_000;
/// A smaller step forwards is no jump: it is less than a volume's capabilities have left.
const JUMP_NS: u64 = 1_000_000_000;

/// A node's knowledge of the time of day.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallClock {
    /// The time of day minus the clock of the node. `None` before the world has told it.
    offset_ns: Option<u64>,
    /// The offset before the last jumps, and until when it counts, by the clock of the node.
    earlier: Option<(u64, u64)>,
}

impl WallClock {
    /// Takes the offset, at `now_ns` of the node's clock.
    pub(crate) fn set(&mut self, now_ns: u64, offset_ns: u64) {
        if let Some(before_ns) = self.offset_ns
            && offset_ns > before_ns.saturating_add(JUMP_NS)
        {
            let counted_ns = self.offset_for_expiry(now_ns);
            self.earlier = Some((counted_ns, now_ns.saturating_add(GRACE_NS)));
        }
        self.offset_ns = Some(offset_ns);
    }

    /// The time of day by which capabilities expire, at `now_ns` of the node's clock.
    pub(crate) fn for_expiry(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.offset_for_expiry(now_ns))
    }

    fn offset_for_expiry(&self, now_ns: u64) -> u64 {
        let present_ns = self.offset_ns.unwrap_or(0);
        match self.earlier {
            Some((earlier_ns, until_ns)) if now_ns < until_ns => earlier_ns.min(present_ns),
            _ => present_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const HOUR: u64 = 3600 * S;

    #[test]
    fn after_a_jump_forwards_the_time_before_counts_for_a_moment() {
        let mut clock = WallClock::default();
        clock.set(0, HOUR);
        assert_eq!(clock.for_expiry(0), HOUR, "the first time is no jump");
        clock.set(10 * S, 3 * HOUR);
        assert_eq!(clock.for_expiry(10 * S), HOUR + 10 * S);
        assert_eq!(clock.for_expiry(13 * S - 1), HOUR + 13 * S - 1);
        assert_eq!(clock.for_expiry(13 * S), 3 * HOUR + 13 * S);
    }

    #[test]
    fn jumps_in_a_row_count_from_the_first() {
        let mut clock = WallClock::default();
        clock.set(0, HOUR);
        clock.set(S, 2 * HOUR);
        clock.set(2 * S, 4 * HOUR);
        assert_eq!(clock.for_expiry(2 * S), HOUR + 2 * S);
        assert_eq!(clock.for_expiry(5 * S), 4 * HOUR + 5 * S);
    }

    #[test]
    fn a_clock_that_is_slewed_or_set_back_counts_at_once() {
        let mut clock = WallClock::default();
        clock.set(0, HOUR);
        for step in 1..100 {
            clock.set(step * S, HOUR + step * S / 2);
            assert_eq!(clock.for_expiry(step * S), HOUR + step * S + step * S / 2);
        }
        clock.set(100 * S, 5);
        assert_eq!(clock.for_expiry(100 * S), 100 * S + 5);
        clock.set(101 * S, HOUR);
        clock.set(102 * S, 7);
        assert_eq!(clock.for_expiry(102 * S), 102 * S + 5, "the earliest of them");
    }
}
