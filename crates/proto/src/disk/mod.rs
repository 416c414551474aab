//! The files of a node, byte by byte.
//!
//! Purpose: one place that says what lies where in a node's folder, so that the node, the tools
//! and a person with a hex editor read the same. `docs/formats.md` shows the layouts as tables.
//!
//! Every record starts with the same 16 bytes, and all numbers are little endian:
//!
//! | offset | bytes | field                                             |
//! |-------:|------:|---------------------------------------------------|
//! |      0 |     8 | magic, which names the kind of record             |
//! |      8 |     4 | CRC-32C of the record from byte 12 to its end     |
//! |     12 |     4 | version of the record's layout                    |
//!
//! The checksum covers the version, so a flipped bit there reads as damage and not as a record
//! from the future. Three records must survive being torn by a power loss in the middle of their
//! write: superblock, volume record and journal header. They fit in the first [`SECTOR_BYTES`]
//! bytes of their block, which is the least that a disk writes as a whole. Hence for these
//! records: all zero means never written, valid means written, anything else means damaged. A
//! slot header fills its block, so there "torn" and "damaged" look the same.

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

/// The least that a disk writes as a whole, or not at all, when power fails.
pub const SECTOR_BYTES: usize = 512;

/// Length of what all records start with.
const PREFIX_BYTES: usize = 16;

/// Why a record of a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFormatError {
    /// All zero: never written, or erased.
    #[error("the {what} is blank")]
    Blank {
        /// Which record.
        what: &'static str,
    },
    /// Fewer bytes than the record has.
    #[error("the {what} is cut off: {len_bytes} of {expected_bytes} bytes")]
    Truncated {
        /// Which record.
        what: &'static str,
        /// How long it is.
        len_bytes: usize,
        /// How long it should be.
        expected_bytes: usize,
    },
    /// Something else is stored here.
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
        /// The checksum of the bytes that are there.
        computed: u32,
    },
    /// Written by a newer release.
    #[error("the {what} has version {found}, this program knows versions up to {known}")]
    FutureVersion {
        /// Which record.
        what: &'static str,
        /// The record's version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The checksum matches, yet a field makes no sense: written by a faulty program.
    #[error("the {what} is invalid: {field}")]
    Invalid {
        /// Which record.
        what: &'static str,
        /// Which field, and what is wrong with it.
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
    /// Fills in the prefix of `record`, whose other bytes are final.
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
            // Without an early end the compiler uses vectors; starts see mostly blank records.
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

    /// The first `expected_bytes` of `bytes`.
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
