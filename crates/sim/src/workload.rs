//! The workload: the requests of the device's users.
//!
//! The seed draws the configuration: the mix of operations, the number in flight, and the part of
//! the device that users write to. The access pattern changes every so often within a run (uniform,
//! a hot spot, sequential runs, bursts with pauses), because bugs hide in the changes.

use fieldstone_block::{Op, RequestFlags};

use crate::checker::Span;
use crate::random::RandomStream;

/// The parameters of a workload.
#[derive(Clone, Debug)]
pub struct WorkloadConfig {
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

impl WorkloadConfig {
    /// A random configuration for a device of this size, in which a block is a cell.
    #[must_use]
    pub fn draw(rng: &mut RandomStream, device_blocks: u64) -> Self {
        let mixes = [
            [40, 40, 4, 4, 4, 2],
            [20, 70, 1, 1, 2, 0],
            [10, 60, 15, 10, 5, 2],
            [70, 20, 2, 2, 2, 2],
            [30, 30, 5, 5, 30, 1],
        ];
        Self {
            device_cells: device_blocks,
            ops: rng.between(300, 1200) as u32,
            depth: rng.pick(&[1, 2, 4, 8, 16, 32]),
            mix: rng.pick(&mixes),
            fua_per_mille: rng.pick(&[0, 20, 200]),
            span_cells_max: rng.pick(&[1, 4, 8, 32]),
            think_ns: rng.pick(&[1_000, 50_000, 400_000, 2_000_000]),
            reach_per_mille: rng.pick(&[100, 500, 1000, 1000]),
        }
    }
}

impl WorkloadConfig {
    /// Changes the configuration so that the workload fills the device.
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

/// The current access pattern.
#[derive(Clone, Copy, Debug)]
enum AccessPattern {
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
    plan: WorkloadConfig,
    rng: RandomStream,
    pattern: AccessPattern,
    pattern_left: u32,
    drawn: u32,
    burst: bool,
}

const OPS: [Op; 6] = [Op::Read, Op::Write, Op::Trim, Op::WriteZeroes, Op::Flush, Op::Extents];

impl Workload {
    /// A workload with this configuration.
    #[must_use]
    pub fn new(plan: WorkloadConfig, rng: RandomStream) -> Self {
        Self { plan, rng, pattern: AccessPattern::Uniform, pattern_left: 0, drawn: 0, burst: false }
    }

    /// The configuration.
    #[must_use]
    pub fn plan(&self) -> &WorkloadConfig {
        &self.plan
    }

    /// True when all operations have been drawn.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.drawn >= self.plan.ops
    }

    /// The pause before the next request.
    pub fn pause_ns(&mut self) -> u64 {
        match (self.burst, self.pattern_left) {
            (true, 1) => self.plan.think_ns * self.rng.between(10, 100),
            (true, _) => 1_000,
            (false, _) => self.rng.around(self.plan.think_ns),
        }
    }

    /// The next operation.
    pub fn draw(&mut self) -> Draft {
        self.drawn += 1;
        if self.pattern_left == 0 {
            self.change_pattern();
        }
        self.pattern_left -= 1;
        let op = OPS[self.rng.weighted(&self.plan.mix).unwrap_or(1)];
        let cells = self.cells(op);
        let span = Span { first: self.place(cells), cells };
        let changes = matches!(op, Op::Write | Op::Trim | Op::WriteZeroes);
        let flags = RequestFlags {
            fua: changes && self.rng.chance(self.plan.fua_per_mille),
            no_hole: op == Op::WriteZeroes && self.rng.chance(500),
            fast_zero: false,
        };
        Draft { op, span, flags }
    }

    fn cells(&mut self, op: Op) -> u64 {
        let max = match op {
            // Trims and zeroes are cheap even when they are long.
            Op::Trim | Op::WriteZeroes | Op::Extents if self.rng.chance(200) => {
                self.plan.device_cells / 4
            }
            _ => self.plan.span_cells_max,
        };
        let max = max.clamp(1, self.plan.device_cells);
        if self.rng.chance(400) { 1 } else { self.rng.between(1, max) }
    }

    fn place(&mut self, cells: u64) -> u64 {
        let reach = (self.plan.device_cells * self.plan.reach_per_mille / 1000).max(cells);
        let last = reach - cells;
        match &mut self.pattern {
            AccessPattern::Uniform => self.rng.between(0, last),
            AccessPattern::HotSpot { first, cells } => {
                let offset = self.rng.between(0, *cells);
                (*first + offset).min(last)
            }
            AccessPattern::Sequential { next } => {
                let first = if *next > last { 0 } else { *next };
                *next = first + cells;
                first
            }
        }
    }

    fn change_pattern(&mut self) {
        self.pattern_left = self.rng.between(20, 200) as u32;
        self.burst = self.rng.chance(300);
        let first = self.rng.between(0, self.plan.device_cells - 1);
        self.pattern = match self.rng.index(3) {
            0 => AccessPattern::Uniform,
            1 => AccessPattern::HotSpot { first, cells: self.rng.between(1, 16) },
            _ => AccessPattern::Sequential { next: first },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_on_the_device_and_every_kind_occurs() {
        for seed in 0..50 {
            let mut rng = RandomStream::new(seed, "plan", 0);
            let mut plan = WorkloadConfig::draw(&mut rng, 64 + seed);
            plan.mix = [1; 6];
            let mut workload = Workload::new(plan, RandomStream::new(seed, "work", 0));
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
