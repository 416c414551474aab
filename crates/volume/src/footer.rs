//! The footer of a segment: it describes the segment's blocks, in the segment's own last blocks.
//!
//! The footer is coded with the data, so it survives the loss of as many shards. Recovery replays
//! footers instead of journal records for sealed segments. Collection reads them to learn which
//! blocks of the device may still lie in the segment.
//!
//! Layout: entries of 24 bytes ([`Entry`]) from the footer's first block on, and in the segment's
//! very last block, at its end, a 64-byte trailer: magic 8, version 4, crc32c 4 (of all footer
//! blocks with this field zero), volume 16, segment 8, lsn_first 8, lsn_end 8, entries 4, footer
//! blocks 4.

use fieldstone_proto::{BLOCK_BYTES, Lsn, SegmentId, VolumeId, crc32c};

use crate::codec::{FormatError, Reader, Writer};
use crate::record::Entry;

const MAGIC: &[u8; 8] = b"FSFOOTR\x01";
const VERSION: u32 = 1;
const TRAILER_BYTES: usize = 64;

/// The description of a segment's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The volume.
    pub volume: VolumeId,
    /// The segment.
    pub segment: SegmentId,
    /// Log position of the segment's first record.
    pub lsn_first: Lsn,
    /// Log position after the segment's last record.
    pub lsn_end: Lsn,
    /// Every change of the map by the segment's records, in order.
    pub entries: Vec<Entry>,
}

/// Blocks that a footer of `entries` entries takes.
#[must_use]
pub fn footer_blocks(entries: usize) -> u32 {
    let bytes = entries * Entry::BYTES + TRAILER_BYTES;
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).expect("a segment's footer is small")
}

impl Footer {
    /// The footer's blocks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let blocks = footer_blocks(self.entries.len());
        let len = blocks as usize * BLOCK_BYTES;
        let mut w = Writer(Vec::with_capacity(len));
        for entry in &self.entries {
            entry.encode(&mut w);
        }
        w.0.resize(len - TRAILER_BYTES, 0);
        w.0.extend_from_slice(MAGIC);
        w.u32(VERSION);
        w.u32(0);
        w.u128(self.volume.0);
        w.u64(self.segment.0);
        w.u64(self.lsn_first.0);
        w.u64(self.lsn_end.0);
        w.u32(u32::try_from(self.entries.len()).expect("bounded by the segment"));
        w.u32(blocks);
        let crc = crc32c(&w.0);
        let at = len - TRAILER_BYTES + 12;
        w.0[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        w.0
    }

    /// Number of blocks of the footer that ends with `last_block`.
    ///
    /// # Errors
    /// The block does not end with a trailer that this release can read.
    pub fn blocks_of(last_block: &[u8]) -> Result<u32, FormatError> {
        let trailer = last_block
            .len()
            .checked_sub(TRAILER_BYTES)
            .map(|at| &last_block[at..])
            .ok_or(FormatError::Truncated { at: 0 })?;
        let mut r = Reader::new(trailer);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic("segment footer"));
        }
        let version = r.u32()?;
        if version > VERSION {
            return Err(FormatError::Version {
                what: "segment footer",
                found: version,
                known: VERSION,
            });
        }
        let mut r = Reader::new(&trailer[TRAILER_BYTES - 4..]);
        match r.u32()? {
            0 => Err(FormatError::Value("a footer of no blocks".into())),
            blocks => Ok(blocks),
        }
    }

    /// Reads a footer from all of its blocks.
    ///
    /// # Errors
    /// Damage, or a footer of another segment.
    pub fn decode(
        blocks: &[u8],
        volume: VolumeId,
        segment: SegmentId,
    ) -> Result<Self, FormatError> {
        Self::blocks_of(blocks)?;
        let at = blocks.len() - TRAILER_BYTES;
        let mut copy = blocks.to_vec();
        copy[at + 12..at + 16].fill(0);
        let mut r = Reader::new(&blocks[at + 12..]);
        if crc32c(&copy) != r.u32()? {
            return Err(FormatError::Checksum("segment footer"));
        }
        if r.u128()? != volume.0 || r.u64()? != segment.0 {
            return Err(FormatError::Value(format!("not the footer of segment {segment}")));
        }
        let (lsn_first, lsn_end) = (Lsn(r.u64()?), Lsn(r.u64()?));
        let entries = r.u32()? as usize;
        if entries * Entry::BYTES > at {
            return Err(FormatError::Value(format!("{entries} entries do not fit")));
        }
        let mut r = Reader::new(blocks);
        let entries = (0..entries).map(|_| Entry::decode(&mut r)).collect::<Result<_, _>>()?;
        Ok(Self { volume, segment, lsn_first, lsn_end, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EntryKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn footers_survive_and_notice_damage(count in 0usize..700, bit in any::<usize>()) {
            let footer = Footer {
                volume: VolumeId(5),
                segment: SegmentId(6),
                lsn_first: Lsn(100),
                lsn_end: Lsn(900),
                entries: (0..count)
                    .map(|i| Entry {
                        kind: EntryKind::Data,
                        block: i as u64 * 3,
                        count: 2,
                        segment_block: i as u32 * 2,
                    })
                    .collect(),
            };
            let mut bytes = footer.encode();
            prop_assert_eq!(bytes.len(), footer_blocks(count) as usize * BLOCK_BYTES);
            let last = &bytes[bytes.len() - BLOCK_BYTES..];
            prop_assert_eq!(Footer::blocks_of(last), Ok(footer_blocks(count)));
            prop_assert_eq!(&Footer::decode(&bytes, VolumeId(5), SegmentId(6)), &Ok(footer));
            prop_assert!(Footer::decode(&bytes, VolumeId(5), SegmentId(7)).is_err());
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Footer::decode(&bytes, VolumeId(5), SegmentId(6)).is_err());
        }
    }
}
