//! How hard choices were: a histogram of failed attempts, as crushtool's `--show-choose-tries` has it.

use std::cell::Cell;

use crate::Map;

/// Counts of choices by their failed attempts; choices of leaves count too. A choice of firstn is one
/// position that was filled; a choice of indep is one call for all its positions, filled or not, and
/// counts the rounds it took, so that the best is 1. Multi-step-retry rules are not counted.
#[derive(Debug)]
pub struct TriesHistogram {
    counts: Vec<Cell<u64>>,
}

impl TriesHistogram {
    /// Nothing counted, up to as many failures as the tunables of `map` allow. Rules may set more, but
    /// those are not counted.
    #[must_use]
    pub fn new(map: &Map) -> Self {
        Self { counts: vec![Cell::new(0); map.tunables().choose_total_tries as usize + 1] }
    }

    /// How many choices failed 0, 1, 2, ... times.
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
