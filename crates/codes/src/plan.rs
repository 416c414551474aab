//! The reads and the map of a repair, and of an update.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use fieldstone_gf::{Element, LinearMap, Source};

/// The elements of one surviving shard that a repair reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRead {
    /// The shard.
    pub shard: usize,
    /// Ranges of elements, ascending and not touching each other. The map's input for this shard is
    /// their concatenation.
    pub elements: Vec<Range<u32>>,
}

impl ShardRead {
    /// All elements of a shard with `elements` elements.
    #[must_use]
    pub fn whole(shard: usize, elements: u32) -> Self {
        Self { shard, elements: std::iter::once(0..elements).collect() }
    }

    /// The given elements of a shard, which are ascending.
    pub(crate) fn of(shard: usize, elements: impl IntoIterator<Item = u32>) -> Self {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for element in elements {
            match runs.last_mut() {
                Some(run) if run.end == element => run.end += 1,
                _ => runs.push(element..element + 1),
            }
        }
        Self { shard, elements: runs }
    }

    /// Number of elements read.
    #[must_use]
    pub fn element_count(&self) -> u32 {
        self.elements.iter().map(|run| run.end - run.start).sum()
    }

    /// The byte ranges inside the shard, for contiguous elements of `element_bytes` bytes.
    pub fn byte_ranges(&self, element_bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.elements.iter().map(move |run| {
            u64::from(run.start) * element_bytes..u64::from(run.end) * element_bytes
        })
    }

    /// The byte ranges inside a shard of `shard_bytes` bytes of a code of `elements` elements, for
    /// every layout: if less than whole shards are read, elements are equal parts.
    pub fn ranges_in(&self, shard_bytes: u64, elements: u32) -> impl Iterator<Item = Range<u64>> {
        // The result is at most shard_bytes, but the product may be larger.
        let at = move |element: u32| {
            (u128::from(shard_bytes) * u128::from(element) / u128::from(elements)) as u64
        };
        self.elements.iter().map(move |run| at(run.start)..at(run.end))
    }
}

/// The plan to recompute lost shards.
///
/// For codes of one element per shard, the same plan repairs any byte sub-range of the shards:
/// read that sub-range of each shard in `reads` and execute the map on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPlan {
    /// The lost shards, in the caller's order: the map's outputs.
    pub lost: Vec<usize>,
    /// The elements to read: the map's inputs, in order.
    pub reads: Vec<ShardRead>,
    /// The map from the reads to the lost shards.
    pub map: Arc<LinearMap>,
}

impl RepairPlan {
    /// The part of the plan that repairs the elements `elements` of each lost shard. The range is
    /// valid and not empty. `None` if the elements depend on no read.
    pub(crate) fn part(&self, elements: &Range<u32>) -> Option<Self> {
        let part = self.map.restrict(|element| elements.contains(&element.index)).ok()?;
        let reads = part.inputs.iter().map(|(input, places)| {
            let read = &self.reads[usize::from(*input)];
            let all: Vec<u32> = read.elements.iter().cloned().flatten().collect();
            ShardRead::of(read.shard, places.iter().map(|&place| all[place as usize]))
        });
        let reads = reads.collect();
        Some(Self { lost: self.lost.clone(), reads, map: Arc::new(part.map) })
    }

    /// Bytes to read in total, for elements of `element_bytes` bytes.
    #[must_use]
    pub fn read_bytes(&self, element_bytes: u64) -> u64 {
        self.reads.iter().map(|read| u64::from(read.element_count()) * element_bytes).sum()
    }
}

/// The change of the parities for a change of some elements of one data shard. With it, a small
/// write need not read the other data shards.
///
/// The delta of an element is its old content XOR its new content. The new content of a parity
/// element is its old content XOR the map's output for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaPlan {
    /// The data shard that changes.
    pub shard: usize,
    /// The elements that change. The map's only input is their deltas, concatenated.
    pub elements: Range<u32>,
    /// The parity elements that change. Output i of the map is the deltas of the elements of
    /// `writes[i]`, concatenated. Parities that do not change are left out.
    pub writes: Vec<ShardRead>,
    /// The map from the data's deltas to the parities' deltas.
    pub map: Arc<LinearMap>,
}

/// The elements that a plan reads, collected while the plan is made.
#[derive(Default)]
pub(crate) struct ReadSet(BTreeMap<usize, BTreeSet<u32>>);

impl ReadSet {
    /// All elements of each of the shards.
    pub(crate) fn whole(shards: &[usize], elements: u32) -> Self {
        Self(shards.iter().map(|&shard| (shard, (0..elements).collect())).collect())
    }

    /// Adds an element.
    pub(crate) fn insert(&mut self, shard: usize, element: u32) {
        self.0.entry(shard).or_default().insert(element);
    }

    /// The reads in the order of shards.
    pub(crate) fn reads(&self) -> Vec<ShardRead> {
        let read = |(&shard, elements): (&usize, &BTreeSet<u32>)| {
            ShardRead::of(shard, elements.iter().copied())
        };
        self.0.iter().map(read).collect()
    }

    /// The positions of the elements in the map's inputs.
    pub(crate) fn sources(&self) -> ReadIndex {
        let mut index = ReadIndex::default();
        for (input, (&shard, elements)) in self.0.iter().enumerate() {
            let first = elements.first().copied().unwrap_or(0);
            let mut places =
                vec![None; elements.last().map_or(0, |last| last - first + 1) as usize];
            for (place, element) in elements.iter().enumerate() {
                places[(element - first) as usize] = Some(place as u32);
            }
            index.0.insert(shard, Input { number: input as u16, first, places });
        }
        index
    }
}

struct Input {
    number: u16,
    /// The first element read.
    first: u32,
    /// For each element from there on, its index among the elements read.
    places: Vec<Option<u32>>,
}

/// From elements of shards to sources of a map; made by [`ReadSet::sources`].
#[derive(Default)]
pub(crate) struct ReadIndex(BTreeMap<usize, Input>);

impl ReadIndex {
    /// The source of an element, or `None` if it is not read.
    pub(crate) fn get(&self, shard: usize, element: u32) -> Option<Source> {
        let input = self.0.get(&shard)?;
        let place = *input.places.get(element.checked_sub(input.first)? as usize)?;
        Some(Source::Input(Element { shard: input.number, index: place? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_runs_and_sources() {
        let mut set = ReadSet::whole(&[2], 3);
        for element in [7, 4, 5, 9] {
            set.insert(0, element);
        }
        assert_eq!(
            set.reads(),
            [ShardRead { shard: 0, elements: vec![4..6, 7..8, 9..10] }, ShardRead::whole(2, 3)]
        );
        let sources = set.sources();
        let at = |shard, index| Some(Source::Input(Element { shard, index }));
        assert_eq!(sources.get(0, 7), at(0, 2));
        assert_eq!(sources.get(2, 1), at(1, 1));
        for (shard, element) in [(0, 6), (0, 3), (0, 10), (2, 3), (1, 0)] {
            assert_eq!(sources.get(shard, element), None);
        }
    }
}
