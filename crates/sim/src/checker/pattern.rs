//! The content of cells: each write fills each of its cells with bytes that name both.
//!
//! A cell begins with a magic word, the write's number and the cell's number. The rest is an
//! arithmetic sequence derived from them. So the checker can decode the bytes of a read to a value,
//! and recognizes anything else (a misplaced cell, a torn cell, flipped bits).

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;

use super::{Span, Value};

const MAGIC: u64 = 0x6669_656c_6473_746e;

fn words(value: Value, cell: u64) -> impl Iterator<Item = u64> + Clone {
    let first = (u64::from(value) << 32 ^ cell).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = first.rotate_left(32) | 1;
    let head = [MAGIC, u64::from(value), cell];
    let rest = std::iter::successors(Some(first.wrapping_add(step)), move |word| {
        Some(word.wrapping_add(step))
    });
    head.into_iter().chain(rest)
}

/// The content of the cells of `span`, as written by write `value`.
pub(crate) fn fill(value: Value, span: Span, cell_bytes: usize) -> Bytes {
    let mut data = AlignedBuf::zeroed(span.cells as usize * cell_bytes);
    for (index, cell) in data.chunks_exact_mut(cell_bytes).enumerate() {
        for (out, word) in cell.chunks_exact_mut(8).zip(words(value, span.first + index as u64)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }
    data.freeze()
}

/// Without an early end, so that the compiler uses vector instructions.
fn is_zero(data: &[u8]) -> bool {
    data.iter().fold(0, |all, byte| all | byte) == 0
}

/// The write that made `data`, which was read from `cell`.
pub(crate) fn decode(data: &[u8], cell: u64) -> Result<Value, String> {
    let word = |index: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&data[index * 8..index * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    if word(0) == 0 && is_zero(data) {
        return Ok(0);
    }
    let (magic, value, from) = (word(0), word(1), word(2));
    if magic != MAGIC {
        return Err(format!("bytes that were never written (first word {magic:#018x})"));
    }
    if from != cell {
        return Err(format!("cell {from} as written by write {value}, at the wrong place"));
    }
    let value = Value::try_from(value).map_err(|_| format!("no write has number {value}"))?;
    let differences = data.as_chunks().0.iter().zip(words(value, cell));
    let differences = differences.map(|(got, word)| u64::from_le_bytes(*got) ^ word);
    if differences.clone().fold(0, |all, difference| all | difference) == 0 {
        return Ok(value);
    }
    let at = differences.take_while(|difference| *difference == 0).count() * 8;
    Err(format!("write {value} torn or damaged at byte {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_recognized_and_damage_is_told() {
        const CELL_BYTES: usize = 512;
        let fill = |value| fill(value, Span { first: 100, cells: 3 }, CELL_BYTES);
        let data = fill(7);
        for (index, cell) in data.chunks(CELL_BYTES).enumerate() {
            assert_eq!(decode(cell, 100 + index as u64), Ok(7));
        }
        assert_eq!(decode(&[0; CELL_BYTES], 5), Ok(0));
        let misplaced = decode(&data[..CELL_BYTES], 101).expect_err("it is cell 100");
        assert!(misplaced.contains("wrong place"), "{misplaced}");
        for at in [0, 9, 17, 24, 511] {
            let mut damaged = data[..CELL_BYTES].to_vec();
            damaged[at] ^= 0x10;
            assert!(decode(&damaged, 100).is_err(), "byte {at}");
        }
        let mut torn = data[..CELL_BYTES].to_vec();
        torn[256..].copy_from_slice(&fill(8)[256..CELL_BYTES]);
        assert!(decode(&torn, 100).is_err());
    }
}
