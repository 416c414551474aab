//! The counts of a trial.

use std::collections::BTreeMap;

use crate::ItemId;

/// Counts over the mappings of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of mappings.
    pub mappings: u64,
    /// Positions mapped to each device. Buckets, and numbers past the map's devices, are not
    /// counted.
    pub stored: Vec<u64>,
    /// Number of mappings by their number of positions, empty positions included.
    pub sizes: BTreeMap<usize, u64>,
    /// Mappings that are shorter than the width or have an empty position.
    pub bad: u64,
    /// Choices by their failed attempts, if the trial [counts](super::Trial::count_tries) them.
    pub tries: Vec<u64>,
}

impl Tally {
    /// Empty counts for a map with room for `devices` devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self { stored: vec![0; devices], ..Self::default() }
    }

    /// Counts one mapping of the width `width`.
    pub fn add(&mut self, items: &[ItemId], width: usize) {
        self.mappings += 1;
        for item in items {
            let osd = usize::try_from(item.0).ok();
            if let Some(count) = osd.and_then(|osd| self.stored.get_mut(osd)) {
                *count += 1;
            }
        }
        *self.sizes.entry(items.len()).or_default() += 1;
        self.bad += u64::from(is_bad(items, width));
    }

    /// Adds the counts of another part of the same trial.
    pub fn merge(&mut self, other: &Self) {
        self.mappings += other.mappings;
        for (count, more) in self.stored.iter_mut().zip(&other.stored) {
            *count += more;
        }
        for (&size, more) in &other.sizes {
            *self.sizes.entry(size).or_default() += more;
        }
        self.bad += other.bad;
        self.add_tries(&other.tries);
    }

    /// Adds counts of failed attempts.
    pub fn add_tries(&mut self, more: &[u64]) {
        self.tries.resize(self.tries.len().max(more.len()), 0);
        for (count, more) in self.tries.iter_mut().zip(more) {
            *count += more;
        }
    }
}

/// True for a mapping that is shorter than the width or has an empty position.
#[must_use]
pub fn is_bad(items: &[ItemId], width: usize) -> bool {
    items.len() != width || items.contains(&ItemId::NONE)
}
