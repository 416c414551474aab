//! An open note: the shard that a slot was taken for, before the shard is complete.
//!
//! The note lies in the block behind the slot's header, so that completing the shard cannot tear
//! the note. A writer whose data is in no other place relies on finding the shard's blocks again
//! after a restart. A valid slot header takes precedence over the note.
//!
//! | offset | bytes | field                                                 |
//! |-------:|------:|-------------------------------------------------------|
//! |      0 |    16 | prefix, magic `FSTNOPEN`                              |
//! |     16 |    16 | volume                                                |
//! |     32 |     8 | segment                                               |
//! |     40 |     8 | epoch of the writer                                   |
//! |     48 |     8 | sequence: which of two notes of a shard is newer      |
//! |     56 |     8 | incarnation of the node                               |
//! |     64 |     4 | number of this slot                                   |
//! |     68 |     1 | which shard of the segment                            |
//! |     69 |     3 | zero                                                  |
//! |     72 |     8 | headers and notes below this sequence were stable     |
//! |     80 |   432 | zero                                                  |
//! |    512 |  3584 | zero, not covered by the checksum                     |

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DiskFormatError, Kind, PREFIX_BYTES, SECTOR_BYTES};
use crate::{BLOCK_BYTES, Epoch, SegmentId, ShardIndex, VolumeId};

const KIND: Kind = Kind { what: "open note", magic: *b"FSTNOPEN", version: 1 };

/// The shard that a slot was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenNote {
    /// The volume.
    pub volume: VolumeId,
    /// The segment.
    pub segment: SegmentId,
    /// Which of its shards.
    pub shard: ShardIndex,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Rises with every note and header that the node writes.
    pub sequence: u64,
    /// Incarnation of the node.
    pub incarnation: u64,
    /// Number of the slot.
    pub slot: u32,
    /// Headers and notes with a lower sequence were stable when the node wrote this note; zero if
    /// unknown.
    pub stable_below: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    prefix: [u8; PREFIX_BYTES],
    volume: U128,
    segment: U64,
    epoch: U64,
    sequence: U64,
    incarnation: U64,
    slot: U32,
    shard: u8,
    zero: [u8; 3],
    stable_below: U64,
}

impl OpenNote {
    /// The note as one block.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let layout = Layout {
            prefix: [0; PREFIX_BYTES],
            volume: self.volume.0.into(),
            segment: self.segment.0.into(),
            epoch: self.epoch.0.into(),
            sequence: self.sequence.into(),
            incarnation: self.incarnation.into(),
            slot: self.slot.into(),
            shard: self.shard.0,
            zero: [0; 3],
            stable_below: self.stable_below.into(),
        };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block[..size_of::<Layout>()].copy_from_slice(layout.as_bytes());
        KIND.seal(&mut block[..SECTOR_BYTES]);
        block.freeze()
    }

    /// Reads a note from its block.
    ///
    /// # Errors
    /// [`DiskFormatError::Blank`] for a slot that never had a note or was erased, else the reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, DiskFormatError> {
        let sector = KIND.cut(bytes, SECTOR_BYTES)?;
        KIND.open(sector)?;
        let (layout, _) = Layout::ref_from_prefix(sector).expect("a sector is longer");
        Ok(Self {
            volume: VolumeId(layout.volume.get()),
            segment: SegmentId(layout.segment.get()),
            shard: ShardIndex(layout.shard),
            epoch: Epoch(layout.epoch.get()),
            sequence: layout.sequence.get(),
            incarnation: layout.incarnation.get(),
            slot: layout.slot.get(),
            stable_below: layout.stable_below.get(),
        })
    }
}
