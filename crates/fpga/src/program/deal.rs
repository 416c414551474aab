//! Which lane holds which element.
//!
//! A row with t terms on L lanes takes at least t / L operations, and one more for every term that meets a
//! lane which already has its share. Elements are dealt one by one, in the order in which rows
//! use them, each to the lane where it makes the fewest rows longer; among those, to the emptiest.

use super::EngineShape;
use super::sums::Sums;

/// Where an element lies in every bank.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) lane: usize,
    /// Which slice from the start of the bank.
    pub(super) slot: usize,
}

pub(super) struct Dealt {
    /// Of every cell.
    pub(super) places: Vec<Place>,
    /// Slots that the fullest lane uses, at least 1.
    pub(super) slots: usize,
}

/// Deals all cells. There is room for them.
pub(super) fn deal(sums: &Sums, shape: &EngineShape) -> Dealt {
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); sums.cells.len()];
    for (row, sum) in sums.sums.iter().enumerate() {
        sum.terms.iter().for_each(|&(cell, _)| rows_of[cell].push(row));
    }
    let lanes = shape.lanes;
    // How many operations each row takes so far, and how many terms it has on each lane.
    let mut operations: Vec<usize> =
        sums.sums.iter().map(|sum| sum.operations_at_least(lanes)).collect();
    let mut terms = vec![0; sums.sums.len() * lanes];
    let mut used = vec![0; lanes];
    let mut places: Vec<Option<Place>> = vec![None; sums.cells.len()];
    let in_order = sums.sums.iter().flat_map(|sum| sum.terms.iter().map(|&(cell, _)| cell));
    for cell in in_order.chain(0..sums.cells.len()) {
        if places[cell].is_some() {
            continue;
        }
        let longer = |lane: usize| {
            let is_longer = |&&row: &&usize| terms[row * lanes + lane] >= operations[row];
            rows_of[cell].iter().filter(is_longer).count()
        };
        let free = (0..lanes).filter(|&lane| used[lane] < shape.lane_beats);
        let lane = free.min_by_key(|&lane| (longer(lane), used[lane]));
        let lane = lane.expect("no more cells than all lanes together hold");
        places[cell] = Some(Place { lane, slot: used[lane] });
        used[lane] += 1;
        for &row in &rows_of[cell] {
            terms[row * lanes + lane] += 1;
            operations[row] = operations[row].max(terms[row * lanes + lane]);
        }
    }
    let places = places.into_iter().map(|place| place.expect("every cell was dealt")).collect();
    Dealt { places, slots: used.into_iter().max().unwrap_or(0).max(1) }
}
