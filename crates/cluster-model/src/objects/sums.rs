//! Checksums of blocks, from which those of longer data are put together.
//!
//! A frame's checksum is CRC32C that begins with ones and is not inverted at its end. It is linear:
//! a sum over two pieces is the sum over the first, moved on over as many zero bytes as the second
//! has, combined with the *bare* sum of the second, which begins with zero. So an object keeps the
//! bare sum of each block, and a read of many blocks needs no look at their bytes. The bare sum of
//! zeroes is zero.

use crc_fast::CrcAlgorithm;

use super::data::BLOCK_BYTES;

/// CRC32C's polynomial, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What moves a sum on over the zero bytes of a block: one table for each byte of the sum.
static OVER_BLOCK: [[u32; 256]; 4] = tables(over_block());
/// Ones, moved on over a block.
const ONES_OVER_BLOCK: u32 = times(&over_block(), u32::MAX);

/// What happens to each bit of a sum.
type Matrix = [u32; 32];

const fn times(matrix: &Matrix, sum: u32) -> u32 {
    let (mut result, mut bit) = (0, 0);
    while bit < 32 {
        if sum >> bit & 1 == 1 {
            result ^= matrix[bit];
        }
        bit += 1;
    }
    result
}

/// The matrix of one zero bit, doubled until it is that of a block.
const fn over_block() -> Matrix {
    let mut matrix = [0; 32];
    let mut bit = 0;
    while bit < 32 {
        let sum = 1_u32 << bit;
        matrix[bit] = sum >> 1 ^ (if sum & 1 == 1 { POLYNOMIAL } else { 0 });
        bit += 1;
    }
    let mut bits = 1;
    while bits < BLOCK_BYTES * 8 {
        let before = matrix;
        let mut bit = 0;
        while bit < 32 {
            matrix[bit] = times(&before, before[bit]);
            bit += 1;
        }
        bits *= 2;
    }
    matrix
}

const fn tables(matrix: Matrix) -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            tables[byte][value] = times(&matrix, (value as u32) << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    tables
}

/// The sum of bytes as a frame has it.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> u32 {
    !(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

/// The bare sum of a block.
#[must_use]
pub(super) fn of_block(block: &[u8]) -> u32 {
    debug_assert_eq!(block.len(), BLOCK_BYTES);
    of_bytes(block) ^ ONES_OVER_BLOCK
}

/// A sum that goes on over a block, of which `block` is the bare sum.
#[must_use]
pub(super) fn append_block(sum: u32, block: u32) -> u32 {
    let [a, b, c, d] = sum.to_le_bytes().map(usize::from);
    OVER_BLOCK[0][a] ^ OVER_BLOCK[1][b] ^ OVER_BLOCK[2][c] ^ OVER_BLOCK[3][d] ^ block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_blocks_make_the_sum_of_the_whole() {
        let mut bytes: Vec<u8> = (0..3 * BLOCK_BYTES).map(|at| ((at * at) >> 7) as u8).collect();
        bytes[BLOCK_BYTES..2 * BLOCK_BYTES].fill(0);
        let blocks = bytes.chunks(BLOCK_BYTES).map(of_block);
        assert_eq!(blocks.clone().nth(1), Some(0));
        assert_eq!(blocks.fold(u32::MAX, append_block), of_bytes(&bytes));
    }
}
