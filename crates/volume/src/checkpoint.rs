//! The checkpoint: the map and the list of segments at one position of the log.
//!
//! The volume writes it into segments of its own, coded like data; the root names these segments.
//! An opening loads the checkpoint and replays only the log after it. Runs of the map are stored as
//! differences in 7-bit groups: sequential data shrinks to almost nothing, random data to about 6
//! bytes a block.
//!
//! Layout: magic 8, version 4, crc32c 4 (of everything with this field zero), blocks of the device
//! 8, then the number of segments and each one's id, lsn_first, lsn_end, shard_bytes, number of
//! shards and for each shard 1 + the node on which it is stable, or 0 if there is none, then the
//! number of runs and each one's distance from the end of the run before, count, and place: 0
//! reserved, or 1 + index of the segment followed by the block. All numbers in 7-bit groups.
//! Version 1 lacks the shards.

use std::collections::HashMap;

use fieldstone_proto::{Lsn, NodeIndex, SegmentId, SegmentKind, crc32c};
use smallvec::SmallVec;

use crate::codec::{FormatError, Reader, Writer};
use crate::map::{Location, Map, SEGMENT_BLOCKS_MAX};
use crate::segment::{SegmentIndex, SegmentTable, State};

const MAGIC: &[u8; 8] = b"FSCHECK\x01";
const VERSION: u32 = 2;

/// A segment as a checkpoint records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its name.
    pub id: SegmentId,
    /// Where its part of the log begins.
    pub lsn_first: Lsn,
    /// Where its part of the log ends.
    pub lsn_end: Lsn,
    /// Length of each shard in bytes.
    pub shard_bytes: u32,
    /// The node on which each shard is known to be stable. An opening verifies copies that other
    /// nodes list.
    pub shards: SmallVec<[Option<NodeIndex>; 8]>,
}

/// A run of stored or reserved blocks, with the segment given by its index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// First block of the device.
    pub block: u64,
    /// Number of blocks.
    pub count: u32,
    /// Index of the segment and first block in it; `None` if the run is only reserved.
    pub place: Option<(u32, u32)>,
}

/// A decoded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Blocks of the device.
    pub blocks: u64,
    /// The segments that the runs refer to.
    pub segments: Vec<SegmentRecord>,
    /// The runs, ascending.
    pub runs: Vec<RunRecord>,
}

/// Encodes the map and the segments that have live blocks.
#[must_use]
pub fn encode(map: &Map, segments: &SegmentTable, blocks: u64) -> Vec<u8> {
    let mut w = Writer::default();
    w.0.extend_from_slice(MAGIC);
    w.u32(VERSION);
    w.u32(0);
    w.varint(blocks);
    let mut index: HashMap<SegmentIndex, u64> = HashMap::new();
    let alive: Vec<_> = segments
        .iter()
        .filter(|(_, segment)| segment.kind == SegmentKind::Data && segment.live_blocks > 0)
        .collect();
    w.varint(alive.len() as u64);
    for (handle, segment) in alive {
        index.insert(handle, index.len() as u64);
        w.varint(segment.id.0);
        w.varint(segment.lsn_first.0);
        w.varint(segment.lsn_end.0);
        w.varint(u64::from(segment.shard_bytes));
        w.varint(segment.shards.len() as u64);
        // A shard of a segment that is not durable may still lose its data.
        let stable = segment.state == State::Durable;
        for node in segment.shards.iter().map(|node| node.filter(|_| stable)) {
            w.varint(node.map_or(0, |node| 1 + u64::from(node.0)));
        }
    }
    let stored = || map.runs(0..blocks).filter(|run| run.location != Location::HOLE);
    w.varint(stored().count() as u64);
    let mut end = 0;
    for run in stored() {
        w.varint(run.block - end);
        w.varint(u64::from(run.count));
        match run.location.stored() {
            None => w.varint(0),
            Some((handle, block)) => {
                w.varint(1 + index.get(&handle).expect("a segment with live blocks is listed"));
                w.varint(u64::from(block));
            }
        }
        end = run.block + u64::from(run.count);
    }
    let crc = crc32c(&w.0);
    w.0[12..16].copy_from_slice(&crc.to_le_bytes());
    w.0
}

/// Reads a checkpoint.
///
/// # Errors
/// Damage, a newer version, or values that make no sense.
pub fn decode(bytes: &[u8]) -> Result<Checkpoint, FormatError> {
    let mut r = Reader::new(bytes);
    if r.bytes(8)? != MAGIC {
        return Err(FormatError::Magic("checkpoint"));
    }
    let version = r.u32()?;
    if version > VERSION {
        return Err(FormatError::Version { what: "checkpoint", found: version, known: VERSION });
    }
    let stored = r.u32()?;
    let mut copy = bytes.to_vec();
    copy[12..16].fill(0);
    if crc32c(&copy) != stored {
        return Err(FormatError::Checksum("checkpoint"));
    }
    let number32 = |value: u64| {
        u32::try_from(value).map_err(|_| FormatError::Value(format!("{value} is too large")))
    };
    let blocks = r.varint()?;
    let mut segments = Vec::new();
    for _ in 0..r.varint()? {
        segments.push(SegmentRecord {
            id: SegmentId(r.varint()?),
            lsn_first: Lsn(r.varint()?),
            lsn_end: Lsn(r.varint()?),
            shard_bytes: number32(r.varint()?)?,
            shards: if version >= 2 { decode_shards(&mut r)? } else { SmallVec::new() },
        });
    }
    let mut runs = Vec::new();
    let mut end = 0u64;
    for _ in 0..r.varint()? {
        let block = end.saturating_add(r.varint()?);
        let count = number32(r.varint()?)?;
        let place = match r.varint()? {
            0 => None,
            index => Some((number32(index - 1)?, number32(r.varint()?)?)),
        };
        end = block.saturating_add(u64::from(count));
        let bad_place = place.is_some_and(|(segment, at)| {
            segment as usize >= segments.len()
                || u64::from(at) + u64::from(count) > u64::from(SEGMENT_BLOCKS_MAX)
        });
        if end > blocks || bad_place {
            return Err(FormatError::Value(format!("run at block {block} is out of range")));
        }
        runs.push(RunRecord { block, count, place });
    }
    Ok(Checkpoint { blocks, segments, runs })
}

fn decode_shards(r: &mut Reader<'_>) -> Result<SmallVec<[Option<NodeIndex>; 8]>, FormatError> {
    let node = |value: u64| {
        u16::try_from(value - 1)
            .map(NodeIndex)
            .map_err(|_| FormatError::Value(format!("there is no node {value}")))
    };
    // The reads check the count: each value takes a byte of the input.
    (0..r.varint()?)
        .map(|_| match r.varint()? {
            0 => Ok(None),
            value => node(value).map(Some),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn segment(id: u64, live_blocks: u32) -> Segment {
        Segment {
            lsn_first: Lsn(id * 10),
            lsn_end: Lsn(id * 10 + 5),
            shard_bytes: 65536,
            shards: smallvec![Some(NodeIndex(3)), None, Some(NodeIndex(u16::MAX))],
            live_blocks,
            ..Segment::new(SegmentId(id), SegmentKind::Data, State::Durable, 3)
        }
    }

    proptest! {
        #[test]
        fn checkpoints_survive(writes in proptest::collection::vec((0u64..3000, 0u32..3), 0..300)) {
            let mut segments = SegmentTable::default();
            let handles: Vec<_> = (1..4).map(|id| segments.insert(segment(id, 1))).collect();
            let mut map = Map::new(3000);
            for (i, (block, which)) in writes.iter().enumerate() {
                let location = if *which == 2 && i % 5 == 0 {
                    Location::RESERVED
                } else {
                    Location::at(handles[*which as usize], i as u32)
                };
                map.set(*block, location);
            }
            let bytes = encode(&map, &segments, 3000);
            let checkpoint = decode(&bytes)?;
            prop_assert_eq!(checkpoint.segments.len(), 3);
            let mut again = Map::new(3000);
            for run in &checkpoint.runs {
                for i in 0..run.count {
                    let location = match run.place {
                        None => Location::RESERVED,
                        Some((index, at)) => {
                            let id = checkpoint.segments[index as usize].id;
                            Location::at(segments.find(id).expect("listed"), at + i)
                        }
                    };
                    again.set(run.block + u64::from(i), location);
                }
            }
            for block in 0..3000 {
                prop_assert_eq!(map.get(block), again.get(block));
            }
        }

        #[test]
        fn damage_is_an_error(bit in any::<usize>()) {
            let mut segments = SegmentTable::default();
            let handle = segments.insert(segment(1, 1));
            let mut map = Map::new(100);
            map.set(5, Location::at(handle, 9));
            let mut bytes = encode(&map, &segments, 100);
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn only_stable_shards_are_named() {
        let mut segments = SegmentTable::default();
        segments.insert(segment(1, 1));
        segments.insert(Segment { state: State::Sealed, ..segment(2, 1) });
        let checkpoint = decode(&encode(&Map::new(100), &segments, 100)).expect("just encoded");
        assert_eq!(checkpoint.segments[0].shards, segment(1, 1).shards);
        assert!(checkpoint.segments[1].shards.iter().all(Option::is_none));
    }

    #[test]
    fn version_1_names_no_shards() {
        let mut bytes = encode(&Map::new(100), &SegmentTable::default(), 100);
        bytes[8] = 1;
        bytes[12..16].fill(0);
        let mut w = Writer(bytes);
        let runs = w.0.pop();
        let segments = w.0.len() - 1;
        w.0[segments] = 1;
        for value in [7, 10, 15, 65536] {
            w.varint(value);
        }
        w.0.extend(runs);
        let crc = crc32c(&w.0);
        w.0[12..16].copy_from_slice(&crc.to_le_bytes());
        let checkpoint = decode(&w.0).expect("version 1 is known");
        assert_eq!(checkpoint.segments.len(), 1);
        assert!(checkpoint.segments[0].shards.is_empty());
    }
}
