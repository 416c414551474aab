//! Random work of one queue set, with checks: copies to the card and back, engine jobs, fences, and
//! linked descriptors, with and without completions.

use std::collections::HashSet;

use fieldstone_fpga::regs::{C2hOp, H2cOp, descriptor, descriptor_flag};
use rand::Rng;

use crate::driver::{C2H, Check, DescriptorCase, H2C, Queue, TAG};
use crate::engines::{self, EngineEvent};
use crate::testbench::Testbench;

const CELLS: u64 = 8;
const CELL_BYTES: u64 = 0x4000;
const MAX_COPY: u64 = 6000;

/// A queue set with work to do.
pub struct Traffic {
    pub queue: Queue,
    /// Rounds (a copy to the card and back, or an engine job) that have not begun.
    pub rounds: u32,
    /// For each cell, the numbers of the last descriptors that use its buffers.
    cells: [[u32; 2]; CELLS as usize],
    seen: [u32; 2],
    answered: HashSet<u64>,
    started: [u64; 4],
    /// Chance that a descriptor has a fence.
    pub fences: f64,
    /// The driver reads completions only after an interrupt.
    pub by_interrupt: bool,
    pub interrupted: bool,
}

impl Traffic {
    pub fn new(queue: Queue, rounds: u32) -> Self {
        Self {
            queue,
            rounds,
            cells: [[0; 2]; CELLS as usize],
            seen: [0; 2],
            answered: HashSet::new(),
            started: [0; 4],
            fences: 0.15,
            by_interrupt: false,
            interrupted: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.rounds == 0 && self.queue.rings.iter().all(|ring| ring.posted.is_empty())
    }

    /// The driver's actions in one cycle.
    pub fn step(&mut self, tb: &mut Testbench) {
        if !self.by_interrupt || self.interrupted {
            let mut read = false;
            // When the device reports idle, all rung descriptors are done, but for those that wait
            // for the driver to read completions.
            let idle = tb.is_idle();
            while let Some(completion) = self.queue.poll(tb) {
                self.seen[completion.ring] = completion.number;
                read = true;
            }
            let mut posted = self.queue.rings.iter().flat_map(|ring| &ring.posted);
            let works = posted.any(|posted| posted.job.completes());
            assert!(!idle || read || !works, "idle with work to do");
            self.interrupted = false;
            if read {
                self.queue.consumed(tb);
            }
        }
        if self.rounds > 0 && tb.rng.random_bool(0.02) {
            self.begin(tb);
        }
    }

    /// Begins a round, if there is room for it.
    fn begin(&mut self, tb: &mut Testbench) {
        let free = [self.queue.free(H2C), self.queue.free(C2H)];
        if free[H2C] == 0 || free[C2H] == 0 {
            return;
        }
        let last = self.rounds == 1;
        // The descriptor in the last free entry asks for a completion, so that entries become free
        // again.
        let sure = last || self.by_interrupt;
        let flags = |tb: &mut Testbench, sure: bool| {
            let mut flags = 0;
            if sure || tb.rng.random_bool(0.7) {
                flags |= descriptor_flag::COMPLETE;
            }
            if tb.rng.random_bool(self.fences) {
                flags |= descriptor_flag::FENCE;
            }
            if self.by_interrupt || tb.rng.random_bool(0.2) {
                flags |= descriptor_flag::INTERRUPT;
            }
            flags
        };
        let links = if tb.rng.random_bool(0.2) { tb.rng.random_range(1..4) } else { 0 };
        let mut jobs = Vec::new();
        for _ in 0..links {
            let flags = flags(tb, sure);
            jobs.push(self.engine_job(tb, flags, jobs.len() as u32));
        }
        let seen = self.seen;
        let is_free = |cell: &[u32; 2]| cell[H2C] <= seen[H2C] && cell[C2H] <= seen[C2H];
        let cell = self.cells.iter().position(is_free).map(|cell| cell as u64);
        let end_flags = flags(tb, sure || free[H2C] == 1);
        match cell {
            Some(cell) if tb.rng.random_bool(0.6) || last => {
                let back_flags = flags(tb, sure || free[C2H] == 1);
                let (there, back) = self.copies(tb, cell, end_flags, back_flags);
                jobs.push(there);
                let after = self.queue.rings[H2C].count + jobs.len() as u32;
                self.queue.post(tb, H2C, jobs);
                self.queue.post(tb, C2H, vec![back.with(descriptor::AFTER, after.into())]);
                self.cells[cell as usize] = [after, self.queue.rings[C2H].count];
                self.queue.ring(tb, C2H);
            }
            _ if last => return,
            _ => {
                jobs.push(self.engine_job(tb, end_flags, jobs.len() as u32));
                self.queue.post(tb, H2C, jobs);
            }
        }
        self.queue.ring(tb, H2C);
        self.rounds -= 1;
    }

    /// A copy of random bytes to the card, and the copy back to another place.
    fn copies(
        &self,
        tb: &mut Testbench,
        cell: u64,
        flags: u64,
        back_flags: u64,
    ) -> (DescriptorCase, DescriptorCase) {
        let long = tb.rng.random_bool(0.5);
        let length = tb.rng.random_range(1..=if long { MAX_COPY } else { 200 });
        let shift = 64 * tb.rng.random_range(0..16u64);
        let source = self.queue.host + cell * CELL_BYTES + shift;
        let card = self.queue.card + cell * CELL_BYTES + 64 * tb.rng.random_range(0..16u64);
        let back =
            self.queue.host + (CELLS + cell) * CELL_BYTES + 64 * tb.rng.random_range(0..16u64);
        let bytes: Vec<u8> = (0..length).map(|_| tb.rng.random()).collect();
        tb.host.bytes[source as usize..][..length as usize].copy_from_slice(&bytes);
        // The bytes behind the copy must not change.
        tb.card.bytes[card as usize..][..length as usize + 64].fill(0x5a);
        tb.host.bytes[back as usize..][..length as usize + 64].fill(0xa5);
        let behind = |filler: u8| [&bytes[..], &[filler; 64]].concat();
        let there = DescriptorCase::new(H2cOp::Copy as u64, flags)
            .moving(source, card, length)
            .expect(0, length, Check::Card(card, behind(0x5a)));
        let back = DescriptorCase::new(C2hOp::Copy as u64, back_flags)
            .moving(card, back, length)
            .expect(0, length, Check::Host(back, behind(0xa5)));
        (there, back)
    }

    /// A job of a random engine, or a NOP. `ahead`: number of jobs that will be posted before it.
    fn engine_job(&self, tb: &mut Testbench, flags: u64, ahead: u32) -> DescriptorCase {
        let ops = [H2cOp::Nop, H2cOp::Place, H2cOp::Code, H2cOp::Checksum, H2cOp::LoadMap];
        let ops = &ops[..if self.queue.function == 0 { 5 } else { 4 }];
        let op = ops[tb.rng.random_range(0..ops.len())];
        if op == H2cOp::Nop {
            return DescriptorCase::new(op as u64, flags);
        }
        let length = tb.rng.random_range(1..5000u64);
        let number = u64::from(self.queue.rings[H2C].count + 1 + ahead);
        DescriptorCase::new(op as u64, flags)
            .moving(self.queue.card, self.queue.card + 0x1000, length)
            .with(TAG, number)
    }

    /// An engine has taken a command of this queue set. Checks the order, and that a command behind
    /// a fence has no open job before it.
    pub fn engine_took(&mut self, tb: &Testbench, engine: usize, bytes: &[u8]) {
        let number = TAG.get(bytes);
        assert!(number > self.started[engine], "an engine got descriptors out of order");
        self.started[engine] = number;
        if descriptor::FLAGS.get(bytes) & descriptor_flag::FENCE == 0 {
            return;
        }
        for posted in &self.queue.rings[H2C].posted {
            if u64::from(posted.number) >= number {
                break;
            }
            let tag = TAG.get(&posted.job.bytes);
            assert!(tag == 0 || self.answered.contains(&tag), "a fence was passed by {number}");
            assert!(posted.job.check.holds(tb), "a fence was passed by {number}");
        }
    }

    /// An engine has answered a command, so its result is known now.
    pub fn engine_answered(&mut self, bytes: &[u8]) {
        let tag = TAG.get(bytes);
        self.answered.insert(tag);
        let mut posted = self.queue.rings[H2C].posted.iter_mut();
        let posted = posted.find(|posted| u64::from(posted.number) == tag);
        posted.expect("answers are to what was posted").job.result = engines::result(bytes);
    }
}

/// Handles the actions of engines since the last call.
fn listen(tb: &mut Testbench, all: &mut [Traffic]) {
    for event in std::mem::take(&mut tb.log) {
        let (EngineEvent::Took { descriptor: bytes, .. }
        | EngineEvent::Answered { descriptor: bytes }) = &event;
        // Every queue set has its own card memory, which identifies its commands.
        let source = descriptor::SOURCE.get(bytes);
        let Some(traffic) = all.iter_mut().find(|traffic| traffic.queue.card == source) else {
            continue;
        };
        match &event {
            EngineEvent::Answered { .. } => traffic.engine_answered(bytes),
            EngineEvent::Took { engine, owner, .. } => {
                assert_eq!(*owner, traffic.queue.function, "a command of another function");
                traffic.engine_took(tb, *engine, bytes);
            }
        }
    }
}

/// One cycle of the testbench and of all this traffic.
pub fn cycle(tb: &mut Testbench, all: &mut [Traffic]) {
    cycle_without(tb, all, None);
}

/// One cycle, in which the driver of one function does nothing.
pub fn cycle_without(tb: &mut Testbench, all: &mut [Traffic], function: Option<u64>) {
    // The bench may have run cycles without this traffic.
    listen(tb, all);
    all.iter_mut()
        .filter(|traffic| Some(traffic.queue.function) != function)
        .for_each(|traffic| traffic.step(tb));
    tb.cycle();
    listen(tb, all);
    while let Some(vector) = tb.host.raised.pop_front() {
        for traffic in all.iter_mut() {
            traffic.interrupted |= crate::testbench::vector(traffic.queue.function) == vector;
        }
    }
}

/// Runs until all traffic is done.
pub fn finish(tb: &mut Testbench, all: &mut [Traffic]) {
    let start = tb.clock.cycles;
    while !all.iter().all(Traffic::is_done) {
        cycle(tb, all);
        assert!(tb.clock.cycles - start < 1_000_000, "wedged");
    }
}
