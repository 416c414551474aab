//! The rules of PCIe, kept by the host and by the device: no register access waits for the host,
//! queue sets change their state while software polls, and requests stay within the limits of the
//! link.

use fieldstone_fpga::pcie::Limits;
use fieldstone_fpga::regs::{
    H2cOp, QueueCommand, QueueState, descriptor_flag, function_table, queue, register,
};
use fieldstone_rtl_qdma as designs;

use crate::driver::{Check, DescriptorCase, H2C, Queue, SETS};
use crate::testbench::{HOST_WINDOW, Testbench, Timing};
use crate::traffic::{self, Traffic};

const DISABLED: u64 = QueueState::Disabled as u64;
const ENABLED: u64 = QueueState::Enabled as u64;
const RESETTING: u64 = QueueState::Resetting as u64;
const ENABLING: u64 = QueueState::Enabling as u64;

/// Most cycles of a register read without its way on the link: the accesses of the bench before it,
/// and events of the queue engine.
const MAX_READ_CYCLES: u64 = 120;

/// Reads a register. Returns the value, and the cycles that passed.
fn timed_read(tb: &mut Testbench, function: u64, offset: u64) -> (u64, u64) {
    let start = tb.clock.cycles;
    let value = tb.read(function, offset);
    (value, tb.clock.cycles - start)
}

fn command(queue: &Queue, tb: &mut Testbench, command: QueueCommand) {
    let value = queue::CONTROL_COMMAND.with(command as u64);
    tb.write(queue.function, queue.register(queue::CONTROL), value);
}

fn nop() -> DescriptorCase {
    DescriptorCase::new(H2cOp::Nop as u64, descriptor_flag::COMPLETE)
}

/// The data of a context may not pass a doorbell that the host sent before the data. A device that
/// takes no doorbell while it waits for the context waits for ever, and answers no register read.
#[test]
fn a_doorbell_behind_an_enable_is_taken() {
    for (seed, timing) in [(1, Timing::constant(1)), (2, Timing::random(2, 0.2))] {
        let mut tb = Testbench::new(&designs::QDMA, timing, SETS);
        let mut working = Queue::new(1, 0, [2, 2, 2]);
        working.enable(&mut tb, false);
        let enabled = Queue::new(2, 0, [2, 2, 2]);
        enabled.start_enable(&mut tb, &enabled.context_bytes(false));
        working.ring(&mut tb, H2C);
        assert_eq!(tb.read(3, register::FUNCTION), 3 | SETS << 16, "seed {seed}");
        assert_eq!(enabled.enabled(&mut tb), (ENABLED, 0));
    }
}

/// A host that takes neither reads nor writes: the queues of the device are full, and contexts do
/// not come. All register accesses are done all the same.
#[test]
fn no_register_access_waits_for_the_host() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(3), SETS);
    let mut busy: Vec<Traffic> = (0..SETS)
        .map(|number| {
            let mut queue = Queue::new(1, number, [5, 5, 6]);
            queue.enable(&mut tb, true);
            Traffic::new(queue, 40)
        })
        .collect();
    (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut busy));
    tb.host.stall = 1.0;
    tb.host.interrupt_stall = 1.0;
    (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut busy));
    let sets: Vec<Queue> = (0..SETS).map(|number| Queue::new(2, number, [2, 2, 2])).collect();
    for queue in &sets {
        queue.start_enable(&mut tb, &queue.context_bytes(false));
    }
    let (way, mut longest) = (250, 0);
    let mut within = |(value, cycles): (u64, u64)| {
        longest = longest.max(cycles);
        assert!(cycles <= way + MAX_READ_CYCLES, "a register read took {cycles} cycles");
        queue::CONTROL_STATE.of(value)
    };
    for queue in &sets {
        let control = queue.register(queue::CONTROL);
        assert_eq!(within(timed_read(&mut tb, 2, control)), ENABLING);
    }
    for traffic in &busy {
        traffic.queue.ring(&mut tb, H2C);
        let control = traffic.queue.register(queue::CONTROL);
        assert_eq!(within(timed_read(&mut tb, 1, control)), ENABLED);
    }
    // Resets end only when the host has taken the completions, or has sent the context.
    command(&busy[0].queue, &mut tb, QueueCommand::Reset);
    command(&sets[0], &mut tb, QueueCommand::Reset);
    for (function, queue) in [(1, &busy[0].queue), (2, &sets[0])] {
        let control = queue.register(queue::CONTROL);
        assert_eq!(within(timed_read(&mut tb, function, control)), RESETTING);
    }
    println!("register reads took up to {longest} cycles, {way} of them on the link");
    tb.host.stall = 0.0;
    tb.host.interrupt_stall = 0.0;
    let first = busy.remove(0);
    traffic::finish(&mut tb, &mut busy);
    assert_eq!(first.queue.control(&mut tb), (DISABLED, 0));
    assert_eq!(sets[0].enabled(&mut tb), (DISABLED, 0));
    for queue in &sets[1..] {
        assert_eq!(queue.enabled(&mut tb), (ENABLED, 0));
    }
    assert_eq!((tb.take_errors(1), tb.take_errors(2)), (0, 0));
}

/// A set says that it is disabled when its completions have left the device, and no sooner. The
/// completions of other sets do not matter.
#[test]
fn a_reset_ends_when_the_completions_have_left() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(4), SETS);
    let mut queue = Queue::new(1, 0, [3, 3, 4]);
    let other = Queue::new(1, 1, [3, 3, 4]);
    queue.enable(&mut tb, false);
    tb.cycles(2000);
    for _ in 0..3 {
        queue.post(&mut tb, H2C, vec![nop()]);
    }
    queue.ring(&mut tb, H2C);
    // The descriptors come in; then the host takes no write.
    tb.cycles(250);
    tb.host.stall = 1.0;
    tb.cycles(1000);
    assert!(queue.poll(&tb).is_none(), "no completion has left");
    command(&queue, &mut tb, QueueCommand::Reset);
    for _ in 0..5 {
        assert_eq!(queue.control(&mut tb), (RESETTING, 0));
        assert_eq!(other.control(&mut tb), (DISABLED, 0));
    }
    tb.host.stall = 0.0;
    queue.reset(&mut tb);
    // What was written before is there.
    for number in 1..=3 {
        assert_eq!(queue.poll(&tb).map(|completion| completion.number), Some(number));
    }
    queue.enable(&mut tb, false);
    assert_eq!(queue.run(&mut tb, H2C, nop()).number, 1);
}

#[test]
fn a_set_that_is_being_enabled_takes_only_a_reset() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(5), SETS);
    let state = register::FUNCTION_ERRORS_DOORBELL_STATE.with(1);
    let mut queue = Queue::new(1, 0, [2, 2, 2]);
    let context = queue.context_bytes(false);
    queue.start_enable(&mut tb, &context);
    queue.ring(&mut tb, H2C);
    assert_eq!(queue.control(&mut tb), (ENABLING, 0));
    assert_eq!(tb.take_errors(1), state, "the doorbell came too early");
    assert_eq!(queue.enabled(&mut tb), (ENABLED, 0));
    queue.reset(&mut tb);
    for round in 0..3 {
        queue.start_enable(&mut tb, &context);
        // The second one finds the set ENABLING; the one behind a reset finds it RESETTING.
        if round > 0 {
            queue.start_enable(&mut tb, &context);
        }
        command(&queue, &mut tb, QueueCommand::Reset);
        if round > 1 {
            queue.start_enable(&mut tb, &context);
        }
        assert_eq!(queue.control(&mut tb), (RESETTING, 0));
        assert_eq!(tb.take_errors(1), if round > 0 { state } else { 0 });
        queue.reset(&mut tb);
        queue.enable(&mut tb, false);
        queue.run(&mut tb, H2C, nop());
        queue.reset(&mut tb);
    }
    // A refused context, and a reset before the refusal.
    let mut wrong = context;
    fieldstone_fpga::regs::queue_context::CQ_LOG2.put(&mut wrong, 13);
    queue.start_enable(&mut tb, &wrong);
    command(&queue, &mut tb, QueueCommand::Reset);
    assert_eq!(queue.control(&mut tb), (RESETTING, 0));
    queue.reset(&mut tb);
    queue.enable(&mut tb, false);
    assert_eq!(tb.take_errors(1), 0);
}

/// A function enables five hundred queue sets at once. Another function's register read does not
/// notice, and its queue set waits for one of these contexts, not for all.
#[test]
fn many_enables_delay_no_other_function() {
    const MANY: u64 = 500;
    let mut tb = Testbench::new(&designs::QDMA_2048, Timing::constant(6), SETS);
    let queues = function_table::QUEUES_FIRST.with(1024) | function_table::QUEUES_COUNT.with(MANY);
    let entry = function_table::BASE + function_table::STRIDE;
    tb.write(0, entry + function_table::QUEUES, queues);
    let mut sets: Vec<Queue> = Vec::new();
    for number in 0..MANY {
        // All with the same rings: nothing is posted.
        let mut queue = Queue::new(1, 0, [2, 2, 2]);
        queue.number = number;
        queue.start_enable(&mut tb, &queue.context_bytes(false));
        sets.push(queue);
    }
    let victim = Queue::new(2, 0, [2, 2, 2]);
    victim.start_enable(&mut tb, &victim.context_bytes(false));
    let start = tb.clock.cycles;
    // The victim's accesses wait behind those of the others in the link, an access in ten cycles.
    let (value, cycles) = timed_read(&mut tb, 3, register::FUNCTION);
    assert_eq!(register::FUNCTION_NUMBER.of(value), 3);
    println!("a register read behind {MANY} ENABLEs took {cycles} cycles");
    assert!(cycles < 16 * MANY + 250 + MAX_READ_CYCLES, "{cycles} cycles");
    let (_, cycles) = timed_read(&mut tb, 3, register::FUNCTION);
    assert!(cycles < 250 + MAX_READ_CYCLES, "{cycles} cycles");
    let in_order = sets[MANY as usize - 1].control(&mut tb);
    assert_eq!(in_order, (ENABLING, 0), "the others are still at it");
    assert_eq!(victim.enabled(&mut tb), (ENABLED, 0));
    println!("the victim's set was enabled after {} cycles", tb.clock.cycles - start);
    assert_eq!(sets[MANY as usize - 1].control(&mut tb), (ENABLING, 0));
    tb.cycles(300 * MANY);
    for queue in sets.iter().rev().step_by(50) {
        assert_eq!(queue.control(&mut tb), (ENABLED, 0));
    }
}

#[test]
fn a_write_has_all_bytes_of_a_register_or_the_low_half_of_a_doorbell() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(7, 0.2), SETS);
    let access = register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1);
    let mut queue = Queue::new(1, 0, [2, 2, 2]);
    queue.enable(&mut tb, false);
    // Whatever the bytes above hold.
    for _ in 0..3 {
        queue.post(&mut tb, H2C, vec![nop()]);
        let producer = u64::from(queue.rings[H2C].producer) | 0xdead_beef << 32;
        tb.write_bytes(1, queue.register(queue::H2C_PRODUCER), producer, 0x0f);
        assert_eq!(queue.wait(&mut tb).status, 0);
    }
    assert_eq!(tb.take_errors(1), 0);
    queue.post(&mut tb, H2C, vec![nop()]);
    let producer = u64::from(queue.rings[H2C].producer);
    for strobe in [0xf0, 0x01, 0x1f, 0x7f, 0xfe] {
        tb.write_bytes(1, queue.register(queue::H2C_PRODUCER), producer, strobe);
        assert_eq!(tb.take_errors(1), access, "bytes {strobe:#x} of a doorbell");
    }
    let reset = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
    let entry = function_table::BASE + 9 * function_table::STRIDE + function_table::HOST_BASE;
    let before = tb.read(0, entry);
    for strobe in [0x0f, 0xf0, 0x3c] {
        tb.write_bytes(1, queue.register(queue::CONTROL), reset, strobe);
        assert_eq!(tb.take_errors(1), access, "bytes {strobe:#x} of CONTROL");
        tb.write_bytes(0, entry, 0x1_0000_1000, strobe);
        assert_eq!(tb.take_errors(0), access, "bytes {strobe:#x} of a window");
    }
    // Without a byte, a write is no error, and has no effect.
    for (function, offset) in [
        (1, queue.register(queue::CONTROL)),
        (1, queue.register(queue::H2C_PRODUCER)),
        (0, entry),
        (1, register::ID),
    ] {
        tb.write_bytes(function, offset, reset, 0);
        assert_eq!(tb.take_errors(function), 0, "no byte of {offset:#x}");
    }
    assert_eq!(tb.read(0, entry), before);
    tb.cycles(1000);
    assert!(queue.poll(&tb).is_none());
    assert_eq!(queue.control(&mut tb), (ENABLED, 0));
    queue.ring(&mut tb, H2C);
    assert_eq!(queue.wait(&mut tb).status, 0);
}

/// The host asserts sizes and numbers for every request.
#[test]
fn few_tags_slow_the_device_and_do_not_stop_it() {
    for (tags, seed) in [(1, 8), (32, 9)] {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.1), SETS);
        tb.host.limits = Limits { tags, ..Limits::default() };
        let mut all: Vec<Traffic> = [(0, 0), (3, 1), (3, 2), (15, 3)]
            .into_iter()
            .map(|(function, number)| {
                let mut queue = Queue::new(function, number, [3, 3, 4]);
                queue.enable(&mut tb, false);
                Traffic::new(queue, 20)
            })
            .collect();
        traffic::finish(&mut tb, &mut all);
        assert_eq!(tb.host.most_in_flight, tags);
    }
}

/// Every setting of PCIe's sizes from 128 to 512 bytes, payloads and read requests apart. A
/// completion carries up to a payload: with larger payloads, the beats of a read come together.
#[test]
fn every_setting_of_payloads_and_read_requests_works() {
    let sizes = [128, 256, 512];
    let settings = sizes.into_iter().flat_map(|payload| sizes.map(|read| (payload, read)));
    for (seed, (max_payload_bytes, max_read_bytes)) in settings.enumerate() {
        let mut tb = Testbench::new(&designs::QDMA, Timing::random(20 + seed as u64, 0.1), SETS);
        tb.host.limits = Limits { max_payload_bytes, max_read_bytes, ..Limits::default() };
        tb.host.whole_completions = max_payload_bytes > 128;
        let mut all: Vec<Traffic> = [(0, 0), (3, 1), (3, 2), (15, 3)]
            .into_iter()
            .map(|(function, number)| {
                let mut queue = Queue::new(function, number, [3, 3, 4]);
                queue.enable(&mut tb, seed % 2 == 1);
                Traffic::new(queue, 20)
            })
            .collect();
        traffic::finish(&mut tb, &mut all);
        for traffic in &all {
            assert_eq!(traffic.queue.control(&mut tb), (ENABLED, 0));
        }
        assert_eq!(tb.read(0, register::FAULTS), 0);
    }
}

/// Data that the device has written is in host memory before the completion that names it, and
/// before the answer of a register read that the device made after it.
#[test]
fn data_comes_before_its_completion() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(10, 0.3), SETS);
    let mut queue = Queue::new(4, 0, [3, 3, 3]);
    queue.enable(&mut tb, false);
    let (card, host) = (queue.card, queue.host);
    assert_eq!(host / HOST_WINDOW, 4);
    for round in 0..40u8 {
        let bytes: Vec<u8> = (0..640).map(|i| (i as u8).wrapping_mul(7) ^ round).collect();
        tb.card.bytes[card as usize..][..640].copy_from_slice(&bytes);
        let job = DescriptorCase::new(1, descriptor_flag::COMPLETE).moving(card, host, 640);
        // The check is made in the cycle in which the completion is seen.
        queue.run(&mut tb, crate::driver::C2H, job.expect(0, 640, Check::Host(host, bytes)));
    }
}

/// A reset of a function in the middle of its work: it ends, its queue sets are disabled, its
/// memory is left alone, and the other functions notice nothing.
#[test]
fn a_function_is_reset_in_the_middle_of_its_work() {
    const FUNCTION: u64 = 5;
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(11, 0.1), SETS);
    let mut others: Vec<Traffic> = [(1, 0), (6, 1)]
        .map(|(function, number)| {
            let mut queue = Queue::new(function, number, [3, 2, 4]);
            queue.enable(&mut tb, false);
            Traffic::new(queue, 400)
        })
        .into();
    let range = (FUNCTION * HOST_WINDOW) as usize..((FUNCTION + 1) * HOST_WINDOW) as usize;
    for round in 0..12 {
        let mut own: Vec<Traffic> = (0..SETS)
            .map(|number| {
                let mut queue = Queue::new(FUNCTION, number, [4, 4, 5]);
                if number < 3 {
                    queue.enable(&mut tb, true);
                }
                Traffic::new(queue, if number < 3 { 100 } else { 0 })
            })
            .collect();
        // The last set is reset while it is being enabled.
        let last = own.pop().expect("there are four").queue;
        others.append(&mut own);
        (0..100 * round).for_each(|_| traffic::cycle(&mut tb, &mut others));
        let context = last.context_bytes(false);
        last.start_enable(&mut tb, &context);
        // Accesses that the host has sent before are done, or have no effect.
        tb.write(FUNCTION, last.register(queue::CONTROL), 99);
        (0..100 + 37 * round).for_each(|_| traffic::cycle(&mut tb, &mut others));
        let own = others.split_off(2);
        tb.hold_resets(1 << FUNCTION);
        let start = tb.clock.cycles;
        while tb.resets_done() == 0 {
            traffic::cycle(&mut tb, &mut others);
            assert!(tb.clock.cycles - start < 20_000, "the reset does not end");
        }
        // What has left before is on its way; then nothing more comes.
        tb.cycles(300);
        let before = tb.host.bytes[range.clone()].to_vec();
        own[0].queue.ring(&mut tb, H2C);
        last.start_enable(&mut tb, &context);
        (0..1000).for_each(|_| traffic::cycle(&mut tb, &mut others));
        assert!(
            tb.host.bytes[range.clone()] == before,
            "the device wrote to the function's memory"
        );
        assert_eq!(tb.resets_done(), 1 << FUNCTION);
        tb.hold_resets(0);
        tb.cycles(2);
        assert_eq!(tb.resets_done(), 0);
        for queue in own.iter().map(|traffic| &traffic.queue).chain([&last]) {
            assert_eq!(queue.control(&mut tb), (DISABLED, 0));
        }
        assert_eq!(tb.take_errors(FUNCTION), 0);
        assert_eq!(last.enable_with(&mut tb, &context), (ENABLED, 0));
        last.reset(&mut tb);
    }
    traffic::finish(&mut tb, &mut others);
    for traffic in &others {
        assert_eq!(traffic.queue.control(&mut tb), (ENABLED, 0));
        assert_eq!(tb.take_errors(traffic.queue.function), 0);
    }
}

/// A function whose engine does not answer is not done; another one that is reset at the same time
/// is.
#[test]
fn a_reset_of_a_function_waits_for_its_own_jobs_alone() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(12), SETS);
    let mut slow = Queue::new(1, 0, [2, 2, 2]);
    let mut quick = Queue::new(2, 3, [2, 2, 2]);
    slow.enable(&mut tb, false);
    quick.enable(&mut tb, false);
    tb.engines[1].hung = true;
    let job = DescriptorCase::new(H2cOp::Code as u64, descriptor_flag::COMPLETE);
    slow.post(&mut tb, H2C, vec![job.moving(slow.card, 0, 64)]);
    slow.ring(&mut tb, H2C);
    tb.cycles(1000);
    tb.hold_resets(0b110);
    tb.cycles(1000);
    assert_eq!(tb.resets_done(), 0b100);
    assert_eq!(slow.control(&mut tb), (RESETTING, 0));
    tb.engines[1].hung = false;
    tb.cycles(1000);
    assert_eq!(tb.resets_done(), 0b110);
    tb.hold_resets(0);
    tb.cycles(500);
    assert!(slow.poll(&tb).is_none(), "a completion after the reset");
    // A function without queue sets has nothing to wait for.
    tb.write(0, function_table::BASE + 7 * function_table::STRIDE + function_table::QUEUES, 0);
    tb.settle();
    tb.reset_functions(1 << 7);
}

/// With function 0 the function table goes, so nobody has a window or a queue set.
#[test]
fn a_reset_of_all_functions_empties_the_function_table() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(13, 0.1), SETS);
    let mut all: Vec<Traffic> = [(0, 0), (3, 1), (15, 3)]
        .into_iter()
        .map(|(function, number)| {
            let mut queue = Queue::new(function, number, [3, 3, 4]);
            queue.enable(&mut tb, false);
            Traffic::new(queue, 100)
        })
        .collect();
    (0..3000).for_each(|_| traffic::cycle(&mut tb, &mut all));
    tb.reset_functions(0xffff);
    for function in 0..16 {
        assert_eq!(tb.read(function, register::FUNCTION), function);
        let entry = function_table::BASE + function * function_table::STRIDE;
        for offset in [function_table::HOST_END, function_table::CARD_END, function_table::QUEUES] {
            assert_eq!(tb.read(0, entry + offset), 0);
        }
    }
    let set = queue::BASE + queue::CONTROL;
    assert_eq!(tb.read(3, set), QueueState::Absent as u64);
    assert_eq!(tb.take_errors(3), register::FUNCTION_ERRORS_DOORBELL_RANGE.with(1));
}
