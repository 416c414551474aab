//! The fixed-point logarithm of straw2: [`crush_ln`]`(u)` is about 2^44 * log2(u + 1) for u in
//! 0..=65535, by two table steps.
//!
//! u + 1 is normalised to 1.xxx with 15 fraction bits. Its upper bits select a reciprocal (RH) and
//! a logarithm (LH). The product with the reciprocal leaves a small remainder, whose logarithm is
//! in the second table (LL). The result is deterministic but not quite the logarithm: it has equal
//! neighbours, and crush_ln(65535) is *smaller* than crush_ln(65534). A library logarithm, or a
//! comparison of the u themselves, gives other placements.

use crate::ll_table::LL;

/// `RH[k]` = ceil(2^48 * 128 / (128 + k)).
const RH: [u64; 129] = reciprocals();
/// `LH[k]` = floor(2^48 * log2(1 + k / 128)), except the last, which would be 2^48.
const LH: [u64; 129] = logarithms();

const fn reciprocals() -> [u64; 129] {
    let mut table = [0; 129];
    let mut k = 0;
    while k <= 128 {
        table[k] = (1u64 << 55).div_ceil(128 + k as u64);
        k += 1;
    }
    table
}

const fn logarithms() -> [u64; 129] {
    let mut table = [0; 129];
    let mut k = 0;
    while k < 128 {
        // Each squaring gives one bit of the logarithm: y in [1, 2) as 1.63 fixed point.
        let mut y = (128 + k as u64) << (63 - 7);
        let mut bit = 0;
        while bit < 48 {
            // 2.126 fixed point; at least 2.0 exactly when the top bit is set.
            let square = y as u128 * y as u128;
            table[k] <<= 1;
            if square >> 127 == 1 {
                table[k] |= 1;
                y = (square >> 64) as u64;
            } else {
                y = (square >> 63) as u64;
            }
            bit += 1;
        }
        k += 1;
    }
    table[128] = 0xffff_0000_0000;
    table
}

/// The tables of [`crush_ln`], for other implementations of it.
#[derive(Clone, Copy, Debug)]
pub struct LnTables {
    /// Reciprocals of the upper bits, from 128 on: `RH`.
    pub reciprocals: &'static [u64; 129],
    /// Logarithms of the upper bits, from 128 on: `LH`.
    pub logarithms: &'static [u64; 129],
    /// Logarithms of what the upper bits leave: `LL`.
    pub remainders: &'static [u64; 256],
}

/// The tables of [`crush_ln`].
#[must_use]
pub fn tables() -> LnTables {
    LnTables { reciprocals: &RH, logarithms: &LH, remainders: &LL }
}

/// About 2^44 * log2(u + 1).
#[inline]
#[must_use]
pub fn crush_ln(u: u16) -> u64 {
    let x = u32::from(u) + 1;
    // Normalise so that bit 15 or bit 16 is set: only x = 2^16 has the latter.
    let shift = x.leading_zeros().saturating_sub(16);
    let (x, exponent) = (x << shift, 15 - u64::from(shift));
    let k = (x >> 8) as usize - 128;
    let remainder = (u64::from(x).wrapping_mul(RH[k]) >> 48) & 0xff;
    (exponent << 44) + ((LH[k] + LL[remainder as usize]) >> 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of the function, known from the reference over all 65536 inputs. Any wrong table
    /// entry changes one of these numbers.
    #[test]
    fn the_shape_of_the_whole_function_is_that_of_the_reference() {
        let n: Vec<u64> = (0..=u16::MAX).map(|u| (1 << 48) - crush_ln(u)).collect();
        assert_eq!((n[65533], n[65534], n[65535]), (1_097_670_351, 43_930_352, 268_435_456));
        assert!(n.iter().all(|&n| n > 0));
        let steps: Vec<i64> = n.windows(2).map(|w| w[0] as i64 - w[1] as i64).collect();
        assert_eq!(steps.iter().filter(|&&step| step == 0).count(), 10_007);
        let inversions: Vec<usize> = (0..65535).filter(|&u| steps[u] < 0).collect();
        assert_eq!(inversions, [65534]);
        assert_eq!(steps.iter().filter(|&&step| step > 0).min(), Some(&56_128_037));
        let mut distinct = n.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 55_529);
    }

    #[test]
    fn powers_of_two_are_exact() {
        for exponent in 0..16u32 {
            assert_eq!(crush_ln(((1u32 << exponent) - 1) as u16), u64::from(exponent) << 44);
        }
    }
}
