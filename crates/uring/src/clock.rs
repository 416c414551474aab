//! The clock of the real world: nanoseconds of `CLOCK_MONOTONIC`.

use fieldstone_block::Nanos;

/// The present time. A call costs a few tens of nanoseconds (no system call).
#[must_use]
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// The time of the kernel's last tick: up to 10 ms old, and several times cheaper than [`now`].
pub(crate) fn coarse_now() -> Nanos {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has the monotonic clocks");
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock starts at boot");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are never negative");
    Nanos(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_at_the_right_pace() {
        let start = now();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let passed = now().since(start);
        assert!(passed >= Nanos::from_ms(5) && passed < Nanos::from_ms(5000), "{passed:?}");
    }
}
