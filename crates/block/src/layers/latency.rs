//! The rolling mean that tunes the scheduler: the last ten latencies of one direction.

use crate::Nanos;

/// Number of completed requests in the mean (DeLiBA-2 §3.1 `ROLLING_WINDOW`).
pub const ROLLING_WINDOW: usize = 10;

/// The last [`ROLLING_WINDOW`] latencies and their sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct RollingLatency {
    latencies: [u64; ROLLING_WINDOW],
    next: usize,
    count: usize,
    sum: u64,
}

impl RollingLatency {
    /// Adds one latency. Drops the oldest one when the window is full.
    pub fn record(&mut self, latency: Nanos) {
        // Each latency is at most a tenth of the range, so the sum cannot overflow.
        let latency = latency.0.min(u64::MAX / ROLLING_WINDOW as u64);
        self.sum = self.sum - self.latencies[self.next] + latency;
        self.latencies[self.next] = latency;
        self.next = (self.next + 1) % ROLLING_WINDOW;
        self.count = (self.count + 1).min(ROLLING_WINDOW);
    }

    /// True once the window is full. Before that there is no mean.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == ROLLING_WINDOW
    }

    /// The sum of the window.
    #[must_use]
    pub fn sum(&self) -> Nanos {
        Nanos(self.sum)
    }

    /// The mean of the window; zero while it is empty.
    #[must_use]
    pub fn mean(&self) -> Nanos {
        Nanos(self.sum / self.count.max(1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_mean_is_that_of_the_last_ten(all in proptest::collection::vec(any::<u32>(), 1..40)) {
            let mut rolling = RollingLatency::default();
            all.iter().for_each(|latency| rolling.record(Nanos(u64::from(*latency))));
            let last: Vec<u64> = all.iter().rev().take(10).map(|l| u64::from(*l)).collect();
            prop_assert_eq!(rolling.sum().0, last.iter().sum::<u64>());
            prop_assert_eq!(rolling.mean().0, last.iter().sum::<u64>() / last.len() as u64);
            prop_assert_eq!(rolling.is_full(), all.len() >= 10);
        }
    }

    #[test]
    fn absurd_latencies_do_not_overflow() {
        let mut rolling = RollingLatency::default();
        (0..25).for_each(|_| rolling.record(Nanos(u64::MAX)));
        assert_eq!(rolling.mean().0, u64::MAX / 10);
    }
}
