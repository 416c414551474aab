//! CRC-32C, the checksum of all formats of this project, and the concatenation of two checksums.

use std::collections::BTreeMap;

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// CRC-32C (Castagnoli; RFC 3720 appendix B.4) of `data`.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    // The library returns every width as 64 bits.
    checksum(ALGORITHM, data) as u32
}

/// CRC-32C of the concatenation of `parts`.
pub(crate) fn crc32c_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(ALGORITHM);
    parts.into_iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// The effect on a checksum of appending zeros. It is linear over GF(2), so it is a matrix of 32
/// columns. Its computation takes long, and nearly all pieces of a stream have the same length.
#[derive(Debug)]
struct Shift {
    len_bytes: u64,
    columns: [u32; 32],
}

impl Shift {
    fn new(len_bytes: u64) -> Self {
        let joined = |crc: u32| checksum_combine(ALGORITHM, crc.into(), 0, len_bytes) as u32;
        Self { len_bytes, columns: std::array::from_fn(|bit| joined(1 << bit) ^ joined(0)) }
    }

    fn apply(&self, crc: u32) -> u32 {
        let set = self.columns.iter().enumerate().filter(|(bit, _)| crc >> bit & 1 == 1);
        set.fold(0, |sum, (_, column)| sum ^ column)
    }
}

/// The checksum of a stream whose pieces become known out of order.
///
/// Pieces are numbered from 0. Only pieces that wait for an earlier one are stored: at most one for
/// each thread that makes pieces.
#[derive(Debug, Default)]
pub(crate) struct StreamChecksum {
    crc: u32,
    next: u64,
    waiting: BTreeMap<u64, (u32, u64)>,
    shift: Option<Shift>,
}

impl StreamChecksum {
    /// Adds piece `number`, which has the checksum `crc` and `len_bytes` bytes.
    pub(crate) fn add(&mut self, number: u64, crc: u32, len_bytes: u64) {
        self.waiting.insert(number, (crc, len_bytes));
        while let Some((crc, len_bytes)) = self.waiting.remove(&self.next) {
            let known = self.shift.take().filter(|shift| shift.len_bytes == len_bytes);
            let shift = known.unwrap_or_else(|| Shift::new(len_bytes));
            self.crc = shift.apply(self.crc) ^ crc;
            self.shift = Some(shift);
            self.next += 1;
        }
    }

    /// The checksum of all pieces before the first unknown one.
    pub(crate) fn value(&self) -> u32 {
        self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_give_the_checksum_of_the_whole() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(StreamChecksum::default().value(), crc32c(b""));
        let pieces: [&[u8]; 4] = [b"fie", b"", b"ldston", b"e"];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let mut stream = StreamChecksum::default();
            for piece in order {
                stream.add(piece as u64, crc32c(pieces[piece]), pieces[piece].len() as u64);
            }
            assert_eq!(stream.value(), crc32c(b"fieldstone"));
        }
        assert_eq!(crc32c_of(pieces), crc32c(b"fieldstone"));
    }
}
