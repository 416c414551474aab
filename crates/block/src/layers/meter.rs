//! Counts requests, bytes and errors, and times the stages.
//!
//! The meter is at the top of the list, so that it sees the requests of front-ends, and not the
//! requests that other layers make. It stamps a completion as completed when the completion passes.

use crate::layer::{Counter, Flow, Layer};
use crate::stages::StageStats;
use crate::{Completion, Op, Request, Stage};

/// The counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    /// Requests that completed, with success or an error.
    pub requests: u64,
    /// Bytes of successful requests.
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

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Counts) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.requests += theirs.requests;
            mine.bytes += theirs.bytes;
            mine.errors += theirs.errors;
        }
    }
}

/// Measures the requests that pass; see the module's text.
#[derive(Default)]
pub struct Meter {
    counts: Counts,
    stages: StageStats,
}

impl Meter {
    /// A meter with all counts zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The time per stage so far.
    #[must_use]
    pub fn stages(&self) -> &StageStats {
        &self.stages
    }
}

impl Layer for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn complete(&mut self, mut completion: Completion, flow: &mut Flow<'_>) {
        completion.stamps.stamp(Stage::Completed, flow.now());
        let count = &mut self.counts.0[completion.op as usize];
        count.requests += 1;
        match &completion.result {
            Ok(_) if completion.op == Op::Flush => {}
            Ok(_) => count.bytes += u64::from(completion.len_bytes),
            Err(_) => count.errors += 1,
        }
        self.stages.record(completion.op, &completion.stamps);
        flow.answer(completion);
    }

    fn refused(&mut self, request: &Request) {
        let count = &mut self.counts.0[request.op as usize];
        count.requests += 1;
        count.errors += 1;
    }

    fn counters(&self) -> Vec<Counter> {
        let sum = |of: fn(&OpCount) -> u64| self.counts.0.iter().map(of).sum();
        vec![
            Counter { name: "requests", value: sum(|count| count.requests) },
            Counter { name: "bytes", value: sum(|count| count.bytes) },
            Counter { name: "errors", value: sum(|count| count.errors) },
        ]
    }
}
