//! Batches: whether a core that has to wait collects answers for some time.
//!
//! The requests of a device on a network are answered one by one. If the core sleeps between them,
//! each answer costs a wake-up, a receive, and a wake-up of the client: several times the work of
//! the answer itself. A core that stays asleep a little longer takes several answers with one
//! wake-up ([`Reactor::batch_for`](fieldstone_uring::Reactor::batch_for)).
//!
//! A batch makes answers late, so it has to pay for that:
//!
//! - The machine's CPUs are busy: the core's thread waits for a CPU at each wake-up. Then most of a
//!   request's latency is waiting for CPUs, and the time that batches save goes to those who make
//!   the answers, if they are on this machine. On a machine with an idle CPU, a core never waits
//!   for a batch ([`Contention`]).
//! - Many requests are in flight, so that others are under way while an answer waits.
//! - The wait is one part in [`LATENCY_SHARE`] of the mean latency, so the delay stays small beside
//!   it.
//! - All devices of the core with requests in flight agree ([`Batch::among`]): a fast device does
//!   not wait for a slow one. A request to a device that is at rest may wait [`WAIT_MAX`].
//!
//! The state machines do no I/O and read no clock.

use fieldstone_block::Nanos;
use fieldstone_uring::RunDelay;

/// Requests in flight of a device that waits for batches.
const IN_FLIGHT_MIN: usize = 8;
/// A batch takes at most this part of the mean latency.
const LATENCY_SHARE: u64 = 16;
/// Shorter waits save nothing: falling asleep and waking up takes about as long.
const WAIT_MIN: Nanos = Nanos(50_000);
/// The longest wait.
const WAIT_MAX: Nanos = Nanos(2_000_000);
/// The weight of one answer in the mean latency is one over this.
const MEAN_OVER: u64 = 16;
/// CPUs are busy if a thread waits this long for one, in the mean of all times that it runs. With
/// an idle CPU it is 1 to 5 us.
const BUSY_DELAY: Nanos = Nanos(20_000);
/// How often the core checks whether CPUs are busy.
const CHECK_PERIOD: Nanos = Nanos::from_ms(20);

/// How long a core waits for a batch, as one of its devices wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// The device waits for nothing.
    AtRest,
    /// The device wants each answer at once.
    Never,
    /// The device's requests may wait this long.
    For(Nanos),
}

impl Batch {
    /// The wait on which all devices of a core agree.
    pub fn among(devices: impl Iterator<Item = Batch>) -> Option<Nanos> {
        let mut least = None;
        for device in devices {
            match device {
                Batch::AtRest => {}
                Batch::Never => return None,
                Batch::For(wait) => {
                    least = Some(least.map_or(wait, |least: Nanos| least.min(wait)));
                }
            }
        }
        least.filter(|&wait| wait >= WAIT_MIN).map(|wait| wait.min(WAIT_MAX))
    }
}

/// The mean latency of a device's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    mean_ns: u64,
}

impl Latency {
    /// A request took so long.
    pub fn note(&mut self, latency: Nanos) {
        let Nanos(ns) = latency;
        self.mean_ns = match self.mean_ns {
            0 => ns,
            mean => mean - mean / MEAN_OVER + ns / MEAN_OVER,
        };
    }

    /// What a device wants whose answers come one by one, with so many requests in flight.
    pub fn batch(&self, in_flight: usize) -> Batch {
        match in_flight {
            0 => Batch::AtRest,
            IN_FLIGHT_MIN.. => Batch::For(Nanos(self.mean_ns / LATENCY_SHARE)),
            _ => Batch::Never,
        }
    }
}

/// Whether the machine's CPUs are busy, as the core's thread sees it.
#[derive(Debug, Default)]
pub struct Contention {
    last: Option<(Nanos, RunDelay)>,
    is_high: bool,
}

impl Contention {
    /// True if a thread that wakes up waits for a CPU. `read` gives what the core's thread has
    /// waited so far; it is called now and then. `None`: the kernel does not tell.
    pub fn is_high(&mut self, now: Nanos, read: impl FnOnce() -> Option<RunDelay>) -> bool {
        match self.last {
            Some((at, _)) if now.since(at) < CHECK_PERIOD => {}
            last => {
                let delay = read();
                self.is_high = match (last, delay) {
                    (Some((_, before)), Some(delay)) => {
                        let times = delay.times.saturating_sub(before.times).max(1);
                        delay.waited.since(before.waited).0 / times >= BUSY_DELAY.0
                    }
                    _ => false,
                };
                self.last = Some((now, delay.unwrap_or_default()));
            }
        }
        self.is_high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    #[test]
    fn the_device_that_wants_the_shortest_wait_decides() {
        let among = |devices: &[Batch]| Batch::among(devices.iter().copied());
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[Batch::AtRest]), None);
        assert_eq!(among(&[Batch::For(us(300)), Batch::AtRest]), Some(us(300)));
        assert_eq!(among(&[Batch::For(us(300)), Batch::For(us(200))]), Some(us(200)));
        assert_eq!(among(&[Batch::For(us(300)), Batch::Never]), None);
        assert_eq!(among(&[Batch::For(us(300)), Batch::For(us(49))]), None);
        assert_eq!(among(&[Batch::For(us(9_000))]), Some(WAIT_MAX));
    }

    #[test]
    fn a_wait_is_a_part_of_the_latency_and_only_behind_many_requests() {
        let mut latency = Latency::default();
        assert_eq!(latency.batch(32), Batch::For(Nanos(0)), "nothing was measured");
        (0..100).for_each(|_| latency.note(us(8_000)));
        assert_eq!(latency.batch(0), Batch::AtRest);
        assert_eq!(latency.batch(IN_FLIGHT_MIN - 1), Batch::Never);
        let Batch::For(Nanos(wait)) = latency.batch(IN_FLIGHT_MIN) else { panic!("no wait") };
        assert!((495_000..=500_000).contains(&wait), "{wait}");
        // It follows the latency within some dozens of answers.
        (0..100).for_each(|_| latency.note(us(80)));
        assert_eq!(Batch::among([latency.batch(32)].into_iter()), None, "{latency:?}");
    }

    #[test]
    fn only_a_thread_that_waits_for_a_cpu_at_each_time_sees_busy_cpus() {
        let delay = |waited, times| Some(RunDelay { waited: us(waited), times });
        let mut contention = Contention::default();
        let mut at = |ms, read: Option<RunDelay>| contention.is_high(Nanos::from_ms(ms), || read);
        assert!(!at(0, delay(900_000, 10)), "there is nothing to compare with");
        assert!(!at(19, delay(990_000, 11)), "too early for a check");
        assert!(at(20, delay(902_000, 110)), "20 us each time");
        assert!(at(39, delay(902_000, 300)), "the last check counts");
        assert!(!at(40, delay(903_999, 210)));
        assert!(at(60, delay(953_999, 211)), "once, but long");
        assert!(!at(80, delay(953_999, 211)), "the thread has not run");
        assert!(!at(100, None) && !at(120, None), "the kernel does not tell");
    }
}
