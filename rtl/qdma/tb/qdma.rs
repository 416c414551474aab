//! Benches of the queue engine: registers, random traffic, interrupts, throughput, fairness, fault
//! injection.
#![cfg(feature = "verilator")]

mod bits;
mod driver;
mod engines;
mod fairness;
mod fault_injection;
mod host;
mod memory;
mod pcie;
mod resets;
mod testbench;
mod traffic;
mod waits;
mod waits_end;

use driver::{C2H, Check, DescriptorCase, H2C, Queue, SETS};
use fieldstone_fpga::regs::{
    C2hOp, H2cOp, IDENTIFICATION, MAX_FUNCTIONS, QueueState, VERSION, descriptor, descriptor_flag,
    function_table, queue, register,
};
use fieldstone_rtl_qdma as designs;
use rand::Rng;
use testbench::{Testbench, Timing};
use traffic::Traffic;

/// Random traffic of some queue sets of some functions.
fn traffic_of(tb: &mut Testbench, sets: &[(u64, u64)], rounds: u32) -> Vec<Traffic> {
    sets.iter()
        .map(|&(function, number)| {
            let log2s = [
                tb.rng.random_range(0..=5),
                tb.rng.random_range(0..=5),
                tb.rng.random_range(0..=6),
            ];
            let mut queue = Queue::new(function, number, log2s);
            queue.enable(tb, false);
            Traffic::new(queue, rounds)
        })
        .collect()
}

#[test]
fn random_traffic_of_many_queue_sets_is_done_right() {
    for (seed, stall) in [(1, 0.0), (2, 0.3), (3, 0.6)] {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, stall), SETS);
        let sets: Vec<(u64, u64)> =
            (0..MAX_FUNCTIONS as u64).flat_map(|f| (0..=f % 3).map(move |q| (f, q))).collect();
        let mut all = traffic_of(&mut tb, &sets, 25);
        traffic::finish(&mut tb, &mut all);
        tb.cycles(1000);
        assert!(tb.is_idle());
        for function in 0..MAX_FUNCTIONS as u64 {
            assert_eq!(tb.take_errors(function), 0);
        }
        assert_eq!(tb.read(0, register::FAULTS), 0);
        for traffic in &all {
            assert_eq!(traffic.queue.control(&mut tb), (QueueState::Enabled as u64, 0));
        }
    }
}

#[test]
fn a_function_that_runs_out_of_slots_goes_on() {
    for seed in [4, 5] {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.1), SETS);
        tb.engines.iter_mut().for_each(|engine| engine.slowness = 3000);
        let sets: Vec<(u64, u64)> = (0..SETS).flat_map(|set| [(2, set), (14, set)]).collect();
        let mut all = traffic_of(&mut tb, &sets, 100);
        traffic::finish(&mut tb, &mut all);
    }
}

#[test]
fn completions_are_found_by_interrupts_alone() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(11, 0.2), SETS);
    let mut all: Vec<Traffic> = [(0, 0), (3, 1), (3, 2), (15, 3)]
        .into_iter()
        .map(|(function, number)| {
            let mut queue = Queue::new(function, number, [3, 3, 4]);
            queue.enable(&mut tb, true);
            let mut traffic = Traffic::new(queue, 40);
            traffic.by_interrupt = true;
            traffic
        })
        .collect();
    traffic::finish(&mut tb, &mut all);
}

#[test]
fn queue_sets_without_interrupts_raise_none() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(12, 0.0), SETS);
    let mut queue = Queue::new(4, 0, [2, 2, 2]);
    queue.enable(&mut tb, false);
    let flags = descriptor_flag::COMPLETE | descriptor_flag::INTERRUPT;
    queue.run(&mut tb, H2C, DescriptorCase::new(H2cOp::Nop as u64, flags));
    tb.cycles(200);
    assert!(tb.host.raised.is_empty());
    queue.reset(&mut tb);
    queue.enable(&mut tb, true);
    queue.run(&mut tb, H2C, DescriptorCase::new(H2cOp::Nop as u64, descriptor_flag::COMPLETE));
    tb.cycles(200);
    assert!(tb.host.raised.is_empty());
    queue.run(&mut tb, H2C, DescriptorCase::new(H2cOp::Nop as u64, flags));
    tb.cycles(200);
    assert_eq!(tb.host.raised.pop_front(), Some(testbench::vector(4)));
}

/// Beats per cycle from the cycle of the first beat to that of the last.
fn rate(written_at: &[u64], beats: usize) -> f64 {
    let data = &written_at[written_at.len() - beats..];
    beats as f64 / (data[beats - 1] - data[0] + 1) as f64
}

#[test]
fn a_long_copy_moves_a_beat_a_cycle() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(21), SETS);
    let mut queue = Queue::new(1, 0, [3, 3, 3]);
    queue.enable(&mut tb, false);
    let length = 400 << 10;
    let (host, card) = (queue.host, queue.card);
    let bytes: Vec<u8> = (0..length).map(|_| tb.rng.random()).collect();
    tb.host.bytes[host as usize..][..bytes.len()].copy_from_slice(&bytes);
    let there = DescriptorCase::new(H2cOp::Copy as u64, descriptor_flag::COMPLETE)
        .moving(host, card, length)
        .expect(0, length, Check::Card(card, bytes.clone()));
    let completion = queue.run(&mut tb, H2C, there);
    let beats = length as usize / 64;
    let h2c = rate(&tb.card.written_at, beats);
    println!("H2C: {h2c:.3} beats per cycle, {} cycles in all", completion.cycles);
    println!("host reads in flight: {}", tb.host.most_in_flight);
    assert!(h2c >= 0.9);
    assert!(completion.cycles < beats as u64 * 10 / 9 + 1000);

    let before = tb.host.written_at.len();
    let back = host + (500 << 10);
    let job = DescriptorCase::new(C2hOp::Copy as u64, descriptor_flag::COMPLETE)
        .moving(card, back, length)
        .expect(0, length, Check::Host(back, bytes));
    let completion = queue.run(&mut tb, C2H, job);
    let c2h = rate(&tb.host.written_at[before..before + beats], beats);
    println!("C2H: {c2h:.3} beats per cycle, {} cycles in all", completion.cycles);
    assert!(c2h >= 0.9);
    assert!(completion.cycles < beats as u64 * 10 / 9 + 1000);
}

#[test]
fn one_ring_of_short_copies_is_fetched_ahead() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(22), SETS);
    let mut queue = Queue::new(1, 0, [5, 0, 5]);
    queue.enable(&mut tb, false);
    for i in 0..32 {
        let flags = if i == 31 { descriptor_flag::COMPLETE } else { 0 };
        let job =
            DescriptorCase::new(H2cOp::Copy as u64, flags).moving(queue.host, queue.card, 4096);
        queue.post(&mut tb, H2C, vec![job.expect(0, 4096, Check::Nothing)]);
    }
    let start = tb.clock.cycles;
    queue.ring(&mut tb, H2C);
    queue.wait(&mut tb);
    let cycles = tb.clock.cycles - start;
    println!("32 copies of 4 KiB in one ring: {cycles} cycles");
    assert!(cycles < 32 * 64 + 1000);
}

#[test]
fn a_long_copy_does_not_keep_short_ones_waiting() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(23), SETS);
    let mut long = Queue::new(1, 0, [0, 0, 0]);
    let mut short = Queue::new(2, 0, [0, 0, 0]);
    long.enable(&mut tb, false);
    short.enable(&mut tb, false);
    let copy = |queue: &Queue, length| {
        DescriptorCase::new(H2cOp::Copy as u64, descriptor_flag::COMPLETE)
            .moving(queue.host, queue.card, length)
            .expect(0, length, Check::Nothing)
    };
    let job = copy(&long, 400 << 10);
    long.post(&mut tb, H2C, vec![job]);
    long.ring(&mut tb, H2C);
    tb.cycles(1000);
    let job = copy(&short, 8192);
    let completion = short.run(&mut tb, H2C, job);
    // The bound allows for its own data, as much data of the other, and the beats before it in the
    // reorder buffer.
    assert!(completion.cycles < 2 * 128 + 512 + 600, "{} cycles", completion.cycles);
    long.wait(&mut tb);
}

#[test]
fn registers_are_what_the_map_says() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(31, 0.2), SETS);
    let status: Vec<u8> = (1..=52).collect();
    let port = tb.model.port("device_i");
    tb.model.set_bytes(port, &status);
    tb.cycle();
    // Fields of device_status_t; the last field is in the lowest bits.
    let word = |low: usize| bits::get(&status, low, 64);
    for function in [0, 7] {
        assert_eq!(tb.read(function, register::ID), IDENTIFICATION);
        assert_eq!(tb.read(function, register::VERSION), VERSION);
        assert_eq!(tb.read(function, register::FUNCTION), function | SETS << 16);
        assert_eq!(tb.read(function, register::BUILD), word(352));
    }
    assert_eq!(tb.read(0, register::DRAWS), word(0));
    assert_eq!(tb.read(0, register::CODE_BUSY), word(64));
    assert_eq!(tb.read(0, register::CARD_WRITES), word(128));
    assert_eq!(tb.read(0, register::CARD_READS), word(192));
    assert_eq!(tb.read(0, register::FAULTS), bits::get(&status, 256, 32) << 32);
    assert_eq!(tb.read(0, register::RM_STATE), word(288));
    let before = tb.read(5, register::CYCLES);
    assert!(tb.read(5, register::CYCLES) > before);

    let entry = function_table::BASE + 9 * function_table::STRIDE;
    for (offset, value, back) in [
        (function_table::HOST_BASE, 0x1234_5678_9abc_de40, 0x1234_5678_9abc_de40),
        (function_table::HOST_END, u64::MAX, u64::MAX - 63),
        (function_table::CARD_BASE, 0x1000, 0x1000),
        (function_table::CARD_END, u64::MAX, (1 << 40) - 64),
        (function_table::QUEUES, 0x00ee_0003_003c | 0x77 << 40, 0x00ee_0003_003c),
    ] {
        tb.write(0, entry + offset, value);
        assert_eq!(tb.read(0, entry + offset), back);
    }
    assert_eq!(tb.read(9, register::FUNCTION), 9 | 3 << 16);
    // If a window began within a beat, a part of the beat would belong to a neighbour.
    for (offset, stays) in
        [(function_table::HOST_BASE, 0x1234_5678_9abc_de40), (function_table::CARD_BASE, 0x1000)]
    {
        tb.write(0, entry + offset, 0x2010);
        assert_eq!(tb.read(0, entry + offset), stays);
        assert_eq!(tb.take_errors(0), register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1));
    }
    for function in 0..MAX_FUNCTIONS as u64 {
        assert_eq!(tb.take_errors(function), 0);
    }
}

#[test]
fn wrong_accesses_leave_a_bit_with_who_made_them() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(32, 0.2), SETS);
    // A function without queue sets also has a page.
    tb.write(0, function_table::BASE + 6 * function_table::STRIDE + function_table::QUEUES, 0);
    let access = register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1);
    let range = register::FUNCTION_ERRORS_DOORBELL_RANGE.with(1);
    let state = register::FUNCTION_ERRORS_DOORBELL_STATE.with(1);
    let queue = |number: u64, offset: u64| queue::BASE + number * queue::STRIDE + offset;
    let absent = QueueState::Absent as u64;
    let past = queue::BASE + queue::COUNT as u64 * queue::STRIDE;

    for (function, offset) in [
        (6, 0x30),
        (6, 0x4),
        (0, past),
        (5, register::FAULTS),
        (5, function_table::BASE),
        (0, function_table::BASE + 40),
        (0, queue(0, 4)),
    ] {
        assert_eq!(tb.read(function, offset), 0);
        assert_eq!(tb.take_errors(function), access, "{offset:#x}");
        tb.write(function, offset, 1);
        assert_eq!(tb.take_errors(function), access, "{offset:#x}");
    }
    tb.write(3, register::ID, 1);
    assert_eq!(tb.take_errors(3), access);
    tb.write(3, queue(0, queue::CONTROL), 9);
    assert_eq!(tb.take_errors(3), access);
    for (function, number) in [(6, 0), (1, SETS), (1, 2047)] {
        assert_eq!(tb.read(function, queue(number, queue::CONTROL)), absent);
        assert_eq!(tb.take_errors(function), range);
        tb.write(function, queue(number, queue::H2C_PRODUCER), 0);
        assert_eq!(tb.take_errors(function), range);
    }
    // Queue sets beyond the device's number, whatever the table says.
    let queues = function_table::QUEUES_FIRST.with(63) | function_table::QUEUES_COUNT.with(2);
    tb.write(0, function_table::BASE + 2 * function_table::STRIDE + function_table::QUEUES, queues);
    assert_eq!(tb.read(2, queue(0, queue::CONTROL)), 0);
    assert_eq!(tb.take_errors(2), 0);
    assert_eq!(tb.read(2, queue(1, queue::CONTROL)), absent);
    assert_eq!(tb.take_errors(2), range);
    // Doorbells read as zero, and need an enabled queue set.
    assert_eq!(tb.read(1, queue(0, queue::H2C_PRODUCER)), 0);
    assert_eq!(tb.take_errors(1), 0);
    for offset in [queue::H2C_PRODUCER, queue::C2H_PRODUCER, queue::CQ_CONSUMER] {
        tb.write(1, queue(3, offset), 0);
        assert_eq!(tb.take_errors(1), state);
    }
}

#[test]
fn two_thousand_queue_sets_can_be_built() {
    let mut tb = Testbench::new(&designs::QDMA_2048, Timing::random(41, 0.1), SETS);
    tb.write(0, function_table::BASE + function_table::QUEUES, 2048 << 16);
    let mut queues: Vec<Queue> = [0u64, 1023, 1024, 2047]
        .into_iter()
        .enumerate()
        .map(|(i, number)| {
            let mut queue = Queue::new(0, i as u64, [2, 2, 2]);
            queue.number = number;
            queue.enable(&mut tb, false);
            queue
        })
        .collect();
    for round in 0..20 {
        for queue in &mut queues {
            let (host, card) = (queue.host, queue.card);
            let bytes: Vec<u8> = (0..500).map(|_| tb.rng.random()).collect();
            tb.host.bytes[host as usize..][..500].copy_from_slice(&bytes);
            let flags = descriptor_flag::COMPLETE;
            let there = DescriptorCase::new(H2cOp::Copy as u64, flags).moving(host, card, 500);
            queue.post(&mut tb, H2C, vec![there.expect(0, 500, Check::Nothing)]);
            let back = DescriptorCase::new(C2hOp::Copy as u64, flags)
                .moving(card, host + 0x1000, 500)
                .with(descriptor::AFTER, round + 1)
                .expect(0, 500, Check::Host(host + 0x1000, bytes));
            queue.post(&mut tb, C2H, vec![back]);
            queue.ring(&mut tb, C2H);
            queue.ring(&mut tb, H2C);
        }
        for queue in &mut queues {
            queue.wait(&mut tb);
            queue.wait(&mut tb);
        }
    }
}
