//! The tables of the kernel.

/// The polynomial of CRC32C without its highest term, with the lowest power of x in the highest
/// bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Bytes that a warp reads per step.
const STEP_BYTES: u32 = 256;
/// Bytes that a lane reads per step.
const VECTOR_BYTES: u32 = 8;
/// Values of a byte.
const VALUES: u32 = 256;
/// Lanes of a warp.
const LANES: u32 = 32;

/// The tables for steps in shared memory: a row of 256 bytes for each value of a byte.
pub(super) const SHARED_ROWS_BYTES: u32 = VALUES * 256;
/// The tables for steps in the card's memory: a row has each entry once.
pub(super) const STEP_TABLE_BYTES: u32 = VALUES * VECTOR_BYTES * 4;
/// The tables for the way back: 16 rows of 256 bytes for each byte of a register.
pub(super) const BACK_BYTES: u32 = 4 * 16 * 256;

/// A CRC register after some more bytes that are zeros.
pub(super) fn forward(register: u32, bytes: u32) -> u32 {
    (0..8 * bytes).fold(register, |register, _| {
        let carry = (register & 1) * POLYNOMIAL;
        (register >> 1) ^ carry
    })
}

/// A CRC register before some bytes that were zeros.
pub(super) fn back(register: u32, bytes: u32) -> u32 {
    (0..8 * bytes).fold(register, |register, _| {
        // The polynomial has the highest bit, and nothing else sets it.
        let carry = register >> 31;
        let shifted = register ^ (carry * POLYNOMIAL);
        shifted << 1 | carry
    })
}

/// The values of a linear function for all numbers of some bits, from those of single bits.
fn span(bits: u32, of_bit: impl Fn(u32) -> u32) -> Vec<u32> {
    let mut values = vec![0];
    for bit in 0..bits {
        let added = of_bit(1 << bit);
        values.extend_from_within(..);
        let half = values.len() / 2;
        values[half..].iter_mut().for_each(|value| *value ^= added);
    }
    values
}

/// The tables, as they lie in the card's memory.
///
/// First, for each value of a byte, 8 words: what this value adds to a register if it is byte 0, 1,
/// ... 7 of a vector that begins 256 bytes before.
///
/// Then, for each of the 4 bytes of a register and for each value of 4 bits, 64 words: these bits
/// as the low 4 of the byte, moved back by `8 l` bytes for each lane `l`; and the same as the high
/// 4 bits.
#[must_use]
pub fn table() -> Vec<u32> {
    let steps: Vec<Vec<u32>> =
        (0..VECTOR_BYTES).map(|byte| span(8, |value| forward(value, STEP_BYTES - byte))).collect();
    let mut words: Vec<u32> =
        (0..VALUES as usize).flat_map(|value| steps.iter().map(move |step| step[value])).collect();
    for byte in 0..4 {
        let columns: Vec<Vec<u32>> = [0, 4]
            .iter()
            .flat_map(|shift| (0..LANES).map(move |lane| (8 * byte + shift, VECTOR_BYTES * lane)))
            .map(|(shift, bytes)| span(4, |value| back(value << shift, bytes)))
            .collect();
        words.extend((0..16).flat_map(|value| columns.iter().map(move |column| column[value])));
    }
    words
}
