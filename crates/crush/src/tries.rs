//! A histogram of failed attempts of choices, as in crushtool's `--show-choose-tries`.

use std::cell::Cell;

use crate::Map;

/// Counts of choices by their failed attempts. Choices of leaves count, too. A choice of firstn is
/// one filled position. A choice of indep is one call for all its positions, filled or not, and
/// counts the rounds of the call, so the best is 1. Multi-step-retry rules are not counted.
#[derive(Debug)]
pub struct TriesHistogram {
    counts: Vec<Cell<u64>>,
}

impl TriesHistogram {
    /// An empty histogram, up to the number of failures that the tunables of `map` allow. Rules may
    /// set more, but such failures are not counted.
    #[must_use]
    pub fn new(map: &Map) -> Self {
        Self { counts: vec![Cell::new(0); map.tunables().choose_total_tries as usize + 1] }
    }

    /// Number of choices that failed 0, 1, 2, ... times.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(Cell::get).collect()
    }

    pub(crate) fn add(&self, failures: u32) {
        if let Some(count) = self.counts.get(failures as usize) {
            count.set(count.get() + 1);
        }
    }
}
