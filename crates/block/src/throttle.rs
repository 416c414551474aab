//! Bounds the rate of a backend in requests and bytes per second.
//!
//! Two token buckets, kept as the time at which each would be full again ("theoretical arrival
//! time"): a request may pass when that time lies at most the burst ahead of now, and moves it on by
//! the request's cost. A request dearer than the whole bucket passes when the bucket is full and
//! leaves it in debt, so none is stuck. Requests pass in their order of arrival. Reads and writes
//! cost their bytes; everything else costs one request only.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::{Backend, Completion, Info, Nanos, Op, Request};

/// The rates; `None` does not bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleOptions {
    /// Bytes read and written per second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Requests per second.
    pub requests_per_second: Option<NonZeroU64>,
    /// What an idle time of this length or more saves up.
    pub burst: Nanos,
}

struct Bucket {
    rate: Option<NonZeroU64>,
    full_at: Nanos,
}

impl Bucket {
    /// When the next request may pass.
    fn opens(&self, burst: Nanos) -> Nanos {
        match self.rate {
            Some(_) => self.full_at.since(burst),
            None => Nanos(0),
        }
    }

    fn take(&mut self, amount: u64, now: Nanos) {
        let Some(rate) = self.rate else { return };
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(rate.get());
        self.full_at = self.full_at.max(now).plus(Nanos(u64::try_from(cost).unwrap_or(u64::MAX)));
    }
}

/// Bounds the rate; see the module's text.
pub struct Throttle<B> {
    inner: B,
    burst: Nanos,
    bytes: Bucket,
    requests: Bucket,
    queue: VecDeque<Request>,
}

impl<B: Backend> Throttle<B> {
    /// Puts the decorator over `inner`.
    #[must_use]
    pub fn new(inner: B, options: ThrottleOptions) -> Self {
        let bucket = |rate| Bucket { rate, full_at: Nanos(0) };
        Throttle {
            inner,
            burst: options.burst,
            bytes: bucket(options.bytes_per_second),
            requests: bucket(options.requests_per_second),
            queue: VecDeque::new(),
        }
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend below, to hand it its own events.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    fn opens(&self) -> Nanos {
        self.bytes.opens(self.burst).max(self.requests.opens(self.burst))
    }

    fn pass(&mut self, request: Request, now: Nanos) {
        if matches!(request.op, Op::Read | Op::Write) {
            self.bytes.take(u64::from(request.len_bytes), now);
        }
        self.requests.take(1, now);
        self.inner.submit(request, now);
    }
}

impl<B: Backend> Backend for Throttle<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        if self.queue.is_empty() && self.opens() <= now {
            self.pass(request, now);
        } else {
            self.queue.push_back(request);
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        while self.opens() <= now {
            let Some(request) = self.queue.pop_front() else { break };
            self.pass(request, now);
        }
        self.inner.poll(now, out);
    }

    fn deadline(&self) -> Option<Nanos> {
        let opens = (!self.queue.is_empty()).then(|| self.opens());
        crate::earlier(opens, self.inner.deadline())
    }
}
