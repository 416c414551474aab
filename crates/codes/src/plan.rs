//! What a repair reads and computes.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_gf::LinearMap;

/// Which elements of one surviving shard a repair reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRead {
    /// The shard.
    pub shard: usize,
    /// Runs of elements, ascending and not touching each other. The map's input for this shard is
    /// their concatenation.
    pub elements: Vec<Range<u32>>,
}

impl ShardRead {
    /// All of a shard that has `elements` elements.
    #[must_use]
    pub fn whole(shard: usize, elements: u32) -> Self {
        Self { shard, elements: std::iter::once(0..elements).collect() }
    }

    /// Number of elements read.
    #[must_use]
    pub fn element_count(&self) -> u32 {
        self.elements.iter().map(|run| run.end - run.start).sum()
    }

    /// The byte ranges inside the shard, for elements of `element_bytes` bytes.
    pub fn byte_ranges(&self, element_bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.elements.iter().map(move |run| {
            u64::from(run.start) * element_bytes..u64::from(run.end) * element_bytes
        })
    }
}

/// How to recompute lost shards.
///
/// For codes of one element per shard, the same plan repairs any byte sub-range of the shards:
/// read that sub-range of each shard in `reads` and execute the map on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPlan {
    /// The lost shards, in the order in which they were asked for: the map's outputs.
    pub lost: Vec<usize>,
    /// What to read: the map's inputs, in order.
    pub reads: Vec<ShardRead>,
    /// From what was read to the lost shards.
    pub map: Arc<LinearMap>,
}

impl RepairPlan {
    /// Bytes to read in all, for elements of `element_bytes` bytes.
    #[must_use]
    pub fn read_bytes(&self, element_bytes: u64) -> u64 {
        self.reads.iter().map(|read| u64::from(read.element_count()) * element_bytes).sum()
    }
}
