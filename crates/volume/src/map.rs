//! The extent map: where each block of the device lies.
//!
//! A flat two-level table with one 8-byte [`Location`] per 4 KiB block. Its leaves of 512 blocks
//! (2 MiB of device, one 4 KiB page of memory) exist only where the volume stores blocks. That is
//! 2 MiB of memory per GiB of device at worst, however random the writes were. A tree of extents
//! would be smaller for sequential data, several times larger for random data, and slower to
//! search. Reading the map merges neighbouring blocks into runs.
//!
//! The map has several roots. Users read and write the *head*. A *frozen* root keeps the content
//! that the head had at some moment; a snapshot is one. Roots share the leaves that are alike. So
//! to freeze the head costs a pointer per 2 MiB of device, and the first write to a shared leaf
//! copies a page.
//!
//! - A stored block is live as long as any root has it. [`Map::set`], [`Map::clear`] and
//!   [`Map::thaw`] name the locations that the last root has given up.
//! - Only the same block of the device can have the same location in two roots.
//! - Collection moves a block in all roots at once ([`Map::relocate`]), so leaves stay shared.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

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
pub struct MapRun {
    /// First block of the device.
    pub block: u64,
    /// Number of blocks.
    pub count: u32,
    /// Where the first one lies.
    pub location: Location,
}

/// The name of a frozen root, which its owner chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootId(pub u64);

/// Roots share leaves. Collection changes a shared leaf in place, for all its roots; a write to the
/// head copies it first.
#[derive(Clone)]
struct Leaf {
    locations: [Cell<Location>; LEAF_BLOCKS],
    used: u32,
}

/// One root.
#[derive(Clone, Default)]
struct Root {
    leaves: Vec<Option<Rc<Leaf>>>,
    /// Blocks that are stored or reserved.
    used_blocks: u64,
}

impl Root {
    fn leaf(&self, leaf: usize) -> Option<&Rc<Leaf>> {
        self.leaves.get(leaf)?.as_ref()
    }

    fn get(&self, block: u64) -> Location {
        let (leaf, index) = split(block);
        self.leaf(leaf).map_or(Location::HOLE, |leaf| leaf.locations[index].get())
    }

    /// Sets where `block` lies, and returns where it lay. Keeps `leaves`, the number of different
    /// leaves of all roots.
    fn set(&mut self, block: u64, location: Location, leaves: &mut usize) -> Location {
        let (leaf_index, index) = split(block);
        let Some(slot) = self.leaves.get_mut(leaf_index) else { return Location::HOLE };
        if slot.is_none() && location == Location::HOLE {
            return Location::HOLE;
        }
        let leaf = slot.get_or_insert_with(|| {
            *leaves += 1;
            let locations = [const { Cell::new(Location::HOLE) }; LEAF_BLOCKS];
            Rc::new(Leaf { locations, used: 0 })
        });
        if leaf.locations[index].get() == location {
            return location;
        }
        *leaves += usize::from(Rc::strong_count(leaf) > 1);
        let leaf = Rc::make_mut(leaf);
        let before = leaf.locations[index].replace(location);
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
                    *leaves -= 1;
                }
            }
            _ => {}
        }
        before
    }

    /// The runs that make up `range`, in order.
    fn runs(&self, range: Range<u64>) -> impl Iterator<Item = MapRun> + '_ {
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
                let (leaf, index) = split(at);
                if location == Location::HOLE && self.leaf(leaf).is_none() {
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
            Some(MapRun { block, count, location })
        })
    }
}

fn split(block: u64) -> (usize, usize) {
    let block = usize::try_from(block).expect("64-bit host");
    (block / LEAF_BLOCKS, block % LEAF_BLOCKS)
}

/// The map of one volume.
#[derive(Default)]
pub struct Map {
    head: Root,
    frozen: BTreeMap<RootId, Root>,
    /// Stored blocks that frozen roots have and the head does not.
    frozen_blocks: u64,
    /// Different leaves of all roots.
    leaves: usize,
}

impl Map {
    /// An empty map for a device of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let mut map = Self::default();
        map.grow(blocks);
        map
    }

    /// Makes room for a device of `blocks` blocks.
    pub fn grow(&mut self, blocks: u64) {
        let leaves = usize::try_from(blocks.div_ceil(LEAF_BLOCKS as u64)).expect("64-bit host");
        if leaves > self.head.leaves.len() {
            self.head.leaves.resize_with(leaves, || None);
        }
    }

    /// Memory that the map takes, in bytes. A leaf counts once, however many roots share it.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let roots = std::iter::once(&self.head).chain(self.frozen.values());
        let pointers: usize = roots.map(|root| root.leaves.capacity()).sum();
        let bytes = pointers * size_of::<Option<Rc<Leaf>>>() + self.leaves * size_of::<Leaf>();
        bytes as u64
    }

    /// Blocks that the head has stored or reserved, and blocks that only frozen roots have stored.
    #[must_use]
    pub fn used_blocks(&self) -> u64 {
        self.head.used_blocks + self.frozen_blocks
    }

    /// Where `block` of the head lies.
    #[must_use]
    pub fn get(&self, block: u64) -> Location {
        self.head.get(block)
    }

    /// Sets where `block` of the head lies. Returns where it lay, if no root has that location any
    /// more; else a hole.
    pub fn set(&mut self, block: u64, location: Location) -> Location {
        let before = self.head.set(block, location, &mut self.leaves);
        if self.frozen.is_empty() || before == location {
            return before;
        }
        let is_frozen = |location| {
            location != Location::HOLE
                && location != Location::RESERVED
                && self.is_frozen(block, location)
        };
        let (kept, regained) = (is_frozen(before), is_frozen(location));
        self.frozen_blocks += u64::from(kept);
        self.frozen_blocks -= u64::from(regained);
        if kept { Location::HOLE } else { before }
    }

    /// Sets `range` of the head to a location that is not stored (hole or reserved). Calls `gone`
    /// for every stored location that no root has any more. Punching holes skips leaves that do not
    /// exist.
    pub fn clear(&mut self, range: Range<u64>, to: Location, mut gone: impl FnMut(Location)) {
        let mut block = range.start;
        while block < range.end {
            let (leaf, index) = split(block);
            if to == Location::HOLE && self.head.leaf(leaf).is_none() {
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

    /// The runs that make up `range` of the head, in order.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = MapRun> + '_ {
        self.head.runs(range)
    }

    /// Number of blocks in `range` of the head that are neither stored nor reserved.
    #[must_use]
    pub fn holes_in(&self, range: Range<u64>) -> u64 {
        range.filter(|block| self.get(*block) == Location::HOLE).count() as u64
    }

    /// Some root has `block` at the stored location.
    #[must_use]
    pub fn has(&self, block: u64, location: Location) -> bool {
        self.get(block) == location || self.is_frozen(block, location)
    }

    fn is_frozen(&self, block: u64, location: Location) -> bool {
        self.frozen.values().any(|root| root.get(block) == location)
    }

    /// Collection has stored `block` anew: every root that has it at `from` has it at `to`.
    pub fn relocate(&mut self, block: u64, from: Location, to: Location) {
        let (leaf, index) = split(block);
        for root in std::iter::once(&self.head).chain(self.frozen.values()) {
            // A leaf that roots share has the new location after the first of them.
            if let Some(leaf) = root.leaf(leaf).filter(|leaf| leaf.locations[index].get() == from) {
                leaf.locations[index].set(to);
            }
        }
    }
}

#[cfg_attr(not(test), expect(dead_code, reason = "snapshots, which come next, have frozen roots"))]
impl Map {
    /// Keeps the content that the head has now, under a name that no frozen root has.
    pub fn freeze(&mut self, id: RootId) {
        let before = self.frozen.insert(id, self.head.clone());
        debug_assert!(before.is_none(), "{id:?} is frozen already");
    }

    /// The runs that make up `range` of a frozen root, in order; `None` if there is no such root.
    /// Blocks after the end that the device had when it was frozen are holes.
    pub fn frozen_runs(
        &self,
        id: RootId,
        range: Range<u64>,
    ) -> Option<impl Iterator<Item = MapRun> + '_> {
        Some(self.frozen.get(&id)?.runs(range))
    }

    /// Gives a frozen root up. Calls `gone` for every stored location that no root has any more.
    pub fn thaw(&mut self, id: RootId, mut gone: impl FnMut(Location)) {
        let Some(root) = self.frozen.remove(&id) else { return };
        let leaves = (0u64..).zip(&root.leaves);
        for (at, leaf) in leaves.filter_map(|(at, leaf)| Some((at, leaf.as_ref()?))) {
            if Rc::strong_count(leaf) > 1 {
                continue; // another root has the same locations
            }
            self.leaves -= 1;
            for (index, location) in (0u64..).zip(&leaf.locations) {
                let (block, location) = (at * LEAF_BLOCKS as u64 + index, location.get());
                if location.stored().is_some() && !self.has(block, location) {
                    self.frozen_blocks -= 1;
                    gone(location);
                }
            }
        }
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
                    let expected = model.get(&(run.block + u64::from(i))).copied();
                    let expected = expected.unwrap_or_default();
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

    /// One step with a map that has frozen roots.
    #[derive(Clone, Debug)]
    enum Step {
        Write { block: u64, count: u64 },
        Trim { block: u64, count: u64 },
        Freeze,
        Thaw { which: usize },
        Move { block: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0u64..1500, 1u64..40);
        prop_oneof![
            6 => range().prop_map(|(block, count)| Step::Write { block, count }),
            2 => range().prop_map(|(block, count)| Step::Trim { block, count }),
            1 => Just(Step::Freeze),
            1 => (0usize..4).prop_map(|which| Step::Thaw { which }),
            4 => (0u64..1500).prop_map(|block| Step::Move { block }),
        ]
    }

    proptest! {
        /// The model has one dictionary for each root. A location is live as long as any has it.
        #[test]
        fn frozen_roots_keep_what_the_head_overwrites(
            steps in proptest::collection::vec(step(), 1..80)
        ) {
            const BLOCKS: u64 = 1540;
            let mut map = Map::new(BLOCKS);
            let mut head: BTreeMap<u64, Location> = BTreeMap::new();
            let mut frozen: Vec<(RootId, BTreeMap<u64, Location>)> = Vec::new();
            let mut live: std::collections::BTreeSet<(u64, (u32, u32))> = Default::default();
            let (mut fresh, mut names) = (0, 0);
            let mut next = || { fresh += 1; Location::at(1, fresh) };
            for step in steps {
                match step {
                    Step::Write { block, count } => for block in block..block + count {
                        let location = next();
                        let gone = map.set(block, location);
                        if let Some(gone) = gone.stored() {
                            prop_assert!(live.remove(&(block, gone)));
                        }
                        live.insert((block, location.stored().expect("it is stored")));
                        head.insert(block, location);
                    },
                    Step::Trim { block, count } => {
                        let mut gone = Vec::new();
                        map.clear(block..block + count, Location::HOLE, |at| gone.push(at));
                        for block in block..block + count {
                            let Some(at) = head.remove(&block) else { continue };
                            if gone.contains(&at) {
                                live.remove(&(block, at.stored().expect("it was stored")));
                            }
                        }
                    }
                    Step::Freeze => {
                        names += 1;
                        map.freeze(RootId(names));
                        frozen.push((RootId(names), head.clone()));
                    }
                    Step::Thaw { which } if which < frozen.len() => {
                        let (id, content) = frozen.remove(which);
                        let mut gone = Vec::new();
                        map.thaw(id, |at| gone.push(at));
                        for (block, at) in content.iter().filter(|(_, at)| gone.contains(at)) {
                            live.remove(&(*block, at.stored().expect("it was stored")));
                        }
                    }
                    Step::Thaw { .. } => {}
                    Step::Move { block } => {
                        let roots = std::iter::once(&head).chain(frozen.iter().map(|(_, r)| r));
                        let Some(from) = roots.filter_map(|root| root.get(&block)).next() else {
                            continue;
                        };
                        let (from, to) = (*from, next());
                        prop_assert!(map.has(block, from));
                        map.relocate(block, from, to);
                        let roots = frozen.iter_mut().map(|(_, root)| root);
                        for root in std::iter::once(&mut head).chain(roots) {
                            root.entry(block).and_modify(|at| if *at == from { *at = to });
                        }
                        live.remove(&(block, from.stored().expect("it was stored")));
                        live.insert((block, to.stored().expect("it is stored")));
                    }
                }
                let mut expected = std::collections::BTreeSet::new();
                for root in std::iter::once(&head).chain(frozen.iter().map(|(_, root)| root)) {
                    let stored = root.iter().filter_map(|(b, at)| Some((*b, at.stored()?)));
                    expected.extend(stored);
                }
                prop_assert_eq!(&live, &expected);
                prop_assert_eq!(map.used_blocks(), expected.len() as u64);
            }
            let content = |runs: &mut dyn Iterator<Item = MapRun>| {
                let mut content = BTreeMap::new();
                for run in runs.filter(|run| run.location != Location::HOLE) {
                    for i in 0..run.count {
                        content.insert(run.block + u64::from(i), run.location.plus(i));
                    }
                }
                content
            };
            prop_assert_eq!(&content(&mut map.runs(0..BLOCKS)), &head);
            for (id, root) in &frozen {
                let runs = map.frozen_runs(*id, 0..BLOCKS);
                prop_assert_eq!(&content(&mut runs.expect("it is frozen")), root);
            }
            for (id, _) in frozen {
                map.thaw(id, |_| {});
            }
            map.clear(0..BLOCKS, Location::HOLE, |_| {});
            prop_assert_eq!((map.used_blocks(), map.leaves), (0, 0));
        }
    }

    #[test]
    fn a_frozen_root_costs_pointers_until_the_head_changes() {
        let mut map = Map::new(LEAF_BLOCKS as u64 * 100);
        for leaf in 0..100 {
            map.set(leaf * LEAF_BLOCKS as u64, Location::at(1, leaf as u32));
        }
        let before = map.memory_bytes();
        map.freeze(RootId(1));
        assert_eq!(map.memory_bytes() - before, 100 * size_of::<usize>() as u64);
        map.set(5, Location::at(2, 0));
        let page = size_of::<Leaf>() as u64;
        assert_eq!(map.memory_bytes() - before, 100 * size_of::<usize>() as u64 + page);
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
