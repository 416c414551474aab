//! The coalescing scheduler: makes few large requests from many small contiguous ones.
//!
//! DeLiBA-2 §3.1: requests are delayed "by up to half the currently observed average I/O latency",
//! and requests that arrive in that window are coalesced. The average tunes itself: it is taken
//! over the last ten completed requests of each direction (reads, writes), as `rolling_sum` over
//! `rolling_count` ([`Policy::HalfMean`]). The scheduler that the paper describes has the shape of
//! librbd's "simple" one. Its published code uses the rolling *sum* as if it were the mean, so with
//! a full window the delay is up to five mean latencies. [`Policy::AsShipped`] does the same, so
//! that a benchmark can compare the two.
//!
//! # No wait without a gain
//!
//! Waiting pays only if an adjacent request is likely to come. A request goes out at once when
//! - fewer than [`SchedulerOptions::min_in_flight`] requests of its direction are under way: the
//!   backend is idle enough to take it, and a submitter with a shallow queue waits for it;
//! - it does not continue a sequential stream (`streams`): the scheduler never delays random
//!   traffic;
//! - it is large already ([`SchedulerOptions::large_bytes`]);
//! - it is neither a plain read nor a plain write: FUA writes wait for stable storage anyway;
//! - fewer than ten requests have completed, so no latency is known.
//!
//! A waiting batch goes out as soon as its time is up, it has grown to
//! [`SchedulerOptions::max_merge_bytes`], or a completion leaves fewer than `min_in_flight` under
//! way. The first request of a batch sets the batch's time, so no request waits longer than the
//! policy says.
//!
//! # Order
//!
//! A request that overlaps a waiting batch sends that batch first if either of the two changes
//! data. The scheduler never merges overlapping requests. A flush sends every waiting write first.
//! The contract does not ask for this (a waiting write has not completed). But a submitter that
//! sends writes and then a flush wants both, and would wait for the delay twice.
//!
//! # Failure
//!
//! When a merged request fails, the scheduler sends each of its requests again alone, once, so that
//! an error reaches only the request that caused it. So a write may be carried out twice. It is in
//! flight all the time, and writes in flight have no order that this could break.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use slab::Slab;

use super::latency::RollingLatency;
use super::streams::Streams;
use crate::layer::{Counter, Flow, Layer};
use crate::pieces::Splitter;
use crate::settings::{SettingError, Settings};
use crate::{
    BlockError, Completion, Nanos, Op, Payload, ReadDestination, Request, RequestFlags, RequestId,
    Stage, Stamps,
};

/// Batches that wait at once, over both directions. One more sends the oldest.
const MAX_BATCHES: usize = 16;

/// How long a request may be delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// No delay, and no merging.
    Off,
    /// Up to half the mean latency of the last ten requests of its direction.
    #[default]
    HalfMean,
    /// Up to half the *sum* of the last ten latencies: the published code's behaviour.
    AsShipped,
}

/// The scheduler's options.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// How long to delay.
    pub policy: Policy,
    /// With fewer requests of a direction under way than this, the scheduler delays none of that
    /// direction.
    pub min_in_flight: u32,
    /// The scheduler passes requests of at least this length on at once.
    pub large_bytes: u32,
    /// A merged request is at most this long.
    pub max_merge_bytes: u32,
    /// The longest delay of a request, whatever the latencies were.
    pub max_delay: Nanos,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            policy: Policy::default(),
            min_in_flight: 4,
            large_bytes: 128 * 1024,
            max_merge_bytes: 1024 * 1024,
            max_delay: Nanos::from_ms(20),
        }
    }
}

const POLICIES: [(&str, Policy); 3] =
    [("mean", Policy::HalfMean), ("as-shipped", Policy::AsShipped), ("off", Policy::Off)];

impl SchedulerOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.choice("policy", &mut self.policy, &POLICIES)?;
        settings.number("min-in-flight", &mut self.min_in_flight)?;
        settings.small_size("large", &mut self.large_bytes)?;
        settings.small_size("max-merge", &mut self.max_merge_bytes)?;
        settings.duration("max-delay", &mut self.max_delay)
    }
}

/// The scheduler's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that the scheduler passed on. A merged request counts once.
    pub dispatched: u64,
    /// Requests that went out as part of a larger one.
    pub merged: u64,
    /// Requests that waited for adjacent ones.
    pub delayed: u64,
    /// The total waiting time of these.
    pub delay_total: Nanos,
    /// The longest waiting time.
    pub delay_max: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read = 0,
    Write = 1,
}

impl Direction {
    fn of(op: Op) -> Option<Self> {
        match op {
            Op::Read => Some(Direction::Read),
            Op::Write => Some(Direction::Write),
            Op::Flush | Op::Trim | Op::WriteZeroes | Op::Extents => None,
        }
    }

    fn op(self) -> Op {
        match self {
            Direction::Read => Op::Read,
            Direction::Write => Op::Write,
        }
    }
}

/// The state of one direction.
#[derive(Default)]
struct Lane {
    streams: Streams,
    latency: RollingLatency,
    in_flight: u32,
}

/// A waiting request, and its time of arrival.
struct Queued {
    request: Request,
    since: Nanos,
}

/// Contiguous requests of one direction that wait together.
struct Batch {
    direction: Direction,
    start: u64,
    end: u64,
    parts: Vec<Queued>,
    due: Nanos,
}

/// Requests that went down as one request.
struct Merged {
    parts: Vec<Queued>,
    direction: Direction,
}

/// Merges contiguous requests; see the module's text.
pub struct Scheduler {
    options: SchedulerOptions,
    lanes: [Lane; 2],
    /// Waiting batches, oldest first.
    batches: Vec<Batch>,
    merged: Slab<Merged>,
    stats: SchedulerStats,
}

impl Scheduler {
    /// A scheduler with these options.
    #[must_use]
    pub fn new(options: SchedulerOptions) -> Self {
        Scheduler {
            options,
            lanes: Default::default(),
            batches: Vec::with_capacity(MAX_BATCHES),
            merged: Slab::new(),
            stats: SchedulerStats::default(),
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// How long a request of this direction may wait now; `None` while no latency is known.
    fn delay(&self, direction: Direction) -> Option<Nanos> {
        let latency = &self.lanes[direction as usize].latency;
        let basis = match self.options.policy {
            Policy::Off => return None,
            Policy::HalfMean => latency.mean(),
            Policy::AsShipped => latency.sum(),
        };
        let delay = Nanos(basis.0 / 2).min(self.options.max_delay);
        (latency.is_full() && delay > Nanos(0)).then_some(delay)
    }

    /// Notes that a request goes down.
    fn dispatched(&mut self, request: &mut Request, now: Nanos) {
        if let Some(direction) = Direction::of(request.op) {
            self.lanes[direction as usize].in_flight += 1;
        }
        request.stamps.stamp(Stage::Scheduled, now);
        self.stats.dispatched += 1;
    }

    fn send_single(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        self.dispatched(&mut request, flow.now());
        flow.pass(request);
    }

    /// Sends the batch at `index` as one request.
    fn send_batch(&mut self, index: usize, flow: &mut Flow<'_>) {
        let now = flow.now();
        let mut batch = self.batches.remove(index);
        for part in &mut batch.parts {
            let waited = now.since(part.since);
            self.stats.delay_total = self.stats.delay_total.plus(waited);
            self.stats.delay_max = self.stats.delay_max.max(waited);
            part.request.stamps.stamp(Stage::Scheduled, now);
        }
        if batch.parts.len() == 1 {
            let part = batch.parts.pop().expect("a batch has at least one part");
            return self.send_single(part.request, flow);
        }
        self.stats.merged += batch.parts.len() as u64;
        let data = match batch.direction {
            Direction::Read => Bytes::new(),
            Direction::Write => {
                AlignedBuf::concat(batch.parts.iter().map(|part| &part.request.data[..])).freeze()
            }
        };
        let mut request = Request {
            id: RequestId(0),
            op: batch.direction.op(),
            offset_bytes: batch.start,
            len_bytes: u32::try_from(batch.end - batch.start).expect("at most max_merge_bytes"),
            flags: RequestFlags::default(),
            data,
            destination: ReadDestination::default(),
            queue: batch.parts[0].request.queue,
            stamps: batch.parts[0].request.stamps,
        };
        self.dispatched(&mut request, now);
        let merged = Merged { parts: batch.parts, direction: batch.direction };
        flow.pass_own(self.merged.insert(merged), request);
    }

    /// Sends the waiting batches that `request` must not overtake.
    fn send_before(&mut self, request: &Request, flow: &mut Flow<'_>) {
        let mut index = 0;
        while index < self.batches.len() {
            let batch = &self.batches[index];
            let writes = batch.direction == Direction::Write;
            let conflicts = if request.op == Op::Flush {
                writes
            } else {
                let overlaps =
                    request.offset_bytes < batch.end && batch.start < request.end_bytes();
                overlaps && (writes || request.op.changes_data())
            };
            if conflicts {
                self.send_batch(index, flow);
            } else {
                index += 1;
            }
        }
    }

    /// Whether `request` should wait for adjacent requests, and until when.
    fn wait(&mut self, request: &Request, direction: Direction) -> Option<Nanos> {
        let lane = &mut self.lanes[direction as usize];
        let sequential = lane.streams.follow(request.offset_bytes, request.end_bytes()).is_some();
        let plain = request.flags == RequestFlags::default();
        if !sequential
            || !plain
            || request.len_bytes >= self.options.large_bytes
            || lane.in_flight < self.options.min_in_flight
        {
            return None;
        }
        self.delay(direction)
    }

    /// Adds a request to the batch that it continues, or opens a new one.
    fn queue(&mut self, request: Request, direction: Direction, due: Nanos, flow: &mut Flow<'_>) {
        self.stats.delayed += 1;
        let (start, end) = (request.offset_bytes, request.end_bytes());
        let part = Queued { request, since: flow.now() };
        let found = self
            .batches
            .iter()
            .position(|batch| batch.direction == direction && batch.end == start);
        if let Some(index) = found {
            let batch = &mut self.batches[index];
            let len_bytes = end - batch.start;
            if len_bytes <= u64::from(self.options.max_merge_bytes) {
                batch.end = end;
                batch.parts.push(part);
                if len_bytes == u64::from(self.options.max_merge_bytes) {
                    self.send_batch(index, flow);
                }
                return;
            }
            self.send_batch(index, flow);
        }
        if self.batches.len() == MAX_BATCHES {
            self.send_batch(0, flow);
        }
        let parts = vec![part];
        self.batches.push(Batch { direction, start, end, parts, due });
    }

    /// Sends the batches that gain nothing from waiting any longer.
    fn send_due(&mut self, flow: &mut Flow<'_>) {
        let mut index = 0;
        while index < self.batches.len() {
            let batch = &self.batches[index];
            let idle = self.lanes[batch.direction as usize].in_flight < self.options.min_in_flight;
            if idle || batch.due <= flow.now() {
                self.send_batch(index, flow);
            } else {
                index += 1;
            }
        }
    }

    /// Notes a completion, and how long its request was below.
    fn record(&mut self, direction: Direction, stamps: &Stamps, now: Nanos) {
        let lane = &mut self.lanes[direction as usize];
        lane.in_flight -= 1;
        lane.latency.record(now.since(stamps.at(Stage::Scheduled)));
    }

    /// Completes the merged requests, or sends them again alone after a failure.
    fn split(
        &mut self,
        parts: Vec<Queued>,
        result: Result<Payload, BlockError>,
        stamps: &Stamps,
        flow: &mut Flow<'_>,
    ) {
        let mut splitter = match result {
            Err(_) => {
                for part in parts {
                    self.send_single(part.request, flow);
                }
                return;
            }
            Ok(Payload::Data(pieces)) => Some(Splitter::new(pieces)),
            Ok(Payload::None | Payload::Extents(_)) => None,
        };
        for Queued { mut request, .. } in parts {
            request.stamps.adopt_backend(stamps);
            let payload = match &mut splitter {
                Some(splitter) => Payload::Data(splitter.take(request.len_bytes)),
                None => Payload::None,
            };
            flow.answer(Completion::of(&request, Ok(payload)));
        }
    }
}

impl Layer for Scheduler {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        self.stats.requests += 1;
        if !self.batches.is_empty() {
            self.send_before(&request, flow);
        }
        let direction = match Direction::of(request.op) {
            Some(direction) if self.options.policy != Policy::Off && request.len_bytes > 0 => {
                direction
            }
            _ => return self.send_single(request, flow),
        };
        match self.wait(&request, direction) {
            Some(delay) => self.queue(request, direction, flow.now().plus(delay), flow),
            None => self.send_single(request, flow),
        }
    }

    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        if let Some(direction) = Direction::of(completion.op) {
            self.record(direction, &completion.stamps, flow.now());
        }
        flow.answer(completion);
    }

    fn complete_own(&mut self, index: usize, completion: Completion, flow: &mut Flow<'_>) {
        let Merged { parts, direction } = self.merged.remove(index);
        self.record(direction, &completion.stamps, flow.now());
        self.split(parts, completion.result, &completion.stamps, flow);
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        if !self.batches.is_empty() {
            self.send_due(flow);
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        self.batches.iter().map(|batch| batch.due).min()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let policy = POLICIES.iter().find(|(_, policy)| *policy == options.policy);
        let size = |bytes: u32| fieldstone_units::size_argument(u64::from(bytes));
        vec![
            ("policy", policy.map_or("", |(word, _)| word).to_owned()),
            ("min-in-flight", options.min_in_flight.to_string()),
            ("large", size(options.large_bytes)),
            ("max-merge", size(options.max_merge_bytes)),
            ("max-delay", fieldstone_units::duration_argument(options.max_delay.0)),
        ]
    }

    fn counters(&self) -> Vec<Counter> {
        let stats = self.stats;
        vec![
            Counter { name: "requests", value: stats.requests },
            Counter { name: "dispatched", value: stats.dispatched },
            Counter { name: "merged", value: stats.merged },
            Counter { name: "delayed", value: stats.delayed },
            Counter { name: "delay_total_ns", value: stats.delay_total.0 },
            Counter { name: "delay_max_ns", value: stats.delay_max.0 },
        ]
    }

    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut options = self.options;
        options.set(settings)?;
        self.options = options;
        Ok(())
    }
}
