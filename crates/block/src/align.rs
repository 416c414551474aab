//! Makes a backend that wants whole blocks accept any range of bytes.
//!
//! # What happens to an unaligned range
//!
//! - *Read*: widened to whole blocks; the completion's pieces are cut to what was asked for.
//! - *Extents*: widened likewise; the list is clipped.
//! - *Write*: read-modify-write. The edge blocks are read (in one read when they are neighbours or
//!   the same), the write's bytes are laid over them, and the whole is written in one request.
//! - *`WriteZeroes`*: the whole blocks inside are zeroed as such, first, so that a `fast_zero` that
//!   the backend refuses has changed nothing; then the edges are read-modify-written.
//! - *Trim*: shrunk to the whole blocks inside; **the edges keep their content**. A trim is a hint
//!   that the content is not needed, and reading and writing two blocks to honour it at the edges
//!   would cost more than it gives. A client that needs zeroes asks for `WriteZeroes`. What
//!   front-ends promise about trimmed bytes must allow for this.
//!
//! FUA travels with every request that changes data, so the last of them to complete is stable.
//!
//! # Ordering
//!
//! A read-modify-write writes back bytes that its request did not name. Were another write to the
//! same block in flight, those bytes could be the ones from before that write, and a completed
//! write would be lost. So of two requests that overlap in whole blocks, both change data, and at
//! least one of them is a read-modify-write, the later one waits for the earlier. Waiting requests
//! start in their order of arrival, and a request also waits for a waiting one in front of it, so
//! none starves. Two aligned writes are never ordered: the contract does not ask for it. Flushes
//! pass: they cover what has completed, and a waiting write has not.
//!
//! # Cost
//!
//! With one-byte blocks below, requests pass untouched. Otherwise an aligned request costs an entry
//! in the table of requests in flight; overlaps are searched only while a read-modify-write exists.

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use slab::Slab;
use smallvec::SmallVec;

use crate::extents::cut_extents;
use crate::pieces::{cut_pieces, to_bytes};
use crate::{
    Backend, BlockError, Completion, Info, Nanos, Op, Payload, Request, RequestFlags, RequestId,
};

/// Whole blocks, as `start..end` in bytes.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn overlaps(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn len(self) -> u32 {
        u32::try_from(self.end - self.start).expect("checked in submit_unaligned")
    }
}

/// A request to the inner backend and what its completion is for.
struct Flight {
    id: RequestId,
    kind: Kind,
}

enum Kind {
    /// Passed on as it came, and changes nothing.
    Plain,
    /// Passed on aligned, and changes `Span`.
    Change(Span),
    /// A widened read or extent query: drop `skip` bytes, keep `len`.
    Cut { skip: u32, len: u32 },
    /// A step of the read-modify-write `job`.
    Step { job: usize, step: Step },
}

#[derive(Clone, Copy)]
enum Step {
    /// The zeroing of the whole blocks inside.
    Middle,
    /// A read of these edge blocks.
    Edge(Span),
    /// A write of the result.
    Store,
}

/// A read-modify-write.
struct Job {
    request: Request,
    span: Span,
    /// Steps in flight.
    pending: u32,
    /// What the edge reads gave, by offset.
    edges: SmallVec<[(u64, Bytes); 2]>,
    error: Option<BlockError>,
    started: bool,
}

/// What the decorator did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignStats {
    /// Writes that had to read and write back edge blocks.
    pub read_modify_writes: u64,
    /// Changes that waited for an overlapping one.
    pub waited: u64,
}

/// Makes a backend byte-granular; see the module's text.
pub struct Align<B> {
    inner: B,
    info: Info,
    block: u64,
    flights: Slab<Flight>,
    jobs: Slab<Job>,
    /// Requests that wait for an overlapping one: jobs (by slot) and aligned changes.
    waiting: VecDeque<Waiting>,
    ready: Vec<Completion>,
    /// Something was submitted to the inner backend since it was last polled.
    submitted: bool,
    stats: AlignStats,
}

enum Waiting {
    Job(usize),
    Change(Request),
}

impl<B: Backend> Align<B> {
    /// Puts the decorator over `inner`. A device whose size is no multiple of its block loses the
    /// incomplete block at its end.
    #[must_use]
    pub fn new(inner: B) -> Self {
        let mut info = inner.info();
        let block = u64::from(info.block_bytes.max(1));
        debug_assert!(block.is_power_of_two());
        info.size_bytes -= info.size_bytes % block;
        info.block_bytes = 1;
        Align {
            inner,
            info,
            block,
            flights: Slab::new(),
            jobs: Slab::new(),
            waiting: VecDeque::new(),
            ready: Vec::new(),
            submitted: false,
            stats: AlignStats::default(),
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> AlignStats {
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

    fn is_aligned(&self, request: &Request) -> bool {
        (request.offset_bytes | u64::from(request.len_bytes)) & (self.block - 1) == 0
    }

    fn outer_span(&self, request: &Request) -> Span {
        Span {
            start: request.offset_bytes - request.offset_bytes % self.block,
            end: request.end_bytes().next_multiple_of(self.block),
        }
    }

    /// The whole blocks inside the range; empty (`start == end`) if there are none.
    fn inner_span(&self, request: &Request) -> Span {
        let start = request.offset_bytes.next_multiple_of(self.block);
        let end = request.end_bytes() - request.end_bytes() % self.block;
        Span { start, end: end.max(start) }
    }

    fn send(&mut self, mut request: Request, kind: Kind, now: Nanos) {
        let slot = self.flights.insert(Flight { id: request.id, kind });
        request.id = RequestId(slot as u64);
        self.submitted = true;
        self.inner.submit(request, now);
    }

    /// Sends an aligned request, unless it changes data that a read-modify-write is about.
    fn submit_aligned(&mut self, request: Request, now: Nanos) {
        if !request.op.changes_data() {
            return self.send(request, Kind::Plain, now);
        }
        let span = self.outer_span(&request);
        if !self.jobs.is_empty() && self.blocked(span, false, self.waiting.len()) {
            self.stats.waited += 1;
            return self.waiting.push_back(Waiting::Change(request));
        }
        self.send(request, Kind::Change(span), now);
    }

    /// True when a change of `span` must wait: for a change in flight, a started job, or one of the
    /// first `ahead` waiting requests. Two plain changes never wait for each other.
    fn blocked(&self, span: Span, is_job: bool, ahead: usize) -> bool {
        let by_job = self.jobs.iter().any(|(_, other)| other.started && other.span.overlaps(span));
        let by_change = || {
            is_job
                && self.flights.iter().any(
                    |(_, flight)| matches!(flight.kind, Kind::Change(other) if other.overlaps(span)),
                )
        };
        let by_waiting = || {
            self.waiting.iter().take(ahead).any(|waiting| match waiting {
                Waiting::Job(job) => self.jobs[*job].span.overlaps(span),
                Waiting::Change(other) => is_job && self.outer_span(other).overlaps(span),
            })
        };
        by_job || by_change() || by_waiting()
    }

    /// Starts the waiting requests that nothing blocks any more, in order.
    fn start_waiting(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.waiting.len() {
            let (span, is_job) = match &self.waiting[at] {
                Waiting::Job(job) => (self.jobs[*job].span, true),
                Waiting::Change(request) => (self.outer_span(request), false),
            };
            if self.blocked(span, is_job, at) {
                at += 1;
                continue;
            }
            match self.waiting.remove(at).expect("`at` is inside") {
                Waiting::Job(job) => self.start_job(job, now),
                Waiting::Change(request) => self.send(request, Kind::Change(span), now),
            }
        }
    }

    fn submit_unaligned(&mut self, mut request: Request, now: Nanos) {
        let outer = self.outer_span(&request);
        let too_long = outer.end - outer.start > u64::from(u32::MAX);
        match request.op {
            Op::Flush => self.send(request, Kind::Plain, now),
            Op::Read | Op::Write | Op::Extents if too_long => {
                let error = BlockError::NotSupported("an unaligned request of almost 4 GiB");
                self.ready.push(Completion::of(&request, Err(error)));
            }
            Op::Read | Op::Extents => {
                let skip = u32::try_from(request.offset_bytes - outer.start).expect("in a block");
                let kind = Kind::Cut { skip, len: request.len_bytes };
                request.offset_bytes = outer.start;
                request.len_bytes = outer.len();
                self.send(request, kind, now);
            }
            Op::Trim => {
                let span = self.inner_span(&request);
                if span.start == span.end {
                    return self.ready.push(Completion::of(&request, Ok(Payload::None)));
                }
                request.offset_bytes = span.start;
                request.len_bytes = span.len();
                self.submit_aligned(request, now);
            }
            Op::Write | Op::WriteZeroes => {
                let blocked = self.blocked(outer, true, self.waiting.len());
                let job = self.jobs.insert(Job {
                    request,
                    span: outer,
                    pending: 0,
                    edges: SmallVec::new(),
                    error: None,
                    started: false,
                });
                self.stats.read_modify_writes += 1;
                if blocked {
                    self.stats.waited += 1;
                    self.waiting.push_back(Waiting::Job(job));
                } else {
                    self.start_job(job, now);
                }
            }
        }
    }

    fn start_job(&mut self, job: usize, now: Nanos) {
        self.jobs[job].started = true;
        let middle = self.inner_span(&self.jobs[job].request);
        if self.jobs[job].request.op == Op::WriteZeroes && middle.start < middle.end {
            self.step(job, Step::Middle, Op::WriteZeroes, middle, Bytes::new(), now);
        } else {
            self.read_edges(job, now);
        }
    }

    /// Sends one step of a job.
    fn step(&mut self, job: usize, step: Step, op: Op, span: Span, data: Bytes, now: Nanos) {
        let owner = &mut self.jobs[job];
        owner.pending += 1;
        let flags = match op {
            Op::Read => RequestFlags::default(),
            Op::Write => RequestFlags { fua: owner.request.flags.fua, ..RequestFlags::default() },
            _ => owner.request.flags,
        };
        let request = Request {
            id: owner.request.id,
            op,
            offset_bytes: span.start,
            len_bytes: span.len(),
            flags,
            data,
            stamps: owner.request.stamps,
        };
        self.send(request, Kind::Step { job, step }, now);
    }

    /// The edge blocks of a range: those it covers in part. Neighbours come as one span.
    fn edge_spans(&self, request: &Request) -> SmallVec<[Span; 2]> {
        let (outer, middle) = (self.outer_span(request), self.inner_span(request));
        let mut spans = SmallVec::new();
        if middle.start >= middle.end {
            spans.push(outer);
            return spans;
        }
        if outer.start < middle.start {
            spans.push(Span { start: outer.start, end: middle.start });
        }
        if middle.end < outer.end {
            spans.push(Span { start: middle.end, end: outer.end });
        }
        spans
    }

    fn read_edges(&mut self, job: usize, now: Nanos) {
        for span in self.edge_spans(&self.jobs[job].request) {
            self.step(job, Step::Edge(span), Op::Read, span, Bytes::new(), now);
        }
    }

    /// Lays the job's bytes over what its edge blocks held and writes the result.
    fn store(&mut self, job: usize, now: Nanos) {
        let owner = &mut self.jobs[job];
        let mut edges = std::mem::take(&mut owner.edges);
        edges.sort_unstable_by_key(|(offset, _)| *offset);
        let (start, end) = (owner.request.offset_bytes, owner.request.end_bytes());
        if owner.request.op == Op::Write {
            let (span, data) = (owner.span, owner.request.data.clone());
            let head_len = usize::try_from(start - span.start).expect("inside a block");
            let tail_len = usize::try_from(span.end - end).expect("inside a block");
            let head = edges.first().map_or(&[][..], |(_, held)| &held[..head_len]);
            let tail = edges.last().map_or(&[][..], |(_, held)| &held[held.len() - tail_len..]);
            let whole = AlignedBuf::concat([head, &data[..], tail]).freeze();
            return self.step(job, Step::Store, Op::Write, span, whole, now);
        }
        for (offset, held) in edges {
            let span = Span { start: offset, end: offset + held.len() as u64 };
            let mut block = AlignedBuf::copy_from(&held);
            let from = usize::try_from(start.max(span.start) - offset).expect("inside the edge");
            let to = usize::try_from(end.min(span.end) - offset).expect("inside the edge");
            block[from..to].fill(0);
            self.step(job, Step::Store, Op::Write, span, block.freeze(), now);
        }
    }

    /// Takes in the completion of one step and does the next when it was the last of its kind.
    fn step_done(&mut self, job: usize, step: Step, completion: &mut Completion, now: Nanos) {
        let owner = &mut self.jobs[job];
        owner.pending -= 1;
        owner.request.stamps.adopt_backend(&completion.stamps);
        let outcome = match (std::mem::replace(&mut completion.result, Ok(Payload::None)), step) {
            (Err(error), _) => Err(error),
            (Ok(Payload::Data(pieces)), Step::Edge(span)) => match to_bytes(&pieces) {
                held if held.len() as u64 == u64::from(span.len()) => {
                    owner.edges.push((span.start, held));
                    Ok(())
                }
                _ => Err(BlockError::Io("a read gave fewer bytes than it was asked for".into())),
            },
            (Ok(_), _) => Ok(()),
        };
        if let Err(error) = outcome {
            owner.error.get_or_insert(error);
        }
        if owner.pending > 0 {
            return;
        }
        match step {
            Step::Middle if owner.error.is_none() => self.read_edges(job, now),
            Step::Edge(_) if owner.error.is_none() => self.store(job, now),
            _ => {
                let job = self.jobs.remove(job);
                let result = job.error.map_or(Ok(Payload::None), Err);
                self.ready.push(Completion::of(&job.request, result));
                self.start_waiting(now);
            }
        }
    }

    /// Turns a completion of the inner backend into one of ours; false if it was a step's.
    fn settle(&mut self, completion: &mut Completion, now: Nanos) -> bool {
        let slot = usize::try_from(completion.id.0).unwrap_or(usize::MAX);
        let Some(flight) = self.flights.try_remove(slot) else {
            debug_assert!(false, "the inner backend completed a request twice");
            return false;
        };
        completion.id = flight.id;
        match flight.kind {
            Kind::Plain => true,
            Kind::Change(_) => {
                if !self.waiting.is_empty() {
                    self.start_waiting(now);
                }
                true
            }
            Kind::Cut { skip, len } => {
                match &mut completion.result {
                    Ok(Payload::Data(pieces)) => cut_pieces(pieces, skip, len),
                    Ok(Payload::Extents(extents)) => {
                        *extents = cut_extents(extents, u64::from(skip), u64::from(len));
                    }
                    Ok(Payload::None) | Err(_) => {}
                }
                true
            }
            Kind::Step { job, step } => {
                self.step_done(job, step, completion, now);
                false
            }
        }
    }
}

impl<B: Backend> Backend for Align<B> {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        if self.block == 1 {
            return self.inner.submit(request, now);
        }
        if let Err(error) = request.validate(&self.info) {
            return self.ready.push(Completion::of(&request, Err(error)));
        }
        if request.op == Op::Flush {
            self.send(request, Kind::Plain, now);
        } else if request.len_bytes == 0 {
            let payload = request.empty_payload();
            self.ready.push(Completion::of(&request, Ok(payload)));
        } else if self.is_aligned(&request) {
            self.submit_aligned(request, now);
        } else {
            self.submit_unaligned(request, now);
        }
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        if self.block == 1 {
            return self.inner.poll(now, out);
        }
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
            // A step may be complete already, and no later call would collect its completion.
            if !self.submitted {
                break;
            }
        }
        out.append(&mut self.ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }
}
