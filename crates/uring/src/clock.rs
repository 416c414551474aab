//! The clocks of the real world: nanoseconds of `CLOCK_MONOTONIC`, by which everything runs, and
//! the time of day beside it.

use fieldstone_block::Nanos;

/// Two ticks of a kernel with 100 ticks a second.
const OFFSET_ERROR_MAX: Nanos = Nanos::from_ms(20);

/// The present time. A call costs a few tens of nanoseconds (no system call).
#[must_use]
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// The time of the kernel's last tick: up to 10 ms old, and several times cheaper than [`now`].
pub(crate) fn coarse_now() -> Nanos {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// The nanoseconds to add to [`now`] to get the time since 1970 (0 before 1970), exact to 20 ms.
/// The call makes no system call, and is cheaper than [`now`].
#[must_use]
pub fn wall_offset_ns() -> u64 {
    loop {
        let before = coarse_now();
        let wall = read(libc::CLOCK_REALTIME_COARSE);
        // If the thread was stopped between two readings, they do not belong together.
        if coarse_now().since(before) <= OFFSET_ERROR_MAX {
            return wall.0.saturating_sub(before.0);
        }
    }
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has these clocks");
    // The monotonic clocks start at boot. Only the time of day can be before 1970.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are never negative");
    Nanos(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn time_goes_forward_at_the_right_pace() {
        let start = now();
        std::thread::sleep(Duration::from_millis(5));
        let passed = now().since(start);
        assert!(passed >= Nanos::from_ms(5) && passed < Nanos::from_ms(5000), "{passed:?}");
    }

    #[test]
    fn the_offset_leads_to_the_time_of_day() {
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
        let (before, then) = (wall(), u128::from(wall_offset_ns() + now().0));
        // The clocks are read one after the other, and a busy machine may stop in between.
        let slack = Duration::from_secs(60).as_nanos();
        assert!(before < then + slack && then < wall() + slack);
    }
}
