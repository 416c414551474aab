//! Vectors of 32-bit lanes, as the batch mapper uses them: one trait, implemented for AVX2 (8
//! lanes) and AVX-512 (16 lanes).
//!
//! An implementation is a *token*: a value without content that exists only if the CPU has the
//! instructions. Every operation is a method of the token. So the token proves that the operation
//! may run, and the code above is safe code. All methods must be inlined into a function that is
//! compiled for the instructions; else they would be calls. Hence `inline(always)` here and in all
//! generic code over the trait. For the same reason that code has loops instead of closures,
//! because closures cannot have this attribute.

/// Most lanes of a vector.
pub(crate) const MAX_LANES: usize = 32;

/// See the module's text. `U` are lanes of `u32`, `F` lanes of `f32`, `M` one truth value per lane.
pub(crate) trait Simd: Copy {
    /// Lanes of a vector, at most [`MAX_LANES`].
    const LANES: usize;
    type U: Copy;
    type F: Copy;
    type M: Copy;

    fn splat(self, value: u32) -> Self::U;
    /// Loads one value per lane from the start of a slice that has that many.
    fn load(self, values: &[u32]) -> Self::U;
    /// Stores one value per lane to the start of a slice that has room for them.
    fn store(self, values: Self::U, to: &mut [u32]);

    fn add(self, a: Self::U, b: Self::U) -> Self::U;
    fn sub(self, a: Self::U, b: Self::U) -> Self::U;
    /// As [`Simd::sub`], but the compiler cannot turn a - b - c into a - (b + c). That form is no
    /// better, and worse if c is computed last.
    fn sub_first(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl<const BITS: u32>(self, a: Self::U) -> Self::U;
    fn shr<const BITS: u32>(self, a: Self::U) -> Self::U;
    /// Shifts each lane by its own count, below 32.
    fn shl_by(self, a: Self::U, bits: Self::U) -> Self::U;
    /// Shifts each lane by its own count, below 32.
    fn shr_by(self, a: Self::U, bits: Self::U) -> Self::U;
    /// The lower half of the products.
    fn mul(self, a: Self::U, b: Self::U) -> Self::U;
    /// The products' bits from `SHIFT` (16 or 32) on.
    fn mul_shr<const SHIFT: u32>(self, a: Self::U, b: Self::U) -> Self::U;
    /// Remainders; no divisor is 0.
    fn rem(self, a: Self::U, divisor: Self::U) -> Self::U;

    fn eq(self, a: Self::U, b: Self::U) -> Self::M;
    /// Unsigned comparison.
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

    /// As [`Simd::load`].
    fn load_float(self, values: &[f32]) -> Self::F;
    /// As [`Simd::store`].
    fn store_float(self, values: Self::F, to: &mut [f32]);
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

/// Two vectors that alternate, as one vector of twice the lanes.
///
/// A hash is a chain of instructions, each of which waits for the one before, and so is much of the
/// code around it. A second chain fills the gaps.
#[derive(Clone, Copy)]
pub(crate) struct Twice<S>(pub(crate) S);

impl<S: Simd> Simd for Twice<S> {
    const LANES: usize = 2 * S::LANES;
    type U = [S::U; 2];
    type F = [S::F; 2];
    type M = [S::M; 2];

    #[inline(always)]
    fn splat(self, value: u32) -> Self::U {
        [self.0.splat(value); 2]
    }

    #[inline(always)]
    fn load(self, values: &[u32]) -> Self::U {
        [self.0.load(values), self.0.load(&values[S::LANES..])]
    }

    #[inline(always)]
    fn store(self, values: Self::U, to: &mut [u32]) {
        self.0.store(values[0], to);
        self.0.store(values[1], &mut to[S::LANES..]);
    }

    #[inline(always)]
    fn add(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.add(a[0], b[0]), self.0.add(a[1], b[1])]
    }

    #[inline(always)]
    fn sub(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.sub(a[0], b[0]), self.0.sub(a[1], b[1])]
    }

    #[inline(always)]
    fn sub_first(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.sub_first(a[0], b[0]), self.0.sub_first(a[1], b[1])]
    }

    #[inline(always)]
    fn xor(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.xor(a[0], b[0]), self.0.xor(a[1], b[1])]
    }

    #[inline(always)]
    fn and(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.and(a[0], b[0]), self.0.and(a[1], b[1])]
    }

    #[inline(always)]
    fn shl_by(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.shl_by(a[0], b[0]), self.0.shl_by(a[1], b[1])]
    }

    #[inline(always)]
    fn shr_by(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.shr_by(a[0], b[0]), self.0.shr_by(a[1], b[1])]
    }

    #[inline(always)]
    fn mul(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.mul(a[0], b[0]), self.0.mul(a[1], b[1])]
    }

    #[inline(always)]
    fn rem(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.rem(a[0], b[0]), self.0.rem(a[1], b[1])]
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, a: Self::U) -> Self::U {
        [self.0.shl::<BITS>(a[0]), self.0.shl::<BITS>(a[1])]
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, a: Self::U) -> Self::U {
        [self.0.shr::<BITS>(a[0]), self.0.shr::<BITS>(a[1])]
    }

    #[inline(always)]
    fn mul_shr<const SHIFT: u32>(self, a: Self::U, b: Self::U) -> Self::U {
        [self.0.mul_shr::<SHIFT>(a[0], b[0]), self.0.mul_shr::<SHIFT>(a[1], b[1])]
    }

    #[inline(always)]
    fn eq(self, a: Self::U, b: Self::U) -> Self::M {
        [self.0.eq(a[0], b[0]), self.0.eq(a[1], b[1])]
    }

    #[inline(always)]
    fn lt(self, a: Self::U, b: Self::U) -> Self::M {
        [self.0.lt(a[0], b[0]), self.0.lt(a[1], b[1])]
    }

    #[inline(always)]
    fn lt_float(self, a: Self::F, b: Self::F) -> Self::M {
        [self.0.lt_float(a[0], b[0]), self.0.lt_float(a[1], b[1])]
    }

    #[inline(always)]
    fn both(self, a: Self::M, b: Self::M) -> Self::M {
        [self.0.both(a[0], b[0]), self.0.both(a[1], b[1])]
    }

    #[inline(always)]
    fn either(self, a: Self::M, b: Self::M) -> Self::M {
        [self.0.either(a[0], b[0]), self.0.either(a[1], b[1])]
    }

    #[inline(always)]
    fn without(self, a: Self::M, b: Self::M) -> Self::M {
        [self.0.without(a[0], b[0]), self.0.without(a[1], b[1])]
    }

    #[inline(always)]
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F {
        [self.0.mul_float(a[0], b[0]), self.0.mul_float(a[1], b[1])]
    }

    #[inline(always)]
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F {
        [self.0.add_float(a[0], b[0]), self.0.add_float(a[1], b[1])]
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        [self.0.min(a[0], b[0]), self.0.min(a[1], b[1])]
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        [self.0.max(a[0], b[0]), self.0.max(a[1], b[1])]
    }

    #[inline(always)]
    fn float_from_bits(self, a: Self::U) -> Self::F {
        [self.0.float_from_bits(a[0]), self.0.float_from_bits(a[1])]
    }

    #[inline(always)]
    fn float_to_bits(self, a: Self::F) -> Self::U {
        [self.0.float_to_bits(a[0]), self.0.float_to_bits(a[1])]
    }

    #[inline(always)]
    fn float(self, a: Self::U) -> Self::F {
        [self.0.float(a[0]), self.0.float(a[1])]
    }

    #[inline(always)]
    fn greatest(self, a: Self::U) -> u32 {
        self.0.greatest(a[0]).max(self.0.greatest(a[1]))
    }

    #[inline(always)]
    fn select(self, mask: Self::M, a: Self::U, b: Self::U) -> Self::U {
        [self.0.select(mask[0], a[0], b[0]), self.0.select(mask[1], a[1], b[1])]
    }

    #[inline(always)]
    fn any(self, a: Self::M) -> bool {
        self.0.any(self.0.either(a[0], a[1]))
    }

    #[inline(always)]
    fn bits(self, a: Self::M) -> u32 {
        self.0.bits(a[0]) | self.0.bits(a[1]) << S::LANES
    }

    #[inline(always)]
    fn mask(self, bits: u32) -> Self::M {
        [self.0.mask(bits), self.0.mask(bits >> S::LANES)]
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: Self::U) -> Self::U {
        [self.0.gather(table, index[0]), self.0.gather(table, index[1])]
    }

    #[inline(always)]
    unsafe fn gather_pairs(self, table: &[[u32; 2]], index: Self::U) -> (Self::U, Self::U) {
        // SAFETY: the caller's contract.
        let (a, b) =
            unsafe { (self.0.gather_pairs(table, index[0]), self.0.gather_pairs(table, index[1])) };
        ([a.0, b.0], [a.1, b.1])
    }

    #[inline(always)]
    fn gather_float(self, table: &[f32; 65536], index: Self::U) -> Self::F {
        [self.0.gather_float(table, index[0]), self.0.gather_float(table, index[1])]
    }

    #[inline(always)]
    fn load_float(self, values: &[f32]) -> Self::F {
        [self.0.load_float(values), self.0.load_float(&values[S::LANES..])]
    }

    #[inline(always)]
    fn store_float(self, values: Self::F, to: &mut [f32]) {
        self.0.store_float(values[0], to);
        self.0.store_float(values[1], &mut to[S::LANES..]);
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> Self::F {
        [self.0.splat_float(value); 2]
    }

    #[inline(always)]
    fn number(self, mask: Self::M, first: u32, a: Self::U) -> Self::U {
        let second = first + self.0.bits(mask[0]).count_ones();
        [self.0.number(mask[0], first, a[0]), self.0.number(mask[1], second, a[1])]
    }
}
