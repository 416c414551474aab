//! Which byte of which shard holds which block of a segment.
//!
//! The layout deals the blocks of a segment to its k data shards in units: unit u lies on shard u
//! mod k, at position u div k. A segment that the volume closes early has shorter shards, cut to
//! whole units, so the layout depends only on k and the unit, and not on the segment's length. Some
//! codes cut shards into elements. Their elements are whole blocks, so that reads of elements are
//! reads of blocks. So the shards of these codes are also multiples of the elements, with zeroes at
//! the end.
//!
//! A *chunk* is the part of a shard that is coded by itself with the same part of the other shards.
//! A code of one element has chunks of a unit. A code of several elements has chunks of several
//! units, which it cuts into its elements, or one chunk, the shard. A *row* is a chunk of each data
//! shard: blocks that lie one behind the other in the segment.
//!
//! ```text
//! shard 0: unit 0 | unit k   | unit 2k   | ...
//! shard 1: unit 1 | unit k+1 | unit 2k+1 | ...
//! ```

use fieldstone_proto::BLOCK_BYTES;
use smallvec::SmallVec;

/// The most blocks in a range. A node answers no longer read.
const RANGE_BLOCKS_MAX: u32 = (fieldstone_proto::PAYLOAD_BYTES_MAX / BLOCK_BYTES) as u32;

/// The layout of every segment of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Data shards.
    pub k: u32,
    /// Parity shards.
    pub m: u32,
    /// Blocks per unit.
    pub unit_blocks: u32,
    /// Blocks per chunk, a multiple of the unit. A shard that is one chunk may be shorter.
    pub chunk_blocks: u32,
    /// Lengths of shards are multiples of this many blocks: whole units, whole chunks, and elements
    /// of whole blocks.
    pub step_blocks: u32,
    /// Blocks per full shard, a multiple of the step.
    pub shard_blocks: u32,
}

/// A run of blocks on one data shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRange {
    /// The shard.
    pub shard: u32,
    /// First byte in the shard.
    pub offset_bytes: u32,
    /// Number of blocks.
    pub count: u32,
}

/// Pieces of a run of blocks that lie one behind the other on one data shard: a piece, and each
/// k-th piece after it, in the order of [`Layout::ranges`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRun {
    /// Number of the first piece.
    pub piece: u32,
    /// Number of pieces.
    pub pieces: u32,
    /// The range of the shard that holds all of the pieces.
    pub range: ShardRange,
}

impl Layout {
    /// Data blocks of a full segment, its footer included.
    #[must_use]
    pub fn segment_blocks(&self) -> u32 {
        self.k * self.shard_blocks
    }

    /// Data blocks of a row: one chunk on each data shard.
    #[must_use]
    pub fn row_blocks(&self) -> u32 {
        self.k * self.chunk_blocks
    }

    /// Shards of a segment.
    #[must_use]
    pub fn width(&self) -> usize {
        (self.k + self.m) as usize
    }

    /// Length of the shards of a segment that holds `blocks` blocks, in blocks.
    #[must_use]
    pub fn shard_blocks_for(&self, blocks: u32) -> u32 {
        let rows = blocks.div_ceil(self.k * self.unit_blocks).max(1);
        (rows * self.unit_blocks).next_multiple_of(self.step_blocks)
    }

    /// The shard and the block in it that hold block `block` of the segment.
    #[must_use]
    pub fn locate(&self, block: u32) -> (u32, u32) {
        let (unit, within) = (block / self.unit_blocks, block % self.unit_blocks);
        (unit % self.k, unit / self.k * self.unit_blocks + within)
    }

    /// Splits blocks `first .. first + count` into the longest runs that lie on one shard, of at
    /// most [`RANGE_BLOCKS_MAX`].
    pub fn ranges(&self, first: u32, count: u32) -> impl Iterator<Item = ShardRange> + use<> {
        let layout = *self;
        let mut at = first;
        let end = first + count;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (shard, block) = layout.locate(at);
            let unit_left = layout.unit_blocks - at % layout.unit_blocks;
            let run = if layout.k == 1 { end - at } else { unit_left.min(end - at) };
            let run = run.min(RANGE_BLOCKS_MAX);
            at += run;
            let offset_bytes = block * BLOCK_BYTES as u32;
            Some(ShardRange { shard, offset_bytes, count: run })
        })
    }

    /// Joins the ranges of blocks `first .. first + count` to runs of at most `blocks_max` blocks,
    /// or of one range if that is longer: what one read of a shard fetches.
    pub fn runs(
        &self,
        first: u32,
        count: u32,
        blocks_max: u32,
    ) -> impl Iterator<Item = ShardRun> + use<> {
        let mut runs: SmallVec<[ShardRun; 8]> = SmallVec::new();
        for (piece, range) in (0..).zip(self.ranges(first, count)) {
            let previous = runs.iter_mut().rev().find(|run| run.range.shard == range.shard);
            match previous {
                Some(run) if run.range.count + range.count <= blocks_max => {
                    run.pieces += 1;
                    run.range.count += range.count;
                }
                _ => runs.push(ShardRun { piece, pieces: 1, range }),
            }
        }
        runs.into_iter()
    }
}

/// The least common multiple of a unit and the elements of a shard, in blocks; zero if the sizes
/// are absurd.
#[must_use]
pub fn step_blocks(unit_blocks: u32, elements: u32) -> u32 {
    let (mut a, mut b) = (unit_blocks, elements);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    unit_blocks.checked_div(a).and_then(|units| units.checked_mul(elements)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_agree_with_locate_and_every_block_has_its_own_place(
            (k, unit, steps) in (1u32..9, 1u32..20, 1u32..6), elements in 1u32..9,
            a in any::<u32>(), b in any::<u32>()
        ) {
            let step = step_blocks(unit, elements);
            let (chunk_blocks, shard_blocks) = (step, step * steps);
            let layout = Layout {
                k, m: 2, unit_blocks: unit, chunk_blocks, step_blocks: step, shard_blocks
            };
            let blocks = layout.segment_blocks();
            let mut seen = std::collections::HashSet::new();
            for block in 0..blocks {
                let (shard, at) = layout.locate(block);
                prop_assert!(shard < k && at < layout.shard_blocks);
                let shard_blocks = layout.shard_blocks_for(block + 1);
                prop_assert!(at < shard_blocks && shard_blocks.is_multiple_of(elements));
                prop_assert!(shard_blocks.is_multiple_of(unit));
                prop_assert!(seen.insert((shard, at)));
            }
            let (a, b) = (a % blocks, b % blocks);
            let (first, last) = (a.min(b), a.max(b));
            let mut block = first;
            for range in layout.ranges(first, last - first + 1) {
                for i in 0..range.count {
                    let at = range.offset_bytes / BLOCK_BYTES as u32 + i;
                    prop_assert_eq!((range.shard, at), layout.locate(block));
                    block += 1;
                }
            }
            prop_assert_eq!(block, last + 1);
        }

        #[test]
        fn runs_have_each_range_once_and_in_its_place(
            (k, unit) in (1u32..9, 1u32..20), first in 0u32..500, count in 1u32..500,
            blocks_max in 1u32..300
        ) {
            let shard_blocks = 2000 * unit;
            let layout = Layout {
                k, m: 2, unit_blocks: unit, chunk_blocks: unit, step_blocks: unit, shard_blocks
            };
            let ranges: Vec<ShardRange> = layout.ranges(first, count).collect();
            let mut seen = vec![false; ranges.len()];
            for run in layout.runs(first, count, blocks_max) {
                let mut offset_bytes = run.range.offset_bytes;
                for index in 0..run.pieces {
                    let piece = (run.piece + index * k) as usize;
                    prop_assert!(!std::mem::replace(&mut seen[piece], true));
                    prop_assert_eq!(ranges[piece].shard, run.range.shard);
                    prop_assert_eq!(ranges[piece].offset_bytes, offset_bytes);
                    offset_bytes += ranges[piece].count * BLOCK_BYTES as u32;
                }
                let bytes = offset_bytes - run.range.offset_bytes;
                prop_assert_eq!(bytes, run.range.count * BLOCK_BYTES as u32);
                prop_assert!(run.range.count <= blocks_max || run.pieces == 1);
            }
            prop_assert!(seen.iter().all(|seen| *seen));
        }
    }
}
