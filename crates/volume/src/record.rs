//! The journal record: the unit of appending to a volume's log.
//!
//! A record is one header block and the payload blocks after it. The volume writes it to the rings
//! of all journal nodes at `lsn % ring_bytes` in one message. A record belongs to one segment,
//! whose next blocks are exactly the record's payload. Sealing a segment stores the same blocks
//! once more, coded; then the volume can forget the record. A record never runs over the ring's
//! end: the writer skips to the beginning of the ring instead, and `previous_end` lets a reader
//! tell a skip from a gap.
//!
//! Header block, little endian: magic 8, version 4, crc32c 4 (of the whole block with this field
//! zero), volume 16, epoch 8, generation 8, lsn 8, previous_end 8, trimmed 8, segment 8,
//! segment_block 4, payload blocks 4, entries 4, flags 4 (bit 0: detached), then per entry 24 bytes
//! ([`Entry`]), then per payload block its CRC-32C 4.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_proto::{BLOCK_BYTES, Epoch, JournalGen, Lsn, SegmentId, VolumeId, crc32c};

use crate::codec::{FormatError, Reader, Writer};

const MAGIC: &[u8; 8] = b"FSJOURN\x01";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 96;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = BLOCK_BYTES;
/// The largest number of payload blocks in a record: half a mebibyte, so that a record is a good
/// disk write.
pub const RECORD_BLOCKS_MAX: u32 = 128;
/// The largest number of entries in a record, so that the header always fits in one block.
pub const RECORD_ENTRIES_MAX: usize = 128;

const _: () = assert!(
    FIXED_BYTES + RECORD_ENTRIES_MAX * Entry::BYTES + RECORD_BLOCKS_MAX as usize * 4
        <= HEADER_BYTES
);

/// What an entry does to its blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// The blocks of the entry hold the segment's blocks from `segment_block` on.
    Data = 0,
    /// The blocks hold nothing.
    Trim = 1,
    /// The blocks read as zeroes and keep their space.
    Reserve = 2,
}

/// One change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The effect of the change.
    pub kind: EntryKind,
    /// First block of the device.
    pub block: u64,
    /// Number of blocks.
    pub count: u32,
    /// First block in the segment, for data.
    pub segment_block: u32,
}

impl Entry {
    /// Length of the encoding.
    pub const BYTES: usize = 24;

    /// Appends the encoding.
    pub fn encode(&self, w: &mut Writer) {
        w.u64(self.block);
        w.u32(self.count);
        w.u32(self.segment_block);
        w.u64(u64::from(self.kind as u8));
    }

    /// Takes an encoding.
    ///
    /// # Errors
    /// Short input or an unknown kind.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (block, count, segment_block) = (r.u64()?, r.u32()?, r.u32()?);
        let kind = match r.u64()? {
            0 => EntryKind::Data,
            1 => EntryKind::Trim,
            2 => EntryKind::Reserve,
            other => return Err(FormatError::Value(format!("unknown entry kind {other}"))),
        };
        Ok(Self { kind, block, count, segment_block })
    }
}

/// A record's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The volume.
    pub volume: VolumeId,
    /// The writer.
    pub epoch: Epoch,
    /// The journal.
    pub generation: JournalGen,
    /// Position of the header's first byte in the log.
    pub lsn: Lsn,
    /// Where the record before this one ended.
    pub previous_end: Lsn,
    /// Durable segments held everything before this position when the writer made the record. A log
    /// that does not reach back to here has lost data.
    pub trimmed: Lsn,
    /// The segment that the record's blocks belong to.
    pub segment: SegmentId,
    /// The segment's block where the record's payload begins.
    pub segment_block: u32,
    /// The record's blocks do not follow the header. They are in rows of the segment's shards (see
    /// `rows`).
    pub detached: bool,
    /// The changes of the map, in order.
    pub entries: Vec<Entry>,
    /// CRC-32C of each payload block.
    pub checksums: Vec<u32>,
}

impl Header {
    /// Length of the whole record in bytes.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        (HEADER_BYTES + self.checksums.len() * BLOCK_BYTES) as u64
    }

    /// The position after the record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.lsn.plus(self.record_bytes())
    }

    /// The header block.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer(Vec::with_capacity(HEADER_BYTES));
        w.0.extend_from_slice(MAGIC);
        w.u32(VERSION);
        w.u32(0);
        w.u128(self.volume.0);
        w.u64(self.epoch.0);
        w.u64(self.generation.0);
        w.u64(self.lsn.0);
        w.u64(self.previous_end.0);
        w.u64(self.trimmed.0);
        w.u64(self.segment.0);
        w.u32(self.segment_block);
        w.u32(u32::try_from(self.checksums.len()).expect("bounded"));
        w.u32(u32::try_from(self.entries.len()).expect("bounded"));
        w.u32(u32::from(self.detached));
        for entry in &self.entries {
            entry.encode(&mut w);
        }
        for checksum in &self.checksums {
            w.u32(*checksum);
        }
        assert!(w.0.len() <= HEADER_BYTES, "the bounds above keep a header in one block");
        w.0.resize(HEADER_BYTES, 0);
        let crc = crc32c(&w.0);
        w.0[12..16].copy_from_slice(&crc.to_le_bytes());
        AlignedBuf::copy_from(&w.0).freeze()
    }

    /// Reads a header block.
    ///
    /// # Errors
    /// An error if the block is not a record of `volume` that this release can read.
    pub fn decode(block: &[u8], volume: VolumeId) -> Result<Self, FormatError> {
        let mut r = Reader::new(block);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic("journal record"));
        }
        let version = r.u32()?;
        if version > VERSION {
            return Err(FormatError::Version {
                what: "journal record",
                found: version,
                known: VERSION,
            });
        }
        let stored = r.u32()?;
        if block.len() != HEADER_BYTES {
            return Err(FormatError::Truncated { at: block.len() });
        }
        let mut copy = block.to_vec();
        copy[12..16].fill(0);
        if crc32c(&copy) != stored {
            return Err(FormatError::Checksum("journal record header"));
        }
        if r.u128()? != volume.0 {
            return Err(FormatError::Value("a record of another volume".into()));
        }
        let (epoch, generation) = (Epoch(r.u64()?), JournalGen(r.u64()?));
        let (lsn, previous_end) = (Lsn(r.u64()?), Lsn(r.u64()?));
        let trimmed = Lsn(r.u64()?);
        let (segment, segment_block) = (SegmentId(r.u64()?), r.u32()?);
        let (blocks, entries) = (r.u32()?, r.u32()? as usize);
        let detached = r.u32()? & 1 != 0;
        if blocks > RECORD_BLOCKS_MAX || entries > RECORD_ENTRIES_MAX {
            return Err(FormatError::Value(format!("{blocks} blocks, {entries} entries")));
        }
        let entries = (0..entries).map(|_| Entry::decode(&mut r)).collect::<Result<_, _>>()?;
        let checksums = (0..blocks).map(|_| r.u32()).collect::<Result<_, _>>()?;
        Ok(Self {
            volume,
            epoch,
            generation,
            lsn,
            previous_end,
            trimmed,
            segment,
            segment_block,
            detached,
            entries,
            checksums,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(entries: usize, blocks: u32) -> Header {
        Header {
            volume: VolumeId(77),
            epoch: Epoch(3),
            generation: JournalGen(4),
            lsn: Lsn(4096 * 9),
            previous_end: Lsn(4096 * 8),
            trimmed: Lsn(4096 * 2),
            segment: SegmentId(12),
            segment_block: 40,
            detached: entries % 2 == 1,
            entries: (0..entries)
                .map(|i| Entry {
                    kind: [EntryKind::Data, EntryKind::Trim, EntryKind::Reserve][i % 3],
                    block: i as u64 * 1000,
                    count: 1,
                    segment_block: i as u32,
                })
                .collect(),
            checksums: (0..blocks).collect(),
        }
    }

    proptest! {
        #[test]
        fn headers_survive(entries in 0..=RECORD_ENTRIES_MAX, blocks in 0..=RECORD_BLOCKS_MAX) {
            let header = header(entries, blocks);
            prop_assert_eq!(Header::decode(&header.encode(), VolumeId(77)), Ok(header));
        }

        #[test]
        fn any_flipped_bit_is_noticed(bit in 0..HEADER_BYTES * 8) {
            let mut block = header(3, 2).encode().to_vec();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&block, VolumeId(77)).is_err());
        }
    }

    #[test]
    fn other_volumes_and_newer_versions_are_told_apart() {
        let block = header(1, 1).encode();
        assert!(matches!(Header::decode(&block, VolumeId(1)), Err(FormatError::Value(_))));
        let mut newer = block.to_vec();
        newer[8] = 9;
        assert!(matches!(
            Header::decode(&newer, VolumeId(77)),
            Err(FormatError::Version { found: 9, .. })
        ));
    }
}
