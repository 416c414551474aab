//! The time of day by which the service issues capabilities.
//!
//! As a volume that issues for itself, the service signs by the time before a jump backwards for a
//! moment ([`WallClock`]).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fieldstone_block::Nanos;
use fieldstone_volume::WallClock;

/// The time of day by which the service issues.
pub(super) struct IssueClock {
    began: Instant,
    /// By the time since `began`.
    clock: Mutex<WallClock>,
}

impl Default for IssueClock {
    fn default() -> Self {
        let clock = Mutex::new(WallClock::new(unix_ns(SystemTime::now())));
        Self { began: Instant::now(), clock }
    }
}

impl IssueClock {
    /// In nanoseconds since 1970.
    pub fn now_ns(&self) -> u64 {
        let since = Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let offset_ns = unix_ns(SystemTime::now()).saturating_sub(since.0);
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.set(since, offset_ns);
        clock.for_issue(since)
    }
}

fn unix_ns(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
