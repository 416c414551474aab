//! What descriptors that wait for a FENCE or a count (AFTER) leave behind: nothing. A reset, an
//! error and the needs of other rings take their slots and their places of the completion ring.

use fieldstone_fpga::regs::{
    C2hOp, FUNCTION_JOBS, H2cOp, QueueCommand, QueueState, Status, descriptor, descriptor_flag,
    function_table, queue, register,
};
use fieldstone_rtl_qdma as designs;
use rand::Rng;

use crate::driver::{C2H, Check, DescriptorCase, H2C, Queue, SETS};
use crate::engines::FAIL_AT;
use crate::testbench::{HOST_WINDOW, Testbench, Timing, vector};
use crate::traffic::{self, Traffic};

const COMPLETE: u64 = descriptor_flag::COMPLETE;
const FENCE: u64 = descriptor_flag::FENCE;
const FUNCTION: u64 = 5;

fn nop(flags: u64) -> DescriptorCase {
    DescriptorCase::new(H2cOp::Nop as u64, flags)
}

fn code(queue: &Queue, flags: u64) -> DescriptorCase {
    DescriptorCase::new(H2cOp::Code as u64, flags).moving(queue.card, 0, 64)
}

fn copy_after(queue: &Queue, count: u64) -> DescriptorCase {
    DescriptorCase::new(C2hOp::Copy as u64, COMPLETE)
        .moving(queue.card, queue.host, 4096)
        .with(descriptor::AFTER, count)
}

/// An operation in the engine that does not end, and behind it descriptors that wait in both rings.
fn fill_with_waits(tb: &mut Testbench, queue: &mut Queue) {
    let (first, fenced) = (code(queue, COMPLETE), code(queue, COMPLETE | FENCE));
    queue.post(tb, H2C, vec![first]);
    for _ in 0..6 {
        queue.post(tb, H2C, vec![fenced.clone()]);
    }
    let back = copy_after(queue, 3);
    for _ in 0..6 {
        queue.post(tb, C2H, vec![back.clone()]);
    }
    queue.ring(tb, H2C);
    queue.ring(tb, C2H);
    tb.cycles(1500);
}

/// All slots of the function are free: it fetches as many descriptors as it has slots, while none
/// of them ends.
fn assert_all_slots_are_free(tb: &mut Testbench, function: u64, number: u64) {
    let hung: Vec<bool> = tb.engines.iter().map(|engine| engine.hung).collect();
    tb.engines.iter_mut().for_each(|engine| engine.hung = true);
    let mut queue = Queue::new(function, number, [5, 5, 6]);
    queue.enable(tb, false);
    for _ in 0..32 {
        let job = code(&queue, COMPLETE);
        queue.post(tb, H2C, vec![job]);
    }
    let before = tb.host.descriptor_reads[function as usize];
    queue.ring(tb, H2C);
    tb.cycles(6000);
    assert_eq!(tb.host.descriptor_reads[function as usize] - before, FUNCTION_JOBS);
    for (engine, hung) in tb.engines.iter_mut().zip(hung) {
        engine.hung = hung;
    }
    let reset = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
    tb.write(function, queue.register(queue::CONTROL), reset);
    tb.settle();
}

fn set_bytes(tb: &Testbench, function: u64, number: u64) -> Vec<u8> {
    let bytes = HOST_WINDOW / SETS;
    let first = (function * HOST_WINDOW + number * bytes) as usize;
    tb.host.bytes[first..first + bytes as usize].to_vec()
}

/// A reset drops what waits. The operation in the engine ends by itself; nothing comes after it.
#[test]
fn a_reset_drops_what_waits() {
    for by_function in [false, true] {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(61, 0.1), SETS);
        let mut queue = Queue::new(FUNCTION, 1, [3, 3, 5]);
        queue.enable(&mut tb, false);
        tb.engines[1].hung = true;
        fill_with_waits(&mut tb, &mut queue);
        let fetched = tb.host.descriptor_reads[FUNCTION as usize];
        if by_function {
            tb.hold_resets(1 << FUNCTION);
            tb.cycles(1000);
            assert_eq!(tb.resets_done(), 0, "the operation has not ended");
            tb.engines[1].hung = false;
            tb.cycles(2000);
            assert_eq!(tb.resets_done(), 1 << FUNCTION);
            tb.hold_resets(0);
            tb.cycles(2);
        } else {
            let reset = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
            tb.write(FUNCTION, queue.register(queue::CONTROL), reset);
            assert_eq!(queue.control(&mut tb).0, QueueState::Resetting as u64);
            tb.engines[1].hung = false;
            queue.reset(&mut tb);
        }
        assert_eq!(queue.control(&mut tb), (QueueState::Disabled as u64, 0));
        let before = set_bytes(&tb, FUNCTION, 1);
        tb.cycles(3000);
        assert!(before == set_bytes(&tb, FUNCTION, 1), "an answer after the reset");
        assert_eq!(tb.host.descriptor_reads[FUNCTION as usize], fetched, "a fetch after the reset");
        assert_eq!(tb.read(0, register::FAULTS), 0);
        assert!(tb.is_idle());
        assert_all_slots_are_free(&mut tb, FUNCTION, 1);
    }
}

/// The slots of a queue set that an error has stopped are free for others before its reset.
#[test]
fn an_error_drops_what_waits() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(62, 0.1), SETS);
    let mut queue = Queue::new(FUNCTION, 0, [3, 3, 5]);
    queue.enable(&mut tb, false);
    tb.engines[1].hung = true;
    let status = fieldstone_fpga::field::Field { offset: FAIL_AT, bytes: 1 };
    let fails = code(&queue, COMPLETE).with(status, Status::BadProgram as u64).expect(
        Status::BadProgram as u64,
        0,
        Check::Nothing,
    );
    queue.post(&mut tb, H2C, vec![fails]);
    fill_with_waits(&mut tb, &mut queue);
    tb.engines[1].hung = false;
    assert_eq!(queue.wait(&mut tb).status, Status::BadProgram as u64);
    tb.cycles(2000);
    let stopped = (QueueState::Stopped as u64, Status::BadProgram as u64);
    assert_eq!(queue.control(&mut tb), stopped);
    assert_all_slots_are_free(&mut tb, FUNCTION, 3);
    queue.reset(&mut tb);
}

/// A queue set whose descriptors waited goes to another function. The new owner finds nothing of
/// the old one, and has all of its own slots.
#[test]
fn a_queue_set_that_waited_changes_hands() {
    const NEW: u64 = 10;
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(63, 0.1), SETS);
    let mut old = Queue::new(FUNCTION, 0, [3, 3, 5]);
    old.enable(&mut tb, false);
    tb.engines[1].hung = true;
    fill_with_waits(&mut tb, &mut old);
    tb.hold_resets(1 << FUNCTION);
    tb.cycles(500);
    tb.engines[1].hung = false;
    tb.cycles(2000);
    assert_eq!(tb.resets_done(), 1 << FUNCTION);
    tb.hold_resets(0);
    tb.cycles(2);
    let row = |function: u64| {
        function_table::BASE + function * function_table::STRIDE + function_table::QUEUES
    };
    tb.write(0, row(FUNCTION), 0);
    let queues = function_table::QUEUES_FIRST.with(FUNCTION * SETS)
        | function_table::QUEUES_COUNT.with(SETS)
        | function_table::QUEUES_VECTOR.with(vector(NEW));
    tb.write(0, row(NEW), queues);
    assert_eq!((tb.read(0, row(NEW)), tb.take_errors(0)), (queues, 0));
    let mut new = Queue::new(NEW, 0, [3, 3, 5]);
    new.enable(&mut tb, false);
    let before = set_bytes(&tb, FUNCTION, 0);
    let job = copy_after(&new, 2);
    new.post(&mut tb, C2H, vec![job.expect(0, 4096, Check::Nothing)]);
    new.ring(&mut tb, C2H);
    tb.cycles(1000);
    assert!(new.poll(&tb).is_none(), "a count of the old owner");
    for _ in 0..2 {
        new.post(&mut tb, H2C, vec![nop(FENCE)]);
    }
    new.ring(&mut tb, H2C);
    assert_eq!(new.wait(&mut tb).ring, C2H);
    tb.cycles(2000);
    assert!(new.poll(&tb).is_none());
    assert!(before == set_bytes(&tb, FUNCTION, 0), "memory of the old owner was written");
    assert_all_slots_are_free(&mut tb, NEW, 1);
    assert_eq!(tb.read(0, register::FAULTS), 0);
}

/// A wait for a count keeps no place of the completion ring that the count needs: here, the driver
/// looks at its completions only when two have come.
#[test]
fn a_count_needs_no_place_that_its_wait_holds() {
    for seed in 64..68 {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.1), SETS);
        let mut queue = Queue::new(FUNCTION, 0, [2, 1, 1]);
        queue.enable(&mut tb, false);
        let job = copy_after(&queue, 3).expect(0, 4096, Check::Nothing);
        queue.post(&mut tb, C2H, vec![job]);
        queue.ring(&mut tb, C2H);
        tb.cycles(800);
        for flags in [COMPLETE, COMPLETE | FENCE, 0] {
            queue.post(&mut tb, H2C, vec![nop(flags)]);
        }
        queue.ring(&mut tb, H2C);
        let mut count = 0;
        for _ in 0..5000 {
            count += u32::from(queue.poll(&tb).is_some());
            if count == 2 {
                break;
            }
            tb.cycle();
        }
        assert_eq!(count, 2, "the wait holds a place");
        queue.consumed(&mut tb);
        assert_eq!(queue.wait(&mut tb).ring, C2H);
    }
}

/// A device in which everything waits for a register access is idle.
#[test]
fn a_device_in_which_all_wait_for_a_count_is_idle() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(68), SETS);
    let mut queue = Queue::new(FUNCTION, 0, [2, 2, 4]);
    queue.enable(&mut tb, false);
    for _ in 0..3 {
        let job = copy_after(&queue, 2).expect(0, 4096, Check::Nothing);
        queue.post(&mut tb, C2H, vec![job]);
    }
    queue.ring(&mut tb, C2H);
    assert!(!tb.is_idle());
    tb.cycles(1500);
    assert!(tb.is_idle());
    queue.run(&mut tb, H2C, nop(COMPLETE));
    tb.cycles(1500);
    assert!(tb.is_idle());
    queue.run(&mut tb, H2C, nop(COMPLETE));
    (0..3).for_each(|_| assert_eq!(queue.wait(&mut tb).ring, C2H));
    tb.cycles(1500);
    assert!(tb.is_idle());
    assert_eq!(tb.host.descriptor_reads[FUNCTION as usize], 5, "each is fetched once");
}

/// Random traffic with many waits, in which queue sets and functions are reset at random. The
/// traffic of others, also of the same function, stays right; what is reset is silent; and in the
/// end, no slot is lost.
#[test]
fn resets_at_random_beside_waits() {
    for (seed, stall) in [(71, 0.0), (72, 0.2), (73, 0.4), (74, 0.1)] {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, stall), SETS);
        tb.engines.iter_mut().for_each(|engine| engine.slowness = 1000);
        let functions = [2, FUNCTION, 9];
        let sets: Vec<(u64, u64)> =
            functions.iter().flat_map(|&f| (0..SETS).map(move |set| (f, set))).collect();
        let new = |tb: &mut Testbench, (function, number): (u64, u64)| {
            let log2s = [2, 1, 0].map(|low| tb.rng.random_range(low..=5));
            let mut queue = Queue::new(function, number, log2s);
            queue.enable(tb, false);
            let mut traffic = Traffic::new(queue, 1_000_000);
            traffic.fences = 0.5;
            traffic
        };
        let mut all: Vec<Traffic> = sets.iter().map(|&set| new(&mut tb, set)).collect();
        for round in 0..40 {
            let cycles = tb.rng.random_range(100..1500);
            (0..cycles).for_each(|_| traffic::cycle(&mut tb, &mut all));
            let function = functions[tb.rng.random_range(0..functions.len())];
            let chosen: Vec<usize> = if round % 4 == 3 {
                tb.hold_resets(1 << function);
                for _ in 0..20_000 {
                    if tb.resets_done() == 0 {
                        traffic::cycle_without(&mut tb, &mut all, Some(function));
                    }
                }
                assert_eq!(tb.resets_done(), 1 << function, "a reset does not end");
                tb.hold_resets(0);
                tb.cycles(2);
                (0..all.len()).filter(|&i| sets[i].0 == function).collect()
            } else {
                let i = tb.rng.random_range(0..all.len());
                all[i].queue.reset(&mut tb);
                vec![i]
            };
            let silent: Vec<Vec<u8>> =
                chosen.iter().map(|&i| set_bytes(&tb, sets[i].0, sets[i].1)).collect();
            for &i in chosen.iter().rev() {
                all.remove(i);
            }
            (0..800).for_each(|_| traffic::cycle(&mut tb, &mut all));
            for (&i, before) in chosen.iter().zip(&silent) {
                assert!(*before == set_bytes(&tb, sets[i].0, sets[i].1), "seed {seed}: not silent");
            }
            for &i in &chosen {
                let traffic = new(&mut tb, sets[i]);
                all.insert(i, traffic);
            }
        }
        all.iter_mut().for_each(|traffic| traffic.rounds = traffic.rounds.min(20));
        traffic::finish(&mut tb, &mut all);
        tb.cycles(1000);
        assert!(tb.is_idle());
        assert_eq!(tb.read(0, register::FAULTS), 0);
        for &function in &functions {
            assert_eq!(tb.take_errors(function), 0);
            all.iter().filter(|traffic| traffic.queue.function == function).for_each(|traffic| {
                traffic.queue.reset(&mut tb);
            });
            assert_all_slots_are_free(&mut tb, function, 0);
        }
    }
}
