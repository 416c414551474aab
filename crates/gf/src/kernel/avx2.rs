//! AVX2: a product is two byte shuffles, one per nibble of the source.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_set1_epi8,
    _mm256_shuffle_epi8, _mm256_srli_epi64,
};

super::vector256::sweep256! {
    features: "avx2", factors: nibbles, prepare: tables, product: product
}

/// The products of a factor with all low nibbles, and with all high nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn tables(factor: &[u8; 32]) -> [__m256i; 2] {
    let half = |at: usize| {
        // SAFETY: 16 bytes from the start or the middle of 32.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(factor.as_ptr().add(at).cast()) })
    };
    [half(0), half(16)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn product(x: __m256i, [low, high]: [__m256i; 2]) -> __m256i {
    let low_nibble = _mm256_set1_epi8(15);
    let low_index = _mm256_and_si256(x, low_nibble);
    let high_index = _mm256_and_si256(_mm256_srli_epi64(x, 4), low_nibble);
    _mm256_xor_si256(_mm256_shuffle_epi8(low, low_index), _mm256_shuffle_epi8(high, high_index))
}
