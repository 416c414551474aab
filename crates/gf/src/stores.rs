//! [`StoreMode::Auto`](crate::StoreMode::Auto): the choice between plain and streaming stores.
//!
//! A store to a line that is not in a cache reads the line first. Streaming stores do not, and they
//! do not change the caches, but they are many times slower than stores that hit a cache. So the
//! right choice depends on two facts, which each thread finds out for itself. A caller that uses
//! the outputs at once asks for plain stores: the thread does not see what its next reads cost.
//!
//! **Are the outputs in a cache?** The thread remembers the pages where executions began to write.
//! An execution is *warm* if its first output was written within the last [`REUSE_BYTES`] of inputs
//! and outputs. It gets plain stores. Each other execution is *cold*.
//!
//! **What do cold stores cost on this CPU?** Streaming stores were 1.4 times as fast as plain ones
//! on a Xeon with AVX-512, and 0.6 to 1.2 times as fast on an AMD EPYC with AVX2, by the numbers of
//! inputs and outputs. So the thread measures: executions with as many outputs, about as many
//! inputs and of about the same size are a class. The first cold executions of a class take turns,
//! in an order that no other alternation of the caller matches. The kind whose median execution was
//! faster serves the next [`PERIOD`] cold executions. (The fastest one would be wrong: outputs that
//! another thread or program wrote may lie in a cache once, and plain stores are fast there.) Then
//! the thread measures again, because other cores and the machine change.
//!
//! All choices give the same bytes. Executions whose buffers fit into the first-level cache, that
//! add to the outputs, or that only copy do not come here.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Bytes of inputs and outputs after which a thread's outputs are no longer expected in a cache.
const REUSE_BYTES: u64 = 16 << 20;
/// Pages that a thread remembers. A page replaces another one with the same hash.
const PAGES: usize = 512;
/// Bits of an address inside its page.
const PAGE_BITS: u32 = 12;
/// Timed executions of each kind of stores in one measurement.
const SAMPLES: usize = 8;
/// The same in the largest class of sizes: half of the samples get the slower stores, and one of
/// them takes as long as dozens of small executions.
const SAMPLES_LARGE: usize = 4;
/// Cold executions of a class between two measurements.
const PERIOD: u32 = 1024;
/// Classes of sizes: below 256 KiB, below 4 MiB, and larger.
const SIZE_CLASSES: usize = 3;
/// Classes of numbers of outputs: 1 to 4, and maps of several passes.
const OUTPUT_CLASSES: usize = 5;
/// Classes of numbers of inputs: up to 4, up to 8, and more.
const INPUT_CLASSES: usize = 3;
const CLASSES: usize = OUTPUT_CLASSES * INPUT_CLASSES * SIZE_CLASSES;

/// The kind of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stores {
    Plain,
    Streaming,
}

/// The properties of an execution that matter for the choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The address of the first output.
    pub(crate) address: usize,
    /// Bytes of all inputs and outputs.
    pub(crate) total_bytes: usize,
    /// Inputs.
    pub(crate) inputs: usize,
    /// Outputs that are written at the same time. `None` for a map of several passes.
    pub(crate) outputs: Option<usize>,
}

impl Work {
    fn class(&self) -> usize {
        let outputs = self.outputs.map_or(0, |outputs| outputs.clamp(1, OUTPUT_CLASSES - 1));
        let size = match self.total_bytes {
            ..0x4_0000 => 0,
            0x4_0000..0x40_0000 => 1,
            _ => 2,
        };
        let inputs = match self.inputs {
            0..=4 => 0,
            5..=8 => 1,
            _ => 2,
        };
        (outputs * INPUT_CLASSES + inputs) * SIZE_CLASSES + size
    }
}

/// Runs an execution with the stores that suit it. The argument of `run` says whether they are
/// streaming stores.
pub(crate) fn run_with_choice(work: &Work, run: impl FnOnce(bool)) {
    thread_local! {
        static CHOOSER: RefCell<Chooser> = const { RefCell::new(Chooser::new()) };
    }
    // No borrow lasts while `run` works.
    let choice = CHOOSER.with_borrow_mut(|chooser| chooser.choose(work));
    let streams = choice.stores == Stores::Streaming;
    if !choice.is_sample {
        return run(streams);
    }
    let began = Instant::now();
    run(streams);
    let elapsed = began.elapsed();
    CHOOSER.with_borrow_mut(|chooser| chooser.record(work, choice.stores, elapsed));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    stores: Stores,
    /// The thread times this execution.
    is_sample: bool,
}

/// Where one page was written.
#[derive(Clone, Copy)]
struct Written {
    page: usize,
    /// The value of [`Chooser::done_bytes`] after that execution.
    at_bytes: u64,
}

/// The measurement of one class.
#[derive(Clone, Copy)]
struct Trial {
    better: Stores,
    /// Cold executions until the next measurement. During a measurement 0.
    settled: u32,
    samples: usize,
    /// The samples of each kind.
    plain: [Speed; SAMPLES],
    streaming: [Speed; SAMPLES],
}

/// The time per byte of an execution, in 2^-16 ns.
type Speed = u64;

/// The memory of one thread.
struct Chooser {
    /// Bytes of inputs and outputs of all executions so far.
    done_bytes: u64,
    written: [Written; PAGES],
    trials: [Trial; CLASSES],
}

impl Chooser {
    const fn new() -> Self {
        let untried = Trial {
            better: Stores::Plain,
            settled: 0,
            samples: 0,
            plain: [0; SAMPLES],
            streaming: [0; SAMPLES],
        };
        Self {
            done_bytes: 0,
            // No output begins in the last page of the address space.
            written: [Written { page: usize::MAX, at_bytes: 0 }; PAGES],
            trials: [untried; CLASSES],
        }
    }

    fn choose(&mut self, work: &Work) -> Choice {
        if self.is_warm(work) {
            return Choice { stores: Stores::Plain, is_sample: false };
        }
        let trial = &mut self.trials[work.class()];
        if trial.settled > 0 {
            trial.settled -= 1;
            return Choice { stores: trial.better, is_sample: false };
        }
        let stores = match trial.samples % 4 {
            0 | 3 => Stores::Plain,
            _ => Stores::Streaming,
        };
        Choice { stores, is_sample: true }
    }

    /// Whether the first output is expected in a cache. The thread remembers it from now on.
    fn is_warm(&mut self, work: &Work) -> bool {
        let page = work.address >> PAGE_BITS;
        // Bits from the middle of a product with an odd constant (2^64 by the golden ratio).
        let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let written = &mut self.written[(hash >> 32) as usize % PAGES];
        self.done_bytes += work.total_bytes as u64;
        let is_recent = self.done_bytes - written.at_bytes <= REUSE_BYTES;
        let is_warm = written.page == page && is_recent;
        *written = Written { page, at_bytes: self.done_bytes };
        is_warm
    }

    fn record(&mut self, work: &Work, stores: Stores, elapsed: Duration) {
        let class = work.class();
        let wanted = match class % SIZE_CLASSES == SIZE_CLASSES - 1 {
            true => SAMPLES_LARGE,
            false => SAMPLES,
        };
        let trial = &mut self.trials[class];
        let of_kind = match stores {
            Stores::Plain => &mut trial.plain,
            Stores::Streaming => &mut trial.streaming,
        };
        let time = (elapsed.as_nanos() << 16) / work.total_bytes.max(1) as u128;
        // Two of each kind in four samples.
        of_kind[trial.samples / 2] = Speed::try_from(time).unwrap_or(Speed::MAX);
        trial.samples += 1;
        if trial.samples == 2 * wanted {
            let (plain, streaming) = (&mut trial.plain, &mut trial.streaming);
            let better = match median(&mut streaming[..wanted]) < median(&mut plain[..wanted]) {
                true => Stores::Streaming,
                false => Stores::Plain,
            };
            let untried = Self::new().trials[0];
            *trial = Trial { better, settled: PERIOD, ..untried };
        }
    }
}

/// The upper one of the two in the middle.
fn median(samples: &mut [Speed]) -> Speed {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(page: usize, total_bytes: usize) -> Work {
        Work { address: page << PAGE_BITS, total_bytes, inputs: 4, outputs: Some(2) }
    }

    /// Plays cold executions of 1 MiB until a measurement ends. `plain_ns` and `streaming_ns` are
    /// the times of the executions.
    fn measure(chooser: &mut Chooser, first_page: usize, plain_ns: u64, streaming_ns: u64) {
        for sample in 0..2 * SAMPLES {
            let work = work(first_page + sample * 1000, 1 << 20);
            let choice = chooser.choose(&work);
            assert!(choice.is_sample, "sample {sample}");
            let ns = match choice.stores {
                Stores::Plain => plain_ns,
                Stores::Streaming => streaming_ns,
            };
            chooser.record(&work, choice.stores, Duration::from_nanos(ns));
        }
    }

    const PLAIN: Choice = Choice { stores: Stores::Plain, is_sample: false };
    const STREAMING: Choice = Choice { stores: Stores::Streaming, is_sample: false };

    #[test]
    fn cold_executions_get_the_faster_stores_and_warm_ones_plain_stores() {
        for (plain_ns, streaming_ns, cold) in [(100, 80, STREAMING), (80, 100, PLAIN)] {
            let mut chooser = Chooser::new();
            measure(&mut chooser, 1, plain_ns, streaming_ns);
            assert_eq!(chooser.choose(&work(500_000, 1 << 20)), cold);
            assert_eq!(chooser.choose(&work(500_000, 1 << 20)), PLAIN, "the outputs are warm now");
        }
    }

    /// Another program had just written to some of the outputs, and an interrupt came.
    #[test]
    fn lucky_and_unlucky_executions_decide_nothing() {
        let mut chooser = Chooser::new();
        for sample in 0..2 * SAMPLES {
            let work = work(1 + sample * 1000, 1 << 20);
            let stores = chooser.choose(&work).stores;
            let ns = match (stores, sample) {
                (Stores::Plain, 0 | 8) => 10,
                (Stores::Plain, _) => 100,
                (Stores::Streaming, 5) => 5000,
                (Stores::Streaming, _) => 80,
            };
            chooser.record(&work, stores, Duration::from_nanos(ns));
        }
        assert_eq!(chooser.choose(&work(500_000, 1 << 20)), STREAMING);
    }

    #[test]
    fn outputs_are_cold_again_after_as_many_bytes_as_caches_hold() {
        let mut chooser = Chooser::new();
        measure(&mut chooser, 1, 100, 80);
        assert_eq!(chooser.choose(&work(500_000, 1 << 20)), STREAMING);
        for other in 1..15 {
            assert_eq!(chooser.choose(&work(500_000 + other * 7, 1 << 20)), STREAMING);
        }
        assert_eq!(chooser.choose(&work(500_000, 1 << 20)), PLAIN, "16 MiB later");
        for other in 1..17 {
            chooser.choose(&work(600_000 + other * 7, 1 << 20));
        }
        assert_eq!(chooser.choose(&work(500_000, 1 << 20)), STREAMING, "17 MiB later");
        assert_eq!(chooser.choose(&work(500_000, 17 << 20)).stores, Stores::Plain, "first sample");
        assert!(chooser.choose(&work(500_000, 17 << 20)).is_sample, "too large to stay in a cache");
    }

    #[test]
    fn a_choice_is_measured_again_and_may_change() {
        let mut chooser = Chooser::new();
        measure(&mut chooser, 1, 100, 80);
        for execution in 0..PERIOD as usize {
            let choice = chooser.choose(&work(1_000_000 + execution * 1000, 1 << 20));
            assert_eq!(choice, STREAMING, "execution {execution}");
        }
        measure(&mut chooser, 9_000_000, 80, 100);
        assert_eq!(chooser.choose(&work(500_000_000, 1 << 20)), PLAIN);
    }

    #[test]
    fn numbers_of_outputs_and_sizes_have_measurements_of_their_own() {
        let mut chooser = Chooser::new();
        measure(&mut chooser, 1, 100, 80);
        let large = Work { outputs: Some(4), ..work(700_000, 1 << 20) };
        assert!(chooser.choose(&large).is_sample);
        assert!(chooser.choose(&Work { inputs: 12, ..work(750_000, 1 << 20) }).is_sample);
        assert!(chooser.choose(&work(800_000, 8 << 20)).is_sample);
        assert!(chooser.choose(&Work { outputs: None, ..work(900_000, 1 << 20) }).is_sample);
        assert_eq!(chooser.choose(&work(950_000, 1 << 20)), STREAMING);
    }

    #[test]
    fn large_executions_need_fewer_samples() {
        let mut chooser = Chooser::new();
        for sample in 0..2 * SAMPLES_LARGE {
            let work = work(1 + sample * 5000, 8 << 20);
            let choice = chooser.choose(&work);
            assert!(choice.is_sample);
            let us = if choice.stores == Stores::Plain { 100 } else { 80 };
            chooser.record(&work, choice.stores, Duration::from_micros(us));
        }
        assert_eq!(chooser.choose(&work(900_000, 8 << 20)), STREAMING);
    }
}
