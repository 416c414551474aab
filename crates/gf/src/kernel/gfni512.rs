//! GFNI on 512-bit vectors, the fastest kernel.
//!
//! **Hot data.** If all data is in the first-level cache, the affine instruction is the limit of
//! this loop: one per cycle, because 512-bit vectors have it on one port only. So the loop avoids
//! other instructions on that port, and affine instructions themselves. It takes sources in pairs,
//! and one three-operand XOR adds two products. It only adds ones. Dyadic pairs take three products
//! instead of four (see `compile`).
//!
//! **Second-level cache.** Here the stores cost most: before a write, the line must come to the
//! first level. [`Write::Far`] prefetches the targets' lines.
//!
//! **Memory.** [`Write::Streaming`] writes whole lines around the caches, which saves reading them
//! first. It also prefetches the sources' lines, across the page boundaries at which the hardware's
//! prefetchers stop.
//!
//! Masked loads and stores handle columns that do not fill a vector, and those before the first
//! aligned column of a streaming sweep.

use std::arch::x86_64::{
    __m512i, __mmask64, _MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch, _mm512_gf2p8affine_epi64_epi8,
    _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512,
};
use std::ops::Range;

use super::{Sweep, Write};
use crate::compile::{Pass, PassKind};

/// Bytes of one vector, and of a cache line.
const VECTOR_BYTES: usize = 64;
/// Truth table of a ^ b ^ c.
const XOR3: i32 = 0x96;
/// Distance of the prefetches of targets before plain stores.
const TARGETS_AHEAD_BYTES: usize = 512;
/// Distance of the prefetches of sources in a streaming sweep.
const SOURCES_AHEAD_BYTES: usize = 1024;

/// The memory accesses of a block, in addition to its computation.
mod access {
    /// Plain stores.
    pub(super) const NEAR: u8 = 0;
    /// Plain stores, and prefetches of targets.
    pub(super) const FAR: u8 = 1;
    /// Streaming stores, and prefetches of sources.
    pub(super) const STREAM: u8 = 2;
    /// One vector; only the masked bytes are accessed.
    pub(super) const MASKED: u8 = 3;
}

/// # Safety
/// As [`super::Kernel::run`]; the CPU has AVX-512 F and BW, and GFNI.
pub(super) unsafe fn run(pass: &Pass, sources: &[*const u8], targets: &[*mut u8], sweep: &Sweep) {
    let (row_pairs, first_ones) = match pass.kind {
        PassKind::Dyadic { row_pairs } => (row_pairs, false),
        PassKind::Sum { first_row_ones, .. } => (0, first_row_ones),
        PassKind::Zero | PassKind::Copy => (0, false),
    };
    // SAFETY: the caller's contract is passed on; the number of rows matches the instance.
    unsafe {
        match (targets.len(), row_pairs, first_ones) {
            (1, ..) if sources.len() == 1 => product::<1>(pass, sources[0], targets, sweep),
            (2, ..) if sources.len() == 1 => product::<2>(pass, sources[0], targets, sweep),
            (3, ..) if sources.len() == 1 => product::<3>(pass, sources[0], targets, sweep),
            (4, ..) if sources.len() == 1 => product::<4>(pass, sources[0], targets, sweep),
            (1, ..) => rows::<1, 0, false, 4>(pass, sources, targets, sweep),
            (2, 0, false) => rows::<2, 0, false, 4>(pass, sources, targets, sweep),
            (2, 0, true) => rows::<2, 0, true, 4>(pass, sources, targets, sweep),
            (2, ..) => rows::<2, 1, false, 4>(pass, sources, targets, sweep),
            (3, 0, false) => rows::<3, 0, false, 2>(pass, sources, targets, sweep),
            (3, 0, true) => rows::<3, 0, true, 2>(pass, sources, targets, sweep),
            (3, ..) => rows::<3, 1, false, 2>(pass, sources, targets, sweep),
            (4, 0, false) => rows::<4, 0, false, 2>(pass, sources, targets, sweep),
            (4, 0, true) => rows::<4, 0, true, 2>(pass, sources, targets, sweep),
            (4, 1, _) => rows::<4, 1, false, 2>(pass, sources, targets, sweep),
            (4, ..) => rows::<4, 2, false, 2>(pass, sources, targets, sweep),
            _ => super::scalar::run(pass, sources, targets, sweep),
        }
    }
}

/// One source, as in a parity update. All matrices stay in registers, and the blocks are long
/// because there is little work per line. The stores are the limit, one line per cycle. [`rows`]
/// handles streaming.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn product<const ROWS: usize>(
    pass: &Pass,
    source: *const u8,
    targets: &[*mut u8],
    sweep: &Sweep,
) {
    const VECTORS: usize = 4;
    const BLOCK_BYTES: usize = VECTORS * VECTOR_BYTES;
    let Ok(pointers) = <&[*mut u8; ROWS]>::try_from(targets) else { return };
    let Ok(matrices) = <&[u64; ROWS]>::try_from(&pass.affine[..]) else { return };
    // A loop instead of `map`, because closures in `map` would not be compiled for these
    // instructions.
    let mut wide = [_mm512_setzero_si512(); ROWS];
    for (wide, matrix) in wide.iter_mut().zip(matrices) {
        *wide = _mm512_set1_epi64(matrix.cast_signed());
    }
    let matrices = wide;
    let Range { start: mut at, end } = sweep.columns;
    // SAFETY: the caller's contract; every block ends at or before the end.
    unsafe {
        while sweep.write != Write::Streaming && at + BLOCK_BYTES <= end {
            let x = load::<VECTORS, { access::NEAR }>(source.wrapping_add(at), !0);
            for (target, &matrix) in pointers.iter().zip(&matrices) {
                let target = target.wrapping_add(at);
                let mut products = x;
                for product in &mut products {
                    *product = _mm512_gf2p8affine_epi64_epi8::<0>(*product, matrix);
                }
                if sweep.accumulate {
                    let old = load::<VECTORS, { access::NEAR }>(target, !0);
                    for (product, old) in products.iter_mut().zip(old) {
                        *product = _mm512_xor_si512(*product, old);
                    }
                }
                store::<VECTORS, { access::NEAR }>(target, &products, !0);
            }
            at += BLOCK_BYTES;
        }
        if at < end {
            rows::<ROWS, 0, false, 1>(pass, &[source], targets, &sweep.from(at));
        }
    }
}

/// The sources of a pass, sorted by their treatment, and the matrices in that order.
struct Sources<'a> {
    ones: &'a [*const u8],
    pairs: &'a [[*const u8; 2]],
    /// For each pair: the matrices of the first source for all rows, then those of the second.
    tables: &'a [u64],
    last: Option<*const u8>,
    last_table: &'a [u64],
}

impl<'a> Sources<'a> {
    fn new(pass: &'a Pass, sources: &'a [*const u8]) -> Self {
        let rows = pass.targets.len();
        let table = if pass.dyadic.is_empty() { &pass.affine } else { &pass.dyadic };
        let (ones, others) = sources.split_at(pass.leading_ones());
        let (pairs, last) = others.as_chunks::<2>();
        let (tables, last_table) = table[ones.len() * rows..].split_at(pairs.len() * 2 * rows);
        Self { ones, pairs, tables, last: last.first().copied(), last_table }
    }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn rows<const ROWS: usize, const PAIRS: usize, const ONES: bool, const VECTORS: usize>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    sweep: &Sweep,
) {
    let Ok(targets) = <&[*mut u8; ROWS]>::try_from(targets) else { return };
    let sources = &Sources::new(pass, sources);
    let block_bytes = VECTORS * VECTOR_BYTES;
    let Range { start: mut at, end } = sweep.columns;
    let add = sweep.accumulate;
    // SAFETY: the caller's contract; every block ends at or before the end.
    unsafe {
        let masked = |at: usize, columns: usize| {
            let mask = !0 >> (VECTOR_BYTES - columns);
            let access = Access { at, mask, add };
            block::<ROWS, PAIRS, ONES, 1, { access::MASKED }>(sources, targets, access);
        };
        let whole = |at: usize| Access { at, mask: !0, add };
        match sweep.write {
            Write::Near => {}
            Write::Far => {
                while at + block_bytes + TARGETS_AHEAD_BYTES <= end {
                    let access = whole(at);
                    block::<ROWS, PAIRS, ONES, VECTORS, { access::FAR }>(sources, targets, access);
                    at += block_bytes;
                }
            }
            Write::Streaming => {
                if let Some(head) = sweep.unaligned_head(targets, VECTOR_BYTES) {
                    let head = head.min(end - at);
                    if head > 0 {
                        masked(at, head);
                        at += head;
                    }
                    while at + VECTOR_BYTES <= end {
                        let access = whole(at);
                        block::<ROWS, PAIRS, ONES, 1, { access::STREAM }>(sources, targets, access);
                        at += VECTOR_BYTES;
                    }
                }
            }
        }
        while at + block_bytes <= end {
            block::<ROWS, PAIRS, ONES, VECTORS, { access::NEAR }>(sources, targets, whole(at));
            at += block_bytes;
        }
        while at < end {
            let columns = (end - at).min(VECTOR_BYTES);
            masked(at, columns);
            at += columns;
        }
    }
}

/// The position of a block, and its treatment of the targets' old content.
#[derive(Clone, Copy)]
struct Access {
    at: usize,
    mask: __mmask64,
    add: bool,
}

/// The columns `at .. at + VECTORS * 64`, or, if masked (one vector), only those in the mask.
/// Streamed targets are aligned there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn block<
    const ROWS: usize,
    const PAIRS: usize,
    const ONES: bool,
    const VECTORS: usize,
    const ACCESS: u8,
>(
    sources: &Sources<'_>,
    targets: &[*mut u8; ROWS],
    access: Access,
) {
    let Access { at, mask, add } = access;
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; ROWS];
    // SAFETY: pointers are valid for the columns of this block (contract of `rows`), of which
    // masked loads and stores touch only those in the mask.
    unsafe {
        let take = |source: *const u8| load::<VECTORS, ACCESS>(source.wrapping_add(at), mask);
        if !sources.ones.is_empty() {
            let mut shared = [_mm512_setzero_si512(); VECTORS];
            let (pairs, last) = sources.ones.as_chunks::<2>();
            for &[a, b] in pairs {
                let (a, b) = (take(a), take(b));
                for (vector, sum) in shared.iter_mut().enumerate() {
                    *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, a[vector], b[vector]);
                }
            }
            for &source in last {
                for (sum, x) in shared.iter_mut().zip(take(source)) {
                    *sum = _mm512_xor_si512(*sum, x);
                }
            }
            sums = [shared; ROWS];
        }
        for (&[a, b], table) in sources.pairs.iter().zip(sources.tables.chunks_exact(2 * ROWS)) {
            let (a, b) = (take(a), take(b));
            let (table_a, table_b) = table.split_at(ROWS);
            add_row_pairs::<ROWS, PAIRS, VECTORS>(&mut sums, &a, &b, table_a);
            for row in 2 * PAIRS..ROWS {
                for (vector, sum) in sums[row].iter_mut().enumerate() {
                    let (a, b) = (a[vector], b[vector]);
                    let (a, b) = if ONES && row == 0 {
                        (a, b)
                    } else {
                        (multiply(a, table_a[row]), multiply(b, table_b[row]))
                    };
                    *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, a, b);
                }
            }
        }
        if let Some(a) = sources.last {
            let a = take(a);
            for (sums, &matrix) in sums.iter_mut().zip(sources.last_table) {
                for (sum, &a) in sums.iter_mut().zip(&a) {
                    *sum = _mm512_xor_si512(*sum, multiply(a, matrix));
                }
            }
        }
        for (sums, target) in sums.iter_mut().zip(targets) {
            let target = target.wrapping_add(at);
            if add {
                let old = load::<VECTORS, ACCESS>(target, mask);
                for (sum, old) in sums.iter_mut().zip(old) {
                    *sum = _mm512_xor_si512(*sum, old);
                }
            }
            store::<VECTORS, ACCESS>(target, sums, mask);
        }
    }
}

/// Adds the products of sources `a` and `b` to the rows that form dyadic pairs.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn add_row_pairs<const ROWS: usize, const PAIRS: usize, const VECTORS: usize>(
    sums: &mut [[__m512i; VECTORS]; ROWS],
    a: &[__m512i; VECTORS],
    b: &[__m512i; VECTORS],
    table: &[u64],
) {
    for vector in 0..VECTORS {
        let (a, b) = (a[vector], b[vector]);
        let both = _mm512_xor_si512(a, b);
        for pair in 0..PAIRS {
            let (common, difference) = (table[2 * pair], table[2 * pair + 1]);
            let common = multiply(both, common);
            let (of_a, of_b) = (multiply(a, difference), multiply(b, difference));
            let sum = &mut sums[2 * pair][vector];
            *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, common, of_b);
            let sum = &mut sums[2 * pair + 1][vector];
            *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, common, of_a);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn multiply(x: __m512i, matrix: u64) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(matrix.cast_signed()))
}

/// # Safety
/// `from` is valid for reading `VECTORS * 64` bytes, or when masked those bytes of the first 64
/// that are in `mask`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load<const VECTORS: usize, const ACCESS: u8>(
    from: *const u8,
    mask: __mmask64,
) -> [__m512i; VECTORS] {
    let mut vectors = [_mm512_setzero_si512(); VECTORS];
    for (vector, value) in vectors.iter_mut().enumerate() {
        // SAFETY: inside the bytes of the caller's contract. Prefetches do not fault.
        *value = unsafe {
            let from = from.wrapping_add(vector * VECTOR_BYTES);
            if ACCESS == access::STREAM {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(SOURCES_AHEAD_BYTES).cast());
            }
            if ACCESS == access::MASKED {
                _mm512_maskz_loadu_epi8(mask, from.cast())
            } else {
                _mm512_loadu_si512(from.cast())
            }
        };
    }
    vectors
}

/// # Safety
/// As [`load`], for writing; streamed targets are aligned to 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store<const VECTORS: usize, const ACCESS: u8>(
    to: *mut u8,
    values: &[__m512i; VECTORS],
    mask: __mmask64,
) {
    for (vector, &value) in values.iter().enumerate() {
        let to = to.wrapping_add(vector * VECTOR_BYTES);
        // SAFETY: inside the bytes of the caller's contract. Prefetches do not fault.
        unsafe {
            match ACCESS {
                access::MASKED => _mm512_mask_storeu_epi8(to.cast(), mask, value),
                access::STREAM => _mm512_stream_si512(to.cast(), value),
                _ => {
                    if ACCESS == access::FAR {
                        _mm_prefetch::<_MM_HINT_ET0>(to.wrapping_add(TARGETS_AHEAD_BYTES).cast());
                    }
                    _mm512_storeu_si512(to.cast(), value);
                }
            }
        }
    }
}
