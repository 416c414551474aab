//! A journal file: one header block, then the ring.
//!
//! | offset | bytes | field                                |
//! |-------:|------:|--------------------------------------|
//! |      0 |    16 | prefix, magic `FSTNJRNL`             |
//! |     16 |    16 | volume                               |
//! |     32 |     8 | generation                           |
//! |     40 |     8 | size of the ring in bytes            |
//! |     48 |   464 | zero                                 |
//! |    512 |  3584 | zero, not covered by the checksum    |
//! |   4096 |  ring | the ring; its content is the volume's business |
//!
//! The node writes and syncs the header before it acknowledges the journal's creation. So a blank
//! header means that the creation was never acknowledged.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use zerocopy::little_endian::{U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DiskFormatError, Kind, PREFIX_BYTES, SECTOR_BYTES};
use crate::{BLOCK_BYTES, JournalGen, VolumeId};

const KIND: Kind = Kind { what: "journal header", magic: *b"FSTNJRNL", version: 1 };

/// The header of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// The volume.
    pub volume: VolumeId,
    /// The generation.
    pub generation: JournalGen,
    /// Size of the ring; a multiple of the block size.
    pub ring_bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    prefix: [u8; PREFIX_BYTES],
    volume: U128,
    generation: U64,
    ring_bytes: U64,
}

impl JournalHeader {
    /// Where the ring starts in the file.
    pub const RING_AT_BYTES: u64 = BLOCK_BYTES as u64;

    /// The header as one block.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let layout = Layout {
            prefix: [0; PREFIX_BYTES],
            volume: self.volume.0.into(),
            generation: self.generation.0.into(),
            ring_bytes: self.ring_bytes.into(),
        };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block[..size_of::<Layout>()].copy_from_slice(layout.as_bytes());
        KIND.seal(&mut block[..SECTOR_BYTES]);
        block.freeze()
    }

    /// Reads the header of the journal file of `volume` and `generation`.
    ///
    /// # Errors
    /// [`DiskFormatError::Blank`] when the creation was interrupted, else the reason.
    pub fn decode(
        bytes: &[u8],
        volume: VolumeId,
        generation: JournalGen,
    ) -> Result<Self, DiskFormatError> {
        let sector = KIND.cut(bytes, SECTOR_BYTES)?;
        KIND.open(sector)?;
        let (layout, _) = Layout::ref_from_prefix(sector).expect("a sector is longer");
        if layout.volume.get() != volume.0 || layout.generation.get() != generation.0 {
            return Err(KIND.invalid("it belongs to another journal"));
        }
        let ring_bytes = layout.ring_bytes.get();
        if ring_bytes == 0 || !ring_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(KIND.invalid("the size of the ring"));
        }
        Ok(Self { volume, generation, ring_bytes })
    }
}
