//! GFNI on 512-bit vectors, the fastest kernel.
//!
//! On hot data this loop is bound by the affine instruction, so it avoids everything else: sources
//! are taken in pairs, and one three-operand XOR adds two products; a row of ones skips the
//! multiplication; matrices are broadcast from memory as operands. Columns that do not fill a
//! vector are done with masked loads and stores.

use std::arch::x86_64::{
    __m512i, __mmask64, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use crate::compile::{Pass, PassKind};

/// Bytes of one vector.
const VECTOR_BYTES: usize = 64;
/// Truth table of a ^ b ^ c.
const XOR3: i32 = 0x96;

/// # Safety
/// As [`super::Kernel::run`]; the CPU has AVX-512 F and BW, and GFNI.
pub(super) unsafe fn run(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    len_bytes: usize,
) {
    let first_ones = matches!(pass.kind, PassKind::Several { first_ones: true });
    // SAFETY: the caller's contract is passed on; the number of rows matches the instance.
    unsafe {
        match (targets.len(), first_ones) {
            (1, _) => rows::<1, 4, false>(pass, sources, targets, len_bytes),
            (2, false) => rows::<2, 4, false>(pass, sources, targets, len_bytes),
            (2, true) => rows::<2, 4, true>(pass, sources, targets, len_bytes),
            (3, false) => rows::<3, 2, false>(pass, sources, targets, len_bytes),
            (3, true) => rows::<3, 2, true>(pass, sources, targets, len_bytes),
            (4, false) => rows::<4, 2, false>(pass, sources, targets, len_bytes),
            (4, true) => rows::<4, 2, true>(pass, sources, targets, len_bytes),
            _ => super::scalar::run(pass, sources, targets, 0, len_bytes),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn rows<const ROWS: usize, const VECTORS: usize, const FIRST_ONES: bool>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    len_bytes: usize,
) {
    let mut at = 0;
    // SAFETY: the caller's contract; every block ends at or before len_bytes.
    unsafe {
        while at + VECTORS * VECTOR_BYTES <= len_bytes {
            block::<ROWS, VECTORS, FIRST_ONES, false>(pass, sources, targets, at, !0);
            at += VECTORS * VECTOR_BYTES;
        }
        while at < len_bytes {
            let columns = (len_bytes - at).min(VECTOR_BYTES);
            let mask = !0 >> (VECTOR_BYTES - columns);
            block::<ROWS, 1, FIRST_ONES, true>(pass, sources, targets, at, mask);
            at += columns;
        }
    }
}

/// The columns `at .. at + VECTORS * 64`, or with `MASKED` (one vector) those in `mask` only.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn block<
    const ROWS: usize,
    const VECTORS: usize,
    const FIRST_ONES: bool,
    const MASKED: bool,
>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    at: usize,
    mask: __mmask64,
) {
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; ROWS];
    let ones = if let PassKind::Single { ones } = pass.kind { ones } else { 0 };
    // SAFETY: pointers are valid for the columns of this block (contract of `rows`), of which
    // masked loads and stores touch only those in the mask.
    unsafe {
        if pass.accumulate {
            for (sums, target) in sums.iter_mut().zip(targets) {
                *sums = load::<VECTORS, MASKED>(target.add(at), mask);
            }
        }
        add_ones::<VECTORS, MASKED>(&mut sums[0], &sources[..ones], at, mask);
        let (pairs, last) = sources[ones..].as_chunks::<2>();
        let mut matrices = &pass.affine[ones * ROWS..];
        for [a, b] in pairs {
            let a = load::<VECTORS, MASKED>(a.add(at), mask);
            let b = load::<VECTORS, MASKED>(b.add(at), mask);
            let (pair, rest) = matrices.split_at(2 * ROWS);
            matrices = rest;
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let (a, b) = (a[vector], b[vector]);
                    let (a, b) = if FIRST_ONES && row == 0 {
                        (a, b)
                    } else {
                        (multiply(a, pair[row]), multiply(b, pair[ROWS + row]))
                    };
                    *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, a, b);
                }
            }
        }
        if let [a] = last {
            let a = load::<VECTORS, MASKED>(a.add(at), mask);
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let a = a[vector];
                    let a = if FIRST_ONES && row == 0 { a } else { multiply(a, matrices[row]) };
                    *sum = _mm512_xor_si512(*sum, a);
                }
            }
        }
        for (sums, target) in sums.iter().zip(targets) {
            if MASKED {
                _mm512_mask_storeu_epi8(target.add(at).cast(), mask, sums[0]);
            } else {
                for (vector, &sum) in sums.iter().enumerate() {
                    _mm512_storeu_si512(target.add(at + vector * VECTOR_BYTES).cast(), sum);
                }
            }
        }
    }
}

/// Adds sources whose coefficient is 1.
///
/// # Safety
/// The sources are valid for reading the columns that [`load`] reads at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_ones<const VECTORS: usize, const MASKED: bool>(
    sums: &mut [__m512i; VECTORS],
    sources: &[*const u8],
    at: usize,
    mask: __mmask64,
) {
    let (pairs, last) = sources.as_chunks::<2>();
    for [a, b] in pairs {
        // SAFETY: the caller's contract.
        let (a, b) = unsafe {
            (load::<VECTORS, MASKED>(a.add(at), mask), load::<VECTORS, MASKED>(b.add(at), mask))
        };
        for (vector, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_ternarylogic_epi64::<XOR3>(*sum, a[vector], b[vector]);
        }
    }
    for source in last {
        // SAFETY: the caller's contract.
        let x = unsafe { load::<VECTORS, MASKED>(source.add(at), mask) };
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = _mm512_xor_si512(*sum, x);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn multiply(x: __m512i, matrix: u64) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(x, _mm512_set1_epi64(matrix.cast_signed()))
}

/// # Safety
/// `from` is valid for reading `VECTORS * 64` bytes, or with `MASKED` those bytes of the first 64
/// that are in `mask`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load<const VECTORS: usize, const MASKED: bool>(
    from: *const u8,
    mask: __mmask64,
) -> [__m512i; VECTORS] {
    let mut vectors = [_mm512_setzero_si512(); VECTORS];
    for (vector, value) in vectors.iter_mut().enumerate() {
        // SAFETY: inside the bytes that the caller vouches for.
        *value = unsafe {
            let from = from.add(vector * VECTOR_BYTES);
            if MASKED {
                _mm512_maskz_loadu_epi8(mask, from.cast())
            } else {
                _mm512_loadu_si512(from.cast())
            }
        };
    }
    vectors
}
