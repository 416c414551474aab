//! The checker: could a correct block device have given the volume's answers?
//!
//! The requirements, per block of 4 KiB:
//!
//! 1. **Linearizable**: every read returns a value that the block could hold at some moment of
//!    the read, given all requests and their answers.
//! 2. **Acknowledged writes survive** the death of the volume process, and the loss of as many
//!    nodes as the fault atlas allows. After that, a write in flight has happened or has not, even
//!    if a read had already returned it.
//! 3. **Flushed writes survive** a power failure of everything: afterwards a block holds the last
//!    flushed value, or one written (or in flight) since. FUA is a flush of its own blocks.
//! 4. A **failed** write may or may not have happened. It may take effect late, but not after a
//!    write that was submitted after its failure and acknowledged.
//! 5. A **fenced** writer acknowledges no write that its successor does not have.
//!
//! `block` describes how the checker judges a single block. `pattern` describes how content names
//! its write.

mod block;
mod pattern;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_block::{ExtentKind, Payload, Piece};
use smallvec::SmallVec;

pub use block::Value;
use block::{Block, Tick};
pub(crate) use pattern::BLOCK_BYTES;

use crate::network::ClientId;

/// A fault of the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A read returned a value that the block could not hold.
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
#[error("block {block}: {violation} (possible: {possible:?})")]
pub struct Finding {
    /// The block.
    pub block: u64,
    /// The violation.
    pub violation: Violation,
    /// The values that the block could hold.
    pub possible: Vec<Value>,
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Span {
    /// Its blocks, by number.
    #[must_use]
    pub fn numbers(self) -> std::ops::Range<u64> {
        self.first..self.first + self.blocks
    }

    fn range(self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.blocks) as usize
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
    blocks: Vec<Block>,
    dirty: BTreeSet<u64>,
    writes: BTreeMap<u32, WriteInFlight>,
    reads: BTreeMap<u32, (Span, Tick, ClientId)>,
    flushes: BTreeMap<u32, (Tick, ClientId)>,
    /// The process whose answers count in full.
    writer: ClientId,
    tick: Tick,
}

impl Checker {
    /// A device of this many blocks, all zero, served by `writer`.
    #[must_use]
    pub fn new(blocks: u64, writer: ClientId) -> Self {
        Self {
            blocks: (0..blocks).map(|_| Block::new()).collect(),
            dirty: BTreeSet::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            writer,
            tick: 1,
        }
    }

    /// The device now has this many blocks. The new ones behind its old end are all zero.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks.resize_with((blocks as usize).max(self.blocks.len()), Block::new);
    }

    fn step(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// True when a write to the span may be submitted: not too many writes are in flight there.
    #[must_use]
    pub fn has_room(&self, span: Span) -> bool {
        self.blocks[span.range()].iter().all(Block::has_room)
    }

    /// The bytes that write number `write` puts into `span`.
    #[must_use]
    pub fn content(write: u32, span: Span) -> Bytes {
        pattern::fill(write, span.first, span.blocks)
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
            for block in &mut self.blocks[span.range()] {
                block.submitted(write, value, now);
            }
            self.dirty.extend(span.first..span.first + span.blocks);
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
            return match ok {
                false => Ok(()),
                true => Err(self.finding(span.first, Violation::FencedAcknowledged { write })),
            };
        }
        for index in span.range() {
            let block = &mut self.blocks[index];
            if !ok {
                block.failed(write, now);
            } else if let Err(violation) = block.acknowledged(write, in_flight.fua, now) {
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
            if let Err(violation) = self.blocks[index].read(value, since, now) {
                return Err(self.finding(index as u64, violation));
            }
        }
        Ok(())
    }

    fn decode(&self, span: Span, pieces: &[Piece]) -> Result<SmallVec<[Value; 16]>, Finding> {
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.len_bytes())).sum();
        if total != span.blocks * BLOCK_BYTES as u64 {
            let violation = Violation::Malformed(format!("{total} bytes for {span:?}"));
            return Err(self.finding(span.first, violation));
        }
        let mut values = SmallVec::new();
        // Pieces need not end at blocks. This gathers the pieces that do not.
        let mut partial: Vec<u8> = Vec::new();
        let mut judge = |data: &[u8]| {
            let block = span.first + values.len() as u64;
            let value = pattern::decode(data, block);
            value.map(|value| values.push(value)).map_err(|text| (block, text))
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
                if partial.is_empty() && rest.len() >= BLOCK_BYTES {
                    let (block, tail) = rest.split_at(BLOCK_BYTES);
                    result = judge(block);
                    rest = tail;
                } else {
                    let (head, tail) = rest.split_at(rest.len().min(BLOCK_BYTES - partial.len()));
                    partial.extend_from_slice(head);
                    rest = tail;
                    if partial.len() == BLOCK_BYTES {
                        result = judge(&partial);
                        partial.clear();
                    }
                }
            }
        }
        match result {
            Ok(()) => Ok(values),
            Err((block, text)) => Err(self.finding(block, Violation::Garbage(text))),
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
        if total == 0 || total > span.blocks * BLOCK_BYTES as u64 {
            let violation = Violation::Malformed(format!("extents of {total} bytes for {span:?}"));
            return Err(self.finding(span.first, violation));
        }
        let mut at = span.first * BLOCK_BYTES as u64;
        for extent in extents {
            let blocks = at / BLOCK_BYTES as u64..(at + extent.len_bytes) / BLOCK_BYTES as u64;
            at += extent.len_bytes;
            if extent.kind == ExtentKind::Data || client != self.writer {
                continue;
            }
            for block in blocks {
                if let Err(violation) = self.blocks[block as usize].could_be(0, since) {
                    return Err(self.finding(block, violation));
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
        let blocks = &mut self.blocks;
        self.dirty.retain(|block| {
            let block = &mut blocks[*block as usize];
            block.flushed(since, reading_since);
            block.is_dirty()
        });
    }

    /// Notes that the process `client` died, and with it its requests in flight.
    pub fn process_died(&mut self, client: ClientId) {
        let now = self.step();
        if client == self.writer {
            for block in &mut self.blocks {
                block.process_died(now);
            }
        } else {
            // Writes that were frozen when their writer was succeeded stay undecided; reads will
            // decide.
            let writes: Vec<u32> = self.writes_of(client);
            for write in writes {
                if let Some(in_flight) = self.writes.get(&write).filter(|write| !write.stale) {
                    for block in &mut self.blocks[in_flight.span.range()] {
                        block.failed(write, now);
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
            for block in &mut self.blocks {
                block.taken_over(now);
            }
            self.writer = writer;
        }
    }

    /// Notes that every machine lost power, including those of volume processes.
    pub fn power_lost(&mut self) {
        let now = self.step();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            block.power_lost(now);
            if block.is_dirty() {
                self.dirty.insert(index as u64);
            }
        }
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
    }

    /// Number of blocks with more than one possible value.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_unsettled()).count()
    }

    /// Number of blocks that may hold something other than zeroes, or that are in `reserved`.
    #[must_use]
    pub fn used(&self, reserved: &BTreeSet<u64>) -> u64 {
        let used =
            |(index, block): &(u64, &Block)| block.may_hold_data() || reserved.contains(index);
        (0..).zip(&self.blocks).filter(used).count() as u64
    }

    fn finding(&self, block: u64, violation: Violation) -> Finding {
        let possible = self.blocks.get(block as usize).map(|block| block.possible().to_vec());
        Finding { block, violation, possible: possible.unwrap_or_default() }
    }
}
