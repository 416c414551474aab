//! The workload: the requests of the device's users.
//!
//! The seed draws a plan: the mix of operations, the number in flight, and how places are chosen.
//! The manner changes every so often within a run (uniform, a hot spot, sequential runs, bursts
//! with pauses), because bugs hide in the changes.

use fieldstone_block::{Op, RequestFlags};

use crate::checker::Span;
use crate::dice::Dice;

/// The parameters of a workload.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Size of the device in cells of the checker.
    pub device_cells: u64,
    /// Number of operations.
    pub ops: u32,
    /// The largest number of requests in flight.
    pub depth: usize,
    /// Weights of read, write, trim, zeroes, flush and extents.
    pub mix: [u32; 6],
    /// Writes with FUA, per thousand.
    pub fua_per_mille: u32,
    /// Longest request in cells.
    pub span_cells_max: u64,
    /// Mean pause between requests.
    pub think_ns: u64,
    /// The part of the device that users write to, per thousand.
    pub reach_per_mille: u64,
}

impl Plan {
    /// A plan for a device of this size, in which a block is a cell.
    #[must_use]
    pub fn draw(dice: &mut Dice, device_blocks: u64) -> Self {
        let mixes = [
            [40, 40, 4, 4, 4, 2],
            [20, 70, 1, 1, 2, 0],
            [10, 60, 15, 10, 5, 2],
            [70, 20, 2, 2, 2, 2],
            [30, 30, 5, 5, 30, 1],
        ];
        Self {
            device_cells: device_blocks,
            ops: dice.between(300, 1200) as u32,
            depth: dice.pick(&[1, 2, 4, 8, 16, 32]),
            mix: dice.pick(&mixes),
            fua_per_mille: dice.pick(&[0, 20, 200]),
            span_cells_max: dice.pick(&[1, 4, 8, 32]),
            think_ns: dice.pick(&[1_000, 50_000, 400_000, 2_000_000]),
            reach_per_mille: dice.pick(&[100, 500, 1000, 1000]),
        }
    }
}

impl Plan {
    /// Changes the plan so that it fills the device.
    pub(crate) fn fill(&mut self) {
        self.mix = [20, 70, 4, 2, 3, 1];
        self.span_cells_max = 32;
        self.reach_per_mille = 1000;
    }

    /// Divides each block into so many cells. Requests keep their longest length in bytes if they
    /// are `long`, or else in cells.
    pub(crate) fn divide_blocks(&mut self, cells_per_block: u64, long: bool) {
        self.device_cells *= cells_per_block;
        if long {
            self.span_cells_max *= cells_per_block;
        }
    }
}

/// How places are chosen now.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Uniform,
    HotSpot { first: u64, cells: u64 },
    Sequential { next: u64 },
}

/// One operation to submit.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// The operation.
    pub op: Op,
    /// The range; for a flush, the first block.
    pub span: Span,
    /// Modifiers.
    pub flags: RequestFlags,
}

/// Draws operations.
pub struct Workload {
    plan: Plan,
    dice: Dice,
    manner: Manner,
    manner_left: u32,
    drawn: u32,
    burst: bool,
}

const OPS: [Op; 6] = [Op::Read, Op::Write, Op::Trim, Op::WriteZeroes, Op::Flush, Op::Extents];

impl Workload {
    /// A workload with this plan.
    #[must_use]
    pub fn new(plan: Plan, dice: Dice) -> Self {
        Self { plan, dice, manner: Manner::Uniform, manner_left: 0, drawn: 0, burst: false }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// True when all operations have been drawn.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.drawn >= self.plan.ops
    }

    /// The pause before the next request.
    pub fn pause_ns(&mut self) -> u64 {
        match (self.burst, self.manner_left) {
            (true, 1) => self.plan.think_ns * self.dice.between(10, 100),
            (true, _) => 1_000,
            (false, _) => self.dice.around(self.plan.think_ns),
        }
    }

    /// The next operation.
    pub fn draw(&mut self) -> Draft {
        self.drawn += 1;
        if self.manner_left == 0 {
            self.change_manner();
        }
        self.manner_left -= 1;
        let op = OPS[self.dice.weighted(&self.plan.mix).unwrap_or(1)];
        let cells = self.cells(op);
        let span = Span { first: self.place(cells), cells };
        let changes = matches!(op, Op::Write | Op::Trim | Op::WriteZeroes);
        let flags = RequestFlags {
            fua: changes && self.dice.chance(self.plan.fua_per_mille),
            no_hole: op == Op::WriteZeroes && self.dice.chance(500),
            fast_zero: false,
        };
        Draft { op, span, flags }
    }

    fn cells(&mut self, op: Op) -> u64 {
        let max = match op {
            // Trims and zeroes are cheap even when they are long.
            Op::Trim | Op::WriteZeroes | Op::Extents if self.dice.chance(200) => {
                self.plan.device_cells / 4
            }
            _ => self.plan.span_cells_max,
        };
        let max = max.clamp(1, self.plan.device_cells);
        if self.dice.chance(400) { 1 } else { self.dice.between(1, max) }
    }

    fn place(&mut self, cells: u64) -> u64 {
        let reach = (self.plan.device_cells * self.plan.reach_per_mille / 1000).max(cells);
        let last = reach - cells;
        match &mut self.manner {
            Manner::Uniform => self.dice.between(0, last),
            Manner::HotSpot { first, cells } => {
                let offset = self.dice.between(0, *cells);
                (*first + offset).min(last)
            }
            Manner::Sequential { next } => {
                let first = if *next > last { 0 } else { *next };
                *next = first + cells;
                first
            }
        }
    }

    fn change_manner(&mut self) {
        self.manner_left = self.dice.between(20, 200) as u32;
        self.burst = self.dice.chance(300);
        let first = self.dice.between(0, self.plan.device_cells - 1);
        self.manner = match self.dice.index(3) {
            0 => Manner::Uniform,
            1 => Manner::HotSpot { first, cells: self.dice.between(1, 16) },
            _ => Manner::Sequential { next: first },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_on_the_device_and_every_kind_occurs() {
        for seed in 0..50 {
            let mut dice = Dice::new(seed, "plan", 0);
            let mut plan = Plan::draw(&mut dice, 64 + seed);
            plan.mix = [1; 6];
            let mut workload = Workload::new(plan, Dice::new(seed, "work", 0));
            let mut seen = [0u32; 6];
            while !workload.is_over() {
                let draft = workload.draw();
                assert!(draft.span.cells > 0);
                assert!(draft.span.first + draft.span.cells <= 64 + seed, "{draft:?}");
                let kind = OPS.iter().position(|op| *op == draft.op).expect("a known operation");
                seen[kind] += 1;
                workload.pause_ns();
            }
            assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
        }
    }
}
