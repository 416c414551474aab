//! Assigns the elements to lanes.
//!
//! A row with t terms on L lanes takes at least t / L operations, and one more for every term on a
//! lane that already has its share of the row. The compiler assigns elements one by one, in the
//! order in which rows use them. Each element goes to the lane where it makes the fewest rows
//! longer; among those, to the lane with the fewest terms of its rows; then to the emptiest lane.
//! The first assignment of an element does not consider the later elements. So the compiler assigns
//! every element again, as long as rows get shorter, and at most [`ROUNDS`] times.

use super::EngineShape;
use super::sums::Sums;

/// How often the compiler may assign every element again.
const ROUNDS: usize = 8;

/// The place of an element in every bank.
#[derive(Clone, Copy)]
pub(super) struct BankSlot {
    pub(super) lane: usize,
    /// Number of the slice from the start of the bank.
    pub(super) slot: usize,
}

/// The lane and slot of every element.
pub(super) struct LaneAssignment {
    /// The place of every cell.
    pub(super) places: Vec<BankSlot>,
    /// Slots that the fullest lane uses, at least 1.
    pub(super) slots: usize,
}

/// Assigns all cells to lanes. The caller has checked that the lanes have space for them.
pub(super) fn assign(sums: &Sums, shape: &EngineShape) -> LaneAssignment {
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); sums.cells.len()];
    for (row, sum) in sums.sums.iter().enumerate() {
        sum.terms.iter().for_each(|&(cell, _)| rows_of[cell].push(row));
    }
    let mut table = Table::new(sums, shape);
    let mut lane_of: Vec<Option<usize>> = vec![None; sums.cells.len()];
    let in_order = sums.sums.iter().flat_map(|sum| sum.terms.iter().map(|&(cell, _)| cell));
    for cell in in_order.chain(0..sums.cells.len()) {
        if lane_of[cell].is_none() {
            lane_of[cell] = Some(table.put(&rows_of[cell]));
        }
    }
    let mut lane_of: Vec<usize> = lane_of.into_iter().flatten().collect();
    for _ in 0..ROUNDS {
        let before = table.operations();
        for (rows, lane) in rows_of.iter().zip(&mut lane_of) {
            table.take(rows, *lane);
            *lane = table.put(rows);
        }
        if table.operations() >= before {
            break;
        }
    }
    let mut used = vec![0; shape.lanes];
    let place = |&lane: &usize| {
        used[lane] += 1;
        BankSlot { lane, slot: used[lane] - 1 }
    };
    let places = lane_of.iter().map(place).collect();
    LaneAssignment { places, slots: used.into_iter().max().unwrap_or(0).max(1) }
}

/// The terms of each row on each lane.
struct Table {
    lanes: usize,
    /// Elements that a lane can hold.
    room: usize,
    /// Elements on each lane.
    used: Vec<usize>,
    /// Terms of row r on lane l, at `r * lanes + l`.
    terms: Vec<usize>,
    /// Lower bound of each row's operations.
    min_operations: Vec<usize>,
}

impl Table {
    fn new(sums: &Sums, shape: &EngineShape) -> Self {
        let lanes = shape.lanes;
        Self {
            lanes,
            room: shape.lane_beats,
            used: vec![0; lanes],
            terms: vec![0; sums.sums.len() * lanes],
            min_operations: sums.sums.iter().map(|sum| sum.operations_at_least(lanes)).collect(),
        }
    }

    fn operations_of(&self, row: usize) -> usize {
        let terms = &self.terms[row * self.lanes..][..self.lanes];
        terms.iter().fold(self.min_operations[row], |most, &count| most.max(count))
    }

    fn operations(&self) -> usize {
        (0..self.min_operations.len()).map(|row| self.operations_of(row)).sum()
    }

    /// Assigns an element that these rows use to a lane. Returns the lane.
    fn put(&mut self, rows: &[usize]) -> usize {
        let mut longer = vec![0; self.lanes];
        let mut met = vec![0; self.lanes];
        for &row in rows {
            let operations = self.operations_of(row);
            for lane in 0..self.lanes {
                let count = self.terms[row * self.lanes + lane];
                longer[lane] += usize::from(count >= operations);
                met[lane] += count;
            }
        }
        let free = (0..self.lanes).filter(|&lane| self.used[lane] < self.room);
        let lane = free.min_by_key(|&lane| (longer[lane], met[lane], self.used[lane]));
        let lane = lane.expect("no more elements than all lanes together hold");
        self.used[lane] += 1;
        rows.iter().for_each(|row| self.terms[row * self.lanes + lane] += 1);
        lane
    }

    /// Takes an element off its lane.
    fn take(&mut self, rows: &[usize], lane: usize) {
        self.used[lane] -= 1;
        rows.iter().for_each(|row| self.terms[row * self.lanes + lane] -= 1);
    }
}
