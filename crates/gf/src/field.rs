//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and generator 2: the
//! field of ISA-L, Jerasure (w = 8) and therefore of Ceph.
//!
//! `const fn`s compute all tables, so the tables are data in the binary and need no start-up.

/// The reduction polynomial, with its x^8 term.
pub const POLYNOMIAL: u16 = 0x11d;

const EXP_LOG: ([u8; 512], [u8; 256]) = exp_log();

/// `EXP[i]` = 2^i, doubled in length so that the sum of two logarithms needs no reduction.
static EXP: [u8; 512] = EXP_LOG.0;
/// `LOG[x]` = i with 2^i = x; `LOG[0]` is unused.
static LOG: [u8; 256] = EXP_LOG.1;

/// `MUL[c][x]` = c times x.
pub(crate) static MUL: [[u8; 256]; 256] = multiplication_table();

/// For each coefficient the products of the 16 low nibbles, then of the 16 high nibbles: the
/// operands of two byte shuffles.
pub(crate) static NIBBLES: [[u8; 32]; 256] = nibble_table();

/// For each coefficient the 8 by 8 bit matrix that multiplies by it, in the layout of
/// `GF2P8AFFINEQB` (the row that makes output bit i is byte 7 - i).
pub(crate) static AFFINE: [u64; 256] = affine_table();

const fn times_two(x: u8) -> u8 {
    let doubled = (x as u16) << 1;
    (if doubled & 0x100 == 0 { doubled } else { doubled ^ POLYNOMIAL }) as u8
}

const fn exp_log() -> ([u8; 512], [u8; 256]) {
    let (mut exp, mut log) = ([0; 512], [0; 256]);
    let (mut power, mut i) = (1u8, 0);
    while i < 255 {
        exp[i] = power;
        exp[i + 255] = power;
        log[power as usize] = i as u8;
        power = times_two(power);
        i += 1;
    }
    (exp, log)
}

const fn multiplication_table() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut c = 1;
    while c < 256 {
        let mut x = 1;
        while x < 256 {
            let log = EXP_LOG.1[c] as usize + EXP_LOG.1[x] as usize;
            table[c][x] = EXP_LOG.0[log];
            x += 1;
        }
        c += 1;
    }
    table
}

const fn nibble_table() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[c][nibble] = MUL[c][nibble];
            table[c][16 + nibble] = MUL[c][nibble << 4];
            nibble += 1;
        }
        c += 1;
    }
    table
}

const fn affine_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut matrix = 0u64;
        let mut input_bit = 0;
        while input_bit < 8 {
            let column = MUL[c][1 << input_bit];
            let mut output_bit = 0;
            while output_bit < 8 {
                if column >> output_bit & 1 == 1 {
                    matrix |= 1 << ((7 - output_bit) * 8 + input_bit);
                }
                output_bit += 1;
            }
            input_bit += 1;
        }
        table[c] = matrix;
        c += 1;
    }
    table
}

/// The product of two field elements.
#[inline]
#[must_use]
pub fn mul(a: u8, b: u8) -> u8 {
    MUL[usize::from(a)][usize::from(b)]
}

/// The multiplicative inverse, or `None` for zero.
#[inline]
#[must_use]
pub fn inverse(a: u8) -> Option<u8> {
    (a != 0).then(|| EXP[255 - usize::from(LOG[usize::from(a)])])
}

/// `a` divided by `b`, or `None` when `b` is zero.
#[inline]
#[must_use]
pub fn div(a: u8, b: u8) -> Option<u8> {
    Some(mul(a, inverse(b)?))
}

/// 2 to the power `exponent`.
#[inline]
#[must_use]
pub fn exp(exponent: usize) -> u8 {
    EXP[exponent % 255]
}

/// `base` to the power `exponent`; 0^0 is 1.
#[must_use]
pub fn pow(base: u8, exponent: usize) -> u8 {
    match (base, exponent) {
        (_, 0) => 1,
        (0, _) => 0,
        _ => EXP[usize::from(LOG[usize::from(base)]) * (exponent % 255) % 255],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication bit by bit, independent of the tables.
    fn slow_mul(a: u8, b: u8) -> u8 {
        let (mut product, mut shifted) = (0, a);
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= shifted;
            }
            shifted = times_two(shifted);
        }
        product
    }

    #[test]
    fn every_product_matches_the_school_method_in_every_table() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let product = slow_mul(a, b);
                assert_eq!(mul(a, b), product);
                let nibbles = &NIBBLES[usize::from(a)];
                let split = nibbles[usize::from(b & 15)] ^ nibbles[16 + usize::from(b >> 4)];
                assert_eq!(split, product);
                let rows = AFFINE[usize::from(a)].to_le_bytes();
                let bits = (0..8).fold(0, |byte, bit| {
                    byte | ((((rows[7 - bit] & b).count_ones() & 1) as u8) << bit)
                });
                assert_eq!(bits, product);
            }
        }
    }

    #[test]
    fn inverse_division_and_powers_agree_with_multiplication() {
        assert_eq!(inverse(0), None);
        assert_eq!(div(7, 0), None);
        // The value of 1/2 in the literature on these codes.
        assert_eq!(inverse(2), Some(142));
        for a in 1..=255u8 {
            assert_eq!(mul(a, inverse(a).unwrap()), 1);
            assert_eq!(div(mul(a, 0x53), a), Some(0x53));
        }
        for base in 0..=255u8 {
            let mut product = 1;
            for exponent in 0..600 {
                assert_eq!(pow(base, exponent), product, "{base}^{exponent}");
                product = mul(product, base);
            }
        }
        assert_eq!((exp(0), exp(1), exp(8), exp(255)), (1, 2, 0x1d, 1));
    }
}
