//! The rjenkins1 hash in every lane; see [`crate::hash`] for its irregular order of words.

use super::simd::Simd;

const SEED: u32 = 1_315_423_911;
const X: u32 = 231_232;
const Y: u32 = 1_232;

/// The nine lines of the mix.
#[inline(always)]
fn mix<S: Simd>(s: S, a: &mut S::U, b: &mut S::U, c: &mut S::U) {
    *a = s.xor(s.sub(s.sub_first(*a, *b), *c), s.shr::<13>(*c));
    *b = s.xor(s.sub(s.sub_first(*b, *c), *a), s.shl::<8>(*a));
    *c = s.xor(s.sub(s.sub_first(*c, *a), *b), s.shr::<13>(*b));
    *a = s.xor(s.sub(s.sub_first(*a, *b), *c), s.shr::<12>(*c));
    *b = s.xor(s.sub(s.sub_first(*b, *c), *a), s.shl::<16>(*a));
    *c = s.xor(s.sub(s.sub_first(*c, *a), *b), s.shr::<5>(*b));
    *a = s.xor(s.sub(s.sub_first(*a, *b), *c), s.shr::<3>(*c));
    *b = s.xor(s.sub(s.sub_first(*b, *c), *a), s.shl::<10>(*a));
    *c = s.xor(s.sub(s.sub_first(*c, *a), *b), s.shr::<15>(*b));
}

/// [`crate::hash::hash2`].
#[inline(always)]
pub(crate) fn hash2<S: Simd>(s: S, mut a: S::U, mut b: S::U) -> S::U {
    let (mut x, mut y) = (s.splat(X), s.splat(Y));
    let mut hash = s.xor(s.splat(SEED), s.xor(a, b));
    mix(s, &mut a, &mut b, &mut hash);
    mix(s, &mut x, &mut a, &mut hash);
    mix(s, &mut b, &mut y, &mut hash);
    hash
}

/// Two vectors that take turns, line by line. One hash is a chain in which every instruction waits
/// for the one before; a second chain fills the gaps.
type Two<U> = [U; 2];

#[inline(always)]
fn mix_two<S: Simd>(s: S, a: &mut Two<S::U>, b: &mut Two<S::U>, c: &mut Two<S::U>) {
    line::<S, 13, false>(s, a, *b, *c);
    line::<S, 8, true>(s, b, *c, *a);
    line::<S, 13, false>(s, c, *a, *b);
    line::<S, 12, false>(s, a, *b, *c);
    line::<S, 16, true>(s, b, *c, *a);
    line::<S, 5, false>(s, c, *a, *b);
    line::<S, 3, false>(s, a, *b, *c);
    line::<S, 10, true>(s, b, *c, *a);
    line::<S, 15, false>(s, c, *a, *b);
}

/// a = (a - b - c) ^ (c shifted).
#[inline(always)]
fn line<S: Simd, const BITS: u32, const LEFT: bool>(
    s: S,
    a: &mut Two<S::U>,
    b: Two<S::U>,
    c: Two<S::U>,
) {
    let first = [s.sub_first(a[0], b[0]), s.sub_first(a[1], b[1])];
    let difference = [s.sub(first[0], c[0]), s.sub(first[1], c[1])];
    let shifted = if LEFT {
        [s.shl::<BITS>(c[0]), s.shl::<BITS>(c[1])]
    } else {
        [s.shr::<BITS>(c[0]), s.shr::<BITS>(c[1])]
    };
    *a = [s.xor(difference[0], shifted[0]), s.xor(difference[1], shifted[1])];
}

/// [`crate::hash::hash3`] of (`a`, `b`\[i\], `c`).
#[inline(always)]
pub(crate) fn hash3_two<S: Simd>(s: S, a: S::U, mut b: Two<S::U>, c: S::U) -> Two<S::U> {
    let (mut x, mut y) = ([s.splat(X); 2], [s.splat(Y); 2]);
    let seed = s.xor(s.xor(s.splat(SEED), a), c);
    let mut hash = [s.xor(seed, b[0]), s.xor(seed, b[1])];
    let (mut a, mut c) = ([a; 2], [c; 2]);
    mix_two(s, &mut a, &mut b, &mut hash);
    mix_two(s, &mut c, &mut x, &mut hash);
    mix_two(s, &mut y, &mut a, &mut hash);
    mix_two(s, &mut b, &mut x, &mut hash);
    mix_two(s, &mut y, &mut c, &mut hash);
    hash
}

/// [`crate::hash::hash3`].
#[inline(always)]
pub(crate) fn hash3<S: Simd>(s: S, mut a: S::U, mut b: S::U, mut c: S::U) -> S::U {
    let (mut x, mut y) = (s.splat(X), s.splat(Y));
    let mut hash = s.xor(s.xor(s.splat(SEED), a), s.xor(b, c));
    mix(s, &mut a, &mut b, &mut hash);
    mix(s, &mut c, &mut x, &mut hash);
    mix(s, &mut y, &mut a, &mut hash);
    mix(s, &mut b, &mut x, &mut hash);
    mix(s, &mut y, &mut c, &mut hash);
    hash
}

/// [`crate::hash::hash4`].
#[inline(always)]
pub(crate) fn hash4<S: Simd>(s: S, mut a: S::U, mut b: S::U, mut c: S::U, mut d: S::U) -> S::U {
    let (mut x, mut y) = (s.splat(X), s.splat(Y));
    let mut hash = s.xor(s.xor(s.splat(SEED), s.xor(a, b)), s.xor(c, d));
    mix(s, &mut a, &mut b, &mut hash);
    mix(s, &mut c, &mut d, &mut hash);
    mix(s, &mut a, &mut x, &mut hash);
    mix(s, &mut y, &mut b, &mut hash);
    mix(s, &mut c, &mut x, &mut hash);
    mix(s, &mut y, &mut d, &mut hash);
    hash
}
