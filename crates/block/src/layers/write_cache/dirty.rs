//! The bytes that the store does not have yet: extents, and which of them are on their way.
//!
//! Extents do not overlap. Each is the rest of one write: later writes and zeroings have cut it. An
//! extent is *idle*, or *out*: a request with its bytes is on its way to the store. An extent that
//! is out can be cut as well, but the request on its way still carries the old bytes. So the table
//! of requests on their way is apart from the extents, and no extent goes out over a range where a
//! request is on its way.
//!
//! Two numbers order extents. [`Extent::seq`] is the number of the write that the bytes are from.
//! [`Extent::first`] is the number of the oldest write that this extent stands for: if a write
//! replaces bytes that were idle, then a flush that has to make the older bytes stable has to wait
//! for the newer ones.
//!
//! **Memory.** A cut leaves parts of a buffer. A part that is less than half of its buffer is
//! copied, so buffers hold at most twice the bytes of the extents.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use smallvec::SmallVec;

use crate::Nanos;

/// Shorter copies need no alignment: a store that wants it deals in whole blocks of this size.
const ALIGNED_BYTES_MIN: usize = 4096;

/// A copy of bytes, in memory that a disk may read from.
pub(super) fn copy(bytes: &[u8]) -> Bytes {
    if bytes.len() < ALIGNED_BYTES_MIN {
        return Bytes::copy_from_slice(bytes);
    }
    AlignedBuf::copy_from(bytes).freeze()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The store has refused the bytes. They are tried again at this time.
    Failed(Nanos),
    /// A request on its way has the bytes; its slot.
    Out(usize),
}

/// Bytes that the store does not have.
struct Extent {
    data: Bytes,
    /// Bytes of the buffer that `data` keeps in memory.
    buffer_bytes: usize,
    seq: u64,
    first: u64,
    /// When the oldest of the bytes that it stands for came.
    since: Nanos,
    state: State,
    /// The store has refused the bytes, and has not taken them since; also while they are out
    /// again.
    refused: bool,
}

impl Extent {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }

    fn part(&self, range: Range<u64>) -> Self {
        let data = self.data.slice(range.start as usize..range.end as usize);
        let (data, buffer_bytes) = match data.len() * 2 < self.buffer_bytes {
            true => (copy(&data), data.len()),
            false => (data, self.buffer_bytes),
        };
        Self { data, buffer_bytes, ..*self }
    }
}

/// A request on its way to the store.
struct Out {
    end: u64,
    first: u64,
}

/// Neighbouring extents that leave as one request.
pub(super) struct Run {
    /// First byte.
    pub(super) start: u64,
    /// The bytes.
    pub(super) data: Bytes,
}

/// What [`Dirty::next`] finds.
pub(super) struct Next {
    /// The extent's first byte.
    pub(super) start: u64,
    /// See the module's text.
    pub(super) first: u64,
    /// When the oldest of its bytes came.
    pub(super) since: Nanos,
    /// It is not to be tried before this time.
    pub(super) not_before: Nanos,
}

/// The bytes that the store does not have yet.
#[derive(Default)]
pub(super) struct Dirty {
    extents: BTreeMap<u64, Extent>,
    /// The idle and failed extents: (`first`, start).
    by_first: BTreeSet<(u64, u64)>,
    outs: BTreeMap<u64, Out>,
    idle_bytes: u64,
    out_bytes: u64,
    refused: usize,
}

fn range_of(start: u64, extent: &Extent) -> Range<u64> {
    start..start + extent.len()
}

impl Dirty {
    /// True if the store has everything.
    pub(super) fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.outs.is_empty()
    }

    /// Bytes that are idle.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    /// Bytes of the requests on their way.
    pub(super) fn out_bytes(&self) -> u64 {
        self.out_bytes
    }

    /// Number of extents.
    pub(super) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Number of requests on their way.
    pub(super) fn outs(&self) -> usize {
        self.outs.len()
    }

    /// Extents that the store has refused, and has not taken since. A try that is under way does
    /// not change this.
    pub(super) fn refused_extents(&self) -> usize {
        self.refused
    }

    /// The number of the oldest write that an extent or a request on its way stands for.
    pub(super) fn oldest(&self) -> u64 {
        let idle = self.by_first.first().map_or(u64::MAX, |&(first, _)| first);
        self.outs.values().map(|out| out.first).fold(idle, u64::min)
    }

    fn link(&mut self, start: u64, extent: Extent) {
        self.refused += usize::from(extent.refused);
        match extent.state {
            State::Out(_) => {}
            State::Idle | State::Failed(_) => {
                self.by_first.insert((extent.first, start));
                self.idle_bytes += extent.len();
            }
        }
        self.extents.insert(start, extent);
    }

    fn unlink(&mut self, start: u64) -> Extent {
        let extent = self.extents.remove(&start).expect("the caller has seen it");
        self.refused -= usize::from(extent.refused);
        match extent.state {
            State::Out(_) => {}
            State::Idle | State::Failed(_) => {
                self.by_first.remove(&(extent.first, start));
                self.idle_bytes -= extent.len();
            }
        }
        extent
    }

    /// The extents that overlap a range, in order.
    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Extent)> {
        let begun = self.extents.range(..range.start).next_back();
        let begun = begun.filter(|(start, extent)| range_of(**start, extent).end > range.start);
        let rest = self.extents.range(range.clone());
        begun.into_iter().chain(rest).map(|(start, extent)| (*start, extent))
    }

    /// True if a request on its way overlaps the range.
    pub(super) fn is_out(&self, range: &Range<u64>) -> bool {
        let last = self.outs.range(..range.end).next_back();
        last.is_some_and(|(_, out)| out.end > range.start)
    }

    /// The bytes of the range that are here, as (offset, bytes), in order.
    pub(super) fn bytes_of(&self, range: &Range<u64>) -> SmallVec<[(u64, Bytes); 2]> {
        let parts = self.within(range).map(|(start, extent)| {
            let from = range.start.max(start);
            let to = range.end.min(start + extent.len());
            (from, extent.data.slice((from - start) as usize..(to - start) as usize))
        });
        parts.collect()
    }

    /// Drops the bytes of a range that are from writes before `seq`. Gives the number and time of
    /// the oldest write that the dropped idle extents stood for, and the dropped idle bytes.
    pub(super) fn drop_older(&mut self, range: &Range<u64>, seq: u64) -> (u64, Nanos, u64) {
        let hit = self.within(range).filter(|(_, extent)| extent.seq < seq);
        let hit: SmallVec<[u64; 8]> = hit.map(|(start, _)| start).collect();
        let (mut first, mut since, mut bytes) = (u64::MAX, Nanos(u64::MAX), 0);
        for start in hit {
            let extent = self.unlink(start);
            let end = start + extent.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if !matches!(extent.state, State::Out(_)) {
                first = first.min(extent.first);
                since = since.min(extent.since);
                bytes += to - from;
            }
            if start < from {
                self.link(start, extent.part(0..from - start));
            }
            if to < end {
                self.link(to, extent.part(to - start..end - start));
            }
        }
        (first, since, bytes)
    }

    /// Keeps the bytes of the write `seq`, which replace older ones. Gives the number of replaced
    /// bytes that were idle: the store will never get them.
    pub(super) fn insert(&mut self, start: u64, data: Bytes, seq: u64, now: Nanos) -> u64 {
        let range = start..start + data.len() as u64;
        let (first, since, replaced) = self.drop_older(&range, seq);
        let (first, since) = (first.min(seq), since.min(now));
        let (buffer_bytes, state, refused) = (data.len(), State::Idle, false);
        self.link(start, Extent { data, buffer_bytes, seq, first, since, state, refused });
        replaced
    }

    /// The idle extent that comes at or behind this place in the order of age.
    pub(super) fn next(&self, from: (u64, u64)) -> Option<Next> {
        let &(first, start) = self.by_first.range(from..).next()?;
        let extent = &self.extents[&start];
        let not_before = match extent.state {
            State::Failed(not_before) => not_before,
            State::Idle | State::Out(_) => Nanos(0),
        };
        Some(Next { start, first, since: extent.since, not_before })
    }

    /// Extents that the store has refused are tried at once.
    pub(super) fn retry(&mut self) {
        if self.refused == 0 {
            return;
        }
        for extent in self.extents.values_mut() {
            if matches!(extent.state, State::Failed(_)) {
                extent.state = State::Failed(Nanos(0));
            }
        }
    }

    /// Sends the idle extent at `start` out, as part of the request `slot`, together with
    /// neighbours of the same `window`. `may_go` says whether a range may go out. `None` if the
    /// extent may not go out now.
    pub(super) fn send(
        &mut self,
        start: u64,
        window: &Range<u64>,
        slot: usize,
        now: Nanos,
        may_go: impl Fn(&Range<u64>) -> bool,
    ) -> Option<Run> {
        let is_ready = |start: u64, extent: &Extent| {
            let due = match extent.state {
                State::Idle => true,
                State::Failed(not_before) => not_before <= now,
                State::Out(_) => false,
            };
            let range = range_of(start, extent);
            due && !self.is_out(&range) && may_go(&range)
        };
        if !is_ready(start, self.extents.get(&start)?) {
            return None;
        }
        let mut range = range_of(start, &self.extents[&start]);
        for (&before, extent) in self.extents.range(window.start..start).rev() {
            if before + extent.len() != range.start || !is_ready(before, extent) {
                break;
            }
            range.start = before;
        }
        for (&behind, extent) in self.extents.range(range.end..window.end.max(range.end)) {
            let end = behind + extent.len();
            if behind != range.end || end > window.end || !is_ready(behind, extent) {
                break;
            }
            range.end = end;
        }
        Some(self.take_out(&range, slot))
    }

    fn take_out(&mut self, range: &Range<u64>, slot: usize) -> Run {
        let starts: SmallVec<[u64; 8]> =
            self.extents.range(range.clone()).map(|(start, _)| *start).collect();
        let mut first = u64::MAX;
        for &start in &starts {
            let mut extent = self.unlink(start);
            first = first.min(extent.first);
            extent.state = State::Out(slot);
            self.link(start, extent);
        }
        let data = match starts[..] {
            [one] => self.extents[&one].data.clone(),
            _ => {
                let parts = self.extents.range(range.clone());
                AlignedBuf::concat(parts.map(|(_, extent)| &extent.data[..])).freeze()
            }
        };
        self.out_bytes += data.len() as u64;
        self.outs.insert(range.start, Out { end: range.end, first });
        Run { start: range.start, data }
    }

    /// The extents of a request that went out, as far as nothing has replaced them.
    fn parts_of(&mut self, start: u64, slot: usize) -> (Out, SmallVec<[u64; 8]>) {
        let out = self.outs.remove(&start).expect("a request ends once");
        self.out_bytes -= out.end - start;
        let range = start..out.end;
        let parts = self.within(&range);
        let parts = parts.filter(|(_, extent)| extent.state == State::Out(slot));
        let parts = parts.map(|(start, _)| start).collect();
        (out, parts)
    }

    /// The store has the bytes of the request `slot` at `start`.
    pub(super) fn done(&mut self, start: u64, slot: usize) {
        let (_, parts) = self.parts_of(start, slot);
        for part in parts {
            self.unlink(part);
        }
    }

    /// The store has refused the bytes of the request `slot` at `start`: they stay, and may go out
    /// again at `not_before`. Gives the number of the oldest write that the request stood for.
    pub(super) fn refused(&mut self, start: u64, slot: usize, not_before: Nanos) -> u64 {
        let (out, parts) = self.parts_of(start, slot);
        for part in parts {
            let mut extent = self.unlink(part);
            extent.state = State::Failed(not_before);
            extent.refused = true;
            // The oldest obligation of the request is that of each of its parts: none is forgotten.
            extent.first = out.first.min(extent.first);
            self.link(part, extent);
        }
        out.first
    }
}
