//! GFNI on 256-bit vectors, for CPUs that have GFNI without AVX-512: a product is one affine
//! instruction with the 8 by 8 bit matrix of its coefficient.

use std::arch::x86_64::{__m256i, _mm256_gf2p8affine_epi64_epi8, _mm256_set1_epi64x};

super::vector256::sweep256! {
    features: "avx2,gfni", factors: affine, prepare: matrices, product: product
}

/// A factor's matrix, for each of the four lanes.
#[inline]
#[target_feature(enable = "avx2,gfni")]
fn matrices(factor: &u64) -> __m256i {
    _mm256_set1_epi64x(factor.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn product(x: __m256i, matrices: __m256i) -> __m256i {
    _mm256_gf2p8affine_epi64_epi8::<0>(x, matrices)
}
