//! Counts requests, bytes and errors, and times the stages: the top of the stack.
//!
//! A request that its front-end did not stamp counts as received when it comes here; its completion
//! is stamped when it is handed over.

use slab::Slab;

use crate::stages::StageStats;
use crate::{Backend, BlockError, Completion, Info, Nanos, Op, Request, RequestId, Stage};

/// How many requests of one kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Requests that completed, well or not.
    pub requests: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Counts per kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([OpCount; 6]);

impl Counts {
    /// The count of one kind.
    #[must_use]
    pub fn of(&self, op: Op) -> OpCount {
        self.0[op as usize]
    }

    /// Adds what `other` has counted.
    pub fn merge(&mut self, other: &Counts) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.requests += theirs.requests;
            mine.bytes += theirs.bytes;
            mine.errors += theirs.errors;
        }
    }
}

struct Flight {
    id: RequestId,
    op: Op,
    len_bytes: u32,
}

/// Measures what passes; see the module's text.
pub struct Meter<B> {
    inner: B,
    flights: Slab<Flight>,
    counts: Counts,
    stages: StageStats,
}

impl<B: Backend> Meter<B> {
    /// Puts the meter over `inner`.
    #[must_use]
    pub fn new(inner: B) -> Self {
        Meter { inner, flights: Slab::new(), counts: Counts::default(), stages: StageStats::new() }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where the time went so far.
    pub fn stages(&self) -> &StageStats {
        &self.stages
    }

    /// Requests that have not completed.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend below, to hand it its own events.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    fn settle(&mut self, completion: &mut Completion, now: Nanos) {
        let slot = usize::try_from(completion.id.0).unwrap_or(usize::MAX);
        let Some(flight) = self.flights.try_remove(slot) else {
            debug_assert!(false, "the inner backend completed a request twice");
            completion.result = Err(BlockError::Io("completed twice".into()));
            return;
        };
        completion.id = flight.id;
        completion.stamps.stamp(Stage::Completed, now);
        let count = &mut self.counts.0[flight.op as usize];
        count.requests += 1;
        match &completion.result {
            Ok(_) => count.bytes += u64::from(flight.len_bytes),
            Err(_) => count.errors += 1,
        }
        self.stages.record(flight.op, &completion.stamps);
    }
}

impl<B: Backend> Backend for Meter<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        if request.stamps.at(Stage::Received) == Nanos(0) {
            request.stamps.stamp(Stage::Received, now);
        }
        let len_bytes = if request.op == Op::Flush { 0 } else { request.len_bytes };
        let flight = Flight { id: request.id, op: request.op, len_bytes };
        request.id = RequestId(self.flights.insert(flight) as u64);
        self.inner.submit(request, now);
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        let start = out.len();
        self.inner.poll(now, out);
        out[start..].iter_mut().for_each(|completion| self.settle(completion, now));
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }
}
