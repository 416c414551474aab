//! A sparse device in memory: the reference backend.
//!
//! `serve ram:SIZE` measures the front-ends with it, and tests compare against it. So it does only
//! the work that the contract asks for: `submit` carries every request out, and `poll` hands the
//! completions over.
//!
//! # Layout
//!
//! The device is cut into pages of 64 KiB. A two-level table finds them: an ordered map of leaves
//! of 512 pages, so a device of any size takes no memory until a client writes to it. Within a
//! page, two bit masks say for each 4 KiB block whether it holds *data* or is *reserved*
//! (allocated, reads as zeroes). A block that is neither is a *hole*. So extents are exact to
//! 4 KiB, and a read of anything but data gives [`Piece::Zeroes`], which needs no memory at all.
//!
//! # Reads do not copy
//!
//! A read returns slices of the pages themselves. A write to a page with live slices copies the
//! page first (copy on write), so a slice is immutable while it lives. Front-ends drop a slice when
//! it is on the wire, so the copy is rare. A cache that keeps slices makes the copy common and pins
//! whole pages, so a device over a `Ram` should have no cache.
//!
//! `Ram` copies the bytes of a write. Keeping the caller's buffer would be faster, but one block
//! would then pin the whole receive buffer that it is a slice of, and memory would have no bound. A
//! random write costs little more than copying 4 KiB to a cold page (`examples/cost.rs` prints both
//! costs).
//!
//! # Invariants
//!
//! - `data` and `reserved` of a page are disjoint.
//! - `memory` is empty exactly when `data` is zero.
//! - The memory of a block that is not data is garbage. It is zeroed when the block becomes data.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::extents::push_extent;
use crate::{
    Backend, BlockError, Completion, EXTENTS_MAX, Extent, ExtentKind, Info, Nanos, Op, Payload,
    Piece, Request, Stage,
};

const PAGE_BYTES: usize = 64 * 1024;
const BLOCK_BYTES: usize = 4096;
const PAGES_PER_LEAF: usize = 512;
/// Pages that one request for extents visits.
const EXTENT_PARTS_MAX: usize = 16_384;
const LEAF_BYTES: u64 = (PAGE_BYTES * PAGES_PER_LEAF) as u64;

/// The state of a range after a request empties it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    Hole,
    Reserved,
}

#[derive(Default)]
struct Page {
    memory: Bytes,
    data: u16,
    reserved: u16,
}

/// The part of a request that falls into one page: `start..end` within the page.
#[derive(Clone, Copy)]
struct Part {
    leaf: u64,
    page: usize,
    start: usize,
    end: usize,
}

impl Part {
    fn len(self) -> usize {
        self.end - self.start
    }

    /// The blocks that the part touches, including blocks that it covers only in part.
    fn touched(self) -> std::ops::Range<usize> {
        self.start / BLOCK_BYTES..self.end.div_ceil(BLOCK_BYTES)
    }

    /// The part's range inside `block`, as offsets within the page.
    fn within(self, block: usize) -> std::ops::Range<usize> {
        self.start.max(block * BLOCK_BYTES)..self.end.min((block + 1) * BLOCK_BYTES)
    }
}

fn mask_of(blocks: &std::ops::Range<usize>) -> u16 {
    let low = (1u32 << blocks.start) - 1;
    let high = (1u32 << blocks.end) - 1;
    u16::try_from(high & !low).expect("a page has 16 blocks")
}

/// Cuts `offset..offset + len` at page boundaries.
fn parts(offset_bytes: u64, len_bytes: u32) -> impl Iterator<Item = Part> {
    let end = offset_bytes + u64::from(len_bytes);
    let mut at = offset_bytes;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let in_leaf = usize::try_from(at % LEAF_BYTES).expect("a leaf fits in memory");
        let start = in_leaf % PAGE_BYTES;
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let part_end = PAGE_BYTES.min(start.saturating_add(left));
        let part = Part { leaf: at / LEAF_BYTES, page: in_leaf / PAGE_BYTES, start, end: part_end };
        at += part.len() as u64;
        Some(part)
    })
}

fn push_zeroes(pieces: &mut SmallVec<[Piece; 1]>, len: usize) {
    let len = u32::try_from(len).expect("a part is at most one page");
    match pieces.last_mut() {
        Some(Piece::Zeroes(last)) => *last += len,
        _ => pieces.push(Piece::Zeroes(len)),
    }
}

impl Page {
    fn kind(&self, block: usize) -> ExtentKind {
        match (self.data >> block & 1, self.reserved >> block & 1) {
            (1, _) => ExtentKind::Data,
            (_, 1) => ExtentKind::Zero,
            _ => ExtentKind::Hole,
        }
    }

    fn read(&self, part: Part, pieces: &mut SmallVec<[Piece; 1]>) {
        let touched = part.touched();
        let mask = mask_of(&touched);
        if self.data & mask == mask {
            pieces.push(Piece::Data(self.memory.slice(part.start..part.end)));
            return;
        }
        if self.data & mask == 0 {
            push_zeroes(pieces, part.len());
            return;
        }
        let mut block = touched.start;
        while block < touched.end {
            let is_data = self.data >> block & 1;
            let run_end = (block..touched.end)
                .find(|&other| self.data >> other & 1 != is_data)
                .unwrap_or(touched.end);
            let run = part.within(block).start..part.within(run_end - 1).end;
            if is_data == 1 {
                pieces.push(Piece::Data(self.memory.slice(run)));
            } else {
                push_zeroes(pieces, run.len());
            }
            block = run_end;
        }
    }

    /// The page's memory for writing: its own, or a copy if a reader still holds a slice.
    fn memory_mut(&mut self) -> BytesMut {
        if self.memory.is_empty() {
            return BytesMut::zeroed(PAGE_BYTES);
        }
        match std::mem::take(&mut self.memory).try_into_mut() {
            Ok(own) => own,
            Err(shared) => BytesMut::from(&shared[..]),
        }
    }

    fn write(&mut self, part: Part, source: &[u8]) {
        let touched = part.touched();
        let mut memory = self.memory_mut();
        // Only the first and the last block can be covered in part.
        for block in [touched.start, touched.end - 1] {
            if self.data >> block & 1 == 0 && part.within(block).len() < BLOCK_BYTES {
                memory[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES].fill(0);
                self.data |= 1 << block;
            }
        }
        memory[part.start..part.end].copy_from_slice(source);
        self.data |= mask_of(&touched);
        self.reserved &= !self.data;
        self.memory = memory.freeze();
    }

    fn empty(&mut self, part: Part, into: Emptied) {
        let whole = part.start.div_ceil(BLOCK_BYTES)..part.end / BLOCK_BYTES;
        let whole_mask = if whole.start < whole.end { mask_of(&whole) } else { 0 };
        let edges = mask_of(&part.touched()) & !whole_mask;
        if self.data & edges != 0 {
            let mut memory = self.memory_mut();
            for block in part.touched() {
                if self.data & edges & (1 << block) != 0 {
                    memory[part.within(block)].fill(0);
                }
            }
            self.memory = memory.freeze();
        }
        self.data &= !whole_mask;
        match into {
            Emptied::Hole => self.reserved &= !whole_mask,
            // A hole at an edge becomes reserved as a whole, because it reads as zeroes either way.
            Emptied::Reserved => self.reserved |= (whole_mask | edges) & !self.data,
        }
        if self.data == 0 {
            self.memory = Bytes::new();
        }
    }
}

/// A sparse device in memory. Completes every request at once.
pub struct Ram {
    size_bytes: u64,
    leaves: BTreeMap<u64, Box<[Page]>>,
    ready: Vec<Completion>,
}

impl Ram {
    /// An empty device of `size_bytes` bytes.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Ram { size_bytes, leaves: BTreeMap::new(), ready: Vec::new() }
    }

    /// Bytes of memory that hold data, in whole pages.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let pages = self.leaves.values().flat_map(|leaf| leaf.iter());
        pages.map(|page| page.memory.len() as u64).sum()
    }

    fn page_mut(&mut self, part: Part) -> &mut Page {
        let leaf = self.leaves.entry(part.leaf).or_insert_with(|| {
            std::iter::repeat_with(Page::default).take(PAGES_PER_LEAF).collect()
        });
        &mut leaf[part.page]
    }

    fn read(&self, request: &Request) -> Payload {
        let mut pieces = SmallVec::new();
        for part in parts(request.offset_bytes, request.len_bytes) {
            match self.leaves.get(&part.leaf) {
                Some(leaf) => leaf[part.page].read(part, &mut pieces),
                None => push_zeroes(&mut pieces, part.len()),
            }
        }
        Payload::Data(pieces)
    }

    fn write(&mut self, request: &Request) {
        let mut from = 0;
        for part in parts(request.offset_bytes, request.len_bytes) {
            self.page_mut(part).write(part, &request.data[from..from + part.len()]);
            from += part.len();
        }
    }

    fn empty(&mut self, request: &Request, into: Emptied) {
        for part in parts(request.offset_bytes, request.len_bytes) {
            if into == Emptied::Reserved || self.leaves.contains_key(&part.leaf) {
                self.page_mut(part).empty(part, into);
            }
        }
    }

    fn extents(&self, request: &Request) -> Vec<Extent> {
        let mut extents = Vec::new();
        for part in parts(request.offset_bytes, request.len_bytes).take(EXTENT_PARTS_MAX) {
            if extents.len() > EXTENTS_MAX {
                break;
            }
            let Some(leaf) = self.leaves.get(&part.leaf) else {
                push_extent(&mut extents, part.len() as u64, ExtentKind::Hole);
                continue;
            };
            let page = &leaf[part.page];
            for block in part.touched() {
                push_extent(&mut extents, part.within(block).len() as u64, page.kind(block));
            }
        }
        extents.truncate(EXTENTS_MAX);
        extents
    }

    fn execute(&mut self, request: &Request) -> Result<Payload, BlockError> {
        debug_assert_eq!(request.validate(&self.info()), Ok(()));
        match request.op {
            Op::Read => return Ok(self.read(request)),
            Op::Extents => return Ok(Payload::Extents(self.extents(request))),
            Op::Write => self.write(request),
            Op::WriteZeroes if request.flags.no_hole => self.empty(request, Emptied::Reserved),
            Op::WriteZeroes | Op::Trim => self.empty(request, Emptied::Hole),
            Op::Flush => {}
        }
        Ok(Payload::None)
    }
}

impl Backend for Ram {
    fn info(&self) -> Info {
        Info {
            size_bytes: self.size_bytes,
            block_bytes: 1,
            preferred_bytes: BLOCK_BYTES as u32,
            read_ahead_bytes: 0,
            read_only: false,
        }
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
            request.stamps.stamp(stage, now);
        }
        let result = self.execute(&request);
        self.ready.push(Completion::of(&request, result));
    }

    fn poll(&mut self, _now: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::to_bytes;
    use crate::{QueueId, ReadDestination, RequestFlags, RequestId, Stamps};

    fn ask(ram: &mut Ram, op: Op, offset: u64, data: &[u8], len: u32, no_hole: bool) -> Payload {
        let request = Request {
            id: RequestId(7),
            op,
            offset_bytes: offset,
            len_bytes: len,
            flags: RequestFlags { no_hole, ..RequestFlags::default() },
            data: Bytes::copy_from_slice(data),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        ram.submit(request, Nanos(1));
        let mut out = Vec::new();
        ram.poll(Nanos(1), &mut out);
        assert_eq!(out.len(), 1);
        out.remove(0).result.unwrap()
    }

    fn read(ram: &mut Ram, offset: u64, len: u32) -> SmallVec<[Piece; 1]> {
        match ask(ram, Op::Read, offset, &[], len, false) {
            Payload::Data(pieces) => pieces,
            other => panic!("{other:?}"),
        }
    }

    fn extents(ram: &mut Ram, offset: u64, len: u32) -> Vec<(u64, ExtentKind)> {
        match ask(ram, Op::Extents, offset, &[], len, false) {
            Payload::Extents(list) => list.iter().map(|e| (e.len_bytes, e.kind)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_read_keeps_what_it_saw_though_the_page_is_written() {
        let mut ram = Ram::new(1 << 20);
        ask(&mut ram, Op::Write, 100, &[1; 5000], 5000, false);
        let before = to_bytes(&read(&mut ram, 100, 5000));
        ask(&mut ram, Op::Write, 200, &[2; 10], 10, false);
        assert!(before.iter().all(|byte| *byte == 1));
        let after = to_bytes(&read(&mut ram, 0, 300));
        assert_eq!(&after[..100], &[0; 100]);
        assert_eq!(&after[200..210], &[2; 10]);
        assert_eq!(&after[210..], &[1; 90]);
    }

    #[test]
    fn reads_of_one_page_share_its_memory() {
        let mut ram = Ram::new(1 << 20);
        ask(&mut ram, Op::Write, 0, &[1; 65536], 65536, false);
        let (one, two) = (to_bytes(&read(&mut ram, 4096, 8)), to_bytes(&read(&mut ram, 4096, 8)));
        assert_eq!(one.as_ptr(), two.as_ptr());
    }

    #[test]
    fn extents_follow_writes_zeroes_and_trims_to_the_block() {
        use ExtentKind::{Data, Hole, Zero};
        let mut ram = Ram::new(1 << 30);
        assert_eq!(extents(&mut ram, 0, 1 << 30), vec![(1 << 30, Hole)]);
        ask(&mut ram, Op::Write, 8192, &[1; 4096], 4096, false);
        ask(&mut ram, Op::WriteZeroes, 12288, &[], 8192, true);
        assert_eq!(
            extents(&mut ram, 4096, 1 << 20),
            vec![(4096, Hole), (4096, Data), (8192, Zero), ((1 << 20) - 16384, Hole)]
        );
        ask(&mut ram, Op::Trim, 8192, &[], 8192, false);
        assert_eq!(extents(&mut ram, 0, 20480), vec![(16384, Hole), (4096, Zero)]);
        assert_eq!(ram.memory_bytes(), 0);
        assert_eq!(read(&mut ram, 0, 20480)[..], [Piece::Zeroes(20480)]);
    }

    #[test]
    fn an_answer_has_a_bounded_number_of_extents() {
        let mut ram = Ram::new(64 << 20);
        for block in (0..4 * EXTENTS_MAX as u64).step_by(2) {
            ask(&mut ram, Op::Write, block * 4096, &[1; 4096], 4096, false);
        }
        let found = extents(&mut ram, 0, 64 << 20);
        assert_eq!(found.len(), EXTENTS_MAX);
        assert!(found.iter().all(|(len_bytes, _)| *len_bytes == 4096));
    }

    #[test]
    fn a_partial_write_after_a_trim_does_not_bring_old_bytes_back() {
        let mut ram = Ram::new(1 << 20);
        ask(&mut ram, Op::Write, 0, &[9; 8192], 8192, false);
        ask(&mut ram, Op::Trim, 0, &[], 4096, false);
        ask(&mut ram, Op::Write, 1000, &[5; 10], 10, false);
        let bytes = to_bytes(&read(&mut ram, 0, 8192));
        assert_eq!(&bytes[..1000], &[0; 1000]);
        assert_eq!(&bytes[1010..4096], &[0; 3086]);
        assert_eq!(&bytes[4096..], &[9; 4096]);
    }

    #[test]
    fn the_far_end_of_a_huge_device_costs_one_page() {
        let mut ram = Ram::new(u64::MAX);
        ask(&mut ram, Op::Write, u64::MAX - 3, &[4; 3], 3, false);
        assert_eq!(ram.memory_bytes(), PAGE_BYTES as u64);
        assert_eq!(&to_bytes(&read(&mut ram, u64::MAX - 4, 4))[..], [0, 4, 4, 4]);
    }
}
