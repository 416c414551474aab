//! The sums that a map needs: rows with merged terms, without rows that no output depends on.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fieldstone_gf::{Element, LinearMap, Row, Source, Target};

/// One row.
pub(super) struct Sum {
    pub(super) target: Target,
    /// Cells and their coefficients; no cell twice, no zero.
    pub(super) terms: Vec<(usize, u8)>,
    /// The sum reads scratch that was written since the last fence.
    pub(super) fence: bool,
}

impl Sum {
    /// Operations that the sum takes if its terms are spread over the lanes as evenly as possible.
    pub(super) fn operations_at_least(&self, lanes: usize) -> usize {
        self.terms.len().div_ceil(lanes).max(1)
    }
}

/// The rows in order, and the elements that they read.
pub(super) struct Sums {
    pub(super) sums: Vec<Sum>,
    /// The elements that are read, inputs first, in order.
    pub(super) cells: Vec<Source>,
    /// How many of the cells are inputs: at least one, even if no row uses it, because an engine
    /// begins a pass when its inputs are loaded.
    pub(super) inputs: usize,
}

impl Sums {
    pub(super) fn new(map: &LinearMap) -> Self {
        let rows = live_rows(map);
        let mut read: BTreeSet<Source> =
            rows.iter().flat_map(|(_, terms)| terms.keys().copied()).collect();
        if !matches!(read.first(), Some(Source::Input(_))) {
            read.insert(Source::Input(Element { shard: 0, index: 0 }));
        }
        let cells: Vec<Source> = read.into_iter().collect();
        let inputs = cells.iter().take_while(|cell| matches!(cell, Source::Input(_))).count();
        let cell =
            |source: Source| cells.binary_search(&source).expect("all that is read is a cell");
        let mut unfenced = HashSet::new();
        let mut sums = Vec::with_capacity(rows.len());
        for (target, terms) in rows {
            let fence = terms.keys().any(|source| unfenced.contains(source));
            if fence {
                unfenced.clear();
            }
            if let Target::Scratch(index) = target {
                unfenced.insert(Source::Scratch(index));
            }
            let terms = terms.into_iter().map(|(source, coefficient)| (cell(source), coefficient));
            sums.push(Sum { target, terms: terms.collect(), fence });
        }
        Self { sums, cells, inputs }
    }
}

type Terms = BTreeMap<Source, u8>;

/// Rows that outputs depend on, in the order of the steps.
fn live_rows(map: &LinearMap) -> Vec<(Target, Terms)> {
    let mut needed: HashSet<Source> = HashSet::new();
    let mut rows = Vec::new();
    // Backwards, because a row that reads scratch comes after the row that writes it.
    for row in map.steps().iter().rev().flat_map(|step| step.iter().rev()) {
        let is_needed = match row.target {
            Target::Output(_) => true,
            Target::Scratch(index) => needed.contains(&Source::Scratch(index)),
        };
        if is_needed {
            let terms = merged(row);
            needed.extend(terms.keys());
            rows.push((row.target, terms));
        }
    }
    rows.reverse();
    rows
}

fn merged(row: &Row) -> Terms {
    let mut terms = Terms::new();
    for term in &row.terms {
        *terms.entry(term.source).or_default() ^= term.coefficient;
    }
    terms.retain(|_, coefficient| *coefficient != 0);
    terms
}
