//! One mapping, in vectors: this module speculates. It makes many draws at once, before the mapper
//! needs them.
//!
//! A single mapping has no other inputs to fill the lanes with. But it has *items*: every item of a
//! straw2 bucket is hashed independently. And some draws are certain to be needed: three replicas
//! make at least one attempt each, with the attempt numbers 0, 1 and 2. So before a choose step
//! runs, this module makes the draws of its first attempts level by level. It puts the items of all
//! these draws into the lanes together, and remembers the results by bucket and attempt number.
//! Then the plain mapper runs unchanged. It asks this module for each draw first, and finds most of
//! them made. If a draw is missing, this module makes it alone, with its items in lanes.
//!
//! The mapper's logic does not change, because a draw depends only on the bucket, the input and the
//! attempt number. (For maps whose weights depend on the position, this module is not used.)
//! Comparisons are approximate. If two straws are close, the plain mapper decides, as in
//! [`draw`](super::draw).

use std::cell::RefCell;

use super::draw::DOUBT;
use super::simd::{Simd, Twice};
use super::tables::{Tables, straw_lengths};
use super::{Kernel, hash};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::bucket::AlgorithmKind;

/// Items whose straws are drawn in one batch.
const LANES: usize = 256;
/// Most lanes of a vector, twice.
const PADDING: usize = 32;
/// Lanes that are filled by one copy.
const PIECE: usize = 8;
/// Places for remembered draws. A few bits of a draw select its place.
const REMEMBERED: usize = 128;

/// The key of a draw: the slot of a bucket, and the attempt number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrawKey {
    pub(crate) slot: u32,
    pub(crate) r: u32,
}

/// A finished draw.
#[derive(Clone, Copy, Default)]
struct DrawResult {
    key: DrawKey,
    /// The mapping that the draw belongs to.
    generation: u64,
    index: u32,
}

/// The best two straws of a draw so far. Each entry has the bits of the straw's length above the
/// item's index. Lengths are not negative, so their bits have the order of the lengths.
#[derive(Clone, Copy)]
struct Best {
    first: u64,
    second: u64,
}

/// Some items of one draw in the lanes.
#[derive(Clone, Copy)]
struct Span {
    draw: usize,
    lanes: (usize, usize),
    first_index: u32,
}

/// Memory that the thread's next mapping uses again.
pub(crate) struct Scratch {
    generation: u64,
    results: [DrawResult; REMEMBERED],
    ids: [u32; LANES + PADDING],
    rs: [u32; LANES + PADDING],
    straws: [f32; LANES + PADDING],
    lengths: [f32; LANES + PADDING],
    spans: Vec<Span>,
    best: Vec<Best>,
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch {
        generation: 0,
        results: [DrawResult::default(); REMEMBERED],
        ids: [0; LANES + PADDING],
        rs: [0; LANES + PADDING],
        straws: [0.0; LANES + PADDING],
        lengths: [0.0; LANES + PADDING],
        spans: Vec::new(),
        best: Vec::new(),
    }));
}

/// The draws of one mapping.
pub(crate) struct SpeculativeDraws<'a> {
    kernel: Kernel,
    tables: &'a Tables,
    x: u32,
    scratch: &'a RefCell<Box<Scratch>>,
}

impl SpeculativeDraws<'_> {
    /// Runs a mapping with speculative draws, if the kernel has vectors and they are useful for the
    /// map.
    pub(crate) fn with<T>(
        kernel: Kernel,
        tables: &Tables,
        x: u32,
        run: impl FnOnce(Option<&SpeculativeDraws<'_>>) -> T,
    ) -> T {
        let straw2 = tables.algorithms & 1 << AlgorithmKind::Straw2 as u32 != 0;
        if kernel == Kernel::Scalar || !straw2 || tables.has_runs {
            return run(None);
        }
        SCRATCH.with(|scratch| {
            scratch.borrow_mut().generation += 1;
            run(Some(&SpeculativeDraws { kernel, tables, x, scratch }))
        })
    }

    /// The index that the draw gives, if vectors can make the draw and its result is not in doubt.
    pub(crate) fn get(&self, key: DrawKey) -> Option<usize> {
        if !self.can(key) {
            return None;
        }
        let scratch = &mut **self.scratch.borrow_mut();
        if let Some(index) = scratch.remembered(key) {
            return Some(index as usize);
        }
        let mut index = [None];
        self.race(scratch, &[key], &mut index);
        index[0].map(|index| index as usize)
    }

    /// Makes draws and writes their indices; `None` if the plain mapper must make the draw.
    pub(crate) fn make(&self, keys: &[DrawKey], indices: &mut [Option<u32>]) {
        let scratch = &mut **self.scratch.borrow_mut();
        self.race(scratch, keys, indices);
    }

    fn can(&self, key: DrawKey) -> bool {
        let slot = key.slot as usize;
        self.tables.algorithm[slot] == AlgorithmKind::Straw2 as u32
    }

    fn race(&self, scratch: &mut Scratch, keys: &[DrawKey], indices: &mut [Option<u32>]) {
        scratch.best.clear();
        scratch.best.resize(keys.len(), Best { first: u64::MAX, second: u64::MAX });
        let mut used = 0;
        for (draw, &key) in keys.iter().enumerate() {
            if !self.can(key) {
                continue;
            }
            let [first, size] = self.tables.bucket[key.slot as usize];
            let mut done = 0;
            while done < size {
                let len = (size - done).min((LANES - used) as u32) as usize;
                let from = (first + done) as usize;
                copy(&mut scratch.ids[used..], &self.tables.straw_ids[from..], len);
                copy(&mut scratch.straws[used..], &self.tables.straw_scales[from..], len);
                for to in scratch.rs[used..]
                    .as_chunks_mut::<PIECE>()
                    .0
                    .iter_mut()
                    .take(len.div_ceil(PIECE))
                {
                    *to = [key.r; PIECE];
                }
                scratch.spans.push(Span { draw, lanes: (used, used + len), first_index: done });
                used += len;
                done += len as u32;
                if used == LANES {
                    self.run_lanes(scratch, used);
                    used = 0;
                }
            }
        }
        self.run_lanes(scratch, used);
        for ((&key, index), at) in keys.iter().zip(indices).zip(0..) {
            let Best { first, second } = scratch.best[at];
            *index = None;
            let length = |entry: u64| f32::from_bits((entry >> 32) as u32);
            let is_only = second == u64::MAX && first != u64::MAX;
            if is_only || length(second) > length(first) * (1.0 + DOUBT) + 2.0 {
                *index = Some(first as u32);
                scratch.remember(key, first as u32);
            }
        }
    }

    /// Draws the straws of all lanes, and updates the best two of each draw.
    fn run_lanes(&self, scratch: &mut Scratch, used: usize) {
        match self.kernel {
            Kernel::Scalar => unreachable!("the plain mapper makes no speculative draws"),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => avx2::race_lanes(self.x, scratch, used),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => avx512::race_lanes(self.x, scratch, used),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only the plain mapper is available here"),
        }
        for span in scratch.spans.drain(..) {
            let best = &mut scratch.best[span.draw];
            let lengths = &scratch.lengths[span.lanes.0..span.lanes.1];
            for (length, index) in lengths.iter().zip(span.first_index..) {
                let entry = u64::from(length.to_bits()) << 32 | u64::from(index);
                best.second = best.second.min(best.first.max(entry));
                best.first = best.first.min(entry);
            }
        }
    }
}

/// Copies at least `len` numbers, in whole pieces. Buckets are small, and one call for each would
/// cost more than the copy. The extra numbers have no meaning; both sides have room for them.
#[inline]
fn copy<T: Copy>(to: &mut [T], from: &[T], len: usize) {
    let (to, from) = (to.as_chunks_mut::<PIECE>().0, from.as_chunks::<PIECE>().0);
    for (to, from) in to.iter_mut().zip(from).take(len.div_ceil(PIECE)) {
        *to = *from;
    }
}

impl Scratch {
    fn place(key: DrawKey) -> usize {
        let mixed = key.slot.wrapping_mul(0x9e37_79b1) ^ key.r.wrapping_mul(0x85eb_ca77);
        (mixed >> 25) as usize % REMEMBERED
    }

    fn remembered(&self, key: DrawKey) -> Option<u32> {
        let result = &self.results[Self::place(key)];
        let same = result.generation == self.generation && result.key == key;
        same.then_some(result.index)
    }

    fn remember(&mut self, key: DrawKey, index: u32) {
        self.results[Self::place(key)] = DrawResult { key, generation: self.generation, index };
    }
}

/// The lengths of the straws in the first `used` lanes.
#[inline(always)]
pub(crate) fn race_lanes<S: Simd>(s: S, x: u32, scratch: &mut Scratch, used: usize) {
    if used <= S::LANES {
        return race_at(s, x, scratch, 0);
    }
    for at in (0..used).step_by(2 * S::LANES) {
        race_at(Twice(s), x, scratch, at);
    }
}

/// One vector of lanes.
#[inline(always)]
fn race_at<S: Simd>(s: S, x: u32, scratch: &mut Scratch, at: usize) {
    let (ids, rs) = (s.load(&scratch.ids[at..]), s.load(&scratch.rs[at..]));
    let length = s.gather_float(straw_lengths(), hash::hash3(s, s.splat(x), ids, rs));
    let straw = s.load_float(&scratch.straws[at..]);
    s.store_float(s.mul_float(length, straw), &mut scratch.lengths[at..]);
}
