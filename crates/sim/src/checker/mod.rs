//! The checker: could a correct block device have given the volume's answers?
//!
//! The checker divides the device into cells: a block of the volume is one cell, or several. A
//! request covers whole cells. With cells smaller than a block, requests are not aligned to blocks.
//! The requirements, per cell:
//!
//! 1. **Linearizable**: every read returns a value that the cell could hold at some moment of
//!    the read, given all requests and their answers.
//! 2. **Acknowledged writes survive** the death of the volume process, and the loss of as many
//!    nodes as the fault model allows. After that, a write in flight has happened or has not, even
//!    if a read had already returned it.
//! 3. **Flushed writes survive** a power failure of everything: afterwards a cell holds the last
//!    flushed value, or one written (or in flight) since. FUA is a flush of its own cells.
//! 4. A **failed** write may or may not have happened. It may take effect late, but not after a
//!    write that was submitted after its failure and acknowledged.
//! 5. A **fenced** writer acknowledges no write that its successor does not have.
//!
//! `cell` describes how the checker judges a single cell. `pattern` describes how content names
//! its write.

mod cell;
mod pattern;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_block::{ExtentKind, Payload, Piece};
use smallvec::SmallVec;

pub use cell::Value;
use cell::{Cell, Tick};

use crate::network::ClientId;

/// A fault of the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A read returned a value that the cell could not hold.
    #[error("a read returned write {value}, which cannot be there")]
    Impossible {
        /// The write; 0 for zeroes.
        value: Value,
    },
    /// The volume acknowledged a write that is known not to have happened.
    #[error("write {write} was acknowledged, though it is known not to have happened")]
    LostWrite {
        /// The write.
        write: u32,
    },
    /// A read returned data that was never written.
    #[error("a read returned {0}")]
    Garbage(String),
    /// An answer has the wrong form.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// A writer acknowledged a write that was submitted after the writer had been fenced.
    #[error("write {write} was acknowledged by a writer that had been fenced")]
    FencedAcknowledged {
        /// The write.
        write: u32,
    },
}

/// A violation, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cell {cell}: {violation} (possible: {possible:?})")]
pub struct Finding {
    /// The cell.
    pub cell: u64,
    /// The violation.
    pub violation: Violation,
    /// The values that the cell could hold.
    pub possible: Vec<Value>,
}

/// A run of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first cell.
    pub first: u64,
    /// Number of cells.
    pub cells: u64,
}

impl Span {
    /// Its cells, by number.
    #[must_use]
    pub fn numbers(self) -> std::ops::Range<u64> {
        self.first..self.first + self.cells
    }

    fn range(self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.cells) as usize
    }
}

struct WriteInFlight {
    client: ClientId,
    span: Span,
    fua: bool,
    /// Submitted by a writer that already had a successor.
    stale: bool,
}

/// The model of the device and the requests in flight on it.
pub struct Checker {
    cell_bytes: usize,
    cells: Vec<Cell>,
    /// The cells that may not be clean.
    unclean: Vec<usize>,
    writes: BTreeMap<u32, WriteInFlight>,
    reads: BTreeMap<u32, (Span, Tick, ClientId)>,
    flushes: BTreeMap<u32, (Tick, ClientId)>,
    /// The process whose answers count in full.
    writer: ClientId,
    tick: Tick,
}

impl Checker {
    /// A device of this many cells of so many bytes, all zero, served by `writer`.
    #[must_use]
    pub fn new(cells: u64, cell_bytes: u32, writer: ClientId) -> Self {
        Self {
            cell_bytes: cell_bytes as usize,
            cells: (0..cells).map(|_| Cell::new()).collect(),
            unclean: Vec::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            writer,
            tick: 1,
        }
    }

    /// The device now has this many cells. The new ones behind its old end are all zero.
    pub fn grow(&mut self, cells: u64) {
        self.cells.resize_with((cells as usize).max(self.cells.len()), Cell::new);
    }

    fn step(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// True when a write to the span may be submitted: not too many writes are in flight there.
    #[must_use]
    pub fn has_room(&self, span: Span) -> bool {
        self.cells[span.range()].iter().all(Cell::has_room)
    }

    /// The bytes that write number `write` puts into `span`.
    #[must_use]
    pub fn content(&self, write: u32, span: Span) -> Bytes {
        pattern::fill(write, span, self.cell_bytes)
    }

    /// Notes that `client` submits a write of its content, or of zeroes.
    pub fn write_submitted(
        &mut self,
        client: ClientId,
        write: u32,
        span: Span,
        zeroes: bool,
        fua: bool,
    ) {
        let now = self.step();
        let stale = client != self.writer;
        if !stale {
            let value = if zeroes { 0 } else { write };
            for index in span.range() {
                let cell = &mut self.cells[index];
                cell.submitted(write, value, now);
                if cell.list() {
                    self.unclean.push(index);
                }
            }
        }
        self.writes.insert(write, WriteInFlight { client, span, fua, stale });
    }

    /// Notes that a write ended. A failed one may have happened.
    ///
    /// # Errors
    /// A [`Finding`] if the acknowledgement is impossible.
    pub fn write_ended(&mut self, write: u32, ok: bool) -> Result<(), Finding> {
        let now = self.step();
        let Some(in_flight) = self.writes.remove(&write) else { return Ok(()) };
        let span = in_flight.span;
        if in_flight.stale {
            return match ok && span.cells > 0 {
                false => Ok(()),
                true => Err(self.finding(span.first, Violation::FencedAcknowledged { write })),
            };
        }
        for index in span.range() {
            let cell = &mut self.cells[index];
            if !ok {
                cell.failed(write, now);
            } else if let Err(violation) = cell.acknowledged(write, in_flight.fua, now) {
                return Err(self.finding(index as u64, violation));
            }
        }
        Ok(())
    }

    /// Notes that `client` submits a read.
    pub fn read_submitted(&mut self, client: ClientId, read: u32, span: Span) {
        let now = self.step();
        self.reads.insert(read, (span, now, client));
    }

    /// Notes that a read failed.
    pub fn read_failed(&mut self, read: u32) {
        self.reads.remove(&read);
    }

    /// Notes that a read returned `payload`.
    ///
    /// # Errors
    /// A [`Finding`] if the payload is impossible.
    pub fn read_returned(&mut self, read: u32, payload: &Payload) -> Result<(), Finding> {
        let now = self.step();
        let Some((span, since, client)) = self.reads.remove(&read) else { return Ok(()) };
        let values = match payload {
            Payload::Data(pieces) => self.decode(span, pieces)?,
            Payload::Extents(extents) => {
                return self.extents_returned(span, since, client, extents);
            }
            Payload::None => {
                let violation = Violation::Malformed("a read without data".to_owned());
                return Err(self.finding(span.first, violation));
            }
        };
        // Without leases, a writer with a successor may answer from memory. It must only not invent
        // data.
        if client != self.writer {
            return Ok(());
        }
        for (index, value) in span.range().zip(values) {
            if let Err(violation) = self.cells[index].read(value, since, now) {
                return Err(self.finding(index as u64, violation));
            }
        }
        Ok(())
    }

    fn decode(&self, span: Span, pieces: &[Piece]) -> Result<SmallVec<[Value; 16]>, Finding> {
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.len_bytes())).sum();
        if total != span.cells * self.cell_bytes as u64 {
            let violation = Violation::Malformed(format!("{total} bytes for {span:?}"));
            return Err(self.finding(span.first, violation));
        }
        let mut values = SmallVec::new();
        // Pieces need not end at cells. This gathers the pieces that do not.
        let mut partial: Vec<u8> = Vec::new();
        let cell_bytes = self.cell_bytes;
        let mut judge = |data: &[u8]| {
            let cell = span.first + values.len() as u64;
            let value = pattern::decode(data, cell);
            value.map(|value| values.push(value)).map_err(|text| (cell, text))
        };
        let mut result = Ok(());
        for piece in pieces {
            let zeroes;
            let mut rest: &[u8] = match piece {
                Piece::Data(data) => data,
                Piece::Zeroes(len_bytes) => {
                    zeroes = vec![0; *len_bytes as usize];
                    &zeroes
                }
            };
            while !rest.is_empty() && result.is_ok() {
                if partial.is_empty() && rest.len() >= cell_bytes {
                    let (cell, tail) = rest.split_at(cell_bytes);
                    result = judge(cell);
                    rest = tail;
                } else {
                    let (head, tail) = rest.split_at(rest.len().min(cell_bytes - partial.len()));
                    partial.extend_from_slice(head);
                    rest = tail;
                    if partial.len() == cell_bytes {
                        result = judge(&partial);
                        partial.clear();
                    }
                }
            }
        }
        match result {
            Ok(()) => Ok(values),
            Err((cell, text)) => Err(self.finding(cell, Violation::Garbage(text))),
        }
    }

    fn extents_returned(
        &self,
        span: Span,
        since: Tick,
        client: ClientId,
        extents: &[fieldstone_block::Extent],
    ) -> Result<(), Finding> {
        let total: u64 = extents.iter().map(|extent| extent.len_bytes).sum();
        let cell_bytes = self.cell_bytes as u64;
        if total == 0 || total > span.cells * cell_bytes {
            let violation = Violation::Malformed(format!("extents of {total} bytes for {span:?}"));
            return Err(self.finding(span.first, violation));
        }
        let mut at = span.first * cell_bytes;
        for extent in extents {
            let cells = at.div_ceil(cell_bytes)..(at + extent.len_bytes) / cell_bytes;
            at += extent.len_bytes;
            if extent.kind == ExtentKind::Data || client != self.writer {
                continue;
            }
            for cell in cells {
                if let Err(violation) = self.cells[cell as usize].could_be(0, since) {
                    return Err(self.finding(cell, violation));
                }
            }
        }
        Ok(())
    }

    /// Notes that `client` submits a flush.
    pub fn flush_submitted(&mut self, client: ClientId, flush: u32) {
        let now = self.step();
        self.flushes.insert(flush, (now, client));
    }

    /// Notes that a flush ended.
    pub fn flush_ended(&mut self, flush: u32, ok: bool) {
        self.step();
        let Some((since, client)) = self.flushes.remove(&flush) else { return };
        if !ok || client != self.writer {
            return;
        }
        let reading_since = self.reads.values().map(|(_, since, _)| *since).min();
        let reading_since = reading_since.unwrap_or(Tick::MAX);
        self.for_unclean(|cell| cell.flushed(since, reading_since));
    }

    /// Changes all cells in a way that changes no clean cell.
    fn for_unclean(&mut self, change: impl Fn(&mut Cell)) {
        let cells = &mut self.cells;
        self.unclean.retain(|index| {
            let cell = &mut cells[*index];
            change(cell);
            cell.stays_listed()
        });
    }

    /// Notes that the process `client` died, and with it its requests in flight.
    pub fn process_died(&mut self, client: ClientId) {
        let now = self.step();
        if client == self.writer {
            self.for_unclean(|cell| cell.process_died(now));
        } else {
            // Writes that were frozen when their writer was succeeded stay undecided; reads will
            // decide.
            let writes: Vec<u32> = self.writes_of(client);
            for write in writes {
                if let Some(in_flight) = self.writes.get(&write).filter(|write| !write.stale) {
                    for cell in &mut self.cells[in_flight.span.range()] {
                        cell.failed(write, now);
                    }
                }
            }
        }
        self.forget(client);
    }

    fn writes_of(&self, client: ClientId) -> Vec<u32> {
        let writes = self.writes.iter().filter(|(_, write)| write.client == client);
        writes.map(|(number, _)| *number).collect()
    }

    fn forget(&mut self, client: ClientId) {
        self.writes.retain(|_, write| write.client != client);
        self.reads.retain(|_, (_, _, owner)| *owner != client);
        self.flushes.retain(|_, (_, owner)| *owner != client);
    }

    /// Notes that `writer` serves now. Requests of a predecessor in flight have happened, or never
    /// will.
    pub fn succeeded_by(&mut self, writer: ClientId) {
        let now = self.step();
        if writer != self.writer {
            self.for_unclean(|cell| cell.taken_over(now));
            self.writer = writer;
        }
    }

    /// Notes that every machine lost power, including those of volume processes.
    pub fn power_lost(&mut self) {
        let now = self.step();
        self.for_unclean(|cell| cell.power_lost(now));
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
    }

    /// Number of cells with more than one possible value.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.cells.iter().filter(|cell| cell.is_unsettled()).count()
    }

    /// Number of blocks, each of so many cells, that may hold something other than zeroes, or that
    /// are in `reserved`.
    #[must_use]
    pub fn used(&self, cells_per_block: u64, reserved: &BTreeSet<u64>) -> u64 {
        let blocks = (0..).zip(self.cells.chunks(cells_per_block as usize));
        let used = |(index, cells): &(u64, &[Cell])| {
            reserved.contains(index) || cells.iter().any(Cell::may_hold_data)
        };
        blocks.filter(used).count() as u64
    }

    fn finding(&self, cell: u64, violation: Violation) -> Finding {
        let possible = self.cells.get(cell as usize).map(|cell| cell.possible().to_vec());
        Finding { cell, violation, possible: possible.unwrap_or_default() }
    }
}
