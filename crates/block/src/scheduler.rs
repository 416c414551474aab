//! The coalescing scheduler: makes few large requests out of many small contiguous ones.
//!
//! DeLiBA-2 §3.1: requests are delayed "by up to half the currently observed average I/O latency",
//! and those that arrive in that window are coalesced. The average tunes itself: it is taken over
//! the last ten completed requests of each direction (reads, writes), as `rolling_sum` over
//! `rolling_count` ([`Policy::HalfMean`]). The scheduler that the paper describes has the shape of
//! librbd's "simple" one, whose published code uses the rolling *sum* as if it were the mean, so
//! that with a full window the delay is up to five mean latencies; [`Policy::AsShipped`] does the
//! same, so that the two can be measured against each other.
//!
//! # When nothing would be gained, nothing waits
//!
//! Waiting pays only if a neighbour is likely to come. A request goes out at once when
//! - fewer than [`SchedulerOptions::min_in_flight`] requests of its direction are under way: the
//!   backend is idle enough to take it, and a submitter with a shallow queue is waiting for us;
//! - it does not continue a sequential stream (`streams`): random traffic is never delayed;
//! - it is large already ([`SchedulerOptions::large_bytes`]);
//! - it is neither a plain read nor a plain write: FUA writes wait for stable storage as it is;
//! - ten requests have not completed yet, so no latency is known.
//!
//! What waits, goes out as soon as its time is up, it has grown to
//! [`SchedulerOptions::max_merge_bytes`], or a completion leaves fewer than `min_in_flight` under
//! way. The first to come in a batch sets its time, so no request waits longer than the policy says.
//!
//! # Order
//!
//! A request that overlaps a waiting batch sends that batch first if either of the two changes
//! data; overlapping requests are never merged. A flush sends every waiting write first. It would be
//! allowed not to (a waiting write has not completed), but a submitter that sends writes and then a
//! flush wants both, and would wait for the delay twice.
//!
//! # Failure
//!
//! When a merged request fails, each of its requests is sent again alone, once, so that an error
//! reaches only the request it belongs to. A write may thus be carried out twice; it is in flight
//! all the time, and in flight writes have no order that this could break.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use slab::Slab;

use crate::latency::RollingLatency;
use crate::pieces::Splitter;
use crate::streams::Streams;
use crate::{
    Backend, Completion, Info, Nanos, Op, Payload, Request, RequestFlags, RequestId, Stage, Stamps,
};

/// Batches that wait at once, over both directions; one more sends the oldest.
const MAX_BATCHES: usize = 16;

/// How long a request may be delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Not at all: nothing is merged either.
    Off,
    /// Up to half the mean latency of the last ten requests of its direction.
    #[default]
    HalfMean,
    /// Up to half the *sum* of the last ten latencies: the published code's behaviour.
    AsShipped,
}

/// What the scheduler may do.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// How long to delay.
    pub policy: Policy,
    /// With fewer requests of a direction under way than this, none of it is delayed.
    pub min_in_flight: u32,
    /// Requests of this length or more are passed on at once.
    pub large_bytes: u32,
    /// A merged request is at most this long.
    pub max_merge_bytes: u32,
    /// No request is ever delayed longer than this, whatever the latencies were.
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

/// What the scheduler did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests that came in.
    pub requests: u64,
    /// Requests that were passed on, merged ones counted once.
    pub dispatched: u64,
    /// Requests that went out as part of a larger one.
    pub merged: u64,
    /// Requests that waited for neighbours.
    pub delayed: u64,
    /// How long those waited, all together.
    pub delay_total: Nanos,
    /// The longest any of them waited.
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

/// What is known of one direction.
#[derive(Default)]
struct Lane {
    streams: Streams,
    latency: RollingLatency,
    in_flight: u32,
}

/// A request that waits, and when it came.
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

/// What an inner request answers.
enum Flight {
    Single { id: RequestId, direction: Option<Direction>, sent: Nanos },
    Merged { parts: Vec<Queued>, direction: Direction, sent: Nanos },
}

/// Merges contiguous requests; see the module's text.
pub struct Scheduler<B> {
    inner: B,
    info: Info,
    options: SchedulerOptions,
    lanes: [Lane; 2],
    /// Waiting batches, oldest first.
    batches: Vec<Batch>,
    flights: Slab<Flight>,
    ready: Vec<Completion>,
    stats: SchedulerStats,
    submitted: bool,
}

impl<B: Backend> Scheduler<B> {
    /// Puts the scheduler over `inner`, whose size must not change afterwards.
    #[must_use]
    pub fn new(inner: B, options: SchedulerOptions) -> Self {
        let info = inner.info();
        Scheduler {
            inner,
            info,
            options,
            lanes: Default::default(),
            batches: Vec::with_capacity(MAX_BATCHES),
            flights: Slab::new(),
            ready: Vec::new(),
            stats: SchedulerStats::default(),
            submitted: false,
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// The backend below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend below, to hand it its own events.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    /// How long a request of this direction may wait now; `None` while nothing is known.
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

    fn send(&mut self, mut request: Request, flight: Flight, now: Nanos) {
        if let Flight::Single { direction: Some(direction), .. }
        | Flight::Merged { direction, .. } = &flight
        {
            self.lanes[*direction as usize].in_flight += 1;
        }
        request.id = RequestId(self.flights.insert(flight) as u64);
        request.stamps.stamp(Stage::Scheduled, now);
        self.stats.dispatched += 1;
        self.submitted = true;
        self.inner.submit(request, now);
    }

    fn send_single(&mut self, request: Request, now: Nanos) {
        let direction = Direction::of(request.op);
        let flight = Flight::Single { id: request.id, direction, sent: now };
        self.send(request, flight, now);
    }

    /// Sends the batch at `index` as one request.
    fn send_batch(&mut self, index: usize, now: Nanos) {
        let mut batch = self.batches.remove(index);
        for part in &mut batch.parts {
            let waited = now.since(part.since);
            self.stats.delay_total = self.stats.delay_total.plus(waited);
            self.stats.delay_max = self.stats.delay_max.max(waited);
            part.request.stamps.stamp(Stage::Scheduled, now);
        }
        if batch.parts.len() == 1 {
            let part = batch.parts.pop().expect("a batch has at least one part");
            return self.send_single(part.request, now);
        }
        self.stats.merged += batch.parts.len() as u64;
        let data = match batch.direction {
            Direction::Read => Bytes::new(),
            Direction::Write => {
                AlignedBuf::concat(batch.parts.iter().map(|part| &part.request.data[..])).freeze()
            }
        };
        let request = Request {
            id: RequestId(0),
            op: batch.direction.op(),
            offset_bytes: batch.start,
            len_bytes: u32::try_from(batch.end - batch.start).expect("at most max_merge_bytes"),
            flags: RequestFlags::default(),
            data,
            stamps: batch.parts[0].request.stamps,
        };
        let direction = batch.direction;
        let flight = Flight::Merged { parts: batch.parts, direction, sent: now };
        self.send(request, flight, now);
    }

    /// Sends the waiting batches that `request` must not overtake.
    fn send_before(&mut self, request: &Request, now: Nanos) {
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
                self.send_batch(index, now);
            } else {
                index += 1;
            }
        }
    }

    /// Whether `request` should wait for neighbours, and how long.
    fn wait(&mut self, request: &Request, direction: Direction) -> Option<Nanos> {
        let lane = &mut self.lanes[direction as usize];
        let sequential = lane.streams.follow(request.offset_bytes, request.end_bytes());
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

    /// Adds a request to the batch it continues, or opens one.
    fn queue(&mut self, request: Request, direction: Direction, due: Nanos, now: Nanos) {
        self.stats.delayed += 1;
        let (start, end) = (request.offset_bytes, request.end_bytes());
        let part = Queued { request, since: now };
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
                    self.send_batch(index, now);
                }
                return;
            }
            self.send_batch(index, now);
        }
        if self.batches.len() == MAX_BATCHES {
            self.send_batch(0, now);
        }
        let parts = vec![part];
        self.batches.push(Batch { direction, start, end, parts, due });
    }

    /// Sends what nothing is gained by holding back any longer.
    fn send_due(&mut self, now: Nanos) {
        let mut index = 0;
        while index < self.batches.len() {
            let batch = &self.batches[index];
            let idle = self.lanes[batch.direction as usize].in_flight < self.options.min_in_flight;
            if idle || batch.due <= now {
                self.send_batch(index, now);
            } else {
                index += 1;
            }
        }
    }

    fn record(&mut self, direction: Direction, sent: Nanos, now: Nanos) {
        let lane = &mut self.lanes[direction as usize];
        lane.in_flight -= 1;
        lane.latency.record(now.since(sent));
    }

    /// Completes the requests that were merged, or sends them again alone after a failure.
    fn split(
        &mut self,
        parts: Vec<Queued>,
        result: Result<Payload, crate::BlockError>,
        stamps: &Stamps,
        now: Nanos,
    ) {
        let mut splitter = match result {
            Err(_) => {
                for part in parts {
                    self.send_single(part.request, now);
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
            self.ready.push(Completion::of(&request, Ok(payload)));
        }
    }

    /// Turns a completion of the inner backend into ours; false if it was a merged one's.
    fn settle(&mut self, completion: &mut Completion, now: Nanos) -> bool {
        let slot = usize::try_from(completion.id.0).unwrap_or(usize::MAX);
        match self.flights.try_remove(slot) {
            Some(Flight::Single { id, direction, sent }) => {
                completion.id = id;
                if let Some(direction) = direction {
                    self.record(direction, sent, now);
                }
                true
            }
            Some(Flight::Merged { parts, direction, sent }) => {
                self.record(direction, sent, now);
                let result = std::mem::replace(&mut completion.result, Ok(Payload::None));
                self.split(parts, result, &completion.stamps, now);
                false
            }
            None => {
                debug_assert!(false, "the inner backend completed a request twice");
                false
            }
        }
    }
}

impl<B: Backend> Backend for Scheduler<B> {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        self.stats.requests += 1;
        if let Err(error) = request.validate(&self.info) {
            return self.ready.push(Completion::of(&request, Err(error)));
        }
        if !self.batches.is_empty() {
            self.send_before(&request, now);
        }
        let direction = match Direction::of(request.op) {
            Some(direction) if self.options.policy != Policy::Off && request.len_bytes > 0 => {
                direction
            }
            _ => return self.send_single(request, now),
        };
        match self.wait(&request, direction) {
            Some(delay) => self.queue(request, direction, now.plus(delay), now),
            None => self.send_single(request, now),
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        loop {
            self.submitted = false;
            let mut at = out.len();
            self.inner.poll(now, out);
            while at < out.len() {
                let mut completion = std::mem::replace(&mut out[at], Completion::placeholder());
                if self.settle(&mut completion, now) {
                    out[at] = completion;
                    at += 1;
                } else {
                    out.swap_remove(at);
                }
            }
            if !self.batches.is_empty() {
                self.send_due(now);
            }
            if !self.submitted {
                break;
            }
        }
        out.append(&mut self.ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        let due = self.batches.iter().map(|batch| batch.due).min();
        crate::earlier(due, self.inner.deadline())
    }
}
