//! The files of a node, byte by byte.
//!
//! Purpose: one place that defines the layout of a node's folder, so that the node, the tools and a
//! person with a hex editor read the same. `docs/formats.md` shows the layouts as tables.
//!
//! Every record starts with the same 16 bytes, and all numbers are little endian:
//!
//! | offset | bytes | field                                             |
//! |-------:|------:|---------------------------------------------------|
//! |      0 |     8 | magic, which names the kind of record             |
//! |      8 |     4 | CRC-32C of the record from byte 12 to its end     |
//! |     12 |     4 | version of the record's layout                    |
//!
//! The checksum covers the version, so a flipped bit there reads as damage and not as a record of a
//! newer release. A power loss in the middle of a write may tear a record, and three records must
//! survive that: superblock, volume record and journal header. They fit in the first
//! [`SECTOR_BYTES`] bytes of their block, which is the smallest unit that a disk writes as a whole.
//! So for these records, all zero means never written, valid means written, and anything else means
//! damaged. A slot header fills its block, so a torn header looks the same as a damaged one.

mod journal;
mod open;
mod slot;
mod superblock;
mod volume;

pub use journal::JournalHeader;
pub use open::OpenNote;
pub use slot::{SLOT_BLOCKS_MAX, SlotHeader};
pub use superblock::{CODE_BYTES_MAX, Superblock};
pub use volume::{VOLUME_FILE_BYTES, VOLUME_SLOT_BYTES, VolumeRecord};

use crate::crc32c;

/// The smallest unit that a disk writes as a whole, or not at all, when power fails.
pub const SECTOR_BYTES: usize = 512;

/// Length of the prefix of all records.
const PREFIX_BYTES: usize = 16;

/// Why a program cannot use a record of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFormatError {
    /// All zero: never written, or erased.
    #[error("the {what} is blank")]
    Blank {
        /// Which record.
        what: &'static str,
    },
    /// There are fewer bytes than the record needs.
    #[error("the {what} is cut off: {len_bytes} of {expected_bytes} bytes")]
    Truncated {
        /// Which record.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
        /// The length that it should have.
        expected_bytes: usize,
    },
    /// The bytes are a different kind of data.
    #[error("this is not a {what}: it does not start with its magic number")]
    WrongMagic {
        /// Which record was expected.
        what: &'static str,
    },
    /// The checksum does not match.
    #[error(
        "the {what} is damaged: its checksum is {found:#010x}, its bytes give {computed:#010x}"
    )]
    Damaged {
        /// Which record.
        what: &'static str,
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes in the file.
        computed: u32,
    },
    /// A newer release wrote the record.
    #[error("the {what} has version {found}, this program knows versions up to {known}")]
    FutureVersion {
        /// Which record.
        what: &'static str,
        /// The record's version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The checksum matches, but a field has an invalid value: a faulty program wrote the record.
    #[error("the {what} is invalid: {field}")]
    Invalid {
        /// Which record.
        what: &'static str,
        /// The field and the reason.
        field: &'static str,
    },
}

/// The name, magic and version of a kind of record.
struct Kind {
    what: &'static str,
    magic: [u8; 8],
    version: u32,
}

impl Kind {
    /// Fills in the prefix of `record`. Its other bytes must be final.
    fn seal(&self, record: &mut [u8]) {
        record[0..8].copy_from_slice(&self.magic);
        record[12..16].copy_from_slice(&self.version.to_le_bytes());
        let crc = crc32c(&record[12..]);
        record[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks the prefix of `record`.
    fn open(&self, record: &[u8]) -> Result<(), DiskFormatError> {
        let what = self.what;
        if record[0..8] != self.magic {
            // Without an early exit the compiler uses vector instructions. A start sees mostly
            // blank records.
            let blank = record.iter().fold(0, |bits, byte| bits | byte) == 0;
            return Err(match blank {
                true => DiskFormatError::Blank { what },
                false => DiskFormatError::WrongMagic { what },
            });
        }
        let found = u32_at(record, 8);
        let computed = crc32c(&record[12..]);
        if found != computed {
            return Err(DiskFormatError::Damaged { what, found, computed });
        }
        let version = u32_at(record, 12);
        if version > self.version {
            return Err(DiskFormatError::FutureVersion {
                what,
                found: version,
                known: self.version,
            });
        }
        if version == 0 {
            return Err(self.invalid("version 0 does not exist"));
        }
        Ok(())
    }

    /// The first `expected_bytes` bytes of `bytes`.
    fn cut<'a>(&self, bytes: &'a [u8], expected_bytes: usize) -> Result<&'a [u8], DiskFormatError> {
        bytes.get(..expected_bytes).ok_or(DiskFormatError::Truncated {
            what: self.what,
            len_bytes: bytes.len(),
            expected_bytes,
        })
    }

    fn invalid(&self, field: &'static str) -> DiskFormatError {
        DiskFormatError::Invalid { what: self.what, field }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
