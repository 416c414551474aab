//! The course of a load that this program makes itself: the addresses one after another, and the
//! latencies.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fio::{Load, Measured};

/// The longest latency that the histogram keeps apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// A load while it runs.
pub struct Course {
    load: Load,
    random: SmallRng,
    blocks: u64,
    /// Accesses that were begun.
    begun: u64,
    start: Instant,
    /// `None`: the load is over after one pass.
    deadline: Option<Instant>,
    last: Instant,
    latencies_ns: Histogram<u64>,
}

impl Course {
    /// A load on a device of this size that begins now: for some seconds, or for one pass over the
    /// whole device. The same seed makes the same random addresses.
    ///
    /// # Errors
    /// The histogram cannot be made.
    pub fn new(
        load: Load,
        size_bytes: u64,
        seconds: Option<f64>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let longest_ns = u64::try_from(LATENCY_MAX.as_nanos())?;
        let start = Instant::now();
        Ok(Self {
            load,
            random: SmallRng::seed_from_u64(seed),
            blocks: (size_bytes / load.block_bytes).max(1),
            begun: 0,
            start,
            deadline: seconds.map(|seconds| start + Duration::from_secs_f64(seconds)),
            last: start,
            latencies_ns: Histogram::new_with_max(longest_ns, 3)?,
        })
    }

    /// The place in bytes of the next access. `None` if there is none: the time is up, or the whole
    /// device was accessed once.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        let over = match self.deadline {
            Some(deadline) => now >= deadline,
            None => self.begun >= self.blocks,
        };
        if over {
            return None;
        }
        let block = match self.load.pattern.is_sequential() {
            true => self.begun % self.blocks,
            false => self.random.random_range(0..self.blocks),
        };
        self.begun += 1;
        Some(block * self.load.block_bytes)
    }

    /// An access has ended.
    pub fn done(&mut self, submitted: Instant, now: Instant) {
        self.last = now;
        let latency_ns = u64::try_from(now.duration_since(submitted).as_nanos());
        self.latencies_ns.saturating_record(latency_ns.unwrap_or(u64::MAX));
    }

    /// The speeds. CPU time and context switches are the caller's.
    pub fn measured(&self) -> Measured {
        let seconds = self.last.duration_since(self.start).as_secs_f64();
        let ios = self.latencies_ns.len();
        let iops = ios as f64 / seconds.max(f64::MIN_POSITIVE);
        let quantile_us = |q: f64| self.latencies_ns.value_at_quantile(q) as f64 / 1e3;
        Measured {
            ios,
            iops: if ios == 0 { 0.0 } else { iops },
            bytes_per_second: iops * self.load.block_bytes as f64,
            mean_us: self.latencies_ns.mean() / 1e3,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            seconds,
            ..Measured::default()
        }
    }

    /// Adds the latencies of a load that ran at the same time on another thread.
    pub fn join(&mut self, other: &Self) {
        self.last = self.last.max(other.last);
        self.latencies_ns += &other.latencies_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Pattern;

    #[test]
    fn a_pass_meets_every_block_and_a_load_in_time_ends() {
        let load = |pattern| Load { pattern, block_bytes: 4096, depth: 1 };
        let of = |pattern, seconds| Course::new(load(pattern), 1 << 20, seconds, 7).expect("made");
        let mut pass = of(Pattern::SequentialWrite, None);
        let now = Instant::now();
        let places: Vec<u64> = std::iter::from_fn(|| pass.next(now)).collect();
        assert_eq!(places.len(), 256);
        assert_eq!((places[0], places[255]), (0, 255 * 4096));
        let random = |seconds| {
            let mut course = of(Pattern::RandomRead, seconds);
            (0..100).map_while(|_| course.next(course.start)).collect::<Vec<u64>>()
        };
        assert_eq!(random(Some(1.0)), random(Some(2.0)), "the seed makes the addresses");
        assert!(random(Some(1.0)).iter().all(|at| *at < 1 << 20 && at % 4096 == 0));
        assert!(random(Some(0.0)).is_empty());
    }

    #[test]
    fn latencies_come_together() {
        let load = Load { pattern: Pattern::RandomRead, block_bytes: 4096, depth: 1 };
        let mut course = Course::new(load, 1 << 20, None, 1).expect("it is made");
        assert_eq!(course.measured().iops, 0.0);
        let start = course.start;
        for step in 1..=100 {
            course.done(start, start + Duration::from_micros(step * 10));
        }
        let measured = course.measured();
        assert_eq!(measured.ios, 100);
        assert!((measured.mean_us - 505.0).abs() < 2.0, "{measured:?}");
        assert!((measured.p99_us - 990.0).abs() < 2.0, "{measured:?}");
        assert!((measured.iops - 1e5).abs() < 1.0, "100 in 1 ms");
        let mut other = Course::new(load, 1 << 20, None, 1).expect("it is made");
        other.done(start, start + Duration::from_millis(2));
        course.join(&other);
        assert_eq!(course.measured().ios, 101);
        assert!((course.measured().seconds - 0.002).abs() < 1e-6);
    }
}
