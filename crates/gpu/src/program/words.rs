//! A thread's 32 bytes of an element, in the two forms in which threads compute.
//!
//! **Packed**: eight registers of four bytes each, as in memory. The product with 2 takes four
//! instructions per register ([`double`]); the sum of products follows by Horner's rule, bit by bit
//! of the coefficients, or from the doubles of each source.
//!
//! **Planes**: register p has bit p of all 32 bytes. The product with a constant is a matrix of
//! bits: each bit of the result is the XOR of some bits of the source. So register p of the result
//! is the XOR of some registers of the source, four on average. `lop3` adds two of them at once.
//! A sum of products is one such XOR over the planes of all sources.
//!
//! The way from one form to the other transposes eight matrices of eight by eight bits: three
//! stages, each with four exchanges of half of the bits between two registers ([`transpose`]). The
//! stages exchange different pairs of index bits, so they commute, and the way back is the same.

use crate::ptx::{Reg, Writer, lut};

/// Registers of a thread's part of an element.
pub(crate) const WORDS: usize = 8;
/// Bytes of a thread's part of an element.
pub(crate) const THREAD_BYTES: u32 = 4 * WORDS as u32;

/// A thread's part of an element.
pub(crate) type Words = [Reg; WORDS];

/// From packed bytes to planes and back.
pub(crate) fn transpose(writer: &mut Writer, words: &Words) -> Words {
    let mut words = *words;
    for (bits, mask) in [(4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
        for low in (0..WORDS).filter(|word| word & bits == 0) {
            let high = low | bits;
            let (a, b) = (words[low], words[high]);
            let up = writer.shift_left(b, bits as u32);
            let down = writer.shift_right(a, bits as u32);
            words[low] = select(writer, a, up, mask);
            words[high] = select(writer, down, b, mask);
        }
    }
    words
}

/// The bits of `a` where the mask is 1, and those of `b` elsewhere.
fn select(writer: &mut Writer, a: Reg, b: Reg, mask: u32) -> Reg {
    writer.lop3_constant(a, b, mask, lut::SELECT)
}

/// Four packed bytes times 2 in the field 0x11d.
pub(crate) fn double(writer: &mut Writer, a: Reg) -> Reg {
    // Bytes with the highest bit give 0xff, which selects the polynomial.
    let carries = writer.spread_signs(a);
    let low = writer.and(a, 0x7f7f_7f7f);
    let shifted = writer.shift_left(low, 1);
    writer.lop3_constant(shifted, carries, 0x1d1d_1d1d, lut::XOR_AND)
}
