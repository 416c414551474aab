//! Fairness: a victim works beside a tenant who does everything that docs/threat-model.md lets a
//! tenant do. For each offence, the bench measures the victim's latencies and its share, and
//! asserts bounds of both.
//!
//! The victim does one job after the other, as a driver with a queue depth of one: a copy of 4 KiB
//! to the card, an operation of an engine behind it, and a copy of 4 KiB back. A latency is from
//! the doorbells to the last completion. The *share* is the time that a job takes alone, divided by
//! the time that it takes here, on average.
//!
//! Engines work as the real ones do, on one command at a time. Operations that are "as long as
//! allowed" take [`LONG`] cycles here instead of MAX_OPERATION_CYCLES, or the bench would take
//! hours.

use fieldstone_fpga::regs::{
    C2hOp, H2cOp, QueueCommand, Status, descriptor, descriptor_flag, function_table, queue,
};
use fieldstone_rtl_qdma as designs;
use fieldstone_verilate::Design;

use crate::driver::{C2H, Check, DescriptorCase, H2C, Queue, SETS};
use crate::engines::WORK;
use crate::testbench::{Testbench, Timing};

const COMPLETE: u64 = descriptor_flag::COMPLETE;
const VICTIM: u64 = 3;
/// Cycles of the victim's operation.
const SHORT: u64 = 200;
/// Cycles of the longest operation.
const LONG: u64 = 400_000;
/// Cycles of a register access, the events of a descriptor and the like, that no bound counts one
/// by one.
const SLACK: u64 = 2000;
/// Most cycles of one measurement.
const MAX_CYCLES: u64 = 4_000_000;
/// Register accesses of an offender on their way: posted writes beyond that wait in the host.
const MAX_ACCESSES: usize = 32;

/// An offence: what the offenders do in one cycle.
type Offence = Box<dyn FnMut(&mut Testbench)>;

/// The victim's driver.
struct Victim {
    queue: Queue,
    begun_at: u64,
    latencies: Vec<u64>,
}

impl Victim {
    fn new(tb: &mut Testbench) -> Self {
        let mut queue = Queue::new(VICTIM, 0, [3, 2, 4]);
        queue.enable(tb, false);
        let mut victim = Self { queue, begun_at: 0, latencies: Vec::new() };
        victim.begin(tb);
        victim
    }

    fn begin(&mut self, tb: &mut Testbench) {
        let (host, card) = (self.queue.host, self.queue.card);
        let there = DescriptorCase::new(H2cOp::Copy as u64, 0).moving(host, card, 4096);
        self.queue.post(tb, H2C, vec![there]);
        let work = DescriptorCase::new(H2cOp::Code as u64, COMPLETE | descriptor_flag::FENCE)
            .moving(card, 0, 64)
            .with(WORK, SHORT);
        self.queue.post(tb, H2C, vec![work]);
        let after = self.queue.rings[H2C].count;
        let back = DescriptorCase::new(C2hOp::Copy as u64, COMPLETE)
            .moving(card, host + 0x2000, 4096)
            .with(descriptor::AFTER, after.into())
            .expect(0, 4096, Check::Nothing);
        self.queue.post(tb, C2H, vec![back]);
        self.queue.ring(tb, C2H);
        self.queue.ring(tb, H2C);
        self.begun_at = tb.clock.cycles;
    }

    fn step(&mut self, tb: &mut Testbench) {
        while let Some(completion) = self.queue.poll(tb) {
            assert_eq!(completion.status, Status::Ok as u64);
            if completion.ring == C2H {
                self.queue.consumed(tb);
                self.latencies.push(tb.clock.cycles - self.begun_at);
                self.begin(tb);
            }
        }
    }
}

/// What the victim got.
#[derive(Clone, Copy, Debug)]
struct Measured {
    p50: u64,
    p99: u64,
    max: u64,
    share: f64,
}

/// Cycles of a job without offenders.
fn alone(design: &'static Design) -> u64 {
    measured(design, 100, "alone", |_| Box::new(|_| ())).p50
}

/// Measures `count` jobs of the victim, beside the offence that `prepare` sets up; fewer if they
/// take too long, but at least the first.
fn measured(
    design: &'static Design,
    count: usize,
    name: &str,
    prepare: impl FnOnce(&mut Testbench) -> Offence,
) -> Measured {
    let mut tb = Testbench::new(design, Timing::constant(1), SETS);
    tb.engines.iter_mut().for_each(|engine| engine.serial = true);
    let mut offence = prepare(&mut tb);
    // The offenders are at work before the victim comes.
    for _ in 0..3000 {
        offence(&mut tb);
        tb.cycle();
    }
    let mut victim = Victim::new(&mut tb);
    let start = tb.clock.cycles;
    while victim.latencies.len() < count && tb.clock.cycles - start < MAX_CYCLES {
        offence(&mut tb);
        victim.step(&mut tb);
        tb.cycle();
    }
    // A job that is still waiting counts with the time that it has waited.
    if victim.latencies.len() < count {
        victim.latencies.push(tb.clock.cycles - victim.begun_at);
    }
    let mut sorted = victim.latencies.clone();
    sorted.sort_unstable();
    let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
    let average = sorted.iter().sum::<u64>() as f64 / sorted.len() as f64;
    let (p50, p99, max) = (at(50), at(99), sorted[sorted.len() - 1]);
    let measured = Measured { p50, p99, max, share: ALONE as f64 / average };
    println!(
        "{name}: {} jobs, p50 {p50}, p99 {p99}, max {max} cycles, share {:.3}",
        sorted.len(),
        measured.share
    );
    measured
}

/// Cycles of the victim's job alone: the bench asserts that they are about so many.
const ALONE: u64 = 1355;

/// Keeps a ring of a queue set full of the same descriptor.
struct Flood {
    queue: Queue,
    ring: usize,
    job: DescriptorCase,
}

impl Flood {
    fn new(tb: &mut Testbench, function: u64, set: u64, ring: usize, job: DescriptorCase) -> Self {
        let mut queue = Queue::new(function, set, [4, 4, 5]);
        queue.enable(tb, false);
        Self { queue, ring, job }
    }

    /// Operations of the engine that the victim uses, of so many cycles each.
    fn of_operations(tb: &mut Testbench, function: u64, set: u64, cycles: u64) -> Self {
        let card = Queue::new(function, set, [0; 3]).card;
        let job = DescriptorCase::new(H2cOp::Code as u64, COMPLETE)
            .moving(card, 0, 64)
            .with(WORK, cycles);
        Self::new(tb, function, set, H2C, job)
    }

    /// Copies of so many bytes.
    fn of_copies(tb: &mut Testbench, function: u64, set: u64, ring: usize, length: u64) -> Self {
        let Queue { host, card, .. } = Queue::new(function, set, [0; 3]);
        let job = match ring {
            H2C => DescriptorCase::new(H2cOp::Copy as u64, COMPLETE).moving(host, card, length),
            _ => DescriptorCase::new(C2hOp::Copy as u64, COMPLETE).moving(card, host, length),
        };
        Self::new(tb, function, set, ring, job.expect(0, length, Check::Nothing))
    }

    fn step(&mut self, tb: &mut Testbench) {
        let mut moved = false;
        while self.queue.poll(tb).is_some() {
            moved = true;
        }
        if moved {
            self.queue.consumed(tb);
        }
        if self.queue.free(self.ring) > 0 {
            while self.queue.free(self.ring) > 0 {
                self.queue.post(tb, self.ring, vec![self.job.clone()]);
            }
            self.queue.ring(tb, self.ring);
        }
    }
}

/// All functions but the victim's.
fn others() -> impl Iterator<Item = u64> {
    (0..16).filter(|&function| function != VICTIM)
}

/// Sends an access in every cycle in which the link has room for it.
fn storm(mut access: impl FnMut(&mut Testbench) + 'static) -> Offence {
    Box::new(move |tb| {
        while tb.host.accesses() < MAX_ACCESSES {
            access(tb);
        }
    })
}

#[test]
fn alone_the_victim_has_all() {
    let cycles = alone(&designs::QDMA);
    assert!((ALONE * 9 / 10..ALONE * 11 / 10).contains(&cycles), "{cycles} cycles");
}

/// One tenant fills all its slots with operations that are as long as allowed. The victim has the
/// engine for as long as the tenant has: it waits for one operation, then works undisturbed until
/// it has had as much.
#[test]
fn operations_as_long_as_allowed_cost_half_of_the_time() {
    let got = measured(&designs::QDMA, 880, "16 long operations of one tenant", |tb| {
        let mut flood = Flood::of_operations(tb, 1, 0, LONG);
        Box::new(move |tb| flood.step(tb))
    });
    assert!(got.max < LONG + ALONE + SLACK, "{got:?}");
    assert!(got.p99 < 2 * ALONE, "{got:?}");
    assert!(got.share > 0.45, "{got:?}");
}

/// All other tenants do the same.
#[test]
fn long_operations_of_all_others_cost_their_share() {
    let long = LONG / 8;
    let got = measured(&designs::QDMA, 60, "long operations of 15 tenants", |tb| {
        let floods = others().map(|function| Flood::of_operations(tb, function, 0, long));
        let mut floods: Vec<Flood> = floods.collect();
        Box::new(move |tb| floods.iter_mut().for_each(|flood| flood.step(tb)))
    });
    assert!(got.max < 15 * (long + 100) + ALONE + SLACK, "{got:?}");
    assert!(got.share > 0.6 / 16.0, "{got:?}");
}

/// All other tenants have their slots full of short operations: a turn each comes before the
/// victim's.
#[test]
fn many_short_operations_cost_a_turn_each() {
    let got = measured(&designs::QDMA, 300, "short operations of 15 tenants", |tb| {
        let floods = others().map(|function| Flood::of_operations(tb, function, 0, SHORT));
        let mut floods: Vec<Flood> = floods.collect();
        Box::new(move |tb| floods.iter_mut().for_each(|flood| flood.step(tb)))
    });
    assert!(got.max < 16 * (SHORT + 20) + ALONE + SLACK, "{got:?}");
    assert!(got.p99 < 16 * (SHORT + 20) + ALONE + SLACK / 2, "{got:?}");
    assert!(got.share > 0.35, "{got:?}");
}

/// One tenant keeps 16 copies at work in each direction. They count as one, because the copies of a
/// function share its turn.
#[test]
fn many_copies_of_one_tenant_cost_as_much_as_one() {
    let got = measured(&designs::QDMA, 300, "32 long copies of one tenant", |tb| {
        let mut there = Flood::of_copies(tb, 1, 0, H2C, 32 << 10);
        let mut back = Flood::of_copies(tb, 1, 1, C2H, 32 << 10);
        Box::new(move |tb| {
            there.step(tb);
            back.step(tb);
        })
    });
    // What the offender has in flight comes first: 512 beats of the reorder buffer, and as many
    // that were read from the card.
    assert!(got.p99 < ALONE + 1900, "{got:?}");
    assert!(got.share > 0.53, "{got:?}");
}

/// A tenant enables and resets five hundred queue sets, again and again.
#[test]
fn enables_and_resets_without_end_cost_the_link_alone() {
    const MANY: u64 = 500;
    let got = measured(&designs::QDMA_2048, 200, "500 ENABLEs and RESETs", |tb| {
        let queues =
            function_table::QUEUES_FIRST.with(1024) | function_table::QUEUES_COUNT.with(MANY);
        let entry = function_table::BASE + function_table::STRIDE;
        tb.write(0, entry + function_table::QUEUES, queues);
        let mut number = 0;
        storm(move |tb| {
            let mut queue = Queue::new(1, 0, [2, 2, 2]);
            queue.number = number % MANY;
            if (number / MANY).is_multiple_of(2) {
                queue.start_enable(tb, &queue.context_bytes(false));
            } else {
                let reset = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
                tb.write(1, queue.register(queue::CONTROL), reset);
            }
            number += 1;
        })
    });
    // Accesses of all tenants come over one link, in order: the victim's doorbells wait for those
    // that were sent before.
    assert!(got.p99 < ALONE + 2 * 20 * MAX_ACCESSES as u64 + 600, "{got:?}");
    assert!(got.share > 0.55, "{got:?}");
}

/// A tenant rings a doorbell as fast as the link carries it. Each is an event of its queue set, and
/// takes turns with the events of descriptors.
#[test]
fn doorbells_without_end_cost_the_link_alone() {
    let got = measured(&designs::QDMA, 300, "doorbells without end", |tb| {
        let mut queue = Queue::new(1, 0, [2, 2, 2]);
        queue.enable(tb, false);
        storm(move |tb| queue.ring(tb, H2C))
    });
    assert!(got.p99 < ALONE + 2 * 20 * MAX_ACCESSES as u64 + 600, "{got:?}");
    assert!(got.share > 0.55, "{got:?}");
}

/// What a function under reset does, again and again: work, reset.
struct ResetStorm {
    flood: Flood,
    /// Cycle of the next step.
    next: u64,
    is_held: bool,
    held_at: u64,
    /// Cycles that the resets took.
    took: Vec<u64>,
}

impl ResetStorm {
    fn new(tb: &mut Testbench, function: u64, cycles: u64) -> Self {
        let flood = Flood::of_operations(tb, function, 0, cycles);
        Self { flood, next: 0, is_held: false, held_at: 0, took: Vec::new() }
    }

    /// Posts 16 operations, holds a reset a while later, ends it when it is done, and enables the
    /// queue set again. Returns whether the reset is held.
    fn step(&mut self, tb: &mut Testbench, works_for: u64) -> bool {
        let function = self.flood.queue.function;
        let now = tb.clock.cycles;
        if self.is_held {
            if tb.resets_done() >> function & 1 == 1 {
                self.took.push(now - self.held_at);
                self.is_held = false;
                let set = self.flood.queue.number;
                self.flood.queue = Queue::new(function, set, [4, 4, 5]);
                let queue = &self.flood.queue;
                let cq = queue.cq_base as usize;
                tb.host.bytes[cq..cq + (32 << queue.cq_log2)].fill(0);
                self.next = now + 2 + works_for;
            }
        } else if now + works_for == self.next {
            // The reset has ended in the device, too.
            let queue = &self.flood.queue;
            queue.start_enable(tb, &queue.context_bytes(false));
        } else if now >= self.next {
            (self.is_held, self.held_at) = (true, now);
        } else if now + works_for > self.next + 1000 {
            self.flood.step(tb);
        }
        self.is_held
    }
}

/// A tenant resets its function again and again, in the middle of its work.
#[test]
fn resets_of_a_function_without_end_cost_a_turn() {
    let got = measured(&designs::QDMA, 300, "resets of a function without end", |tb| {
        let mut storm = ResetStorm::new(tb, 1, SHORT);
        Box::new(move |tb| {
            let held = storm.step(tb, 4000);
            tb.hold_resets(u64::from(held) << 1);
        })
    });
    assert!(got.p99 < ALONE + 2 * SHORT + 400, "{got:?}");
    assert!(got.share > 0.8, "{got:?}");
}

/// A tenant's function is reset while a long operation of it runs: the reset polls until that ends,
/// and another tenant's descriptors take turns with the polls. Doorbells come on top.
#[test]
fn a_reset_that_waits_costs_no_events_of_others() {
    let got = measured(&designs::QDMA, 300, "a reset that waits, and doorbells", |tb| {
        let card = Queue::new(1, 0, [0; 3]).card;
        let job = DescriptorCase::new(H2cOp::Checksum as u64, COMPLETE)
            .moving(card, card, 64)
            .with(WORK, 2 * MAX_CYCLES);
        let mut flood = Flood::new(tb, 1, 0, H2C, job);
        flood.step(tb);
        tb.cycles(2000);
        tb.hold_resets(1 << 1);
        let mut queue = Queue::new(2, 0, [2, 2, 2]);
        queue.enable(tb, false);
        storm(move |tb| queue.ring(tb, H2C))
    });
    assert!(got.p99 < ALONE + 2 * 20 * MAX_ACCESSES as u64 + 600, "{got:?}");
    assert!(got.share > 0.5, "{got:?}");
}

/// The reset of a function waits for its operation in the engine, and for nobody else's: those that
/// have not begun leave at once.
#[test]
fn a_reset_of_a_function_waits_for_no_other_tenant() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(2), SETS);
    tb.engines.iter_mut().for_each(|engine| engine.serial = true);
    let mut floods: Vec<Flood> =
        [1, 2, 4, 7].map(|function| Flood::of_operations(&mut tb, function, 0, LONG / 8)).into();
    let mut took = Vec::new();
    for round in 0..3 {
        let mut own = Flood::of_operations(&mut tb, 5, 0, LONG / 8);
        for _ in 0..5000 + 20_000 * round {
            floods.iter_mut().for_each(|flood| flood.step(&mut tb));
            own.step(&mut tb);
            tb.cycle();
        }
        tb.hold_resets(1 << 5);
        let start = tb.clock.cycles;
        while tb.resets_done() == 0 && tb.clock.cycles - start < MAX_CYCLES {
            floods.iter_mut().for_each(|flood| flood.step(&mut tb));
            tb.cycle();
        }
        took.push(tb.clock.cycles - start);
        tb.hold_resets(0);
        tb.cycles(10);
    }
    println!("resets of a function with 16 operations, beside 64 of others: {took:?} cycles");
    assert!(took.iter().all(|&cycles| cycles < LONG / 8 + SLACK), "{took:?}");
}
