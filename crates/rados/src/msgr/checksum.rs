//! Checksums of frames: CRC32C without the inversion at its end.
//!
//! Ceph begins a segment's checksum with ones, and a preamble's with zeros. The usual CRC32C begins
//! with ones and inverts the result. The sum is linear: two starts differ in the result by a value
//! that depends only on the length. So one fast function serves both.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

/// The length of what a preamble's checksum covers.
pub(super) const PREAMBLE_COVERED_BYTES: usize = 28;

/// What 28 zero bytes do to a sum that begins with ones.
const ONES_OVER_PREAMBLE: u32 = over_zeros(u32::MAX, PREAMBLE_COVERED_BYTES);

/// The sum of a segment that lies in one piece.
pub(super) fn segment(bytes: &[u8]) -> u32 {
    !(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

/// The sum of a segment that lies in several pieces.
pub(super) fn pieces(parts: &[Bytes]) -> u32 {
    match parts {
        [] => u32::MAX,
        [one] => segment(one),
        several => {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            several.iter().for_each(|part| digest.update(part));
            !(digest.finalize() as u32)
        }
    }
}

/// The sum of the first 28 bytes of a preamble.
pub(super) fn preamble(covered: &[u8; PREAMBLE_COVERED_BYTES]) -> u32 {
    segment(covered) ^ ONES_OVER_PREAMBLE
}

/// A sum that goes on over zero bytes, bit by bit.
const fn over_zeros(mut sum: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < bytes * 8 {
        sum = (sum >> 1) ^ (if sum & 1 == 1 { 0x82f6_3b78 } else { 0 });
        bit += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(mut sum: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            sum ^= u32::from(*byte);
            sum = over_zeros(sum, 1);
        }
        sum
    }

    #[test]
    fn sums_are_those_of_the_definition() {
        let bytes: Vec<u8> = (0..100_u8).collect();
        let mut covered = [0; PREAMBLE_COVERED_BYTES];
        covered.copy_from_slice(&bytes[..PREAMBLE_COVERED_BYTES]);
        assert_eq!(segment(&bytes), slow(u32::MAX, &bytes));
        assert_eq!(preamble(&covered), slow(0, &covered));
        assert_eq!(segment(&[]), u32::MAX);
        let parts = [&bytes[..7], &bytes[7..7], &bytes[7..]].map(Bytes::copy_from_slice);
        assert_eq!(pieces(&parts), segment(&bytes));
        assert_eq!(pieces(&[]), u32::MAX);
    }
}
