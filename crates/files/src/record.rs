//! The record before each unit: the checksums of the unit, and of its place.
//!
//! | offset | bytes | field                                            |
//! |-------:|------:|--------------------------------------------------|
//! |      0 |     4 | checksum of the place, and of what follows       |
//! |      4 | 4 × blocks | checksum of each block of the unit          |
//!
//! The *place* is not stored. It is the encoding's id (16), the shard (4), the stripe (8) and the
//! length of the unit (8). An intact unit may lie in the wrong shard, stripe or encoding, because
//! files were mixed up or a disk wrote to a wrong place. The checksum treats it as damaged.

use crate::checksum::{crc32c, crc32c_of};
use crate::striping::EncodingId;

/// The place of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitAddress {
    pub(crate) id: EncodingId,
    pub(crate) shard: usize,
    pub(crate) stripe: u64,
    pub(crate) unit_len: usize,
}

impl UnitAddress {
    fn checksum(&self, checksums: &[u8]) -> u32 {
        crc32c_of([
            &self.id.0.to_le_bytes()[..],
            &(self.shard as u32).to_le_bytes(),
            &self.stripe.to_le_bytes(),
            &(self.unit_len as u64).to_le_bytes(),
            checksums,
        ])
    }

    /// Writes the record of a unit. The unit has as many blocks as the record has room for.
    pub(crate) fn seal(&self, unit: &[u8], record: &mut [u8]) {
        let (own, checksums) = record.split_at_mut(4);
        let blocks = unit.chunks_exact(unit.len() / (checksums.len() / 4));
        for (checksum, block) in checksums.chunks_exact_mut(4).zip(blocks) {
            checksum.copy_from_slice(&crc32c(block).to_le_bytes());
        }
        own.copy_from_slice(&self.checksum(checksums).to_le_bytes());
    }

    /// True if a record is valid, and belongs to this unit.
    pub(crate) fn is_of(&self, record: &[u8]) -> bool {
        let (own, checksums) = record.split_at(4);
        own == self.checksum(checksums).to_le_bytes()
    }
}

/// True if `bytes` are block `block` of the unit with this valid record.
pub(crate) fn block_is_good(record: &[u8], block: usize, bytes: &[u8]) -> bool {
    record[4 + 4 * block..8 + 4 * block] == crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_its_unit_and_place_only() {
        let place = UnitAddress { id: EncodingId(7), shard: 3, stripe: 9, unit_len: 24 };
        let unit: Vec<u8> = (0..24).collect();
        let mut record = [0; 4 + 4 * 3];
        place.seal(&unit, &mut record);
        assert!(place.is_of(&record));
        for (block, bytes) in unit.chunks(8).enumerate() {
            assert!(block_is_good(&record, block, bytes));
            assert!(!block_is_good(&record, (block + 1) % 3, bytes));
        }
        for other in [
            UnitAddress { id: EncodingId(8), ..place },
            UnitAddress { shard: 4, ..place },
            UnitAddress { stripe: 8, ..place },
            UnitAddress { unit_len: 48, ..place },
        ] {
            assert!(!other.is_of(&record));
        }
        for bit in 0..record.len() * 8 {
            let mut flipped = record;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!place.is_of(&flipped));
        }
    }
}
