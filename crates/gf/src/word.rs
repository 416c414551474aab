//! The fields of 8, 16 and 32 bits of Jerasure's codes.
//!
//! Codes over words need field arithmetic only for their matrices: a few thousand products when a
//! code or a plan is made. This module never processes data. Multiplication by a constant is linear
//! over GF(2). So a code over words becomes a [`LinearMap`](crate::LinearMap) with coefficients 0
//! and 1 over the bits of the words, made from [`WordField::bit_columns`].
//!
//! Polynomials (those of gf-complete, and so of Ceph): 0x11d, 0x1100b and 0x100400007. The
//! element 2 generates each of them.

use std::fmt;

use crate::field;

/// A field of words of a fixed number of bits. Elements are `u32`, below 2^bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WordField {
    /// GF(2^8), the field of [`field`].
    W8,
    /// GF(2^16).
    W16,
    /// GF(2^32).
    W32,
}

impl WordField {
    /// All fields.
    pub const ALL: [Self; 3] = [Self::W8, Self::W16, Self::W32];

    /// The field of words of `bits` bits, if there is one.
    #[must_use]
    pub fn from_bits(bits: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.bits() == bits)
    }

    /// Bits of a word.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Self::W8 => 8,
            Self::W16 => 16,
            Self::W32 => 32,
        }
    }

    /// Bytes of a word.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bits() / 8
    }

    /// The reduction polynomial, with its highest term.
    #[must_use]
    pub fn polynomial(self) -> u64 {
        match self {
            Self::W8 => field::POLYNOMIAL as u64,
            Self::W16 => 0x1100b,
            Self::W32 => 0x1_0040_0007,
        }
    }

    fn times_two(self, a: u32) -> u32 {
        let doubled = u64::from(a) << 1;
        let reduced =
            if doubled >> self.bits() == 0 { doubled } else { doubled ^ self.polynomial() };
        // Reduced, so below 2^bits.
        reduced as u32
    }

    /// The product of two elements.
    #[must_use]
    pub fn mul(self, a: u32, b: u32) -> u32 {
        if self == Self::W8 {
            return u32::from(field::mul(a as u8, b as u8));
        }
        let (mut product, mut shifted, mut rest) = (0, a, b);
        while rest != 0 {
            if rest & 1 == 1 {
                product ^= shifted;
            }
            shifted = self.times_two(shifted);
            rest >>= 1;
        }
        product
    }

    /// The multiplicative inverse, or `None` for zero.
    #[must_use]
    pub fn inverse(self, a: u32) -> Option<u32> {
        if a == 0 {
            return None;
        }
        // a^(2^w - 2), because the group has 2^w - 1 elements. All bits of the exponent are ones
        // except the lowest.
        let (mut power, mut square) = (1, a);
        for _ in 1..self.bits() {
            square = self.mul(square, square);
            power = self.mul(power, square);
        }
        Some(power)
    }

    /// `a` divided by `b`, or `None` when `b` is zero.
    #[must_use]
    pub fn div(self, a: u32, b: u32) -> Option<u32> {
        Some(self.mul(a, self.inverse(b)?))
    }

    /// The bit matrix of multiplication by `a`: column x is `a` times 2^x, and bit l of the column
    /// is the entry of row l.
    pub fn bit_columns(self, a: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(a), move |&column| Some(self.times_two(column)))
            .take(self.bits())
    }

    /// Number of ones in the bit matrix of `a`: the cost, in XORs, of multiplying packets by `a`.
    #[must_use]
    pub fn bit_ones(self, a: u32) -> u32 {
        self.bit_columns(a).map(u32::count_ones).sum()
    }
}

impl fmt::Display for WordField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_generates_the_small_fields_and_has_full_order_in_the_large_one() {
        for field in [WordField::W8, WordField::W16] {
            let order = (1u32 << field.bits()) - 1;
            let mut power = 1;
            for exponent in 1..=order {
                power = field.times_two(power);
                assert_eq!(power == 1, exponent == order, "2^{exponent} in w={field}");
            }
        }
        // 2^32 - 1 = 3 * 5 * 17 * 257 * 65537: the order of 2 is no proper divisor of it.
        let field = WordField::W32;
        let pow = |mut exponent: u32| {
            let (mut result, mut square) = (1, 2);
            while exponent != 0 {
                if exponent & 1 == 1 {
                    result = field.mul(result, square);
                }
                square = field.mul(square, square);
                exponent >>= 1;
            }
            result
        };
        assert_eq!(pow(u32::MAX), 1);
        for prime in [3, 5, 17, 257, 65537] {
            assert_ne!(pow(u32::MAX / prime), 1, "2 has a smaller order");
        }
    }

    proptest! {
        #[test]
        fn words_form_a_field(a: u32, b: u32, c: u32) {
            for field in WordField::ALL {
                let mask = (u64::MAX >> (64 - field.bits())) as u32;
                let (a, b, c) = (a & mask, b & mask, c & mask);
                prop_assert_eq!(field.mul(a, b), field.mul(b, a));
                prop_assert_eq!(field.mul(a, field.mul(b, c)), field.mul(field.mul(a, b), c));
                prop_assert_eq!(field.mul(a, b ^ c), field.mul(a, b) ^ field.mul(a, c));
                match field.inverse(a) {
                    Some(inverse) => prop_assert_eq!(field.mul(a, inverse), 1),
                    None => prop_assert_eq!(a, 0),
                }
            }
        }

        #[test]
        fn the_bit_matrix_multiplies(a: u32, b: u32) {
            for field in WordField::ALL {
                let mask = (u64::MAX >> (64 - field.bits())) as u32;
                let (a, b) = (a & mask, b & mask);
                let columns = field.bit_columns(a).enumerate();
                let chosen = columns.filter(|(x, _)| b >> x & 1 == 1).map(|(_, column)| column);
                prop_assert_eq!(chosen.fold(0, |sum, column| sum ^ column), field.mul(a, b));
            }
        }
    }

    #[test]
    fn eight_bit_words_are_the_field_of_bytes() {
        assert_eq!(WordField::W8.div(3, 2), Some(143));
        assert_eq!(WordField::W8.div(3, 0), None);
        assert_eq!(WordField::from_bits(16), Some(WordField::W16));
        assert_eq!(WordField::from_bits(12), None);
        assert_eq!(WordField::W8.bit_ones(142), 11);
    }
}
