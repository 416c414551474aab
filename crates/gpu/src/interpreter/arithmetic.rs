//! What computes a value from values: the functions that instructions name.
//!
//! A value is in the low bits of a `u64`, and the bits above it are zeros. Functions that work on a
//! type are generic over the [`Integer`] that has its width and sign.

use super::types::ones;

/// An integer as wide as a register, with or without a sign.
pub(super) trait Integer: Copy + Ord {
    /// Width in bits.
    const BITS: u32;
    /// Takes the low bits of a value.
    fn of(bits: u64) -> Self;
    /// The value in the low bits.
    fn bits(self) -> u64;
    /// The sum, modulo the width.
    fn plus(self, other: Self) -> Self;
    /// The difference, modulo the width.
    fn minus(self, other: Self) -> Self;
    /// The low and the high half of the product.
    fn times(self, other: Self) -> (u64, u64);
    /// The quotient, which has no value when the divisor is zero.
    fn over(self, other: Self) -> Option<Self>;
    /// What the quotient leaves.
    fn modulo(self, other: Self) -> Option<Self>;
    /// Shifts right by less than the width, by the sign or with zeros.
    fn right(self, count: u32) -> Self;
    /// All ones if the value is negative.
    fn sign(self) -> Self;
}

macro_rules! integer {
    ($($int:ident $bits:ident $wide:ident),*) => { $(
        impl Integer for $int {
            const BITS: u32 = $int::BITS;
            fn of(bits: u64) -> Self {
                bits as $int
            }
            fn bits(self) -> u64 {
                u64::from(self as $bits)
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn times(self, other: Self) -> (u64, u64) {
                let product = $wide::from(self).wrapping_mul($wide::from(other));
                ((product as $int).bits(), ((product >> $int::BITS) as $int).bits())
            }
            fn over(self, other: Self) -> Option<Self> {
                (other != 0).then(|| self.wrapping_div(other))
            }
            fn modulo(self, other: Self) -> Option<Self> {
                (other != 0).then(|| self.wrapping_rem(other))
            }
            fn right(self, count: u32) -> Self {
                self >> count
            }
            fn sign(self) -> Self {
                if self < 0 as $int { $int::of(u64::MAX) } else { 0 }
            }
        }
    )* };
}

integer!(u16 u16 u32, u32 u32 u64, u64 u64 u128, i16 u16 i32, i32 u32 i64, i64 u64 i128);

/// A function that is generic over an [`Integer`], for a type of the program. Types of bits are as
/// those without a sign. Predicates and bytes have no such functions, so they stand for 64 bits
/// here: the decoder refuses them first.
macro_rules! of_type {
    ($type:expr, $f:ident) => {{
        match ($type.bits(), $type.is_signed()) {
            (16, false) => $f::<u16>,
            (32, false) => $f::<u32>,
            (16, true) => $f::<i16>,
            (32, true) => $f::<i32>,
            (_, false) => $f::<u64>,
            (_, true) => $f::<i64>,
        }
    }};
}
pub(super) use of_type;

pub(super) fn add<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).plus(T::of(b)).bits()
}

pub(super) fn subtract<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).minus(T::of(b)).bits()
}

pub(super) fn multiply_low<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).times(T::of(b)).0
}

pub(super) fn multiply_high<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).times(T::of(b)).1
}

/// The product of twice the width. Widths of more than 32 bits have none.
pub(super) fn multiply_wide<T: Integer>(a: u64, b: u64) -> u64 {
    let (low, high) = T::of(a).times(T::of(b));
    high.wrapping_shl(T::BITS) | low
}

pub(super) fn multiply_low_add<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    add::<T>(multiply_low::<T>(a, b), c)
}

pub(super) fn multiply_high_add<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    add::<T>(multiply_high::<T>(a, b), c)
}

pub(super) fn multiply_wide_add<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    multiply_wide::<T>(a, b).wrapping_add(c) & ones(2 * T::BITS)
}

pub(super) fn divide<T: Integer>(a: u64, b: u64) -> Option<u64> {
    T::of(a).over(T::of(b)).map(T::bits)
}

pub(super) fn remainder<T: Integer>(a: u64, b: u64) -> Option<u64> {
    T::of(a).modulo(T::of(b)).map(T::bits)
}

pub(super) fn minimum<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).min(T::of(b)).bits()
}

pub(super) fn maximum<T: Integer>(a: u64, b: u64) -> u64 {
    T::of(a).max(T::of(b)).bits()
}

pub(super) fn negate<T: Integer>(a: u64) -> u64 {
    T::of(0).minus(T::of(a)).bits()
}

/// The value without its sign. The least value stays as it is.
pub(super) fn absolute<T: Integer>(a: u64) -> u64 {
    let sign = T::of(a).sign().bits();
    subtract::<T>(a ^ sign, sign)
}

pub(super) fn copy(a: u64) -> u64 {
    a
}

pub(super) fn and(a: u64, b: u64) -> u64 {
    a & b
}

pub(super) fn or(a: u64, b: u64) -> u64 {
    a | b
}

pub(super) fn xor(a: u64, b: u64) -> u64 {
    a ^ b
}

pub(super) fn not<T: Integer>(a: u64) -> u64 {
    a ^ ones(T::BITS)
}

pub(super) fn not_predicate(a: u64) -> u64 {
    a ^ 1
}

/// Shifts left. A count of the width or more leaves zeros.
pub(super) fn shift_left<T: Integer>(a: u64, count: u64) -> u64 {
    if count < u64::from(T::BITS) { T::of(a << count).bits() } else { 0 }
}

/// Shifts right. A count of the width or more leaves nothing but the sign.
pub(super) fn shift_right<T: Integer>(a: u64, count: u64) -> u64 {
    let value = T::of(a);
    if count < u64::from(T::BITS) { value.right(count as u32).bits() } else { value.sign().bits() }
}

pub(super) fn equal(a: u64, b: u64) -> u64 {
    u64::from(a == b)
}

pub(super) fn not_equal(a: u64, b: u64) -> u64 {
    u64::from(a != b)
}

pub(super) fn less<T: Integer>(a: u64, b: u64) -> u64 {
    u64::from(T::of(a) < T::of(b))
}

pub(super) fn less_or_equal<T: Integer>(a: u64, b: u64) -> u64 {
    u64::from(T::of(a) <= T::of(b))
}

pub(super) fn greater<T: Integer>(a: u64, b: u64) -> u64 {
    u64::from(T::of(a) > T::of(b))
}

pub(super) fn greater_or_equal<T: Integer>(a: u64, b: u64) -> u64 {
    u64::from(T::of(a) >= T::of(b))
}

/// The first value if the predicate is true, else the second.
pub(super) fn select(a: u64, b: u64, predicate: u64) -> u64 {
    if predicate != 0 { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_of_32_bits(a: u32, b: u32, c: u32) {
            let (wa, wb, wc) = (u64::from(a), u64::from(b), u64::from(c));
            let (sa, sb) = (a.cast_signed(), b.cast_signed());
            prop_assert_eq!(add::<u32>(wa, wb), u64::from(a.wrapping_add(b)));
            prop_assert_eq!(subtract::<i32>(wa, wb), u64::from(a.wrapping_sub(b)));
            prop_assert_eq!(multiply_low::<i32>(wa, wb), u64::from(a.wrapping_mul(b)));
            prop_assert_eq!(multiply_high::<u32>(wa, wb), (wa * wb) >> 32);
            let signed = (i64::from(sa) * i64::from(sb)).cast_unsigned();
            prop_assert_eq!(multiply_high::<i32>(wa, wb), signed >> 32);
            prop_assert_eq!(multiply_wide::<u32>(wa, wb), wa * wb);
            prop_assert_eq!(multiply_wide::<i32>(wa, wb), signed);
            prop_assert_eq!(multiply_wide_add::<i32>(wa, wb, wc), signed.wrapping_add(wc));
            let low = a.wrapping_mul(b).wrapping_add(c);
            prop_assert_eq!(multiply_low_add::<u32>(wa, wb, wc), u64::from(low));
            prop_assert_eq!(minimum::<i32>(wa, wb), u64::from(sa.min(sb).cast_unsigned()));
            prop_assert_eq!(maximum::<u32>(wa, wb), u64::from(a.max(b)));
            prop_assert_eq!(less::<i32>(wa, wb), u64::from(sa < sb));
            prop_assert_eq!(greater_or_equal::<u32>(wa, wb), u64::from(a >= b));
            prop_assert_eq!(absolute::<i32>(wa), u64::from(sa.unsigned_abs()));
            prop_assert_eq!(negate::<i32>(wa), u64::from(a.wrapping_neg()));
            prop_assert_eq!(not::<u32>(wa), u64::from(!a));
        }

        #[test]
        fn words_of_64_bits(a: u64, b: u64) {
            let (sa, sb) = (a.cast_signed(), b.cast_signed());
            let product = u128::from(a) * u128::from(b);
            prop_assert_eq!(multiply_high::<u64>(a, b), (product >> 64) as u64);
            let product = i128::from(sa) * i128::from(sb);
            prop_assert_eq!(multiply_high::<i64>(a, b), (product >> 64) as u64);
            prop_assert_eq!(multiply_low::<i64>(a, b), a.wrapping_mul(b));
            prop_assert_eq!(less_or_equal::<i64>(a, b), u64::from(sa <= sb));
            prop_assert_eq!(greater::<u64>(a, b), u64::from(a > b));
        }

        #[test]
        fn divisions(a: i64, b in -9i64..9, c: u32, d in 0u32..9) {
            let (wa, wb) = (a.cast_unsigned(), b.cast_unsigned());
            let expected = a.checked_div(b).map(i64::cast_unsigned);
            prop_assert_eq!(divide::<i64>(wa, wb), expected);
            prop_assert_eq!(remainder::<i64>(wa, wb), a.checked_rem(b).map(i64::cast_unsigned));
            prop_assert_eq!(divide::<u32>(c.into(), d.into()), c.checked_div(d).map(u64::from));
            prop_assert_eq!(remainder::<u32>(c.into(), d.into()), c.checked_rem(d).map(u64::from));
        }

        #[test]
        fn shifts_by_the_width_or_more_leave_the_sign(a: u32, count in 0u32..80) {
            let wide = u64::from(a);
            let expected = a.checked_shl(count).unwrap_or(0);
            prop_assert_eq!(shift_left::<u32>(wide, count.into()), u64::from(expected));
            let expected = a.checked_shr(count).unwrap_or(0);
            prop_assert_eq!(shift_right::<u32>(wide, count.into()), u64::from(expected));
            let expected = (a.cast_signed() >> count.min(31)).cast_unsigned();
            prop_assert_eq!(shift_right::<i32>(wide, count.into()), u64::from(expected));
            prop_assert_eq!(shift_left::<u64>(wide, u64::from(count) << 20 | 64), 0);
        }

        #[test]
        fn words_of_16_bits(a: u16, b: u16) {
            let (wa, wb) = (u64::from(a), u64::from(b));
            prop_assert_eq!(add::<i16>(wa, wb), u64::from(a.wrapping_add(b)));
            let product = i32::from(a.cast_signed()) * i32::from(b.cast_signed());
            let product = u64::from(product.cast_unsigned());
            prop_assert_eq!(multiply_wide::<i16>(wa, wb), product);
            prop_assert_eq!(multiply_high::<i16>(wa, wb), product >> 16);
        }
    }

    #[test]
    fn the_least_value_divides_by_minus_one() {
        let least = u64::from(i32::MIN.cast_unsigned());
        let minus_one = u64::from(u32::MAX);
        assert_eq!(divide::<i32>(least, minus_one), Some(least));
        assert_eq!(remainder::<i32>(least, minus_one), Some(0));
    }
}
