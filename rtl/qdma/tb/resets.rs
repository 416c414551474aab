//! Function-level reset, and the function table: what a reset promises, whatever the host's shell
//! and function 0 do meanwhile.

use fieldstone_fpga::regs::{
    C2hOp, H2cOp, MAX_FUNCTIONS, QueueCommand, QueueState, descriptor, descriptor_flag,
    function_table, queue, register,
};
use fieldstone_rtl_qdma as designs;

use crate::driver::{C2H, DescriptorCase, H2C, Queue, SETS};
use crate::testbench::{HOST_WINDOW, Testbench, Timing, vector};
use crate::traffic::{self, Traffic};

const DISABLED: (u64, u64) = (QueueState::Disabled as u64, 0);
const ENABLED: (u64, u64) = (QueueState::Enabled as u64, 0);
const RESETTING: (u64, u64) = (QueueState::Resetting as u64, 0);
const ABSENT: (u64, u64) = (QueueState::Absent as u64, 0);
const REFUSED: u64 = register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1);
const ALL: u64 = 0xffff;

fn entry(function: u64) -> u64 {
    function_table::BASE + function * function_table::STRIDE
}

/// The QUEUES of a function.
fn queues(first: u64, count: u64, vector: u64) -> u64 {
    function_table::QUEUES_FIRST.with(first)
        | function_table::QUEUES_COUNT.with(count)
        | function_table::QUEUES_VECTOR.with(vector)
}

fn command(queue: &Queue, tb: &mut Testbench, command: QueueCommand) {
    let value = queue::CONTROL_COMMAND.with(command as u64);
    tb.write(queue.function, queue.register(queue::CONTROL), value);
}

/// Posts a coding job, and behind it (by AFTER) a copy of card memory to the host.
fn code_and_copy(queue: &mut Queue, tb: &mut Testbench) {
    let code = DescriptorCase::new(H2cOp::Code as u64, descriptor_flag::COMPLETE);
    let copy = DescriptorCase::new(C2hOp::Copy as u64, descriptor_flag::COMPLETE)
        .moving(queue.card, queue.host, 4096)
        .with(descriptor::AFTER, 1);
    queue.post(tb, H2C, vec![code.moving(queue.card, 0, 64)]);
    queue.post(tb, C2H, vec![copy]);
    queue.ring(tb, H2C);
    queue.ring(tb, C2H);
    tb.cycles(1000);
}

fn is_table_empty(tb: &mut Testbench) -> bool {
    (0..MAX_FUNCTIONS as u64).all(|function| {
        [function_table::HOST_END, function_table::CARD_END, function_table::QUEUES]
            .into_iter()
            .all(|offset| tb.read(0, entry(function) + offset) == 0)
    })
}

/// A shell that answers the reset of each function as soon as it is done, the slowest one last.
/// Function 0 is the last to be done, so the table is empty.
#[test]
fn the_table_is_empty_though_each_reset_ends_by_itself() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(31), SETS);
    let mut slow = Queue::new(3, 0, [2, 2, 2]);
    slow.enable(&mut tb, false);
    tb.engines[1].hung = true;
    code_and_copy(&mut slow, &mut tb);
    let mut held = ALL;
    tb.hold_resets(held);
    for _ in 0..4000 {
        tb.cycle();
        held &= !tb.resets_done();
        tb.hold_resets(held);
    }
    assert_eq!(held, 1 << 3 | 1, "function 0 waits for the slow one");
    // A guest that works on: its function has no way to enable a queue set before function 0 is
    // done.
    let guest = Queue::new(5, 0, [2, 2, 2]);
    guest.start_enable(&mut tb, &guest.context_bytes(false));
    assert_eq!(guest.control(&mut tb), DISABLED);
    tb.engines[1].hung = false;
    for _ in 0..4000 {
        tb.cycle();
        held &= !tb.resets_done();
        tb.hold_resets(held);
    }
    assert_eq!(held, 0);
    assert!(is_table_empty(&mut tb));
    assert_eq!(tb.resets_done(), 0);
}

/// A shell that gives function 0 a reset, and its virtual functions none of their own.
#[test]
fn the_reset_of_function_0_is_that_of_all() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(32, 0.1), SETS);
    let mut all: Vec<Traffic> = [(0, 0), (3, 1), (15, 3)]
        .into_iter()
        .map(|(function, number)| {
            let mut queue = Queue::new(function, number, [3, 3, 4]);
            queue.enable(&mut tb, true);
            Traffic::new(queue, 100)
        })
        .collect();
    (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut all));
    tb.reset_functions(1);
    let before = tb.host.bytes.clone();
    tb.cycles(3000);
    assert!(before == tb.host.bytes, "the device wrote to memory after the reset");
    assert!(is_table_empty(&mut tb));
    for function in 0..MAX_FUNCTIONS as u64 {
        tb.write(0, entry(function) + function_table::QUEUES, queues(function * SETS, SETS, 0));
    }
    for traffic in &all {
        assert_eq!(traffic.queue.control(&mut tb), DISABLED);
    }
}

/// A read of a queue set that the function does not have says so, and not that it is DISABLED.
#[test]
fn a_queue_set_of_others_is_absent() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(33), SETS);
    let range = register::FUNCTION_ERRORS_DOORBELL_RANGE.with(1);
    let mut beyond = Queue::new(2, 0, [2, 2, 2]);
    beyond.number = SETS;
    assert_eq!(beyond.control(&mut tb), ABSENT);
    assert_eq!(tb.take_errors(2), range);
    // The doorbells of the same set read as those of any other.
    assert_eq!(tb.read(2, beyond.register(queue::H2C_PRODUCER)), 0);
    assert_eq!(tb.take_errors(2), range);
    // A row that names more queue sets than the device has.
    tb.write(0, entry(2) + function_table::QUEUES, queues(63, 3, 0));
    for (number, state) in [(0, DISABLED), (1, ABSENT), (2, ABSENT), (3, ABSENT)] {
        beyond.number = number;
        assert_eq!(beyond.control(&mut tb), state, "number {number}");
    }
}

/// Function 0 cannot take a queue set away that is at work: neither its owner's read of CONTROL nor
/// the reset of its function would know of it.
#[test]
fn a_function_keeps_the_queue_sets_that_it_uses() {
    const FUNCTION: u64 = 5;
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(34), SETS);
    let mut queue = Queue::new(FUNCTION, 1, [2, 2, 2]);
    queue.enable(&mut tb, false);
    tb.engines[1].hung = true;
    code_and_copy(&mut queue, &mut tb);
    let row = entry(FUNCTION) + function_table::QUEUES;
    let first = FUNCTION * SETS;
    let expect = |tb: &mut Testbench, value: u64, is_taken: bool| {
        let before = tb.read(0, row);
        tb.write(0, row, value);
        let after = tb.read(0, row);
        assert_eq!(after, if is_taken { value } else { before }, "{value:#x}");
        assert_eq!(tb.take_errors(0), if is_taken { 0 } else { REFUSED }, "{value:#x}");
    };
    let fewer = queues(first, SETS - 1, vector(FUNCTION));
    for others in [fewer, queues(first + 1, SETS, 1), queues(first - 1, SETS + 1, 1), 0] {
        expect(&mut tb, others, false);
    }
    // Another vector, and more queue sets behind.
    expect(&mut tb, queues(first, SETS, 7), true);
    expect(&mut tb, queues(first, SETS + 1, vector(FUNCTION)), true);
    command(&queue, &mut tb, QueueCommand::Reset);
    expect(&mut tb, fewer, false);
    assert_eq!(queue.control(&mut tb), RESETTING);
    tb.hold_resets(1 << FUNCTION);
    tb.cycles(3000);
    assert_eq!(tb.resets_done(), 0, "the job has not ended");
    tb.engines[1].hung = false;
    tb.cycles(1000);
    assert_eq!(tb.resets_done(), 1 << FUNCTION);
    let range = (FUNCTION * HOST_WINDOW) as usize..((FUNCTION + 1) * HOST_WINDOW) as usize;
    let before = tb.host.bytes[range.clone()].to_vec();
    tb.hold_resets(0);
    tb.cycles(3000);
    assert!(before == tb.host.bytes[range], "the device wrote to memory after the reset");
    expect(&mut tb, fewer, true);
    expect(&mut tb, queues(0, 0, 0), true);
}

/// A queue set is in use until the last of its completions has left the device.
#[test]
fn a_function_keeps_a_queue_set_until_its_completions_have_left() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(35), SETS);
    let mut queue = Queue::new(1, 0, [3, 3, 4]);
    queue.enable(&mut tb, false);
    tb.cycles(2000);
    for _ in 0..3 {
        queue.post(&mut tb, H2C, vec![DescriptorCase::new(0, descriptor_flag::COMPLETE)]);
    }
    queue.ring(&mut tb, H2C);
    // The descriptors come in; then the host takes no write.
    tb.cycles(250);
    tb.host.stall = 1.0;
    tb.cycles(1000);
    assert!(queue.poll(&tb).is_none(), "no completion has left");
    command(&queue, &mut tb, QueueCommand::Reset);
    tb.cycles(1000);
    let row = entry(1) + function_table::QUEUES;
    tb.write(0, row, 0);
    assert_eq!((tb.read(0, row), tb.take_errors(0)), (queues(SETS, SETS, vector(1)), REFUSED));
    tb.host.stall = 0.0;
    tb.cycles(100);
    assert_eq!(queue.control(&mut tb), DISABLED);
    tb.write(0, row, 0);
    assert_eq!((tb.read(0, row), tb.take_errors(0)), (0, 0));
    // Every queue set of a function counts.
    let mut two = [0, 3].map(|number| Queue::new(2, number, [2, 2, 2]));
    two.iter_mut().for_each(|queue| queue.enable(&mut tb, false));
    let row = entry(2) + function_table::QUEUES;
    for (number, expected) in [REFUSED, REFUSED, 0].into_iter().enumerate() {
        tb.write(0, row, 0);
        tb.settle();
        assert_eq!(tb.take_errors(0), expected, "{number} of two are DISABLED");
        if let Some(queue) = two.get(number) {
            queue.reset(&mut tb);
        }
    }
}

/// FAULTS counts what a tenant did wrong. Accesses that a reset cuts off are none.
#[test]
fn a_reset_under_load_is_no_fault() {
    let mut refused = 0;
    for seed in 36..40 {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.2), SETS);
        let mut all: Vec<Traffic> = (0..SETS)
            .map(|number| {
                let mut queue = Queue::new(4, number, [4, 4, 5]);
                queue.enable(&mut tb, true);
                Traffic::new(queue, 1000)
            })
            .collect();
        (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut all));
        tb.reset_functions(1 << 4);
        assert_eq!(tb.read(0, register::FAULTS), 0, "seed {seed}");
        // A fault outside of a reset counts as before.
        let queue = &mut all[0].queue;
        let outside = DescriptorCase::new(H2cOp::Nop as u64, descriptor_flag::COMPLETE);
        queue.enable(&mut tb, false);
        queue.post(&mut tb, H2C, vec![outside]);
        tb.set_host_window(4, 0, 0);
        queue.ring(&mut tb, H2C);
        tb.cycles(2000);
        refused += register::FAULTS_HOST.of(tb.read(0, register::FAULTS));
        assert_ne!(all[0].queue.control(&mut tb), ENABLED);
    }
    assert!(refused > 0, "the fetch and the completion of a descriptor outside");
}
