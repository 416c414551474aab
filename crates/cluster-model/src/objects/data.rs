//! The bytes of an object: pages that clones share, with the blocks of them that were written.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

/// Bytes of a page. A write copies a page that a clone shares.
const PAGE_BYTES: u64 = 16 << 10;
/// Bytes of a block: what a sparse read sees as data or as a hole.
const BLOCK_BYTES: u64 = 4 << 10;
/// Every block of a page.
const ALL_BLOCKS: u8 = (1 << (PAGE_BYTES / BLOCK_BYTES)) - 1;

#[derive(Clone, Debug)]
struct Page {
    bytes: Box<[u8]>,
    /// Bit n: block n was written.
    written: u8,
}

impl Page {
    fn empty() -> Self {
        Self { bytes: vec![0; PAGE_BYTES as usize].into(), written: 0 }
    }
}

/// The bytes of an object. A copy shares the pages.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

/// The pieces of a range of bytes: number of the page, start and end in it.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (number, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let stop = PAGE_BYTES.min(start + end - at);
        at += stop - start;
        Some((number, start as usize, stop as usize))
    })
}

/// Bits of the blocks that a range of a page touches.
fn touched(start: usize, end: usize) -> u8 {
    let block = BLOCK_BYTES as usize;
    (start / block..end.div_ceil(block)).fold(0, |bits, number| bits | 1 << number)
}

/// Bits of the blocks that lie in a range of a page as a whole.
fn covered(start: usize, end: usize) -> u8 {
    let block = BLOCK_BYTES as usize;
    (start.div_ceil(block)..end / block).fold(0, |bits, number| bits | 1 << number)
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
        self.pages.len() as u64 * PAGE_BYTES
    }

    fn page(&mut self, number: u64) -> &mut Page {
        let page = self.pages.entry(number).or_insert_with(|| Arc::new(Page::empty()));
        Arc::make_mut(page)
    }

    /// Writes, and grows the object where the bytes end behind its end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (number, start, end) in pieces(offset, bytes.len() as u64) {
            let (now, later) = rest.split_at(end - start);
            let page = self.page(number);
            page.bytes[start..end].copy_from_slice(now);
            page.written |= touched(start, end);
            rest = later;
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
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let written = page.written & !covered(start, end);
            if written == 0 {
                self.pages.remove(&number);
                continue;
            }
            let page = Arc::make_mut(page);
            page.bytes[start..end].fill(0);
            page.written = written;
        }
    }

    /// Cuts the object, or makes it longer with zeros.
    pub fn truncate(&mut self, len: u64) {
        if len < self.len {
            drop(self.pages.split_off(&len.div_ceil(PAGE_BYTES)));
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
        for (number, start, end) in pieces(offset, len) {
            match self.pages.get(&number) {
                Some(page) => bytes.extend_from_slice(&page.bytes[start..end]),
                None => bytes.resize(bytes.len() + end - start, 0),
            }
        }
        bytes.into()
    }

    /// The ranges in a range that were written, as (offset, length), in whole blocks but for the
    /// ends of the range and of the object.
    #[must_use]
    pub fn extents(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let end = offset.saturating_add(len).min(self.len);
        let mut extents: Vec<(u64, u64)> = Vec::new();
        if end <= offset {
            return extents;
        }
        for (&number, page) in self.pages.range(offset / PAGE_BYTES..=(end - 1) / PAGE_BYTES) {
            for block in 0..PAGE_BYTES / BLOCK_BYTES {
                let start = number * PAGE_BYTES + block * BLOCK_BYTES;
                let (from, to) = (start.max(offset), (start + BLOCK_BYTES).min(end));
                if page.written & 1 << block == 0 || from >= to {
                    continue;
                }
                match extents.last_mut() {
                    Some(last) if last.0 + last.1 == from => last.1 += to - from,
                    _ => extents.push((from, to - from)),
                }
            }
        }
        extents
    }
}

const _: () = assert!(ALL_BLOCKS.count_ones() as u64 == PAGE_BYTES / BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use super::Data;
    use proptest::prelude::*;

    const SPACE: usize = 100_000;

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
