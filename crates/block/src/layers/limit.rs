//! Quality of service: bounds the rate of a device in requests and bytes per second.
//!
//! # Rates
//! Two token buckets bound the rate. For each, the layer keeps the time at which the bucket would
//! be full again (the "theoretical arrival time" of the generic cell rate algorithm). A request may
//! pass when that time is at most the burst ahead of now, and moves the time on by the request's
//! cost. A request that costs more than the whole bucket passes when the bucket is full and leaves
//! it in debt, so no request waits for ever. Reads and writes cost one request and their bytes. All
//! other operations cost one request.
//!
//! # Shares
//! Requests of one queue pass in their order of arrival. Queues share the rate by the cost of their
//! requests (start-time fair queueing, Goyal et al. 1996): each queue has a virtual time. A request
//! moves this time on by its cost, and the queue with the lowest virtual time is next. A queue that
//! was idle goes on at the virtual time of the queue served last, unless its own is ahead of that.
//! So an idle queue saves nothing up, and its first request waits for at most one request of each
//! other queue.
//!
//! A flush waits in its queue like any other request. It covers the writes that had completed when
//! it arrived, and a write that waits here has not completed.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use crate::layer::{Counter, Flow, Layer};
use crate::settings::{SettingError, Settings};
use crate::{Nanos, Op, QueueId, Request};

/// The lowest bound of bytes per second. The largest request of a client takes 512 s at this rate;
/// below it, one request would keep the others waiting for hours.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// The rates. `None` means no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitOptions {
    /// Bytes read and written per second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Requests per second.
    pub requests_per_second: Option<NonZeroU64>,
    /// The longest idle time whose unused rate a later burst may use.
    pub burst: Nanos,
}

impl LimitOptions {
    /// Takes the options that `settings` names. The others keep their values. A rate of 0 means no
    /// bound.
    ///
    /// # Errors
    /// A value cannot be read, or is too low.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let rate = |text: &str| {
            let rate = NonZeroU64::new(fieldstone_units::parse_rate(text)?);
            if rate.is_some_and(|rate| rate.get() < BYTES_PER_SECOND_MIN) {
                return Err(format!("{text} is too low: the least is 64K, and 0 does not bound"));
            }
            Ok(rate)
        };
        let count = |text: &str| fieldstone_units::parse_count(text).map(NonZeroU64::new);
        settings.read("iops", &mut self.requests_per_second, count)?;
        settings.read("bytes", &mut self.bytes_per_second, rate)?;
        settings.duration("burst", &mut self.burst)
    }
}

/// A token bucket.
#[derive(Default)]
struct Bucket {
    full_at: Nanos,
}

impl Bucket {
    /// When the next request may pass.
    fn opens(&self, rate: Option<NonZeroU64>, burst: Nanos) -> Nanos {
        if rate.is_some() { self.full_at.since(burst) } else { Nanos(0) }
    }

    fn take(&mut self, cost: Nanos, now: Nanos) {
        self.full_at = self.full_at.max(now).plus(cost);
    }
}

/// How long `amount` takes at `rate`.
fn cost(amount: u64, rate: Option<NonZeroU64>) -> Nanos {
    let Some(rate) = rate else { return Nanos(0) };
    let ns = u128::from(amount) * 1_000_000_000 / u128::from(rate.get());
    Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// The cost of a request for each bucket: its bytes, and one request.
fn costs(request: &Request, options: &LimitOptions) -> (Nanos, Nanos) {
    let moves = matches!(request.op, Op::Read | Op::Write);
    let bytes = if moves { u64::from(request.len_bytes) } else { 0 };
    (cost(bytes, options.bytes_per_second), cost(1, options.requests_per_second))
}

/// Requests of one queue that wait.
#[derive(Default)]
struct Waiting {
    requests: VecDeque<(Nanos, Request)>,
    virtual_time: Nanos,
}

/// Bounds the rate; see the module's text.
pub struct Limit {
    options: LimitOptions,
    bytes: Bucket,
    requests: Bucket,
    /// Queues with waiting requests, and queues whose virtual time is ahead.
    queues: BTreeMap<QueueId, Waiting>,
    /// Requests that wait.
    waiting: usize,
    /// Virtual time of the queue that was served last.
    virtual_time: Nanos,
    /// The layer holds no request back any more.
    draining: bool,
    delayed: u64,
    delay_total: Nanos,
    delay_max: Nanos,
}

impl Limit {
    /// A layer with these limits.
    #[must_use]
    pub fn new(options: LimitOptions) -> Self {
        Self {
            options,
            bytes: Bucket::default(),
            requests: Bucket::default(),
            queues: BTreeMap::new(),
            waiting: 0,
            virtual_time: Nanos(0),
            draining: false,
            delayed: 0,
            delay_total: Nanos(0),
            delay_max: Nanos(0),
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> LimitOptions {
        self.options
    }

    /// When the next request may pass.
    fn opens(&self) -> Nanos {
        if self.draining {
            return Nanos(0);
        }
        let LimitOptions { bytes_per_second, requests_per_second, burst } = self.options;
        let bytes = self.bytes.opens(bytes_per_second, burst);
        bytes.max(self.requests.opens(requests_per_second, burst))
    }

    fn pass(&mut self, request: Request, flow: &mut Flow<'_>) {
        let (by_bytes, by_requests) = costs(&request, &self.options);
        self.bytes.take(by_bytes, flow.now());
        self.requests.take(by_requests, flow.now());
        flow.pass(request);
    }

    /// Removes the next request, with its time of arrival: from the queue with the lowest virtual
    /// time.
    fn take_next(&mut self) -> Option<(Nanos, Request)> {
        let waits = self.queues.iter_mut().filter(|(_, waiting)| !waiting.requests.is_empty());
        let (_, behind) = waits.min_by_key(|(_, waiting)| waiting.virtual_time)?;
        let next = behind.requests.pop_front()?;
        self.waiting -= 1;
        self.virtual_time = behind.virtual_time;
        let (by_bytes, by_requests) = costs(&next.1, &self.options);
        behind.virtual_time = behind.virtual_time.plus(by_bytes.max(by_requests).max(Nanos(1)));
        let reached = self.virtual_time;
        self.queues.retain(|_, queue| !queue.requests.is_empty() || queue.virtual_time > reached);
        Some(next)
    }
}

impl Layer for Limit {
    fn name(&self) -> &'static str {
        "limit"
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        if self.waiting == 0 && self.opens() <= flow.now() {
            return self.pass(request, flow);
        }
        let queue = self.queues.entry(request.queue).or_default();
        queue.virtual_time = queue.virtual_time.max(self.virtual_time);
        queue.requests.push_back((flow.now(), request));
        self.waiting += 1;
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        while self.waiting > 0 && self.opens() <= flow.now() {
            let Some((since, request)) = self.take_next() else { break };
            let waited = flow.now().since(since);
            self.delayed += 1;
            self.delay_total = self.delay_total.plus(waited);
            self.delay_max = self.delay_max.max(waited);
            self.pass(request, flow);
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        (self.waiting > 0).then(|| self.opens())
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    fn waits_for(&self) -> Option<String> {
        (self.waiting > 0).then(|| format!("the device's limit ({} requests)", self.waiting))
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let LimitOptions { bytes_per_second, requests_per_second, burst } = self.options;
        let number = |rate: Option<NonZeroU64>| rate.map_or(0, NonZeroU64::get);
        vec![
            ("iops", number(requests_per_second).to_string()),
            ("bytes", fieldstone_units::size_argument(number(bytes_per_second))),
            ("burst", fieldstone_units::duration_argument(burst.0)),
        ]
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            Counter { name: "waiting", value: self.waiting as u64 },
            Counter { name: "delayed", value: self.delayed },
            Counter { name: "delay_total_ns", value: self.delay_total.0 },
            Counter { name: "delay_max_ns", value: self.delay_max.0 },
        ]
    }

    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut options = self.options;
        options.set(settings)?;
        // Drops the debt: a debt of a lower rate must not be paid at the new rate.
        (self.bytes, self.requests) = (Bucket::default(), Bucket::default());
        self.options = options;
        Ok(())
    }
}
