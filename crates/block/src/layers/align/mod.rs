//! Makes a store of whole blocks accept any range of bytes.
//!
//! # Unaligned ranges
//!
//! - *Read*: widened to whole blocks. The completion's pieces are cut to the requested range.
//! - *Extents*: widened too. The list is clipped.
//! - *Write*: read-modify-write. The layer reads the edge blocks (in one read when they are
//!   adjacent or the same), lays the write's bytes over them, and writes the whole in one request.
//! - *`WriteZeroes`*: the layer first zeroes the whole blocks inside, so that a `fast_zero` that
//!   the backend refuses has changed nothing. Then it does a read-modify-write of the edges.
//! - *Trim*: shrunk to the whole blocks inside; **the edges keep their content**. A trim is a hint
//!   that the client does not need the content. To honour it at the edges, the layer would have to
//!   read and write two blocks, which costs more than it gains. A client that needs zeroes asks for
//!   `WriteZeroes`. A front-end's promise about trimmed bytes must allow for this.
//!
//! FUA goes with every request that changes data, so the last of them to complete is stable.
//!
//! # Ordering
//!
//! A read-modify-write writes back bytes that its request did not name. If another write to the
//! same block were in flight, these bytes could be those from before that write, and a completed
//! write would be lost. So the layer orders two requests that overlap in whole blocks if both
//! change data and at least one of them is a read-modify-write: the later one waits for the
//! earlier. Waiting requests start in their order of arrival, and a request also waits for a
//! waiting one in front of it, so none starves. The layer does not order two aligned writes,
//! because the contract does not ask for it. (The only exception is one that covers many
//! read-modify-writes: see [`order`].) Flushes pass: they cover completed writes, and a waiting
//! write has not completed.
//!
//! # Cost
//!
//! With one-byte blocks below, requests pass unchanged. Otherwise an aligned change keeps its name
//! and costs an entry in the table of changes in flight. The layer keeps the [`order`] of changes
//! only from a read-modify-write on, until [`ORDER_LAPSE_MIN`] aligned changes have come without
//! another. A place in the order costs some searches in a tree. This does not grow with the square
//! of the queue: a client must not stop a core, which other devices share, with a deep queue of
//! small writes.

mod order;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use slab::Slab;
use smallvec::SmallVec;

use super::flights::Flights;
use crate::extents::cut_extents;
use crate::layer::{Counter, Flow, Layer};
use crate::pieces::{cut_pieces, to_bytes};
use crate::{
    BlockError, Completion, Info, Op, Payload, ReadDestination, Request, RequestFlags, RequestId,
};
use order::{Order, Use};

/// The layer stops to keep the order after this many aligned changes without a read-modify-write.
/// It begins again with an entry for each change in flight, so it does not stop earlier than after
/// as many changes as the table of changes in flight has entries.
const ORDER_LAPSE_MIN: usize = 1024;

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

/// A request of this layer's own, and the purpose of its completion.
enum Flight {
    /// A widened read or extent query in place of `id`: drop `skip` bytes, keep `len`.
    Cut { id: RequestId, skip: u32, len: u32 },
    /// A step of the read-modify-write `rmw`.
    Step { rmw: usize, step: Step },
}

/// An aligned change in flight.
struct RunningChange {
    span: Span,
    /// Its place in the order, if it has one.
    place: Option<usize>,
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
struct ReadModifyWrite {
    request: Request,
    span: Span,
    /// Its place in the order.
    place: usize,
    /// Steps in flight.
    pending: u32,
    /// The bytes of the edge reads, by offset.
    edges: SmallVec<[(u64, Bytes); 2]>,
    error: Option<BlockError>,
}

/// The layer's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignStats {
    /// Writes that had to read and write back edge blocks.
    pub read_modify_writes: u64,
    /// Changes that waited for an overlapping one.
    pub waited: u64,
}

/// Makes a store byte-granular; see the module's text.
#[derive(Default)]
pub struct Align {
    /// Bytes per block below; 0 until the layer knows the store.
    block: u64,
    flights: Slab<Flight>,
    changes: Flights<RunningChange>,
    rmws: Slab<ReadModifyWrite>,
    /// Which changes wait for which, and those that wait.
    order: Order<Waiting>,
    /// Aligned changes get a place in the order.
    keeps_order: bool,
    /// Aligned changes since the last read-modify-write, while the layer keeps the order.
    changes_since: usize,
    stats: AlignStats,
}

/// A change that waits for overlapping ones.
enum Waiting {
    /// Its slot.
    ReadModifyWrite(usize),
    Change(Request),
}

impl Align {
    /// A layer that takes the size of blocks from the store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The layer's counters so far.
    #[must_use]
    pub fn stats(&self) -> AlignStats {
        self.stats
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

    fn send(&mut self, request: Request, flight: Flight, flow: &mut Flow<'_>) {
        flow.pass_own(self.flights.insert(flight), request);
    }

    /// Sends an aligned request, unless it changes data that a read-modify-write uses.
    fn submit_aligned(&mut self, request: Request, flow: &mut Flow<'_>) {
        if !request.op.changes_data() {
            return flow.pass(request);
        }
        let span = self.outer_span(&request);
        if !self.keeps_order {
            return self.send_change(request, span, None, flow);
        }
        let (place, waits) = self.order.arrive(span, Use::Shared);
        if waits {
            self.stats.waited += 1;
            self.order.hold(place, Waiting::Change(request));
        } else {
            self.send_change(request, span, Some(place), flow);
        }
        self.changes_since += 1;
        let lapse = ORDER_LAPSE_MIN.max(self.changes.capacity());
        self.keeps_order = !self.rmws.is_empty() || self.changes_since < lapse;
    }

    fn send_change(
        &mut self,
        request: Request,
        span: Span,
        place: Option<usize>,
        flow: &mut Flow<'_>,
    ) {
        self.changes.insert(request.id, RunningChange { span, place });
        flow.pass(request);
    }

    /// A read-modify-write has come: from now on the layer keeps the order.
    fn keep_order(&mut self) {
        self.changes_since = 0;
        if std::mem::replace(&mut self.keeps_order, true) {
            return;
        }
        for change in self.changes.values_mut().filter(|change| change.place.is_none()) {
            change.place = Some(self.order.enter_running(change.span));
        }
    }

    /// The change at this place in the order has ended: starts those that waited for it alone.
    fn end_change(&mut self, place: usize, flow: &mut Flow<'_>) {
        for (place, waiting) in self.order.end(place) {
            match waiting {
                Waiting::ReadModifyWrite(rmw) => self.start_rmw(rmw, flow),
                Waiting::Change(request) => {
                    let span = self.outer_span(&request);
                    self.send_change(request, span, Some(place), flow);
                }
            }
        }
    }

    fn submit_unaligned(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        let outer = self.outer_span(&request);
        let too_long = outer.end - outer.start > u64::from(u32::MAX);
        match request.op {
            Op::Flush => flow.pass(request),
            Op::Read | Op::Write | Op::Extents if too_long => {
                let error = BlockError::NotSupported("an unaligned request of almost 4 GiB");
                flow.answer(Completion::of(&request, Err(error)));
            }
            Op::Read | Op::Extents => {
                let skip = u32::try_from(request.offset_bytes - outer.start).expect("in a block");
                let flight = Flight::Cut { id: request.id, skip, len: request.len_bytes };
                request.offset_bytes = outer.start;
                request.len_bytes = outer.len();
                request.destination.clear();
                self.send(request, flight, flow);
            }
            Op::Trim => {
                let span = self.inner_span(&request);
                if span.start == span.end {
                    return flow.answer(Completion::of(&request, Ok(Payload::None)));
                }
                request.offset_bytes = span.start;
                request.len_bytes = span.len();
                self.submit_aligned(request, flow);
            }
            Op::Write | Op::WriteZeroes => {
                self.keep_order();
                let (place, waits) = self.order.arrive(outer, Use::Exclusive);
                let rmw = self.rmws.insert(ReadModifyWrite {
                    request,
                    span: outer,
                    place,
                    pending: 0,
                    edges: SmallVec::new(),
                    error: None,
                });
                self.stats.read_modify_writes += 1;
                if waits {
                    self.stats.waited += 1;
                    self.order.hold(place, Waiting::ReadModifyWrite(rmw));
                } else {
                    self.start_rmw(rmw, flow);
                }
            }
        }
    }

    fn start_rmw(&mut self, rmw: usize, flow: &mut Flow<'_>) {
        let middle = self.inner_span(&self.rmws[rmw].request);
        if self.rmws[rmw].request.op == Op::WriteZeroes && middle.start < middle.end {
            self.step(rmw, (Step::Middle, Op::WriteZeroes), middle, Bytes::new(), flow);
        } else {
            self.read_edges(rmw, flow);
        }
    }

    /// Sends one step of a read-modify-write.
    fn step(
        &mut self,
        rmw: usize,
        (step, op): (Step, Op),
        span: Span,
        data: Bytes,
        flow: &mut Flow<'_>,
    ) {
        let owner = &mut self.rmws[rmw];
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
            destination: ReadDestination::default(),
            queue: owner.request.queue,
            stamps: owner.request.stamps,
        };
        self.send(request, Flight::Step { rmw, step }, flow);
    }

    /// The edge blocks of a range: blocks that the range covers in part. Adjacent ones form one
    /// span.
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

    fn read_edges(&mut self, rmw: usize, flow: &mut Flow<'_>) {
        for span in self.edge_spans(&self.rmws[rmw].request) {
            self.step(rmw, (Step::Edge(span), Op::Read), span, Bytes::new(), flow);
        }
    }

    /// Lays the bytes of the request over the content of its edge blocks and writes the result.
    fn store(&mut self, rmw: usize, flow: &mut Flow<'_>) {
        let owner = &mut self.rmws[rmw];
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
            return self.step(rmw, (Step::Store, Op::Write), span, whole, flow);
        }
        for (offset, held) in edges {
            let span = Span { start: offset, end: offset + held.len() as u64 };
            let mut block = AlignedBuf::copy_from(&held);
            let from = usize::try_from(start.max(span.start) - offset).expect("inside the edge");
            let to = usize::try_from(end.min(span.end) - offset).expect("inside the edge");
            block[from..to].fill(0);
            self.step(rmw, (Step::Store, Op::Write), span, block.freeze(), flow);
        }
    }

    /// Handles the completion of one step. If it was the last of its kind, starts the next kind.
    fn step_done(&mut self, rmw: usize, step: Step, completion: Completion, flow: &mut Flow<'_>) {
        let owner = &mut self.rmws[rmw];
        owner.pending -= 1;
        owner.request.stamps.adopt_backend(&completion.stamps);
        let outcome = match (completion.result, step) {
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
            Step::Middle if owner.error.is_none() => self.read_edges(rmw, flow),
            Step::Edge(_) if owner.error.is_none() => self.store(rmw, flow),
            _ => {
                let rmw = self.rmws.remove(rmw);
                let result = rmw.error.map_or(Ok(Payload::None), Err);
                flow.answer(Completion::of(&rmw.request, result));
                self.end_change(rmw.place, flow);
            }
        }
    }
}

impl Layer for Align {
    fn name(&self) -> &'static str {
        "align"
    }

    /// A device whose size is no multiple of its block loses the incomplete block at its end.
    fn info(&mut self, mut below: Info) -> Info {
        let block = u64::from(below.block_bytes.max(1));
        debug_assert!(block.is_power_of_two());
        // A store that opens learns its block size; one that serves keeps it.
        let idle = self.flights.is_empty() && self.changes.is_empty() && self.rmws.is_empty();
        debug_assert!(self.block == block || idle, "blocks keep their size");
        self.block = block;
        below.size_bytes -= below.size_bytes % block;
        below.block_bytes = 1;
        below
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        if self.block == 1 || request.op == Op::Flush {
            flow.pass(request);
        } else if request.len_bytes == 0 {
            let payload = request.empty_payload();
            flow.answer(Completion::of(&request, Ok(payload)));
        } else if self.is_aligned(&request) {
            self.submit_aligned(request, flow);
        } else {
            self.submit_unaligned(request, flow);
        }
    }

    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        let changes = completion.op.changes_data();
        let change = changes.then(|| self.changes.remove(completion.id)).flatten();
        flow.answer(completion);
        if let Some(place) = change.and_then(|change| change.place) {
            self.end_change(place, flow);
        }
    }

    fn complete_own(&mut self, index: usize, mut completion: Completion, flow: &mut Flow<'_>) {
        match self.flights.remove(index) {
            Flight::Cut { id, skip, len } => {
                (completion.id, completion.len_bytes) = (id, len);
                match &mut completion.result {
                    Ok(Payload::Data(pieces)) => cut_pieces(pieces, skip, len),
                    Ok(Payload::Extents(extents)) => {
                        *extents = cut_extents(extents, u64::from(skip), u64::from(len));
                    }
                    Ok(Payload::None) | Err(_) => {}
                }
                flow.answer(completion);
            }
            Flight::Step { rmw, step } => self.step_done(rmw, step, completion, flow),
        }
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            Counter { name: "read_modify_writes", value: self.stats.read_modify_writes },
            Counter { name: "waited", value: self.stats.waited },
        ]
    }
}
