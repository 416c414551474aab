//! A write cache: a write is answered when its bytes are in memory, and the store gets them later.
//!
//! The cache is what a disk's volatile cache is. A flush makes everything stable that was answered
//! before it came, a write with FUA is stable when it is answered, and if the process dies, writes
//! that no flush has covered may be lost. Clients that do not send flushes must not have it.
//!
//! ```text
//!   policy    a write is answered       its bytes go to the store          a read of these bytes
//!   through   when the store has it     at once                            asks the store
//!   around    when it is in memory      at once                            until then, from memory
//!   back      when it is in memory      later, merged with neighbours      until then, from memory
//! ```
//!
//! `back` writes out what is older than [`WriteCacheOptions::max_age`], the oldest bytes while more
//! than [`WriteCacheOptions::target_dirty_bytes`] are idle, and everything that a flush asks for.
//! Neighbours leave as one request. Bytes that are overwritten meanwhile never leave. Under all
//! policies at most [`WriteCacheOptions::max_dirty_bytes`] are in memory; writes beyond that wait.
//! The bytes are copied, since a front-end may use its buffer again when a write is answered.
//!
//! With [`WriteCacheOptions::until_flush`] all writes go through until the first flush has come: so
//! a client that never sends flushes loses nothing.
//!
//! # What goes through
//!
//! Writes with FUA, trims, zeroings, and writes longer than the cache go to the store at once.
//! Where they overlap dirty bytes, the older bytes stay here and do not go out meanwhile. If the
//! store has done the change, the older bytes are dropped; if not, they are still here, and go out
//! later. A store may carry out two requests in any order. So a change waits for the requests on
//! their way that it overlaps, and newer bytes wait here until the change has ended.
//!
//! # Order
//!
//! For each byte, at most one request of the cache is on its way. The newest write is in memory
//! and answers reads until the store has it. A read that finds some of its bytes here sends itself
//! to the store, and lays the bytes over the answer that were here when it came. That is right,
//! because the store has all the others.
//!
//! # Failure
//!
//! If the store refuses bytes, they stay here, reads still find them, and the cache tries again
//! after [`RETRY_PAUSE`] and at the next flush. A flush that waits for such bytes fails. It
//! succeeds only when the store has them: nothing is lost in silence. Until the store has taken all
//! that it has refused, writes go through, so their clients see the error, and the cache does not
//! fill. A try that is under way does not change this: it may be refused too.
//!
//! # A store that others use
//!
//! If the store says that others may use its data ([`Backend::shared`](crate::Backend::shared)),
//! the cache writes everything out, and writes go through until the store is this client's alone
//! again.
//!
//! # Place in the list
//!
//! The layer stands below `align`, so that trims arrive as the store will do them, and above all
//! layers that stand for the store.

mod dirty;
mod options;
mod overlay;

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use slab::Slab;
use smallvec::SmallVec;

use super::flights::Flights;
use crate::layer::{Counter, Flow, Layer, Unwritten};
use crate::settings::{SettingError, Settings};
use crate::{
    BlockError, Completion, Info, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request,
    RequestFlags, RequestId, Stage, Stamps,
};
use dirty::{Dirty, Run};
pub use options::{WriteCacheOptions, WriteCacheStats, WritePolicy};
use overlay::{lay_over, with_data};

/// Requests of the cache's own that are on their way to the store.
const OUTS_MAX: usize = 128;
/// The most extents, so that tiny writes do not take more memory than their bytes suggest.
const EXTENTS_MAX: usize = 1 << 16;
/// When bytes that the store has refused are tried again.
const RETRY_PAUSE: Nanos = Nanos::from_ms(1000);

/// A change that goes through.
struct Through {
    range: Range<u64>,
    seq: u64,
}

/// A read from `offset` on, and the bytes to lay over its answer.
struct OverlaidRead {
    offset: u64,
    over: SmallVec<[(u64, Bytes); 2]>,
}

/// A list of extents from `offset` on, and the ranges that hold data in any case.
struct OverlaidList {
    offset: u64,
    data: SmallVec<[Range<u64>; 2]>,
}

/// A change that waits for the requests on their way.
struct Held {
    request: Request,
    seq: u64,
}

/// A flush that waits until the store has what was written before the write `before`.
struct FlushWait {
    request: Request,
    before: u64,
}

/// Answers writes from memory; see the module's text.
pub struct WriteCache {
    options: WriteCacheOptions,
    dirty: Dirty,
    /// The first bytes of the layer's own writes that are on their way.
    outs: Slab<u64>,
    through: Flights<Through>,
    reads: Flights<OverlaidRead>,
    lists: Flights<OverlaidList>,
    held: Vec<Held>,
    /// Writes that wait for room.
    waiting: VecDeque<Request>,
    flushes: VecDeque<FlushWait>,
    next_seq: u64,
    /// A flush has come.
    flushed: bool,
    /// Why others may use the store's data.
    shared: Option<&'static str>,
    draining: bool,
    /// Why the store has refused bytes that are still here.
    failure: Option<BlockError>,
    /// When there is next something to write out.
    write_out_at: Option<Nanos>,
    size_bytes: u64,
    stats: WriteCacheStats,
}

fn range_of(request: &Request) -> Range<u64> {
    request.offset_bytes..request.end_bytes()
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl WriteCache {
    /// An empty cache.
    #[must_use]
    pub fn new(options: WriteCacheOptions) -> Self {
        WriteCache {
            options,
            dirty: Dirty::default(),
            outs: Slab::new(),
            through: Flights::default(),
            reads: Flights::default(),
            lists: Flights::default(),
            held: Vec::new(),
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            next_seq: 1,
            flushed: false,
            shared: None,
            draining: false,
            failure: None,
            write_out_at: None,
            size_bytes: 0,
            stats: WriteCacheStats::default(),
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> WriteCacheStats {
        WriteCacheStats {
            dirty_bytes: self.dirty.idle_bytes(),
            out_bytes: self.dirty.out_bytes(),
            ..self.stats
        }
    }

    /// The cache keeps no new bytes, and writes out those that it has.
    fn empties(&self) -> bool {
        self.shared.is_some() || self.draining || self.options.policy == WritePolicy::Through
    }

    /// True if a write may be answered from memory.
    fn may_keep(&self, request: &Request) -> bool {
        !request.flags.fua
            && !self.empties()
            && self.failure.is_none()
            && (self.flushed || !self.options.until_flush)
            && u64::from(request.len_bytes) <= self.options.max_dirty_bytes
    }

    fn has_room(&self, len_bytes: u32) -> bool {
        let used = self.dirty.idle_bytes() + self.dirty.out_bytes();
        let fits = used + u64::from(len_bytes) <= self.options.max_dirty_bytes;
        (fits || used == 0) && self.dirty.len() < EXTENTS_MAX
    }

    /// More than enough is idle.
    fn has_excess(&self) -> bool {
        let target = match self.options.policy {
            WritePolicy::Back => self.options.target_dirty_bytes,
            WritePolicy::Around | WritePolicy::Through => 0,
        };
        self.dirty.idle_bytes() > target
            || self.dirty.len() > EXTENTS_MAX / 2
            // Writes wait, and nothing is on its way that would make room.
            || !self.waiting.is_empty() && self.dirty.outs() == 0
    }

    /// Has [`WriteCache::write_out`] run at `at` or earlier.
    fn write_out_by(&mut self, at: Nanos) {
        self.write_out_at = Some(self.write_out_at.map_or(at, |other| other.min(at)));
    }

    fn next_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// Keeps the bytes of a write, and answers it.
    fn keep(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        let (now, seq) = (flow.now(), self.next_seq());
        self.stats.kept += 1;
        self.stats.kept_bytes += u64::from(request.len_bytes);
        let data = dirty::copy(&request.data);
        self.stats.overwritten_bytes += self.dirty.insert(request.offset_bytes, data, seq, now);
        let wait = if self.has_excess() { Nanos(0) } else { self.options.max_age };
        self.write_out_by(now.plus(wait));
        // Memory answered, so the store's stages took no time.
        for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
            request.stamps.stamp(stage, now);
        }
        flow.answer(Completion::of(&request, Ok(Payload::None)));
    }

    fn write(&mut self, request: Request, flow: &mut Flow<'_>) {
        if !self.may_keep(&request) {
            return self.change(request, flow);
        }
        if self.waiting.is_empty() && self.has_room(request.len_bytes) {
            return self.keep(request, flow);
        }
        self.stats.waited += 1;
        self.waiting.push_back(request);
        self.write_out_by(flow.now());
    }

    /// Sends a change through, or holds it until it may go.
    fn change(&mut self, request: Request, flow: &mut Flow<'_>) {
        self.stats.through += 1;
        let range = range_of(&request);
        let seq = self.next_seq();
        if self.dirty.is_out(&range) {
            self.held.push(Held { request, seq });
        } else {
            self.send_through(request, seq, flow);
        }
    }

    fn send_through(&mut self, request: Request, seq: u64, flow: &mut Flow<'_>) {
        self.through.insert(request.id, Through { range: range_of(&request), seq });
        flow.pass(request);
    }

    fn read(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        let range = range_of(&request);
        let over = self.dirty.bytes_of(&range);
        if over.is_empty() {
            return flow.pass(request);
        }
        let here: usize = over.iter().map(|(_, data)| data.len()).sum();
        if here == request.len_bytes as usize {
            self.stats.read_hits += 1;
            for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
                request.stamps.stamp(stage, flow.now());
            }
            let pieces = over.into_iter().map(|(_, data)| Piece::Data(data)).collect();
            return flow.answer(Completion::of(&request, Ok(Payload::Data(pieces))));
        }
        self.stats.read_overlays += 1;
        request.destination.clear();
        self.reads.insert(request.id, OverlaidRead { offset: range.start, over });
        flow.pass(request);
    }

    fn list(&mut self, request: Request, flow: &mut Flow<'_>) {
        let range = range_of(&request);
        let here = self.dirty.bytes_of(&range).into_iter();
        let data: SmallVec<_> = here.map(|(at, data)| at..at + data.len() as u64).collect();
        if data.is_empty() {
            return flow.pass(request);
        }
        self.lists.insert(request.id, OverlaidList { offset: range.start, data });
        flow.pass(request);
    }

    fn flush(&mut self, request: Request, flow: &mut Flow<'_>) {
        self.flushed = true;
        if self.dirty.is_clean() {
            return flow.pass(request);
        }
        self.dirty.retry();
        self.flushes.push_back(FlushWait { request, before: self.next_seq });
        self.write_out_by(flow.now());
    }

    /// Sends out what is due.
    fn write_out(&mut self, flow: &mut Flow<'_>) {
        self.write_out_at = None;
        // They waited for room, and may no longer be kept.
        while self.waiting.front().is_some_and(|request| !self.may_keep(request)) {
            let request = self.waiting.pop_front().expect("the front was checked");
            self.change(request, flow);
        }
        let now = flow.now();
        let asked_before = match self.empties() {
            true => u64::MAX,
            false => self.flushes.back().map_or(0, |flush| flush.before),
        };
        let mut place = (0, 0);
        while self.dirty.outs() < OUTS_MAX {
            let Some(next) = self.dirty.next(place) else { break };
            place = (next.first, next.start + 1);
            let due_at = next.since.plus(self.options.max_age);
            if next.first >= asked_before && !self.has_excess() && due_at > now {
                // All others are younger.
                self.write_out_by(due_at);
                break;
            }
            if next.not_before > now {
                self.write_out_by(next.not_before);
                continue;
            }
            self.send_out(next.start, flow);
        }
    }

    /// Sends the extent at `start` out with its neighbours, unless something is in its way.
    fn send_out(&mut self, start: u64, flow: &mut Flow<'_>) {
        let longest = self.options.max_merge_bytes;
        let window = start - start % longest..(start - start % longest).saturating_add(longest);
        let (through, held) = (&self.through, &self.held);
        let may_go = |range: &Range<u64>| {
            !through.values().any(|other| overlap(range, &other.range))
                && !held.iter().any(|held| overlap(range, &range_of(&held.request)))
        };
        let slot = self.outs.vacant_key();
        let Some(run) = self.dirty.send(start, &window, slot, flow.now(), may_go) else { return };
        let Run { start, data } = run;
        self.stats.write_outs += 1;
        self.stats.write_out_bytes += data.len() as u64;
        self.outs.insert(start);
        let request = Request {
            id: RequestId(0),
            op: Op::Write,
            offset_bytes: start,
            len_bytes: u32::try_from(data.len()).expect("at most 32 MiB, or one write's"),
            flags: RequestFlags::default(),
            data,
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        flow.pass_own(slot, request);
    }

    /// The request with the bytes at `start` has ended.
    fn out_done(
        &mut self,
        slot: usize,
        start: u64,
        result: Result<Payload, BlockError>,
        flow: &mut Flow<'_>,
    ) {
        match result {
            Ok(_) => {
                self.dirty.done(start, slot);
                if self.dirty.refused_extents() == 0 && self.failure.take().is_some() {
                    flow.report("the store has taken all bytes that it had refused".to_owned());
                }
            }
            Err(error) => {
                self.stats.failed += 1;
                let first = self.dirty.refused(start, slot, flow.now().plus(RETRY_PAUSE));
                for flush in std::mem::take(&mut self.flushes) {
                    match flush.before > first {
                        true => flow.answer(Completion::of(&flush.request, Err(error.clone()))),
                        false => self.flushes.push_back(flush),
                    }
                }
                self.note_failure(error, flow);
            }
        }
        self.go_on(flow);
    }

    fn note_failure(&mut self, error: BlockError, flow: &mut Flow<'_>) {
        // The refused bytes may all have been replaced meanwhile.
        if self.dirty.refused_extents() == 0 {
            return;
        }
        if self.failure.is_none() {
            flow.report(format!(
                "the store refuses bytes of writes that were answered already; they stay in \
                 memory, and are tried again every {} ms: {error}",
                RETRY_PAUSE.0 / 1_000_000
            ));
        }
        self.failure = Some(error);
    }

    /// A request has ended: others may go now.
    fn go_on(&mut self, flow: &mut Flow<'_>) {
        let mut at = 0;
        while at < self.held.len() {
            if self.dirty.is_out(&range_of(&self.held[at].request)) {
                at += 1;
            } else {
                let held = self.held.remove(at);
                self.send_through(held.request, held.seq, flow);
            }
        }
        if self.dirty.refused_extents() == 0 {
            self.failure = None;
        }
        while let Some(request) = self.waiting.front()
            && self.may_keep(request)
            && self.has_room(request.len_bytes)
        {
            let request = self.waiting.pop_front().expect("the front was checked");
            self.keep(request, flow);
        }
        if !self.flushes.is_empty() {
            let oldest = self.dirty.oldest();
            while self.flushes.front().is_some_and(|flush| flush.before <= oldest) {
                let flush = self.flushes.pop_front().expect("the front was checked");
                flow.pass(flush.request);
            }
        }
        if self.dirty.idle_bytes() > 0 || !self.waiting.is_empty() {
            self.write_out_by(flow.now());
        }
    }
}

impl Layer for WriteCache {
    fn name(&self) -> &'static str {
        "write-cache"
    }

    fn info(&mut self, below: Info) -> Info {
        if below.size_bytes < self.size_bytes {
            // What was behind the new end is gone.
            self.dirty.drop_older(&(below.size_bytes..self.size_bytes), u64::MAX);
        }
        self.size_bytes = below.size_bytes;
        below
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        match request.op {
            Op::Flush => self.flush(request, flow),
            _ if request.len_bytes == 0 => flow.pass(request),
            Op::Write => self.write(request, flow),
            Op::Trim | Op::WriteZeroes => self.change(request, flow),
            _ if self.dirty.is_clean() => flow.pass(request),
            Op::Read => self.read(request, flow),
            Op::Extents => self.list(request, flow),
        }
    }

    fn complete(&mut self, mut completion: Completion, flow: &mut Flow<'_>) {
        let id = completion.id;
        match completion.op {
            Op::Write | Op::Trim | Op::WriteZeroes => {
                let through = self.through.remove(id);
                if let Some(Through { range, seq }) = &through
                    && completion.result.is_ok()
                {
                    let (_, _, dropped) = self.dirty.drop_older(range, *seq);
                    self.stats.overwritten_bytes += dropped;
                }
                flow.answer(completion);
                if through.is_some() {
                    self.go_on(flow);
                }
                return;
            }
            Op::Read => {
                if let Some(OverlaidRead { offset, over }) = self.reads.remove(id)
                    && let Ok(Payload::Data(pieces)) = &mut completion.result
                {
                    *pieces = lay_over(std::mem::take(pieces), offset, over);
                }
            }
            Op::Extents => {
                if let Some(OverlaidList { offset, data }) = self.lists.remove(id)
                    && let Ok(Payload::Extents(extents)) = &mut completion.result
                {
                    *extents = with_data(extents, offset, &data);
                }
            }
            Op::Flush => {}
        }
        flow.answer(completion);
    }

    fn complete_own(&mut self, index: usize, completion: Completion, flow: &mut Flow<'_>) {
        let start = self.outs.remove(index);
        self.out_done(index, start, completion.result, flow);
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        if self.write_out_at.is_some_and(|at| at <= flow.now()) {
            self.write_out(flow);
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        self.write_out_at
    }

    fn drain(&mut self) {
        self.draining = true;
        self.dirty.retry();
        self.write_out_by(Nanos(0));
    }

    fn share(&mut self, why: Option<&'static str>) {
        self.shared = why;
        self.dirty.retry();
        self.write_out_by(Nanos(0));
    }

    fn keeps_data(&self) -> bool {
        self.options.policy != WritePolicy::Through
    }

    fn unwritten(&self) -> Option<Unwritten> {
        // A change that goes through has no answer yet.
        if self.dirty.is_clean() && self.waiting.is_empty() {
            return None;
        }
        let bytes = self.dirty.idle_bytes() + self.dirty.out_bytes();
        let is_stuck = self.dirty.outs() == 0 && self.through.is_empty() && self.held.is_empty();
        Some(Unwritten { bytes, failure: self.failure.clone().filter(|_| is_stuck) })
    }

    fn waits_for(&self) -> Option<String> {
        if !self.waiting.is_empty() {
            return Some("room in the write cache".to_owned());
        }
        let unwritten = self.unwritten().filter(|_| self.empties())?;
        Some(format!("{} bytes of the write cache that the store does not have", unwritten.bytes))
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        self.options.list()
    }

    fn counters(&self) -> Vec<Counter> {
        self.stats().list()
    }

    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut options = self.options;
        options.set(settings)?;
        self.options = options;
        self.write_out_by(Nanos(0));
        Ok(())
    }
}
