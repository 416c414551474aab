//! The extent map: where each block of the device lies.
//!
//! A flat two-level table with one 8-byte [`Location`] per 4 KiB block. Its leaves of 512 blocks
//! (2 MiB of device, one 4 KiB page of memory) exist only where the volume stores blocks. That is
//! 2 MiB of memory per GiB of device at worst, however random the writes were. A tree of extents
//! would be smaller for sequential data, several times larger for random data, and slower to
//! search. Reading the map merges neighbouring blocks into runs.

use std::ops::Range;

/// Blocks per leaf.
const LEAF_BLOCKS: usize = 512;

/// The largest number of blocks in one segment, by the width of the field in [`Location`].
pub const SEGMENT_BLOCKS_MAX: u32 = 1 << 24;

/// Where a block lies: nowhere, nowhere but reserved, or at a block of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location(u64);

impl Location {
    /// Nothing is stored; reads as zeroes.
    pub const HOLE: Location = Location(0);
    /// Reads as zeroes, and space is kept for it.
    pub const RESERVED: Location = Location(1);

    /// At block `block` of the segment in table slot `segment`.
    #[must_use]
    pub fn at(segment: u32, block: u32) -> Self {
        debug_assert!(block < SEGMENT_BLOCKS_MAX);
        Self((u64::from(segment) + 1) << 24 | u64::from(block))
    }

    /// The segment's table slot and the block in it, if the block is stored.
    #[must_use]
    pub fn stored(self) -> Option<(u32, u32)> {
        let segment = (self.0 >> 24).checked_sub(1)?;
        let segment = u32::try_from(segment).expect("made from a u32");
        Some((segment, u32::try_from(self.0 & 0xff_ffff).expect("24 bits")))
    }

    /// The location `count` blocks further on in the same segment.
    #[must_use]
    pub fn plus(self, count: u32) -> Self {
        match self.stored() {
            Some(_) => Self(self.0 + u64::from(count)),
            None => self,
        }
    }

    fn follows(self, first: Location, count: u32) -> bool {
        self == first.plus(count)
    }
}

/// Blocks of the device that lie at consecutive locations, or that are all holes or all reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block of the device.
    pub block: u64,
    /// Number of blocks.
    pub count: u32,
    /// Where the first one lies.
    pub location: Location,
}

struct Leaf {
    locations: [Location; LEAF_BLOCKS],
    used: u32,
}

/// The map of one volume.
pub struct Map {
    leaves: Vec<Option<Box<Leaf>>>,
    leaves_used: usize,
    /// Blocks that are stored or reserved.
    used_blocks: u64,
}

impl Map {
    /// An empty map for a device of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let mut map = Self { leaves: Vec::new(), leaves_used: 0, used_blocks: 0 };
        map.grow(blocks);
        map
    }

    /// Makes room for a device of `blocks` blocks.
    pub fn grow(&mut self, blocks: u64) {
        let leaves = usize::try_from(blocks.div_ceil(LEAF_BLOCKS as u64)).expect("64-bit host");
        if leaves > self.leaves.len() {
            self.leaves.resize_with(leaves, || None);
        }
    }

    /// Memory that the map takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.leaves.capacity() * size_of::<Option<Box<Leaf>>>()
            + self.leaves_used * size_of::<Leaf>();
        bytes as u64
    }

    /// Blocks that are stored or reserved.
    #[must_use]
    pub fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    fn split(block: u64) -> (usize, usize) {
        let block = usize::try_from(block).expect("64-bit host");
        (block / LEAF_BLOCKS, block % LEAF_BLOCKS)
    }

    /// Where `block` lies.
    #[must_use]
    pub fn get(&self, block: u64) -> Location {
        let (leaf, index) = Self::split(block);
        match self.leaves.get(leaf) {
            Some(Some(leaf)) => leaf.locations[index],
            _ => Location::HOLE,
        }
    }

    /// Sets where `block` lies and returns where it lay.
    pub fn set(&mut self, block: u64, location: Location) -> Location {
        let (leaf_index, index) = Self::split(block);
        let Some(slot) = self.leaves.get_mut(leaf_index) else { return Location::HOLE };
        if slot.is_none() {
            if location == Location::HOLE {
                return Location::HOLE;
            }
            *slot = Some(Box::new(Leaf { locations: [Location::HOLE; LEAF_BLOCKS], used: 0 }));
            self.leaves_used += 1;
        }
        let leaf = slot.as_mut().expect("made above");
        let before = std::mem::replace(&mut leaf.locations[index], location);
        match (before == Location::HOLE, location == Location::HOLE) {
            (true, false) => {
                leaf.used += 1;
                self.used_blocks += 1;
            }
            (false, true) => {
                leaf.used -= 1;
                self.used_blocks -= 1;
                if leaf.used == 0 {
                    *slot = None;
                    self.leaves_used -= 1;
                }
            }
            _ => {}
        }
        before
    }

    /// Sets `range` to a location that is not stored (hole or reserved). Calls `gone` for every
    /// stored location that this ends. Punching holes skips leaves that do not exist.
    pub fn clear(&mut self, range: Range<u64>, to: Location, mut gone: impl FnMut(Location)) {
        let mut block = range.start;
        while block < range.end {
            let (leaf, index) = Self::split(block);
            if to == Location::HOLE && self.leaves.get(leaf).is_none_or(Option::is_none) {
                block += (LEAF_BLOCKS - index) as u64;
                continue;
            }
            let before = self.set(block, to);
            if before.stored().is_some() {
                gone(before);
            }
            block += 1;
        }
    }

    /// The runs that make up `range`, in order.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = Run> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let block = next;
            let location = self.get(block);
            let mut count = 1u32;
            while block + u64::from(count) < range.end && count < u32::MAX {
                let at = block + u64::from(count);
                let (leaf, index) = Self::split(at);
                if location == Location::HOLE && self.leaves.get(leaf).is_none_or(Option::is_none) {
                    // Skips a whole absent leaf at once: the loop does not walk an empty terabyte
                    // block by block.
                    let skip = ((LEAF_BLOCKS - index) as u64).min(range.end - at);
                    let skip = u32::try_from(skip).expect("at most a leaf");
                    let Some(longer) = count.checked_add(skip) else { break };
                    count = longer;
                    continue;
                }
                if !self.get(at).follows(location, count) {
                    break;
                }
                count += 1;
            }
            next = block + u64::from(count);
            Some(Run { block, count, location })
        })
    }

    /// Number of blocks in `range` that are neither stored nor reserved.
    #[must_use]
    pub fn holes_in(&self, range: Range<u64>) -> u64 {
        range.filter(|block| self.get(*block) == Location::HOLE).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_dictionary(
            ops in proptest::collection::vec((0u64..2000, 1u64..80, 0u32..4, 0u32..50), 1..60)
        ) {
            let mut map = Map::new(2000);
            let mut model: BTreeMap<u64, Location> = BTreeMap::new();
            for (start, len, kind, at) in ops {
                let end = (start + len).min(2000);
                match kind {
                    0 => {
                        let mut gone = 0;
                        map.clear(start..end, Location::HOLE, |_| gone += 1);
                        let mut expected = 0;
                        for b in start..end {
                            if model.remove(&b).is_some_and(|l| l.stored().is_some()) {
                                expected += 1;
                            }
                        }
                        prop_assert_eq!(gone, expected);
                    }
                    1 => {
                        map.clear(start..end, Location::RESERVED, |_| {});
                        for b in start..end { model.insert(b, Location::RESERVED); }
                    }
                    _ => for (i, b) in (start..end).enumerate() {
                        let location = Location::at(kind, at + i as u32);
                        let before = map.set(b, location);
                        prop_assert_eq!(before, model.insert(b, location).unwrap_or_default());
                    },
                }
                prop_assert_eq!(map.used_blocks(), model.len() as u64);
            }
            let mut at = 0;
            for run in map.runs(0..2000) {
                prop_assert_eq!(run.block, at);
                for i in 0..run.count {
                    let expected = model.get(&(run.block + u64::from(i))).copied().unwrap_or_default();
                    let here = match run.location.stored() {
                        Some((segment, block)) => Location::at(segment, block + i),
                        None => run.location,
                    };
                    prop_assert_eq!(here, expected);
                }
                at += u64::from(run.count);
            }
            prop_assert_eq!(at, 2000);
            map.clear(0..2000, Location::HOLE, |_| {});
            prop_assert_eq!(map.used_blocks(), 0);
            prop_assert!(map.memory_bytes() < 1000);
        }
    }

    #[test]
    fn random_writes_cost_at_most_3_mib_per_gib() {
        let blocks = (1u64 << 30) / 4096;
        let mut map = Map::new(blocks);
        for i in 0..blocks {
            // Puts every block at an unrelated place.
            let scattered = (i.wrapping_mul(2_654_435_761)) % blocks;
            map.set(scattered, Location::at((i % 300) as u32, (i / 300) as u32));
        }
        assert!(map.memory_bytes() <= 3 << 20, "{} bytes", map.memory_bytes());
    }
}
