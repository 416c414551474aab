//! The allocator of a memory: first fit over the free extents, in beats of 64 bytes.
//!
//! Long-lived data (programs, images) comes from the end of the memory, and the data of jobs from
//! its beginning. So the jobs of one burst lie one after the other.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::regs::BEAT_BYTES;

/// An allocated extent of a memory. Its owner gives it back to the [`Allocator`] that it came from.
#[derive(Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte, a multiple of 64.
    pub address: u64,
    /// Its size, a multiple of 64.
    pub bytes: u64,
}

/// The free extents of a memory.
#[derive(Debug)]
pub struct Allocator {
    /// Size by address. No two free extents touch.
    free: BTreeMap<u64, u64>,
}

impl Allocator {
    /// All of `window` is free. Beats that are only partly in it are left out.
    #[must_use]
    pub fn new(window: Range<u64>) -> Self {
        let beat = BEAT_BYTES as u64;
        let (begin, end) = (window.start.next_multiple_of(beat), window.end / beat * beat);
        let free = (begin < end).then(|| (begin, end - begin)).into_iter().collect();
        Self { free }
    }

    /// Bytes that are free, in one piece or many.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// An extent of at least `bytes` (and at least a beat) for long-lived data: the end of the last
    /// free extent that is large enough. `None` if there is none.
    pub fn allocate_to_stay(&mut self, bytes: usize) -> Option<Allocation> {
        let bytes = bytes.max(1).checked_next_multiple_of(BEAT_BYTES)? as u64;
        let (&address, &size) = self.free.iter().rfind(|&(_, &size)| size >= bytes)?;
        self.free.remove(&address);
        if size > bytes {
            self.free.insert(address, size - bytes);
        }
        Some(Allocation { address: address + (size - bytes), bytes })
    }

    /// An extent of at least `bytes` (and at least a beat): the beginning of the first free extent
    /// that is large enough. `None` if there is none.
    pub fn allocate(&mut self, bytes: usize) -> Option<Allocation> {
        let bytes = bytes.max(1).checked_next_multiple_of(BEAT_BYTES)? as u64;
        let (&address, &size) = self.free.iter().find(|&(_, &size)| size >= bytes)?;
        self.free.remove(&address);
        if size > bytes {
            self.free.insert(address + bytes, size - bytes);
        }
        Some(Allocation { address, bytes })
    }

    /// Takes an extent back.
    pub fn release(&mut self, Allocation { mut address, mut bytes }: Allocation) {
        if let Some(after) = self.free.remove(&(address + bytes)) {
            bytes += after;
        }
        if let Some((&before, &size)) = self.free.range(..address).next_back()
            && before + size == address
        {
            address = before;
            bytes += size;
        }
        self.free.insert(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn allocations_never_overlap_and_all_comes_back(
            sizes in prop::collection::vec((0usize..5000, any::<bool>(), any::<bool>()), 1..100),
        ) {
            let mut extents = Allocator::new(100..65_600);
            let all = extents.free_bytes();
            prop_assert_eq!(all, 65_600 - 128);
            let mut held: Vec<Allocation> = Vec::new();
            for (size, stays, release) in sizes {
                let extent =
                    if stays { extents.allocate_to_stay(size) } else { extents.allocate(size) };
                if let Some(extent) = extent {
                    prop_assert!(extent.address.is_multiple_of(64) && extent.bytes >= size as u64);
                    prop_assert!(extent.address >= 128 && extent.address + extent.bytes <= 65_600);
                    for other in &held {
                        let apart = extent.address >= other.address + other.bytes
                            || other.address >= extent.address + extent.bytes;
                        prop_assert!(apart, "{extent:?} {other:?}");
                    }
                    held.push(extent);
                }
                if release && !held.is_empty() {
                    let index = size % held.len();
                    extents.release(held.swap_remove(index));
                }
                let used: u64 = held.iter().map(|extent| extent.bytes).sum();
                prop_assert_eq!(extents.free_bytes() + used, all);
            }
            held.into_iter().for_each(|extent| extents.release(extent));
            prop_assert_eq!(extents.allocate(all as usize).map(|whole| whole.bytes), Some(all));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut extents = Allocator::new(64..192);
        assert!(extents.allocate(129).is_none() && extents.allocate(usize::MAX).is_none());
        assert!(extents.allocate(65).is_some() && extents.allocate(0).is_none());
        assert!(Allocator::new(65..127).allocate(1).is_none());
    }

    #[test]
    fn what_stays_is_not_in_the_way_of_what_does_not() {
        let mut extents = Allocator::new(0..1024);
        let mut next = |stays: bool| {
            let extent = if stays { extents.allocate_to_stay(64) } else { extents.allocate(64) };
            extent.map(|extent| extent.address)
        };
        let addresses = [false, true, false, true, false].map(&mut next);
        assert_eq!(addresses, [0, 960, 64, 896, 128].map(Some));
    }
}
