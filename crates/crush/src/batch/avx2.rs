//! [`Simd`] on AVX2: 8 lanes. A mask is a vector of all-ones and all-zero lanes.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _CMP_LT_OQ, _mm_cvtsi128_si32, _mm_max_epu32, _mm_shuffle_epi32,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_andnot_si256, _mm256_blend_epi32,
    _mm256_blendv_epi8, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cmpgt_epi32, _mm256_cvtepi32_ps,
    _mm256_extracti128_si256, _mm256_i32gather_epi32, _mm256_i32gather_epi64, _mm256_i32gather_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_ps, _mm256_min_ps, _mm256_movemask_ps,
    _mm256_mul_epu32, _mm256_mul_ps, _mm256_mullo_epi32, _mm256_or_si256, _mm256_permute4x64_epi64,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_shuffle_ps, _mm256_slli_epi64,
    _mm256_sllv_epi32, _mm256_srli_epi64, _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_sub_epi32, _mm256_xor_si256,
};

use super::BatchParams;
use super::descend::{Descend, End, Start};
use super::simd::{Simd, Twice};
use super::speculate::{self, Scratch};

/// A proof that the CPU has AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if this CPU has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

/// a - b, as an instruction that the compiler does not rewrite.
#[inline]
#[target_feature(enable = "avx2")]
fn subtract(a: __m256i, b: __m256i) -> __m256i {
    let difference;
    // SAFETY: the instruction touches registers only.
    unsafe {
        asm!(
            "vpsubd {0}, {1}, {2}",
            out(ymm_reg) difference, in(ymm_reg) a, in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    difference
}

const LANES: usize = 8;

impl Simd for Avx2 {
    const LANES: usize = LANES;
    type U = __m256i;
    type F = __m256;
    type M = __m256i;

    #[inline(always)]
    fn splat(self, value: u32) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn load(self, values: &[u32]) -> __m256i {
        let values = &values[..LANES];
        // SAFETY: see the token; 8 values are readable.
        unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, values: __m256i, to: &mut [u32]) {
        let to = &mut to[..LANES];
        // SAFETY: see the token; 8 values are writable.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), values) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn sub_first(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { subtract(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: see the token. Constant counts become immediate ones.
        unsafe { _mm256_sllv_epi32(a, _mm256_set1_epi32(BITS as i32)) }
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_srlv_epi32(a, _mm256_set1_epi32(BITS as i32)) }
    }

    #[inline(always)]
    fn shl_by(self, a: __m256i, bits: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_sllv_epi32(a, bits) }
    }

    #[inline(always)]
    fn shr_by(self, a: __m256i, bits: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_srlv_epi32(a, bits) }
    }

    #[inline(always)]
    fn mul(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn mul_shr<const SHIFT: u32>(self, a: __m256i, b: __m256i) -> __m256i {
        const { assert!(SHIFT == 16 || SHIFT == 32) };
        // SAFETY: see the token.
        unsafe {
            let even = _mm256_mul_epu32(a, b);
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
            // Even products move down to the lower half of their lane, odd products to the upper
            // half.
            let (even, odd) = if SHIFT == 32 {
                (_mm256_srli_epi64::<32>(even), odd)
            } else {
                (_mm256_srli_epi64::<16>(even), _mm256_slli_epi64::<16>(odd))
            };
            _mm256_blend_epi32::<0xaa>(even, odd)
        }
    }

    #[inline(always)]
    fn rem(self, a: __m256i, divisor: __m256i) -> __m256i {
        // AVX2 has no conversion of unsigned numbers to doubles. A loop over the lanes is as fast.
        let (mut values, mut divisors) = ([0; LANES], [0; LANES]);
        self.store(a, &mut values);
        self.store(divisor, &mut divisors);
        for (value, divisor) in values.iter_mut().zip(divisors) {
            *value %= divisor;
        }
        self.load(&values)
    }

    #[inline(always)]
    fn eq(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_cmpeq_epi32(a, b) }
    }

    #[inline(always)]
    fn lt(self, a: __m256i, b: __m256i) -> __m256i {
        // The comparison is signed: flip the top bits.
        let top = self.splat(1 << 31);
        // SAFETY: see the token.
        unsafe { _mm256_cmpgt_epi32(self.xor(b, top), self.xor(a, top)) }
    }

    #[inline(always)]
    fn greatest(self, a: __m256i) -> u32 {
        // SAFETY: see the token.
        unsafe {
            let halves = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let pairs = _mm_max_epu32(halves, _mm_shuffle_epi32::<0x4e>(halves));
            let one = _mm_max_epu32(pairs, _mm_shuffle_epi32::<0xb1>(pairs));
            _mm_cvtsi128_si32(one) as u32
        }
    }

    #[inline(always)]
    fn select(self, mask: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_blendv_epi8(b, a, mask) }
    }

    #[inline(always)]
    fn both(self, a: __m256i, b: __m256i) -> __m256i {
        self.and(a, b)
    }

    #[inline(always)]
    fn either(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn without(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_andnot_si256(b, a) }
    }

    #[inline(always)]
    fn any(self, a: __m256i) -> bool {
        self.bits(a) != 0
    }

    #[inline(always)]
    fn bits(self, a: __m256i) -> u32 {
        // SAFETY: see the token.
        unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(a)) as u32 }
    }

    #[inline(always)]
    fn mask(self, bits: u32) -> __m256i {
        // SAFETY: see the token.
        let lane_bits = unsafe { _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128) };
        self.eq(self.and(self.splat(bits), lane_bits), lane_bits)
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: __m256i) -> __m256i {
        let inside = self.lt(index, self.splat(table.len() as u32));
        assert!(self.bits(inside) == 0xff, "an index is outside its table");
        // SAFETY: see the token; all indices are inside the table, whose length fits in 31 bits as
        // no table of a map is larger.
        unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index) }
    }

    #[inline(always)]
    unsafe fn gather_pairs(self, table: &[[u32; 2]], index: __m256i) -> (__m256i, __m256i) {
        // SAFETY: see the token; the caller promises that the indices are inside.
        unsafe {
            let base = table.as_ptr().cast();
            let low = _mm256_i32gather_epi64::<8>(base, _mm256_castsi256_si128(index));
            let high = _mm256_i32gather_epi64::<8>(base, _mm256_extracti128_si256::<1>(index));
            let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
            // The shuffles work on halves of the vectors; the permutation restores the order.
            let firsts = _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(low, high));
            let seconds = _mm256_castps_si256(_mm256_shuffle_ps::<0xdd>(low, high));
            (_mm256_permute4x64_epi64::<0xd8>(firsts), _mm256_permute4x64_epi64::<0xd8>(seconds))
        }
    }

    #[inline(always)]
    fn gather_float(self, table: &[f32; 65536], index: __m256i) -> __m256 {
        let index = self.and(index, self.splat(0xffff));
        // SAFETY: see the token; the indices are below 65536.
        unsafe { _mm256_i32gather_ps::<4>(table.as_ptr(), index) }
    }

    #[inline(always)]
    fn load_float(self, values: &[f32]) -> __m256 {
        let values = &values[..LANES];
        // SAFETY: see the token; 8 values are readable.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store_float(self, values: __m256, to: &mut [f32]) {
        let to = &mut to[..LANES];
        // SAFETY: see the token; 8 values are writable.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) }
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn float_from_bits(self, bits: __m256i) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_castsi256_ps(bits) }
    }

    #[inline(always)]
    fn float_to_bits(self, a: __m256) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_castps_si256(a) }
    }

    #[inline(always)]
    fn float(self, a: __m256i) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn mul_float(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add_float(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see the token.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn lt_float(self, a: __m256, b: __m256) -> __m256i {
        // SAFETY: see the token.
        unsafe { _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }

    #[inline(always)]
    fn number(self, mask: __m256i, first: u32, a: __m256i) -> __m256i {
        let mut lanes = [0; LANES];
        self.store(a, &mut lanes);
        let mut bits = self.bits(mask);
        for number in first.. {
            if bits == 0 {
                break;
            }
            lanes[bits.trailing_zeros() as usize] = number;
            bits &= bits - 1;
        }
        self.load(&lanes)
    }
}

impl Descend for Twice<Avx2> {
    #[inline(always)]
    fn descend(self, params: &BatchParams<'_>, start: &Start<Self>, kind: u32) -> End<Self> {
        // SAFETY: see the token.
        unsafe { descend(self.0, params, start, kind) }
    }
}

#[target_feature(enable = "avx2")]
#[inline(never)]
fn descend(
    s: Avx2,
    params: &BatchParams<'_>,
    start: &Start<Twice<Avx2>>,
    kind: u32,
) -> End<Twice<Avx2>> {
    super::descend::descend(Twice(s), params, start, kind)
}

/// [`speculate::race_lanes`]; the CPU was checked when the kernel was chosen.
pub(super) fn race_lanes(x: u32, scratch: &mut Scratch, used: usize) {
    let token = Avx2::detect().expect("the kernel is available");
    // SAFETY: the token proves that the CPU has the instructions.
    unsafe { race(token, x, scratch, used) }
}

#[target_feature(enable = "avx2")]
fn race(s: Avx2, x: u32, scratch: &mut Scratch, used: usize) {
    speculate::race_lanes(s, x, scratch, used);
}
