//! Vectors of 32-bit lanes, as the batch mapper uses them: one trait, implemented for AVX2 (8
//! lanes) and AVX-512 (16 lanes).
//!
//! An implementation is a *token*: a value without content that can only be had when the CPU has
//! the instructions. Every operation is a method of the token, so that having it is the proof that
//! the operation may run, and the code above is safe code. All methods must be inlined into a
//! function that is compiled for the instructions, or they would be calls; hence `inline(always)`
//! here and in everything generic over the trait, and loops
//! instead of closures, which cannot be marked so.

/// See the module's text. `U` are lanes of `u32`, `F` lanes of `f32`, `M` one truth value a lane.
pub(crate) trait Simd: Copy {
    /// Lanes of a vector.
    const LANES: usize;
    type U: Copy;
    type F: Copy;
    type M: Copy;

    fn splat(self, value: u32) -> Self::U;
    /// The first `LANES` values of a slice that has them.
    fn load(self, values: &[u32]) -> Self::U;
    /// Into the first `LANES` places of a slice that has them.
    fn store(self, values: Self::U, to: &mut [u32]);

    fn add(self, a: Self::U, b: Self::U) -> Self::U;
    fn sub(self, a: Self::U, b: Self::U) -> Self::U;
    /// As [`Simd::sub`], but the compiler cannot turn a - b - c into a - (b + c), which is no better
    /// in itself, and worse when c comes last.
    fn sub_first(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl<const BITS: u32>(self, a: Self::U) -> Self::U;
    fn shr<const BITS: u32>(self, a: Self::U) -> Self::U;
    /// Each lane by its own count, below 32.
    fn shl_by(self, a: Self::U, bits: Self::U) -> Self::U;
    /// Each lane by its own count, below 32.
    fn shr_by(self, a: Self::U, bits: Self::U) -> Self::U;
    /// The lower half of the products.
    fn mul(self, a: Self::U, b: Self::U) -> Self::U;
    /// The products' bits from `SHIFT` (16 or 32) on.
    fn mul_shr<const SHIFT: u32>(self, a: Self::U, b: Self::U) -> Self::U;
    /// Remainders; no divisor is 0.
    fn rem(self, a: Self::U, divisor: Self::U) -> Self::U;

    fn eq(self, a: Self::U, b: Self::U) -> Self::M;
    /// Unsigned.
    fn lt(self, a: Self::U, b: Self::U) -> Self::M;
    /// The greatest of the lanes.
    fn greatest(self, a: Self::U) -> u32;
    /// `a` where the mask is set, otherwise `b`.
    fn select(self, mask: Self::M, a: Self::U, b: Self::U) -> Self::U;

    fn both(self, a: Self::M, b: Self::M) -> Self::M;
    fn either(self, a: Self::M, b: Self::M) -> Self::M;
    /// `a` and not `b`.
    fn without(self, a: Self::M, b: Self::M) -> Self::M;
    fn any(self, a: Self::M) -> bool;
    /// Bit n is lane n.
    fn bits(self, a: Self::M) -> u32;
    fn mask(self, bits: u32) -> Self::M;

    /// `table[index]`. Panics when an index is outside.
    fn gather(self, table: &[u32], index: Self::U) -> Self::U;
    /// Both halves of `table[index]`. Panics when an index is outside.
    #[inline(always)]
    fn pairs(self, table: &[[u32; 2]], index: Self::U) -> (Self::U, Self::U) {
        let greatest = self.greatest(index) as usize;
        assert!(greatest < table.len(), "an index is outside its table");
        // SAFETY: the greatest index is inside.
        unsafe { self.gather_pairs(table, index) }
    }
    /// Both halves of `table[index]`.
    ///
    /// # Safety
    /// Every index is inside the table.
    unsafe fn gather_pairs(self, table: &[[u32; 2]], index: Self::U) -> (Self::U, Self::U);
    /// `table[index & 0xffff]`.
    fn gather_float(self, table: &[f32; 65536], index: Self::U) -> Self::F;

    fn splat_float(self, value: f32) -> Self::F;
    /// Reinterprets.
    fn float_from_bits(self, bits: Self::U) -> Self::F;
    /// Reinterprets.
    fn float_to_bits(self, a: Self::F) -> Self::U;
    /// Converts; exact below 2^24.
    fn float(self, a: Self::U) -> Self::F;
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F;
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// False for NaN.
    fn lt_float(self, a: Self::F, b: Self::F) -> Self::M;

    /// `a`, but the lanes of the mask hold `first`, `first` + 1, ... in their order.
    fn number(self, mask: Self::M, first: u32, a: Self::U) -> Self::U;
}
