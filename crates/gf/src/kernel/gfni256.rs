//! GFNI on 256-bit vectors, for CPUs that have GFNI without AVX-512: a product is one affine
//! instruction with the 8 by 8 bit matrix of its coefficient.

use std::arch::x86_64::{
    __m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_xor_si256,
};

use crate::compile::{Pass, PassKind};

/// Bytes of one vector.
const VECTOR_BYTES: usize = 32;

/// # Safety
/// As [`super::Kernel::run`]; the CPU has AVX2 and GFNI.
pub(super) unsafe fn run(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    len_bytes: usize,
) {
    // SAFETY: the caller's contract is passed on; the number of rows matches the instance.
    unsafe {
        match targets.len() {
            1 => rows::<1>(pass, sources, targets, len_bytes),
            2 => rows::<2>(pass, sources, targets, len_bytes),
            3 => rows::<3>(pass, sources, targets, len_bytes),
            4 => rows::<4>(pass, sources, targets, len_bytes),
            _ => super::scalar::run(pass, sources, targets, 0, len_bytes),
        }
    }
}

#[target_feature(enable = "avx2,gfni")]
unsafe fn rows<const ROWS: usize>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    len_bytes: usize,
) {
    let mut at = 0;
    // SAFETY: the caller's contract; every block ends at or before len_bytes.
    unsafe {
        while at + 2 * VECTOR_BYTES <= len_bytes {
            block::<ROWS, 2>(pass, sources, targets, at);
            at += 2 * VECTOR_BYTES;
        }
        if at + VECTOR_BYTES <= len_bytes {
            block::<ROWS, 1>(pass, sources, targets, at);
            at += VECTOR_BYTES;
        }
        super::scalar::run(pass, sources, targets, at, len_bytes);
    }
}

/// The columns `at .. at + VECTORS * VECTOR_BYTES`.
#[inline]
#[target_feature(enable = "avx2,gfni")]
unsafe fn block<const ROWS: usize, const VECTORS: usize>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    at: usize,
) {
    let mut sums = [[_mm256_setzero_si256(); VECTORS]; ROWS];
    let ones = if let PassKind::Single { ones } = pass.kind { ones } else { 0 };
    // SAFETY: pointers are valid for the columns of this block (contract of `rows`).
    unsafe {
        if pass.accumulate {
            for (sums, target) in sums.iter_mut().zip(targets) {
                *sums = load::<VECTORS>(target.add(at));
            }
        }
        for source in &sources[..ones] {
            for (sum, x) in sums[0].iter_mut().zip(load::<VECTORS>(source.add(at))) {
                *sum = _mm256_xor_si256(*sum, x);
            }
        }
        let matrices = pass.affine[ones * ROWS..].chunks_exact(ROWS);
        for (source, matrices) in sources[ones..].iter().zip(matrices) {
            let x = load::<VECTORS>(source.add(at));
            for (sums, &matrix) in sums.iter_mut().zip(matrices) {
                let matrix = _mm256_set1_epi64x(matrix.cast_signed());
                for (sum, &x) in sums.iter_mut().zip(&x) {
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(x, matrix);
                    *sum = _mm256_xor_si256(*sum, product);
                }
            }
        }
        for (sums, target) in sums.iter().zip(targets) {
            for (vector, &sum) in sums.iter().enumerate() {
                _mm256_storeu_si256(target.add(at + vector * VECTOR_BYTES).cast(), sum);
            }
        }
    }
}

/// # Safety
/// `from` is valid for reading `VECTORS * VECTOR_BYTES` bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<const VECTORS: usize>(from: *const u8) -> [__m256i; VECTORS] {
    let mut vectors = [_mm256_setzero_si256(); VECTORS];
    for (vector, value) in vectors.iter_mut().enumerate() {
        // SAFETY: inside the bytes that the caller vouches for.
        *value = unsafe { _mm256_loadu_si256(from.add(vector * VECTOR_BYTES).cast()) };
    }
    vectors
}
