//! A slot header: the description of the shard in a slot of the data file. Each slot has two blocks
//! in the file `slots`: the first for this header, the second for the open note.
//!
//! | offset | bytes | field                                                 |
//! |-------:|------:|-------------------------------------------------------|
//! |      0 |    16 | prefix, magic `FSTNSLOT`                              |
//! |     16 |    16 | volume                                                |
//! |     32 |     8 | segment                                               |
//! |     40 |     8 | epoch of the writer that sealed the shard             |
//! |     48 |     8 | sequence: which of two headers of a shard is newer    |
//! |     56 |     8 | incarnation of the node                               |
//! |     64 |     8 | log position of the segment's first record            |
//! |     72 |     8 | log position behind the segment's last record         |
//! |     80 |     4 | number of this slot                                   |
//! |     84 |     4 | length of the shard in bytes                          |
//! |     88 |     1 | which shard of the segment                            |
//! |     89 |     1 | kind of the segment                                   |
//! |     90 |     6 | zero                                                  |
//! |     96 |     8 | headers and notes below this sequence were stable     |
//! |    104 |   920 | zero                                                  |
//! |   1024 |  3072 | CRC-32C of each block of the shard, then zero         |
//!
//! The slot number and the incarnation reveal a header that lies in the wrong place or was copied
//! from another node.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DiskFormatError, Kind, PREFIX_BYTES, u32_at};
use crate::{BLOCK_BYTES, Epoch, Lsn, SealMeta, SegmentId, SegmentKind, ShardIndex, VolumeId};

/// The largest number of blocks in a slot. The checksums of this many blocks fit into its header.
pub const SLOT_BLOCKS_MAX: usize = (BLOCK_BYTES - TABLE_AT) / 4;

const TABLE_AT: usize = 1024;
const KIND: Kind = Kind { what: "slot header", magic: *b"FSTNSLOT", version: 1 };

/// The description of the complete shard in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// The volume.
    pub volume: VolumeId,
    /// The segment.
    pub segment: SegmentId,
    /// Which of its shards.
    pub shard: ShardIndex,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Rises with every header that the node writes.
    pub sequence: u64,
    /// Incarnation of the node.
    pub incarnation: u64,
    /// Number of the slot.
    pub slot: u32,
    /// The writer's metadata of the shard.
    pub meta: SealMeta,
    /// Headers and notes with a lower sequence were stable when the node wrote this header; zero if
    /// unknown.
    pub stable_below: u64,
    /// CRC-32C of each block of the shard.
    pub checksums: Vec<u32>,
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
    lsn_first: U64,
    lsn_end: U64,
    slot: U32,
    shard_bytes: U32,
    shard: u8,
    kind: u8,
    zero: [u8; 6],
    stable_below: U64,
}

impl SlotHeader {
    /// The header as one block.
    ///
    /// # Panics
    /// When the number of checksums does not fit the shard's length: the caller's error.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let blocks = self.meta.shard_bytes as usize / BLOCK_BYTES;
        assert!(blocks == self.checksums.len() && blocks <= SLOT_BLOCKS_MAX, "one per block");
        let layout = Layout {
            prefix: [0; PREFIX_BYTES],
            volume: self.volume.0.into(),
            segment: self.segment.0.into(),
            epoch: self.epoch.0.into(),
            sequence: self.sequence.into(),
            incarnation: self.incarnation.into(),
            lsn_first: self.meta.lsn_first.0.into(),
            lsn_end: self.meta.lsn_end.0.into(),
            slot: self.slot.into(),
            shard_bytes: self.meta.shard_bytes.into(),
            shard: self.shard.0,
            kind: self.meta.kind as u8,
            zero: [0; 6],
            stable_below: self.stable_below.into(),
        };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block[..size_of::<Layout>()].copy_from_slice(layout.as_bytes());
        for (crc, out) in self.checksums.iter().zip(block[TABLE_AT..].chunks_exact_mut(4)) {
            out.copy_from_slice(&crc.to_le_bytes());
        }
        KIND.seal(&mut block);
        block.freeze()
    }

    /// Reads a header from its block.
    ///
    /// # Errors
    /// [`DiskFormatError::Blank`] for a slot that was never used or was erased, else the reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, DiskFormatError> {
        let block = KIND.cut(bytes, BLOCK_BYTES)?;
        KIND.open(block)?;
        let (layout, _) = Layout::ref_from_prefix(block).expect("a block is longer");
        let shard_bytes = layout.shard_bytes.get();
        let blocks = shard_bytes as usize / BLOCK_BYTES;
        if shard_bytes == 0
            || !(shard_bytes as usize).is_multiple_of(BLOCK_BYTES)
            || blocks > SLOT_BLOCKS_MAX
        {
            return Err(KIND.invalid("the length of the shard"));
        }
        let kind = match layout.kind {
            0 => SegmentKind::Data,
            1 => SegmentKind::Checkpoint,
            _ => return Err(KIND.invalid("the kind of the segment")),
        };
        Ok(Self {
            volume: VolumeId(layout.volume.get()),
            segment: SegmentId(layout.segment.get()),
            shard: ShardIndex(layout.shard),
            epoch: Epoch(layout.epoch.get()),
            sequence: layout.sequence.get(),
            incarnation: layout.incarnation.get(),
            slot: layout.slot.get(),
            stable_below: layout.stable_below.get(),
            meta: SealMeta {
                kind,
                lsn_first: Lsn(layout.lsn_first.get()),
                lsn_end: Lsn(layout.lsn_end.get()),
                shard_bytes,
            },
            checksums: (0..blocks).map(|at| u32_at(block, TABLE_AT + 4 * at)).collect(),
        })
    }
}
