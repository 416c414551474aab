//! The standard stack between a front-end and a store.
//!
//! ```text
//!   front-end
//!      │ bytes, any range
//!   Meter       counts, times the stages
//!   Scheduler   merges neighbours; above the cache, so that one look-up serves the merged request
//!   Cache       answers what was read before
//!   Align       whole blocks only below here; after merging, so that few edges are left to it
//!      │ whole blocks
//!   store
//! ```

use crate::align::AlignStats;
use crate::{
    Align, Backend, Cache, CacheOptions, CacheStats, Completion, Counts, Info, Meter, Nanos,
    Request, Scheduler, SchedulerOptions, SchedulerStats, StageStats,
};

/// How the stack behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct PipelineOptions {
    /// The coalescing scheduler.
    pub scheduler: SchedulerOptions,
    /// The read cache; a capacity of zero switches it off, as is right over `Ram`.
    pub cache: CacheOptions,
}

/// Everything the stack counted.
#[derive(Clone, Default)]
pub struct Report {
    /// Requests, bytes and errors.
    pub counts: Counts,
    /// Requests that have not completed.
    pub in_flight: usize,
    /// Where the time went.
    pub stages: StageStats,
    /// What was merged and delayed.
    pub scheduler: SchedulerStats,
    /// Hits, misses and fill of the cache.
    pub cache: CacheStats,
    /// Read-modify-writes.
    pub align: AlignStats,
}

/// The standard stack over a store `B`.
pub struct Pipeline<B> {
    stack: Meter<Scheduler<Cache<Align<B>>>>,
}

impl<B: Backend> Pipeline<B> {
    /// Builds the stack over `store`.
    #[must_use]
    pub fn new(store: B, options: PipelineOptions) -> Self {
        let cache = Cache::new(Align::new(store), options.cache);
        Pipeline { stack: Meter::new(Scheduler::new(cache, options.scheduler)) }
    }

    /// What was counted so far. Copies the histograms; [`Pipeline::stages`] does not.
    #[must_use]
    pub fn report(&self) -> Report {
        let scheduler = self.stack.inner();
        let cache = scheduler.inner();
        Report {
            counts: self.stack.counts(),
            in_flight: self.stack.in_flight(),
            stages: self.stack.stages().clone(),
            scheduler: scheduler.stats(),
            cache: cache.stats(),
            align: cache.inner().stats(),
        }
    }

    /// Where the time went so far.
    pub fn stages(&self) -> &StageStats {
        self.stack.stages()
    }

    /// The store below.
    pub fn store(&self) -> &B {
        self.stack.inner().inner().inner().inner()
    }

    /// The store below, to hand it its own events (node replies, timers). Poll the pipeline after.
    pub fn store_mut(&mut self) -> &mut B {
        self.stack.inner_mut().inner_mut().inner_mut().inner_mut()
    }
}

impl<B: Backend> Backend for Pipeline<B> {
    fn info(&self) -> Info {
        self.stack.info()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        self.stack.submit(request, now);
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.stack.poll(now, out);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.stack.deadline()
    }
}
