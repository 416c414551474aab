//! The time of day, which capabilities expire by.
//!
//! All deadlines of the host go by the monotonic clock, which never jumps. Capabilities cannot:
//! their issuer and the node that checks them may be on different machines. So nodes and volumes
//! add an *offset* to the monotonic clock, and get the time of day.
//!
//! The offset is not constant. The monotonic clock stands still while the machine is suspended, and
//! a time server or an operator may set the time of day. So each core reads both clocks again every
//! [`READ_INTERVAL`], and tells its nodes and devices. A core does so at the beginning of a turn,
//! before it handles an event, and needs no timer: a core without events checks and issues nothing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fieldstone_block::Nanos;
use fieldstone_uring::monotonic_now;

/// How often a core reads the clocks, by the monotonic clock. Until then a jump is unknown.
const READ_INTERVAL: Nanos = Nanos::from_ms(1000);

/// The nanoseconds to add to the monotonic clock to get the time since 1970, at present.
/// Capabilities expire by this time.
#[must_use]
pub fn wall_offset_ns() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX).saturating_sub(monotonic_now().0)
}

/// What a core knows of the time of day.
#[derive(Debug)]
pub struct WallClock {
    read: fn() -> u64,
    /// When to read again.
    next_read: Nanos,
}

impl WallClock {
    /// A clock that gets the offset from `read`, first at `now`.
    #[must_use]
    pub fn new(read: fn() -> u64, now: Nanos) -> Self {
        Self { read, next_read: now }
    }

    /// The present offset, if it is time to read it.
    pub fn poll(&mut self, now: Nanos) -> Option<u64> {
        if now < self.next_read {
            return None;
        }
        self.next_read = now.plus(READ_INTERVAL);
        Some((self.read)())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_jump_is_seen_when_the_clocks_are_read_next() {
        thread_local!(static OFFSET_NS: Cell<u64> = const { Cell::new(5) });
        let mut clock = WallClock::new(|| OFFSET_NS.get(), Nanos(77));
        assert_eq!(clock.poll(Nanos(77)), Some(5));
        OFFSET_NS.set(1 << 60);
        assert_eq!(clock.poll(Nanos(76).plus(READ_INTERVAL)), None);
        assert_eq!(clock.poll(Nanos(77).plus(READ_INTERVAL)), Some(1 << 60));
        OFFSET_NS.set(3);
        assert_eq!(clock.poll(Nanos(78).plus(READ_INTERVAL)), None);
        assert_eq!(clock.poll(Nanos(1 << 50)), Some(3));
    }

    #[test]
    fn the_offset_leads_to_the_time_of_day() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
        let (before, then) = (now(), u128::from(wall_offset_ns() + monotonic_now().0));
        // The clocks are read one after the other, and a busy machine may stop in between.
        let slack = Duration::from_secs(60).as_nanos();
        assert!(before < then + slack && then < now() + slack);
    }
}
