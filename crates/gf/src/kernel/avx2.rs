//! AVX2: a product is two byte shuffles, one per nibble of the source. Two vectors of 32 columns
//! per round, all rows of the pass in registers.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_xor_si256,
};

use crate::compile::{Pass, PassKind};

/// Bytes of one vector.
const VECTOR_BYTES: usize = 32;

/// # Safety
/// As [`super::Kernel::run`]; the CPU has AVX2.
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

#[target_feature(enable = "avx2")]
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
#[target_feature(enable = "avx2")]
unsafe fn block<const ROWS: usize, const VECTORS: usize>(
    pass: &Pass,
    sources: &[*const u8],
    targets: &[*mut u8],
    at: usize,
) {
    let low_nibble = _mm256_set1_epi8(15);
    let mut sums = [[_mm256_setzero_si256(); VECTORS]; ROWS];
    let ones = if let PassKind::Single { ones } = pass.kind { ones } else { 0 };
    // SAFETY: pointers are valid for the columns of this block (contract of `rows`); table loads
    // stay inside arrays of 32 bytes.
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
        let tables = pass.nibbles[ones * ROWS..].chunks_exact(ROWS);
        for (source, tables) in sources[ones..].iter().zip(tables) {
            let x = load::<VECTORS>(source.add(at));
            for (sums, table) in sums.iter_mut().zip(tables) {
                let table = table.as_ptr();
                let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
                let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast()));
                for (sum, &x) in sums.iter_mut().zip(&x) {
                    let low_index = _mm256_and_si256(x, low_nibble);
                    let high_index = _mm256_and_si256(_mm256_srli_epi64(x, 4), low_nibble);
                    let product = _mm256_xor_si256(
                        _mm256_shuffle_epi8(low, low_index),
                        _mm256_shuffle_epi8(high, high_index),
                    );
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
