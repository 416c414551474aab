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
