//! [`Simd`] on AVX-512: 16 lanes.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, __mmask16, _CMP_LT_OQ, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi256_si512, _mm512_castsi512_ps, _mm512_castsi512_si256,
    _mm512_cmp_ps_mask, _mm512_cmpeq_epi32_mask, _mm512_cmplt_epu32_mask, _mm512_cvtepi32_ps,
    _mm512_cvtepu32_pd, _mm512_cvttpd_epu32, _mm512_div_pd, _mm512_extracti64x4_epi64,
    _mm512_i32gather_epi32, _mm512_i32gather_epi64, _mm512_i32gather_ps, _mm512_inserti64x4,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_epi32, _mm512_mask_expand_epi32,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_epu32, _mm512_mul_ps, _mm512_mullo_epi32,
    _mm512_permutex2var_epi32, _mm512_reduce_max_epu32, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_slli_epi32, _mm512_slli_epi64, _mm512_sllv_epi32, _mm512_srli_epi32,
    _mm512_srli_epi64, _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi32,
    _mm512_xor_si512,
};

use super::BatchParams;
use super::descend::{Descend, End, Start};
use super::simd::{Simd, Twice};
use super::speculate::{self, Scratch};

/// A proof that the CPU has AVX-512 F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if this CPU has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

/// a - b, as an instruction that the compiler does not rewrite.
#[inline]
#[target_feature(enable = "avx512f")]
fn subtract(a: __m512i, b: __m512i) -> __m512i {
    let difference;
    // SAFETY: the instruction touches registers only.
    unsafe {
        asm!(
            "vpsubd {0}, {1}, {2}",
            out(zmm_reg) difference, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    difference
}

const LANES: usize = 16;

// SAFETY of every intrinsic below: a token exists only on a CPU with AVX-512 F.
impl Simd for Avx512 {
    const LANES: usize = LANES;
    type U = __m512i;
    type F = __m512;
    type M = __mmask16;

    #[inline(always)]
    fn splat(self, value: u32) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn load(self, values: &[u32]) -> __m512i {
        let values = &values[..LANES];
        // SAFETY: see the token; 16 values are readable.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, values: __m512i, to: &mut [u32]) {
        let to = &mut to[..LANES];
        // SAFETY: see the token; 16 values are writable.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn sub_first(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { subtract(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_srli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn shl_by(self, a: __m512i, bits: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_sllv_epi32(a, bits) }
    }

    #[inline(always)]
    fn shr_by(self, a: __m512i, bits: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_srlv_epi32(a, bits) }
    }

    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn mul_shr<const SHIFT: u32>(self, a: __m512i, b: __m512i) -> __m512i {
        const { assert!(SHIFT == 16 || SHIFT == 32) };
        // SAFETY: see the token.
        unsafe {
            let even = _mm512_mul_epu32(a, b);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            // Even products move down to the lower half of their lane, odd products to the upper
            // half.
            let (even, odd) = if SHIFT == 32 {
                (_mm512_srli_epi64::<32>(even), odd)
            } else {
                (_mm512_srli_epi64::<16>(even), _mm512_slli_epi64::<16>(odd))
            };
            _mm512_mask_blend_epi32(0xaaaa, even, odd)
        }
    }

    #[inline(always)]
    fn rem(self, a: __m512i, divisor: __m512i) -> __m512i {
        // The quotient of 32-bit numbers is far enough from the next integer that the rounding of
        // doubles never reaches it.
        // SAFETY: see the token.
        let quotient = unsafe {
            let (a_high, divisor_high) =
                (_mm512_extracti64x4_epi64::<1>(a), _mm512_extracti64x4_epi64::<1>(divisor));
            let low = _mm512_div_pd(
                _mm512_cvtepu32_pd(_mm512_castsi512_si256(a)),
                _mm512_cvtepu32_pd(_mm512_castsi512_si256(divisor)),
            );
            let high = _mm512_div_pd(_mm512_cvtepu32_pd(a_high), _mm512_cvtepu32_pd(divisor_high));
            let low = _mm512_castsi256_si512(_mm512_cvttpd_epu32(low));
            _mm512_inserti64x4::<1>(low, _mm512_cvttpd_epu32(high))
        };
        self.sub(a, self.mul(quotient, divisor))
    }

    #[inline(always)]
    fn eq(self, a: __m512i, b: __m512i) -> __mmask16 {
        // SAFETY: see the token.
        unsafe { _mm512_cmpeq_epi32_mask(a, b) }
    }

    #[inline(always)]
    fn lt(self, a: __m512i, b: __m512i) -> __mmask16 {
        // SAFETY: see the token.
        unsafe { _mm512_cmplt_epu32_mask(a, b) }
    }

    #[inline(always)]
    fn greatest(self, a: __m512i) -> u32 {
        // SAFETY: see the token.
        unsafe { _mm512_reduce_max_epu32(a) }
    }

    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_mask_blend_epi32(mask, b, a) }
    }

    #[inline(always)]
    fn both(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }

    #[inline(always)]
    fn either(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }

    #[inline(always)]
    fn without(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a & !b
    }

    #[inline(always)]
    fn any(self, a: __mmask16) -> bool {
        a != 0
    }

    #[inline(always)]
    fn bits(self, a: __mmask16) -> u32 {
        a.into()
    }

    #[inline(always)]
    fn mask(self, bits: u32) -> __mmask16 {
        bits as u16
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: __m512i) -> __m512i {
        let inside = self.lt(index, self.splat(table.len() as u32));
        assert!(inside == 0xffff, "an index is outside its table");
        // SAFETY: see the token; all indices are inside the table, whose length fits in 31 bits as
        // no table of a map is larger.
        unsafe { _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn gather_pairs(self, table: &[[u32; 2]], index: __m512i) -> (__m512i, __m512i) {
        // SAFETY: see the token; the caller promises that the indices are inside.
        unsafe {
            let base = table.as_ptr().cast();
            let low = _mm512_i32gather_epi64::<8>(_mm512_castsi512_si256(index), base);
            let high = _mm512_i32gather_epi64::<8>(_mm512_extracti64x4_epi64::<1>(index), base);
            let firsts =
                _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let seconds =
                _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (
                _mm512_permutex2var_epi32(low, firsts, high),
                _mm512_permutex2var_epi32(low, seconds, high),
            )
        }
    }

    #[inline(always)]
    fn gather_float(self, table: &[f32; 65536], index: __m512i) -> __m512 {
        let index = self.and(index, self.splat(0xffff));
        // SAFETY: see the token; the indices are below 65536.
        unsafe { _mm512_i32gather_ps::<4>(index, table.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_float(self, values: &[f32]) -> __m512 {
        let values = &values[..LANES];
        // SAFETY: see the token; 16 values are readable.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store_float(self, values: __m512, to: &mut [f32]) {
        let to = &mut to[..LANES];
        // SAFETY: see the token; 16 values are writable.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) }
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn float_from_bits(self, bits: __m512i) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_castsi512_ps(bits) }
    }

    #[inline(always)]
    fn float_to_bits(self, a: __m512) -> __m512i {
        // SAFETY: see the token.
        unsafe { _mm512_castps_si512(a) }
    }

    #[inline(always)]
    fn float(self, a: __m512i) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn mul_float(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add_float(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the token.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn lt_float(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: see the token.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }

    #[inline(always)]
    fn number(self, mask: __mmask16, first: u32, a: __m512i) -> __m512i {
        // SAFETY: see the token.
        unsafe {
            let counting = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_mask_expand_epi32(a, mask, self.add(counting, self.splat(first)))
        }
    }
}

impl Descend for Twice<Avx512> {
    #[inline(always)]
    fn descend(self, params: &BatchParams<'_>, start: &Start<Self>, kind: u32) -> End<Self> {
        // SAFETY: see the token.
        unsafe { descend(self.0, params, start, kind) }
    }
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn descend(
    s: Avx512,
    params: &BatchParams<'_>,
    start: &Start<Twice<Avx512>>,
    kind: u32,
) -> End<Twice<Avx512>> {
    super::descend::descend(Twice(s), params, start, kind)
}

/// [`speculate::race_lanes`]; the CPU was checked when the kernel was chosen.
pub(super) fn race_lanes(x: u32, scratch: &mut Scratch, used: usize) {
    let token = Avx512::detect().expect("the kernel is available");
    // SAFETY: the token proves that the CPU has the instructions.
    unsafe { race(token, x, scratch, used) }
}

#[target_feature(enable = "avx512f")]
fn race(s: Avx512, x: u32, scratch: &mut Scratch, used: usize) {
    speculate::race_lanes(s, x, scratch, used);
}
