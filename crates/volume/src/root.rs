//! The root record: the one small thing that a volume replaces in place, kept on every node.
//!
//! It names the newest checkpoint and the journal. Replacing it is the commit point of an opening,
//! of a journal move and of a checkpoint. A reader takes the newest root among the nodes that it
//! reaches. It must reach all but `missing_max` nodes, so at least one of them has the last
//! committed root.
//!
//! Of two roots, the one with the later epoch is newer; in one epoch, the one with the higher
//! version. (The version alone is not enough: a writer that was cut off may have counted further on
//! its few nodes than its successor did on the others.) A root that too few nodes took was never
//! committed, but a reader cannot always know that. So before an opening deletes anything, it
//! writes the root that it goes on from once more, in its own epoch (`open/recover`). From then on,
//! no root that an absent node may still have is the newest.
//!
//! That holds in pools of more than `2 * missing_max` nodes. In a smaller pool, two copies on two
//! nodes say, a reader that reaches `missing_max` nodes or fewer may miss every node with the last
//! root: each of the two nodes may have been away while the other served. Such a reader cannot
//! tell. It goes on, because the code makes up for the loss of these nodes, and warns.
//!
//! The root also says how far the log was trimmed when the root was written. Perhaps no record is
//! left that tells this: a journal that has just moved can be empty. A log that does not reach that
//! far has lost data.
//!
//! Layout, little endian: magic 8, version 4, crc32c 4 (of everything with this field zero), root
//! version 8, volume 16, epoch 8, geometry 8+4+4+8, generation 8, checkpoint lsn 8, checkpoint
//! length 8, trimmed 8, flags 4 (1: closed properly, 2: thick), the epoch that put it 8, length of
//! a chunk 4, then name and profile with 16-bit lengths, then counts (32 bits) and values of
//! journal nodes (16 bits each) and checkpoint segments (64 bits each). Version 1 lacks `trimmed`;
//! up to version 2 every volume is thin; up to version 3 the epoch of the log put the root; up to
//! version 4 a shard is one chunk. A root whose shards are one chunk is still written as version 4.

use fieldstone_proto::crc32c;
use fieldstone_proto::{Epoch, JournalGen, Lsn, NodeIndex, ROOT_BYTES_MAX, SegmentId, VolumeId};

use crate::codec::{FormatError, Reader, Writer};
use crate::interface::{Geometry, Provisioning};

const MAGIC: &[u8; 8] = b"FSROOT\0\x01";
const VERSION: u32 = 5;
/// The version of a root whose shards are one chunk.
const VERSION_WITHOUT_CHUNKS: u32 = 4;

/// Flag: the last writer closed the volume.
const CLEAN: u32 = 1;
/// Flag: the volume has reserved its whole size.
const THICK: u32 = 2;

/// The contents of a volume's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Rises by one with every root that a writer stores.
    pub version: u64,
    /// The volume.
    pub volume: VolumeId,
    /// The writer whose log the root names.
    pub epoch: Epoch,
    /// The writer or opening that put the root on the nodes.
    pub put_by: Epoch,
    /// The volume's sizes.
    pub geometry: Geometry,
    /// The journal in use.
    pub generation: JournalGen,
    /// The nodes that hold the journal.
    pub journal_nodes: Vec<NodeIndex>,
    /// The log position that the checkpoint covers; the chain of segments starts here.
    pub checkpoint_lsn: Lsn,
    /// Length of the checkpoint's encoding in bytes; zero if there is none yet.
    pub checkpoint_bytes: u64,
    /// Durable segments held everything before this position when the root was written.
    pub trimmed: Lsn,
    /// The segments that hold the checkpoint, in order.
    pub checkpoint_segments: Vec<SegmentId>,
    /// The last writer closed the volume: the journal holds nothing that the checkpoint lacks.
    pub clean: bool,
    /// How much of the pool the volume reserves.
    pub provisioning: Provisioning,
    /// The volume's name.
    pub name: String,
    /// The volume's profile, written as on the command line.
    pub profile: String,
}

/// The most segments of a checkpoint that a root can name, with the longest name and profile and
/// the largest number of journal nodes.
pub const CHECKPOINT_SEGMENTS_MAX: u64 = (ROOT_BYTES_MAX as u64 - 2048) / 8;

impl Root {
    /// A rank for comparison: of two roots of a volume, the one with the higher rank is newer.
    #[must_use]
    pub fn rank(&self) -> (Epoch, u64) {
        (self.put_by, self.version)
    }

    /// The encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.0.extend_from_slice(MAGIC);
        let chunk_bytes = self.geometry.chunk_bytes;
        w.u32(if chunk_bytes > 0 { VERSION } else { VERSION_WITHOUT_CHUNKS });
        w.u32(0);
        w.u64(self.version);
        w.u128(self.volume.0);
        w.u64(self.epoch.0);
        w.u64(self.geometry.size_bytes);
        w.u32(self.geometry.shard_bytes);
        w.u32(self.geometry.unit_bytes);
        w.u64(self.geometry.ring_bytes);
        w.u64(self.generation.0);
        w.u64(self.checkpoint_lsn.0);
        w.u64(self.checkpoint_bytes);
        w.u64(self.trimmed.0);
        let thick = self.provisioning == Provisioning::Thick;
        w.u32(if self.clean { CLEAN } else { 0 } | if thick { THICK } else { 0 });
        w.u64(self.put_by.0);
        if chunk_bytes > 0 {
            w.u32(chunk_bytes);
        }
        w.bytes16(self.name.as_bytes());
        w.bytes16(self.profile.as_bytes());
        w.u32(u32::try_from(self.journal_nodes.len()).expect("bounded by the nodes"));
        for node in &self.journal_nodes {
            w.u16(node.0);
        }
        w.u32(u32::try_from(self.checkpoint_segments.len()).expect("bounded by the root's size"));
        for segment in &self.checkpoint_segments {
            w.u64(segment.0);
        }
        let crc = crc32c(&w.0);
        w.0[12..16].copy_from_slice(&crc.to_le_bytes());
        assert!(w.0.len() <= ROOT_BYTES_MAX, "checkpoints are bounded to fit");
        w.0
    }

    /// Reads a root.
    ///
    /// # Errors
    /// Damage, a newer version, or values that make no sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic("volume root"));
        }
        let format = r.u32()?;
        if format > VERSION {
            return Err(FormatError::Version {
                what: "volume root",
                found: format,
                known: VERSION,
            });
        }
        let stored = r.u32()?;
        let mut copy = bytes.to_vec();
        copy[12..16].fill(0);
        if crc32c(&copy) != stored {
            return Err(FormatError::Checksum("volume root"));
        }
        let (version, volume, epoch) = (r.u64()?, VolumeId(r.u128()?), Epoch(r.u64()?));
        let mut geometry = Geometry {
            size_bytes: r.u64()?,
            shard_bytes: r.u32()?,
            unit_bytes: r.u32()?,
            chunk_bytes: 0,
            ring_bytes: r.u64()?,
        };
        let (generation, checkpoint_lsn) = (JournalGen(r.u64()?), Lsn(r.u64()?));
        let checkpoint_bytes = r.u64()?;
        let trimmed = if format >= 2 { Lsn(r.u64()?) } else { checkpoint_lsn };
        let flags = r.u32()?;
        let (clean, thick) = (flags & CLEAN != 0, format >= 3 && flags & THICK != 0);
        let put_by = if format >= 4 { Epoch(r.u64()?) } else { epoch };
        geometry.chunk_bytes = if format >= 5 { r.u32()? } else { 0 };
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec())
                .map_err(|_| FormatError::Value("a name that is not UTF-8".into()))
        };
        if !geometry.is_sound() {
            return Err(FormatError::Value("sizes that no volume has".into()));
        }
        let name = text(r.bytes16()?)?;
        let profile = text(r.bytes16()?)?;
        // The reads check the counts: each value takes bytes of the input.
        let mut journal_nodes = Vec::new();
        for _ in 0..r.u32()? {
            journal_nodes.push(NodeIndex(r.u16()?));
        }
        let mut checkpoint_segments = Vec::new();
        for _ in 0..r.u32()? {
            checkpoint_segments.push(SegmentId(r.u64()?));
        }
        Ok(Self {
            version,
            volume,
            epoch,
            put_by,
            geometry,
            generation,
            journal_nodes,
            checkpoint_lsn,
            checkpoint_bytes,
            trimmed,
            checkpoint_segments,
            clean,
            provisioning: if thick { Provisioning::Thick } else { Provisioning::Thin },
            name,
            profile,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Offset of the trimmed position in the encoding.
    const TRIMMED_AT: usize = 96;
    /// Offset of the epoch that put the root.
    const PUT_BY_AT: usize = 108;
    /// Offset of the length of a chunk.
    const CHUNK_AT: usize = 116;

    fn sample() -> Root {
        Root {
            version: 7,
            volume: VolumeId(8),
            epoch: Epoch(9),
            put_by: Epoch(10),
            geometry: Geometry {
                size_bytes: 1 << 30,
                shard_bytes: 1 << 20,
                unit_bytes: 65536,
                chunk_bytes: 131_072,
                ring_bytes: 32 << 20,
            },
            generation: JournalGen(3),
            journal_nodes: vec![NodeIndex(1), NodeIndex(4)],
            checkpoint_lsn: Lsn(4096),
            checkpoint_bytes: 999,
            trimmed: Lsn(8192),
            checkpoint_segments: vec![SegmentId(5), SegmentId(6)],
            clean: true,
            provisioning: Provisioning::Thick,
            name: "vol".into(),
            profile: "rs:4+2".into(),
        }
    }

    #[test]
    fn roots_survive() {
        assert_eq!(Root::decode(&sample().encode()), Ok(sample()));
    }

    /// A client that may write a volume also writes its root.
    #[test]
    fn sizes_that_no_volume_has_are_refused() {
        let changes: [fn(&mut Geometry); 10] = [
            |g| (g.shard_bytes, g.unit_bytes, g.chunk_bytes) = (0, 0, 0),
            |g| g.unit_bytes = 0,
            |g| g.unit_bytes = 6144,
            |g| g.unit_bytes = 3 << 16,
            |g| g.shard_bytes = u32::MAX,
            |g| g.chunk_bytes = 98_304,
            |g| g.ring_bytes = 0,
            |g| g.ring_bytes = u64::MAX - 4095,
            |g| g.size_bytes = 1000,
            |g| g.size_bytes = u64::MAX - 4095,
        ];
        for change in changes {
            let mut root = sample();
            change(&mut root.geometry);
            let decoded = Root::decode(&root.encode());
            assert!(matches!(decoded, Err(FormatError::Value(_))), "{:?}", root.geometry);
        }
    }

    /// [`sample`] without chunks, and its encoding in version 4.
    fn without_chunks() -> (Root, Vec<u8>) {
        let geometry = Geometry { chunk_bytes: 0, ..sample().geometry };
        let root = Root { geometry, ..sample() };
        let mut bytes = sample().encode();
        bytes.drain(CHUNK_AT..CHUNK_AT + 4);
        (root, bytes)
    }

    #[test]
    fn a_root_without_chunks_stays_at_version_4() {
        let (root, bytes) = without_chunks();
        assert_eq!(root.encode(), of_version(4, bytes));
        assert_eq!(Root::decode(&root.encode()), Ok(root));
    }

    #[test]
    fn version_1_was_trimmed_up_to_its_checkpoint() {
        let (sample, mut bytes) = without_chunks();
        bytes.drain(PUT_BY_AT..PUT_BY_AT + 8);
        bytes.drain(TRIMMED_AT..TRIMMED_AT + 8);
        let old = of_version(1, bytes);
        let (trimmed, provisioning) = (sample.checkpoint_lsn, Provisioning::Thin);
        let put_by = sample.epoch;
        let expected = Root { trimmed, provisioning, put_by, ..sample };
        assert_eq!(Root::decode(&old), Ok(expected));
    }

    #[test]
    fn version_3_was_put_by_the_writer_of_its_log() {
        let (sample, mut bytes) = without_chunks();
        bytes.drain(PUT_BY_AT..PUT_BY_AT + 8);
        let expected = Root { put_by: sample.epoch, ..sample };
        assert_eq!(Root::decode(&of_version(3, bytes)), Ok(expected));
    }

    fn of_version(version: u8, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes[8] = version;
        bytes[12..16].fill(0);
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn damage_is_noticed(bit in any::<usize>(), cut in any::<usize>()) {
            let bytes = sample().encode();
            let mut flipped = bytes.clone();
            let bit = bit % (bytes.len() * 8);
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Root::decode(&flipped).is_err());
            prop_assert!(Root::decode(&bytes[..cut % bytes.len()]).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = sample().encode();
        bytes[8] = 200;
        let error = Root::decode(&bytes).expect_err("a newer version");
        assert_eq!(
            error.to_string(),
            "volume root has format version 200, this release knows up to 5"
        );
    }
}
