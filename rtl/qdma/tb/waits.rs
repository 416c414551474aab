//! Descriptors that wait for a FENCE or a count (AFTER): what a wait costs, for its own queue set,
//! for other queue sets of the same function, and for other functions. Every figure here is of
//! decision 44; the bench asserts bounds of it.

use fieldstone_fpga::regs::{C2hOp, H2cOp, MAX_FUNCTIONS, descriptor, descriptor_flag};
use fieldstone_rtl_qdma as designs;

use crate::driver::{C2H, Check, DescriptorCase, H2C, Queue, SETS};
use crate::engines::WORK;
use crate::testbench::{Testbench, Timing};

const COMPLETE: u64 = descriptor_flag::COMPLETE;
const FENCE: u64 = descriptor_flag::FENCE;
/// Cycles of a short operation, and of a long one.
const SHORT: u64 = 200;
const LONG: u64 = 20_000;
/// Cycles of one in between: longer than the time after which a starved function loses a fence.
const MIDDLE: u64 = 2_000;

/// A testbench whose engines work on one command at a time, for as long as the descriptor says.
fn testbench(seed: u64) -> Testbench {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(seed), SETS);
    tb.engines.iter_mut().for_each(|engine| engine.serial = true);
    tb
}

fn nop(flags: u64) -> DescriptorCase {
    DescriptorCase::new(H2cOp::Nop as u64, flags)
}

fn operation(queue: &Queue, op: H2cOp, flags: u64, cycles: u64) -> DescriptorCase {
    DescriptorCase::new(op as u64, flags).moving(queue.card, queue.card, 64).with(WORK, cycles)
}

/// A ring that is always full of one job.
struct Stream {
    queue: Queue,
    job: DescriptorCase,
    done: u64,
}

impl Stream {
    fn new(
        tb: &mut Testbench,
        function: u64,
        set: u64,
        job: impl FnOnce(&Queue) -> DescriptorCase,
    ) -> Self {
        let mut queue = Queue::new(function, set, [5, 2, 6]);
        queue.enable(tb, false);
        let job = job(&queue);
        Self { queue, job, done: 0 }
    }

    /// Operations behind fences.
    fn of_operations(tb: &mut Testbench, function: u64, set: u64, op: H2cOp, cycles: u64) -> Self {
        Self::new(tb, function, set, |queue| operation(queue, op, COMPLETE | FENCE, cycles))
    }

    fn step(&mut self, tb: &mut Testbench) {
        let before = self.done;
        while self.queue.poll(tb).is_some() {
            self.done += 1;
        }
        if self.done != before {
            self.queue.consumed(tb);
        }
        if self.queue.free(H2C) >= 8 {
            while self.queue.free(H2C) > 0 {
                self.queue.post(tb, H2C, vec![self.job.clone()]);
            }
            self.queue.ring(tb, H2C);
        }
    }
}

fn run(tb: &mut Testbench, streams: &mut [Stream], cycles: u64) {
    for _ in 0..cycles {
        streams.iter_mut().for_each(|stream| stream.step(tb));
        tb.cycle();
    }
}

/// Cycles and fetches per descriptor of a function whose rings are always full.
fn cost(tb: &mut Testbench, streams: &mut [Stream], function: u64, cycles: u64) -> (f64, f64) {
    run(tb, streams, 5000);
    let done = |streams: &[Stream]| {
        let own = streams.iter().filter(|stream| stream.queue.function == function);
        own.map(|stream| stream.done).sum::<u64>()
    };
    let (before, reads) = (done(streams), tb.host.descriptor_reads[function as usize]);
    run(tb, streams, cycles);
    let count = (done(streams) - before) as f64;
    let fetches = (tb.host.descriptor_reads[function as usize] - reads) as f64;
    (cycles as f64 / count, fetches / count)
}

#[test]
fn an_operation_behind_a_fence_is_fetched_once() {
    for (sets, most_cycles, most_fetches) in [(1, 235.0, 1.05), (2, 210.0, 1.05), (4, 210.0, 1.05)]
    {
        let mut tb = testbench(51);
        let mut streams: Vec<Stream> = (0..sets)
            .map(|set| Stream::of_operations(&mut tb, 1, set, H2cOp::Code, SHORT))
            .collect();
        let (cycles, fetches) = cost(&mut tb, &mut streams, 1, 100_000);
        println!("{sets} sets, operations of {SHORT}: {cycles:.0} cycles, {fetches:.2} fetches");
        assert!(cycles < most_cycles && fetches < most_fetches, "{sets} queue sets");
    }
}

/// Three queue sets of a function have an engine each. Together they want more slots than the
/// function has: each keeps a descriptor that waits, and those behind it.
#[test]
fn fences_of_three_engines_are_seldom_evicted() {
    let mut tb = testbench(57);
    let ops = [H2cOp::Code, H2cOp::Checksum, H2cOp::Place];
    let mut streams: Vec<Stream> = (0..)
        .zip(ops)
        .map(|(set, op)| Stream::of_operations(&mut tb, 1, set, op, MIDDLE))
        .collect();
    let (cycles, fetches) = cost(&mut tb, &mut streams, 1, 300_000);
    println!("3 sets, an engine each, operations of {MIDDLE}: {cycles:.0} cycles, {fetches:.2}");
    // 667 if the engines never wait, and 743 and 4.6 if a ring that waits fetches as far ahead as
    // one that does not.
    assert!(cycles < 720.0 && fetches < 2.6, "{cycles} cycles, {fetches} fetches");
}

#[test]
fn a_nop_behind_a_fence_is_fetched_once() {
    for (sets, most_cycles) in [(1, 90.0), (4, 60.0)] {
        let mut tb = testbench(52);
        let mut streams: Vec<Stream> =
            (0..sets).map(|set| Stream::new(&mut tb, 1, set, |_| nop(COMPLETE | FENCE))).collect();
        let (cycles, fetches) = cost(&mut tb, &mut streams, 1, 100_000);
        println!("{sets} sets, NOPs behind fences: {cycles:.1} cycles, {fetches:.2} fetches");
        assert!(cycles < most_cycles && fetches < 1.2, "{sets} queue sets");
    }
}

/// Fifteen tenants have their rings full of operations behind fences. The other one's NOPs need
/// none of their engines: they share the events and the fetches.
#[test]
fn waits_of_others_cost_few_events() {
    let others = (0..MAX_FUNCTIONS as u64).filter(|&function| function != 3);
    for (name, ops, most) in [
        ("operations of an engine", &[H2cOp::Code][..], 46.0),
        ("operations of three engines", &[H2cOp::Code, H2cOp::Checksum, H2cOp::Place][..], 70.0),
        ("NOPs", &[H2cOp::Nop][..], 430.0),
    ] {
        let mut tb = testbench(53);
        let mut streams: Vec<Stream> = others
            .clone()
            .map(|function| match ops[function as usize % ops.len()] {
                H2cOp::Nop => Stream::new(&mut tb, function, 0, |_| nop(COMPLETE | FENCE)),
                op => Stream::of_operations(&mut tb, function, 0, op, SHORT),
            })
            .collect();
        streams.push(Stream::new(&mut tb, 3, 0, |_| nop(COMPLETE)));
        let (cycles, fetches) = cost(&mut tb, &mut streams, 3, 100_000);
        println!("NOPs beside {name} of 15 tenants: {cycles:.1} cycles, {fetches:.2} fetches");
        // One NOP after the other.
        let mut victim = streams.pop().expect("the victim");
        while !victim.queue.rings[H2C].posted.is_empty() {
            run(&mut tb, &mut streams, 1);
            if victim.queue.poll(&tb).is_some() {
                victim.queue.consumed(&mut tb);
            }
        }
        let start = tb.clock.cycles;
        for _ in 0..50 {
            victim.queue.post(&mut tb, H2C, vec![nop(COMPLETE)]);
            victim.queue.ring(&mut tb, H2C);
            while victim.queue.poll(&tb).is_none() {
                run(&mut tb, &mut streams, 1);
            }
            victim.queue.consumed(&mut tb);
        }
        let latency = (tb.clock.cycles - start) / 50;
        println!("NOP by NOP beside {name} of 15 tenants: {latency} cycles");
        assert!(cycles < most, "{cycles} cycles");
    }
}

/// A job as the driver makes it (rs:4+2, elements of 4 KiB): four copies to the card, the operation
/// behind them, the checksums behind that, and three copies back.
fn post_job(tb: &mut Testbench, queue: &mut Queue) {
    let (host, card) = (queue.host, queue.card);
    for i in 0..4 {
        let there = DescriptorCase::new(H2cOp::Copy as u64, 0).moving(
            host + i * 4096,
            card + i * 4096,
            4096,
        );
        queue.post(tb, H2C, vec![there]);
    }
    for (op, cycles) in [(H2cOp::Code, SHORT), (H2cOp::Checksum, 128)] {
        let job = operation(queue, op, COMPLETE | FENCE, cycles);
        queue.post(tb, H2C, vec![job]);
    }
    let after = queue.rings[H2C].count;
    for i in 0..3 {
        let flags = if i == 2 { COMPLETE } else { 0 };
        let length = if i == 2 { 64 } else { 4096 };
        let back = DescriptorCase::new(C2hOp::Copy as u64, flags)
            .moving(card + i * 4096, host + (8 + i) * 4096, length)
            .with(descriptor::AFTER, after.into())
            .expect(0, length, Check::Nothing);
        queue.post(tb, C2H, vec![back]);
    }
    queue.ring(tb, C2H);
    queue.ring(tb, H2C);
}

/// Cycles and fetches per job of some queue sets that have so many jobs under way each.
fn job_cost(sets: u64, depth: u64) -> (u64, f64) {
    let mut tb = testbench(54);
    let mut queues: Vec<(Queue, u64, u64)> = (0..sets)
        .map(|set| {
            let mut queue = Queue::new(1, set, [6, 6, 6]);
            queue.enable(&mut tb, false);
            (queue, 0, 0)
        })
        .collect();
    let mut start = (0, 0);
    const WARM: u64 = 20;
    const JOBS: u64 = 100;
    loop {
        for (queue, posted, done) in &mut queues {
            while *posted - *done < depth {
                post_job(&mut tb, queue);
                *posted += 1;
            }
            let mut read = false;
            while let Some(completion) = queue.poll(&tb) {
                *done += u64::from(completion.ring == C2H);
                read = true;
            }
            if read {
                queue.consumed(&mut tb);
            }
        }
        let done: u64 = queues.iter().map(|queue| queue.2).sum();
        if done >= WARM && start.0 == 0 {
            start = (tb.clock.cycles, tb.host.descriptor_reads[1]);
        }
        if done >= WARM + JOBS {
            break;
        }
        tb.cycle();
    }
    let fetches = (tb.host.descriptor_reads[1] - start.1) as f64 / JOBS as f64;
    ((tb.clock.cycles - start.0) / JOBS, fetches)
}

#[test]
fn a_job_of_the_driver_is_fetched_once() {
    for (sets, depth, most_cycles, most_fetches) in
        [(1, 1, 1900, 9.05), (1, 4, 900, 15.2), (4, 1, 580, 12.6), (4, 4, 440, 11.5)]
    {
        let (cycles, fetches) = job_cost(sets, depth);
        println!("{sets} sets with {depth} jobs each: {cycles} cycles, {fetches:.1} fetches");
        assert!(cycles < most_cycles && fetches < most_fetches, "{sets} sets, {depth} jobs");
    }
}

/// Other queue sets of the function have its slots full of descriptors that wait for long
/// operations. A queue set beside them gets its slots back, however busy other functions are.
#[test]
fn a_queue_set_beside_others_that_wait_gets_slots() {
    for others in [0, 6] {
        let mut tb = testbench(55);
        let mut streams: Vec<Stream> =
            (0..3).map(|set| Stream::of_operations(&mut tb, 1, set, H2cOp::Code, LONG)).collect();
        for function in 4..4 + others {
            streams.push(Stream::new(&mut tb, function, 0, |_| nop(COMPLETE)));
        }
        let mut sister = Queue::new(1, 3, [2, 2, 2]);
        sister.enable(&mut tb, false);
        run(&mut tb, &mut streams, 3000);
        let mut worst = 0;
        for _ in 0..40 {
            sister.post(&mut tb, H2C, vec![nop(COMPLETE)]);
            sister.ring(&mut tb, H2C);
            let start = tb.clock.cycles;
            while sister.poll(&tb).is_none() {
                run(&mut tb, &mut streams, 1);
            }
            sister.consumed(&mut tb);
            worst = worst.max(tb.clock.cycles - start);
            run(&mut tb, &mut streams, 700);
        }
        println!("a NOP beside three sets that wait, {others} tenants at work: {worst} cycles");
        assert!(worst < 2500, "{worst} cycles");
    }
}

/// What waits for counts that never come costs the other rings of the function nothing.
#[test]
fn counts_that_never_come_hold_nothing() {
    let mut rates = Vec::new();
    for waits in [false, true] {
        let mut tb = testbench(56);
        let mut streams: Vec<Stream> =
            (0..2).map(|set| Stream::new(&mut tb, 1, set, |_| nop(COMPLETE))).collect();
        for set in 2..SETS {
            let mut queue = Queue::new(1, set, [0, 3, 4]);
            queue.enable(&mut tb, false);
            for _ in 0..8 {
                let never = DescriptorCase::new(C2hOp::Nop as u64, COMPLETE);
                queue.post(&mut tb, C2H, vec![never.with(descriptor::AFTER, 1 << 30)]);
            }
            if waits {
                queue.ring(&mut tb, C2H);
            }
        }
        tb.cycles(2000);
        rates.push(cost(&mut tb, &mut streams, 1, 50_000).0);
    }
    println!("NOPs, and NOPs beside two rings that wait forever: {rates:.1?} cycles");
    assert!(rates[1] < rates[0] * 1.05, "{rates:?}");
}
