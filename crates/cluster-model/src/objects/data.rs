//! The bytes of an object: pages that clones share, with the blocks of them that were written.
//!
//! A page has memory up to its last written block, so a small object takes little. It keeps a
//! checksum of each block: see [`sums`](super::sums). A page that another owner holds — a clone, or
//! an answer on its way to a client — is copied before it is changed.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::sums;

/// Bytes of a page. A write copies a page that a clone shares.
const PAGE_BYTES: u64 = 64 << 10;
/// Bytes of a block: what a sparse read sees as data or as a hole.
pub(super) const BLOCK_BYTES: usize = 4 << 10;
const BLOCKS: usize = PAGE_BYTES as usize / BLOCK_BYTES;

static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

#[derive(Clone, Debug, Default)]
struct Page {
    /// Whole blocks. What is behind them is zero.
    bytes: Vec<u8>,
    /// Bit n: block n was written.
    written: u16,
    /// The bare sums of all blocks.
    sums: [u32; BLOCKS],
}

impl Page {
    /// Makes the page reach up to `end`.
    fn reach(&mut self, end: usize) {
        let needed = end.max(self.bytes.len()).next_multiple_of(BLOCK_BYTES);
        self.bytes.resize(needed, 0);
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        if self.bytes.len() == start {
            self.bytes.extend_from_slice(bytes);
            self.reach(end);
        } else {
            self.reach(end);
            self.bytes[start..end].copy_from_slice(bytes);
        }
        self.written |= touched(start, end);
    }

    /// Computes the sums of the blocks that a range touches.
    fn sum(&mut self, start: usize, end: usize) {
        for block in start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let at = block * BLOCK_BYTES;
            self.sums[block] = sums::of_block(&self.bytes[at..at + BLOCK_BYTES]);
        }
    }

    fn clear(&mut self, start: usize, end: usize) {
        let known = end.min(self.bytes.len());
        if start < known {
            self.bytes[start..known].fill(0);
            self.sum(start, known);
        }
        self.written &= !covered(start, end);
    }
}

/// The bytes of an object. A copy shares the pages.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pages: Vec<Option<Arc<Page>>>,
    len: u64,
}

/// A part of an object's bytes as they were when it was read. It shares their memory.
#[derive(Clone, Debug)]
pub struct Part {
    /// None for zeroes.
    page: Option<Arc<Page>>,
    start: usize,
    len: usize,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.page.as_ref().map_or(ZEROS.as_slice(), |page| page.bytes.as_slice());
        &bytes[self.start..self.start + self.len]
    }
}

impl From<Part> for Bytes {
    fn from(part: Part) -> Bytes {
        match part.page {
            Some(_) => Bytes::from_owner(part),
            None => Bytes::from_static(&ZEROS[..part.len]),
        }
    }
}

/// Parts, one behind the other.
pub type Parts = SmallVec<[Part; 2]>;

/// The pieces of a range of bytes: number of the page, start and end in it.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (number, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let stop = PAGE_BYTES.min(start + end - at);
        at += stop - start;
        Some((number as usize, start as usize, stop as usize))
    })
}

/// Bits of the blocks from `first` up to `end`.
fn bits(first: usize, end: usize) -> u16 {
    if first >= end { 0 } else { (u16::MAX >> (BLOCKS - (end - first))) << first }
}

/// Bits of the blocks that a range of a page touches.
fn touched(start: usize, end: usize) -> u16 {
    bits(start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES))
}

/// Bits of the blocks that lie in a range of a page as a whole.
fn covered(start: usize, end: usize) -> u16 {
    bits(start.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES)
}

impl Data {
    /// Bytes of the object.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the object has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that pages take. Pages that clones share count for each.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.pages.iter().flatten().map(|page| page.bytes.len() as u64).sum()
    }

    fn page(&mut self, number: usize) -> &mut Page {
        if self.pages.len() <= number {
            self.pages.resize(number + 1, None);
        }
        Arc::make_mut(self.pages[number].get_or_insert_default())
    }

    /// Writes, and grows the object where the bytes end behind its end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (number, start, end) in pieces(offset, bytes.len() as u64) {
            let (now, later) = rest.split_at(end - start);
            let page = self.page(number);
            page.write(start, now);
            page.sum(start, end);
            rest = later;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Writes whole blocks, whose [sums](BlockSums) are known.
    pub(super) fn write_blocks(&mut self, offset: u64, bytes: &[u8], sums: &[u32]) {
        let (mut rest, mut sums) = (bytes, sums);
        for (number, start, end) in pieces(offset, bytes.len() as u64) {
            let (now, later) = rest.split_at(end - start);
            let (these, others) = sums.split_at((end - start) / BLOCK_BYTES);
            let page = self.page(number);
            page.write(start, now);
            page.sums[start / BLOCK_BYTES..end / BLOCK_BYTES].copy_from_slice(these);
            (rest, sums) = (later, others);
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Makes bytes zero, without growth of the object. Blocks in the range become holes.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len);
        self.clear(offset, end.saturating_sub(offset));
    }

    fn clear(&mut self, offset: u64, len: u64) {
        for (number, start, end) in pieces(offset, len) {
            let Some(place) = self.pages.get_mut(number) else { return };
            let Some(page) = place else { continue };
            if page.written & !covered(start, end) == 0 {
                *place = None;
            } else {
                Arc::make_mut(page).clear(start, end);
            }
        }
    }

    /// Cuts the object, or makes it longer with zeros.
    pub fn truncate(&mut self, len: u64) {
        if len < self.len {
            self.pages.truncate(len.div_ceil(PAGE_BYTES) as usize);
            let last_end = len.next_multiple_of(PAGE_BYTES);
            // The rest of the last block becomes zero, and the blocks behind it become holes.
            self.clear(len, last_end - len);
        }
        self.len = len;
    }

    /// Reads; fewer bytes at the end of the object.
    #[must_use]
    pub fn read(&self, offset: u64, len: u64) -> Bytes {
        let len = len.min(self.len.saturating_sub(offset));
        let mut bytes = Vec::with_capacity(len as usize);
        self.read_parts(offset, len, |part| bytes.extend_from_slice(part.as_ref()));
        bytes.into()
    }

    /// The parts of a range within the object.
    pub(super) fn read_parts(&self, offset: u64, len: u64, mut each: impl FnMut(Part)) {
        for (number, start, end) in pieces(offset, len) {
            let page = self.pages.get(number).and_then(Option::as_ref);
            let known = page.map_or(0, |page| page.bytes.len()).clamp(start, end);
            if start < known {
                each(Part { page: page.cloned(), start, len: known - start });
            }
            if known < end {
                each(Part { page: None, start: 0, len: end - known });
            }
        }
    }

    /// A sum, as a frame has it, that goes on over a range within the object, if the range is of
    /// whole blocks.
    pub(super) fn sum(&self, mut sum: u32, offset: u64, len: u64) -> Option<u32> {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return None;
        }
        for (number, start, end) in pieces(offset, len) {
            let page = self.pages.get(number).and_then(Option::as_ref);
            for block in start / BLOCK_BYTES..end / BLOCK_BYTES {
                sum = sums::append_block(sum, page.map_or(0, |page| page.sums[block]));
            }
        }
        Some(sum)
    }

    /// The ranges in a range that were written, as (offset, length), in whole blocks but for the
    /// ends of the range and of the object.
    #[must_use]
    pub fn extents(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let end = offset.saturating_add(len).min(self.len);
        let mut extents: Vec<(u64, u64)> = Vec::new();
        for (number, start, stop) in pieces(offset, end.saturating_sub(offset)) {
            let Some(Some(page)) = self.pages.get(number) else { continue };
            for block in start / BLOCK_BYTES..stop.div_ceil(BLOCK_BYTES) {
                if page.written & 1 << block == 0 {
                    continue;
                }
                let at = number as u64 * PAGE_BYTES;
                let from = at + (block * BLOCK_BYTES).max(start) as u64;
                let to = at + ((block + 1) * BLOCK_BYTES).min(stop) as u64;
                match extents.last_mut() {
                    Some(last) if last.0 + last.1 == from => last.1 += to - from,
                    _ => extents.push((from, to - from)),
                }
            }
        }
        extents
    }
}

/// The bare sums of the blocks of some bytes, and the sum of them all as a frame has it.
#[derive(Debug, Default)]
pub struct BlockSums {
    pub(super) blocks: SmallVec<[u32; 32]>,
    /// The sum of the whole.
    pub whole: u32,
}

impl BlockSums {
    /// The sums of bytes; those of the blocks only if the bytes are whole blocks.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.is_empty() || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Self { blocks: SmallVec::new(), whole: sums::of_bytes(bytes) };
        }
        let blocks: SmallVec<[u32; 32]> = bytes.chunks(BLOCK_BYTES).map(sums::of_block).collect();
        let whole = blocks.iter().fold(u32::MAX, |sum, &block| sums::append_block(sum, block));
        Self { blocks, whole }
    }
}

#[cfg(test)]
mod tests {
    use super::Data;
    use proptest::prelude::*;

    const SPACE: usize = 200_000;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn equals_a_vector(
            steps in prop::collection::vec((0..4_u8, 0..SPACE, 0..SPACE / 2, any::<u8>()), 1..20)
        ) {
            let (mut data, mut model) = (Data::default(), Vec::new());
            let mut kept = None;
            for (kind, offset, len, byte) in steps {
                match kind {
                    0 | 3 => {
                        data.write(offset as u64, &vec![byte | 1; len]);
                        if len > 0 && model.len() < offset + len {
                            model.resize(offset + len, 0);
                        }
                        if len > 0 {
                            model[offset..offset + len].fill(byte | 1);
                        } else {
                            model.resize(model.len().max(offset), 0);
                        }
                    }
                    1 => {
                        data.zero(offset as u64, len as u64);
                        let end = (offset + len).min(model.len());
                        if offset < end {
                            model[offset..end].fill(0);
                        }
                    }
                    _ => {
                        data.truncate(offset as u64);
                        model.resize(offset, 0);
                    }
                }
                prop_assert_eq!(&data.read(0, u64::MAX)[..], &model[..]);
                let len = model.len() as u64 / 4096 * 4096;
                let whole = super::sums::of_bytes(&model[..len as usize]);
                prop_assert_eq!(data.sum(u32::MAX, 0, len), Some(whole));
                let mut sparse = vec![0; model.len()];
                for (offset, len) in data.extents(0, u64::MAX) {
                    let range = offset as usize..(offset + len) as usize;
                    sparse[range].copy_from_slice(&data.read(offset, len));
                }
                prop_assert_eq!(&sparse, &model);
                kept.get_or_insert_with(|| (data.clone(), model.clone()));
            }
            let (data, model) = kept.expect("there is a step");
            prop_assert_eq!(&data.read(0, u64::MAX)[..], &model[..]);
        }
    }
}
