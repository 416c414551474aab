//! Fault injection: wrong, malicious and failing work of one function. The error arrives at the
//! right queue set, no unit hangs, and the other functions' traffic goes on and is verified. The
//! memories always assert that no access leaves its function's window.

use fieldstone_fpga::regs::{
    C2hOp, H2cOp, MAX_CHAIN, MAX_COPY_BYTES, QueueCommand, QueueState, Status, completion,
    descriptor, descriptor_flag, function_table, queue, queue_context, register,
};
use fieldstone_rtl_qdma as designs;
use rand::Rng;

use crate::driver::{C2H, Check, DescriptorCase, H2C, Queue, SETS};
use crate::engines::FAIL_AT;
use crate::testbench::{CARD_WINDOW, HOST_WINDOW, Testbench, Timing, vector};
use crate::traffic::{self, Traffic};

const COMPLETE: u64 = descriptor_flag::COMPLETE;
const ATTACKER: u64 = 5;

/// A testbench with two functions that make no errors, and have a lot of work.
fn with_bystanders(seed: u64) -> (Testbench, Vec<Traffic>) {
    let mut tb = Testbench::new(&designs::QDMA, Timing::random(seed, 0.1), SETS);
    let bystanders = [(1, 0), (1, 3), (6, 1)].map(|(function, number)| {
        let mut queue = Queue::new(function, number, [3, 2, 4]);
        queue.enable(&mut tb, false);
        Traffic::new(queue, 60)
    });
    (tb, bystanders.into())
}

/// The other functions finish without an error.
fn unharmed(tb: &mut Testbench, bystanders: &mut [Traffic]) {
    traffic::finish(tb, bystanders);
    for traffic in bystanders.iter() {
        assert_eq!(traffic.queue.control(tb), (QueueState::Enabled as u64, 0));
        assert_eq!(tb.take_errors(traffic.queue.function), 0);
    }
}

fn rest(tb: &mut Testbench, bystanders: &mut [Traffic], cycles: u64) {
    (0..cycles).for_each(|_| traffic::cycle(tb, bystanders));
}

fn copy(op: u64, source: u64, destination: u64, length: u64) -> DescriptorCase {
    DescriptorCase::new(op, COMPLETE).moving(source, destination, length)
}

/// The queue set still works after a reset.
fn works_again(tb: &mut Testbench, queue: &mut Queue) {
    queue.reset(tb);
    queue.enable(tb, false);
    let (host, card) = (queue.host, queue.card);
    let bytes: Vec<u8> = (0..1000).map(|_| tb.rng.random()).collect();
    tb.host.bytes[host as usize..][..1000].copy_from_slice(&bytes);
    let there = copy(H2cOp::Copy as u64, host, card, 1000);
    queue.run(tb, H2C, there.expect(0, 1000, Check::Card(card, bytes.clone())));
    let back = copy(C2hOp::Copy as u64, card, host + 0x1000, 1000);
    queue.run(tb, C2H, back.expect(0, 1000, Check::Host(host + 0x1000, bytes)));
}

#[test]
fn descriptors_that_are_wrong_are_refused() {
    let (mut tb, mut bystanders) = with_bystanders(1);
    let mut attacker = Queue::new(ATTACKER, 1, [2, 2, 2]);
    attacker.enable(&mut tb, false);
    let (host, card) = (attacker.host, attacker.card);
    let host_end = (ATTACKER + 1) * HOST_WINDOW;
    let card_end = (ATTACKER + 1) * CARD_WINDOW;
    let (to, from) = (H2cOp::Copy as u64, C2hOp::Copy as u64);
    let engine =
        |op: H2cOp, source, destination, length| copy(op as u64, source, destination, length);
    let too_long = MAX_COPY_BYTES as u64 + 1;
    let linked =
        |next| DescriptorCase::new(H2cOp::Nop as u64, COMPLETE).with(descriptor::NEXT, next);
    let top = u64::MAX - 63;
    let cases: Vec<(usize, DescriptorCase, Status, u64)> = vec![
        (H2C, DescriptorCase::new(7, 0), Status::BadOp, 7),
        (H2C, DescriptorCase::new(255, 0), Status::BadOp, 255),
        (C2H, DescriptorCase::new(2, 0), Status::BadOp, 2),
        (H2C, engine(H2cOp::Reconfigure, card, 0, 64), Status::NotPermitted, ATTACKER),
        (H2C, engine(H2cOp::LoadMap, card, 0, 64), Status::NotPermitted, ATTACKER),
        (H2C, copy(to, host + 1, card, 64), Status::BadAlignment, host + 1),
        (H2C, copy(to, host, card + 32, 64), Status::BadAlignment, card + 32),
        (C2H, copy(from, card + 8, host, 64), Status::BadAlignment, card + 8),
        (H2C, engine(H2cOp::Place, card, card + 4, 64), Status::BadAlignment, card + 4),
        (H2C, engine(H2cOp::Code, card + 4, 1, 64), Status::BadAlignment, card + 4),
        (H2C, linked(host + 64), Status::BadAlignment, host + 64),
        (H2C, copy(to, host, card, 0), Status::BadLength, 0),
        (H2C, copy(to, host, card, too_long), Status::BadLength, too_long),
        (C2H, copy(from, card, host, u64::MAX), Status::BadLength, u64::MAX),
        (H2C, engine(H2cOp::Checksum, card, card, 1 << 40), Status::BadLength, 1 << 40),
        (H2C, copy(to, 0, card, 64), Status::HostFault, 0),
        (H2C, copy(to, host_end - 64, card, 65), Status::HostFault, host_end - 64),
        (H2C, copy(to, top, card, 128), Status::HostFault, top),
        (C2H, copy(from, card, host_end, 1), Status::HostFault, host_end),
        (C2H, copy(from, card, host - (host % HOST_WINDOW) - 64, 640), Status::HostFault, {
            host - (host % HOST_WINDOW) - 64
        }),
        (H2C, linked(128), Status::HostFault, 128),
        (H2C, linked(host_end), Status::HostFault, host_end),
        (H2C, copy(to, host, 0, 64), Status::CardFault, 0),
        (H2C, copy(to, host, card_end - 64, 128), Status::CardFault, card_end - 64),
        (C2H, copy(from, card + (1 << 40), host, 64), Status::CardFault, card + (1 << 40)),
        (H2C, engine(H2cOp::Checksum, card, card_end, 64), Status::CardFault, card_end),
        (H2C, engine(H2cOp::Place, card, 64, 64), Status::CardFault, 64),
        (H2C, engine(H2cOp::Code, card_end - 64, 0, 65), Status::CardFault, card_end - 64),
    ];
    for (ring, job, status, detail) in cases {
        let job = job.expect(status as u64, 0, Check::Nothing);
        attacker.post(&mut tb, ring, vec![job]);
        // A descriptor behind the error does not run.
        attacker.post(&mut tb, ring, vec![DescriptorCase::new(0, COMPLETE)]);
        attacker.ring(&mut tb, ring);
        let completion = attacker.wait(&mut tb);
        assert_eq!((completion.status, completion.detail), (status as u64, detail));
        assert_eq!(attacker.control(&mut tb), (QueueState::Stopped as u64, status as u64));
        rest(&mut tb, &mut bystanders, 300);
        assert!(attacker.poll(&tb).is_none(), "a stopped queue set went on");
        attacker.reset(&mut tb);
        attacker.enable(&mut tb, false);
    }
    works_again(&mut tb, &mut attacker);
    unharmed(&mut tb, &mut bystanders);
    assert_eq!(tb.take_errors(ATTACKER), 0);
}

#[test]
fn what_fails_at_work_stops_its_queue_set() {
    let (mut tb, mut bystanders) = with_bystanders(2);
    let mut queue = Queue::new(ATTACKER, 2, [4, 4, 4]);
    queue.enable(&mut tb, false);
    let (host, card) = (queue.host, queue.card);
    let (to, from) = (H2cOp::Copy as u64, C2hOp::Copy as u64);
    let window = tb.card.windows[ATTACKER as usize];
    let failing =
        |job: DescriptorCase, status: Status| job.expect(status as u64, 0, Check::Nothing);
    for round in 0..5 {
        let (ring, job, status) = match round {
            0 => {
                tb.host.broken.insert(host + 0x2040);
                (H2C, copy(to, host, card, 0x8000), Status::HostError)
            }
            1 | 2 => {
                // Only the guard of card memory finds the error; the descriptor's checks passed.
                tb.card.windows[ATTACKER as usize] = (window.0, card + 0x3000);
                let there = copy(to, host, card, 0x8000);
                let back = copy(from, card, host, 0x8000);
                let jobs = [(H2C, there), (C2H, back)];
                let (ring, job) = jobs[round - 1].clone();
                (ring, job, Status::CardFault)
            }
            3 => {
                let job = copy(H2cOp::Code as u64, card, 0, 64);
                let status = fieldstone_fpga::field::Field { offset: FAIL_AT, bytes: 1 };
                (H2C, job.with(status, Status::BadProgram as u64), Status::BadProgram)
            }
            _ => {
                // Host memory answers the read of the descriptor with an error.
                tb.host.broken.insert(queue.rings[H2C].base);
                (H2C, DescriptorCase::new(0, 0), Status::HostError)
            }
        };
        let job = failing(job, status);
        queue.post(&mut tb, ring, vec![job]);
        if round == 4 {
            descriptor::COOKIE.put(&mut queue.rings[H2C].posted[0].job.bytes, 0);
        }
        queue.ring(&mut tb, ring);
        assert_eq!(queue.wait(&mut tb).status, status as u64);
        assert_eq!(queue.control(&mut tb), (QueueState::Stopped as u64, status as u64));
        // Doorbells of a driver that does not know yet are no errors, and have no effect.
        queue.post(&mut tb, ring, vec![DescriptorCase::new(0, COMPLETE)]);
        queue.ring(&mut tb, ring);
        rest(&mut tb, &mut bystanders, 300);
        assert!(queue.poll(&tb).is_none());
        assert_eq!(tb.take_errors(ATTACKER), 0);
        tb.host.broken.clear();
        tb.card.windows[ATTACKER as usize] = window;
        works_again(&mut tb, &mut queue);
        queue.reset(&mut tb);
        queue.enable(&mut tb, false);
    }
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn an_error_lets_what_was_before_it_complete() {
    let (mut tb, mut bystanders) = with_bystanders(3);
    let mut queue = Queue::new(ATTACKER, 0, [4, 4, 4]);
    queue.enable(&mut tb, false);
    let (host, card) = (queue.host, queue.card);
    let length = 0x4000;
    let there = copy(H2cOp::Copy as u64, host, card, length).expect(0, length, Check::Nothing);
    let bad = DescriptorCase::new(99, 0).expect(Status::BadOp as u64, 0, Check::Nothing);
    queue.post(&mut tb, H2C, vec![there.clone()]);
    queue.post(&mut tb, H2C, vec![there]);
    queue.post(&mut tb, H2C, vec![bad]);
    queue.post(&mut tb, H2C, vec![DescriptorCase::new(0, COMPLETE)]);
    queue.ring(&mut tb, H2C);
    let numbers: Vec<u32> = (0..3).map(|_| queue.wait(&mut tb).number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    rest(&mut tb, &mut bystanders, 500);
    assert!(queue.poll(&tb).is_none());
    works_again(&mut tb, &mut queue);
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn doorbells_that_go_too_far_are_refused() {
    let (mut tb, mut bystanders) = with_bystanders(4);
    let mut queue = Queue::new(ATTACKER, 0, [2, 1, 3]);
    queue.enable(&mut tb, false);
    let state = register::FUNCTION_ERRORS_DOORBELL_STATE.with(1);
    for _ in 0..20 {
        queue.run(&mut tb, H2C, DescriptorCase::new(0, COMPLETE));
        let producer = u64::from(queue.rings[H2C].producer);
        for (offset, value) in [
            (queue::H2C_PRODUCER, (producer + 5) % 8),
            (queue::H2C_PRODUCER, (producer + 7) % 8),
            (queue::H2C_PRODUCER, 8),
            (queue::H2C_PRODUCER, u64::MAX),
            (queue::H2C_PRODUCER, 1 << 40),
            (queue::C2H_PRODUCER, 3),
            (queue::CQ_CONSUMER, (u64::from(queue.consumer) + 1) % 16),
            (queue::CQ_CONSUMER, (u64::from(queue.consumer) + 15) % 16),
            (queue::CQ_CONSUMER, 1 << 13),
        ] {
            tb.write(ATTACKER, queue.register(offset), value);
            assert_eq!(tb.take_errors(ATTACKER), state, "{offset:#x} {value:#x}");
        }
        rest(&mut tb, &mut bystanders, 50);
    }
    // A doorbell cannot take posted entries back.
    for _ in 0..2 {
        queue.post(
            &mut tb,
            C2H,
            vec![DescriptorCase::new(0, COMPLETE).with(descriptor::AFTER, 1 << 20)],
        );
    }
    queue.ring(&mut tb, C2H);
    assert_eq!(tb.take_errors(ATTACKER), 0);
    tb.write(ATTACKER, queue.register(queue::C2H_PRODUCER), 1);
    assert_eq!(tb.take_errors(ATTACKER), state);
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn a_stuck_consumer_stalls_only_itself() {
    let (mut tb, mut bystanders) = with_bystanders(5);
    let mut stuck = Queue::new(ATTACKER, 0, [4, 4, 1]);
    let mut sister = Queue::new(ATTACKER, 1, [3, 3, 3]);
    stuck.enable(&mut tb, false);
    sister.enable(&mut tb, false);
    for _ in 0..8 {
        stuck.post(&mut tb, H2C, vec![DescriptorCase::new(0, COMPLETE)]);
        stuck.post(&mut tb, C2H, vec![DescriptorCase::new(0, COMPLETE)]);
    }
    stuck.ring(&mut tb, H2C);
    stuck.ring(&mut tb, C2H);
    let mut all: Vec<Traffic> = bystanders.drain(..).chain([Traffic::new(sister, 30)]).collect();
    unharmed(&mut tb, &mut all);
    let cq = stuck.cq_base as usize;
    let before = tb.host.bytes[cq..cq + 0x1000].to_vec();
    tb.cycles(2000);
    assert_eq!(tb.host.bytes[cq..cq + 0x1000], before, "a completion without a place");
    // Two completions are posted; each one that the driver reads makes room for the next.
    for _ in 0..16 {
        assert!(stuck.poll(&tb).is_some());
        stuck.consumed(&mut tb);
        tb.cycles(2000);
    }
    assert!(stuck.poll(&tb).is_none());
}

#[test]
fn resets_in_mid_flight_are_clean() {
    let (mut tb, mut bystanders) = with_bystanders(6);
    let mut queue = Queue::new(ATTACKER, 3, [4, 4, 5]);
    queue.enable(&mut tb, false);
    for _ in 0..40 {
        let (host, card) = (queue.host, queue.card);
        for _ in 0..tb.rng.random_range(1..10) {
            let fence = if tb.rng.random_bool(0.3) { descriptor_flag::FENCE } else { 0 };
            let flags = COMPLETE | fence;
            let length = tb.rng.random_range(1..10_000);
            let there = DescriptorCase::new(H2cOp::Copy as u64, flags).moving(host, card, length);
            queue.post(&mut tb, H2C, vec![there, DescriptorCase::new(0, flags)]);
            let back = DescriptorCase::new(C2hOp::Copy as u64, flags).moving(card, host, length);
            let after = tb.rng.random_range(0..12);
            queue.post(&mut tb, C2H, vec![back.with(descriptor::AFTER, after)]);
        }
        let code = DescriptorCase::new(H2cOp::Code as u64, COMPLETE).moving(card + 0x8000, 0, 64);
        queue.post(&mut tb, H2C, vec![code]);
        queue.ring(&mut tb, H2C);
        queue.ring(&mut tb, C2H);
        let cycles = tb.rng.random_range(0..1500);
        rest(&mut tb, &mut bystanders, cycles);
        queue.reset(&mut tb);
        let cq = queue.cq_base as usize;
        let before = tb.host.bytes[cq..cq + 1024].to_vec();
        tb.cycles(400);
        assert_eq!(tb.host.bytes[cq..cq + 1024], before, "a completion after the reset");
        works_again(&mut tb, &mut queue);
        queue.reset(&mut tb);
        queue.enable(&mut tb, false);
    }
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn a_reset_waits_for_a_slow_engine() {
    let (mut tb, mut bystanders) = with_bystanders(7);
    unharmed(&mut tb, &mut bystanders);
    let mut queue = Queue::new(ATTACKER, 0, [5, 5, 5]);
    queue.enable(&mut tb, false);
    tb.engines[1].hung = true;
    // More descriptors than the function's slots.
    for _ in 0..32 {
        let job = DescriptorCase::new(H2cOp::Code as u64, COMPLETE).moving(queue.card, 0, 64);
        queue.post(&mut tb, H2C, vec![job]);
    }
    queue.ring(&mut tb, H2C);
    tb.cycles(5000);
    // Other functions have their own slots.
    let mut other = Queue::new(9, 0, [2, 2, 2]);
    other.enable(&mut tb, false);
    works_again(&mut tb, &mut other);
    let register = queue.register(queue::CONTROL);
    tb.write(ATTACKER, register, queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64));
    tb.cycles(1000);
    assert_eq!(queue.control(&mut tb).0, QueueState::Resetting as u64);
    queue.ring(&mut tb, H2C);
    let state = register::FUNCTION_ERRORS_DOORBELL_STATE.with(1);
    assert_eq!(tb.take_errors(ATTACKER), state);
    tb.engines[1].hung = false;
    works_again(&mut tb, &mut queue);
}

#[test]
fn links_that_never_end_are_cut() {
    let (mut tb, mut bystanders) = with_bystanders(8);
    let mut queue = Queue::new(ATTACKER, 0, [2, 2, 2]);
    queue.enable(&mut tb, false);
    // The longest allowed chain.
    let mut jobs = vec![DescriptorCase::new(0, 0); MAX_CHAIN];
    jobs.push(DescriptorCase::new(0, COMPLETE));
    queue.post(&mut tb, H2C, jobs);
    queue.ring(&mut tb, H2C);
    assert_eq!(queue.wait(&mut tb).number, MAX_CHAIN as u32 + 1);
    for ring in [H2C, C2H] {
        // A descriptor that is linked to itself.
        let entry = queue.rings[ring].base + u64::from(queue.rings[ring].producer % 4) * 128;
        let job = DescriptorCase::new(0, 0).with(descriptor::NEXT, entry);
        let bad = job.clone().expect(Status::BadChain as u64, 0, Check::Nothing);
        queue.post(&mut tb, ring, vec![job]);
        queue.post(&mut tb, ring, vec![DescriptorCase::new(0, COMPLETE)]);
        let first = queue.rings[ring].posted.front().map(|posted| posted.number);
        let first = first.expect("it was posted");
        queue.rings[ring].posted.clear();
        queue.ring(&mut tb, ring);
        let at = queue.cq_base as usize + (queue.consumer % 4) as usize * 32;
        while tb.host.bytes[at] == 0 {
            traffic::cycle(&mut tb, &mut bystanders);
        }
        let entry_bytes = tb.host.bytes[at..at + 32].to_vec();
        assert_eq!(completion::STATUS.get(&entry_bytes), bad.status);
        assert_eq!(completion::INDEX.get(&entry_bytes), u64::from(first) + MAX_CHAIN as u64);
        assert_eq!(completion::DETAIL.get(&entry_bytes), entry);
        assert_eq!(queue.control(&mut tb), (QueueState::Stopped as u64, bad.status));
        queue.reset(&mut tb);
        queue.enable(&mut tb, false);
    }
    works_again(&mut tb, &mut queue);
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn waiting_forever_holds_nothing() {
    let (mut tb, mut bystanders) = with_bystanders(9);
    let mut queues: Vec<Queue> =
        (0..SETS).map(|set| Queue::new(ATTACKER, set, [5, 5, 5])).collect();
    for queue in &mut queues {
        queue.enable(&mut tb, false);
        for _ in 0..32 {
            let never = DescriptorCase::new(0, COMPLETE).with(descriptor::AFTER, 1 << 30);
            queue.post(&mut tb, C2H, vec![never]);
        }
        queue.ring(&mut tb, C2H);
    }
    rest(&mut tb, &mut bystanders, 2000);
    // The other rings of the function can use all of its slots.
    for queue in &mut queues {
        for _ in 0..100 {
            queue.run(&mut tb, H2C, DescriptorCase::new(0, COMPLETE | descriptor_flag::FENCE));
        }
    }
    unharmed(&mut tb, &mut bystanders);
    queues.iter_mut().for_each(|queue| works_again(&mut tb, queue));
}

#[test]
fn contexts_that_are_wrong_are_refused() {
    let (mut tb, mut bystanders) = with_bystanders(10);
    let mut queue = Queue::new(ATTACKER, 0, [2, 2, 2]);
    let good = queue.context_bytes(false);
    let end = (ATTACKER + 1) * HOST_WINDOW;
    use queue_context::{C2H_BASE, C2H_LOG2, CQ_BASE, CQ_LOG2, H2C_BASE, H2C_LOG2};
    for (field, value, status) in [
        (H2C_LOG2, 13, Status::BadParameter),
        (C2H_LOG2, 255, Status::BadParameter),
        (CQ_LOG2, 16, Status::BadParameter),
        (H2C_BASE, queue.host + 64, Status::BadAlignment),
        (C2H_BASE, queue.host + 4, Status::BadAlignment),
        (CQ_BASE, queue.host + 32, Status::BadAlignment),
        (H2C_BASE, 0, Status::HostFault),
        (C2H_BASE, end - 128, Status::HostFault),
        (CQ_BASE, end - 64, Status::HostFault),
        (H2C_BASE, u64::MAX - 127, Status::HostFault),
    ] {
        let mut context = good;
        field.put(&mut context, value);
        let state = queue.enable_with(&mut tb, &context);
        assert_eq!(state, (QueueState::Stopped as u64, status as u64), "{field:?} {value:#x}");
        queue.ring(&mut tb, H2C);
        rest(&mut tb, &mut bystanders, 100);
        queue.reset(&mut tb);
    }
    assert_eq!(tb.take_errors(ATTACKER), 0);
    // A context outside the function's window.
    let command = QueueCommand::Enable as u64 | queue::CONTROL_CONTEXT_BASE.with(0);
    tb.write(ATTACKER, queue.register(queue::CONTROL), command);
    assert_eq!(queue.enabled(&mut tb), (QueueState::Stopped as u64, Status::HostError as u64));
    assert_eq!(register::FAULTS_HOST.of(tb.read(0, register::FAULTS)), 1);
    // Enabling a set that is not disabled is an error, and changes nothing.
    works_again(&mut tb, &mut queue);
    queue.enable_with(&mut tb, &good);
    let state = register::FUNCTION_ERRORS_DOORBELL_STATE.with(1);
    assert_eq!(tb.take_errors(ATTACKER), state);
    works_again(&mut tb, &mut queue);
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn guards_hold_when_a_window_closes() {
    let (mut tb, mut bystanders) = with_bystanders(11);
    let mut queue = Queue::new(ATTACKER, 0, [3, 3, 3]);
    let (low, high) = (ATTACKER * HOST_WINDOW, (ATTACKER + 1) * HOST_WINDOW);
    let faults = |tb: &mut Testbench| register::FAULTS_HOST.of(tb.read(0, register::FAULTS));
    // Now the rings are outside the window, and the completions are inside; then both are outside.
    queue.enable(&mut tb, false);
    tb.set_host_window(ATTACKER, queue.cq_base, high);
    queue.post(&mut tb, H2C, vec![DescriptorCase::new(0, 0)]);
    let posted = &mut queue.rings[H2C].posted[0].job;
    posted.status = Status::HostError as u64;
    descriptor::COOKIE.put(&mut posted.bytes, 0);
    queue.ring(&mut tb, H2C);
    queue.wait(&mut tb);
    assert_eq!(faults(&mut tb), 1);
    tb.set_host_window(ATTACKER, low, high);
    works_again(&mut tb, &mut queue);
    tb.set_host_window(ATTACKER, low, low);
    queue.post(&mut tb, H2C, vec![DescriptorCase::new(0, COMPLETE)]);
    queue.ring(&mut tb, H2C);
    rest(&mut tb, &mut bystanders, 1000);
    let stopped = (QueueState::Stopped as u64, Status::HostError as u64);
    assert_eq!(queue.control(&mut tb), stopped);
    assert_eq!(faults(&mut tb), 3);
    // The window closes while copies are in flight, in both directions.
    for ring in [H2C, C2H] {
        tb.set_host_window(ATTACKER, low, high);
        works_again(&mut tb, &mut queue);
        let before = faults(&mut tb);
        let (host, card) = (queue.host, queue.card);
        let (source, destination) = if ring == H2C { (host, card) } else { (card, host) };
        let job = copy(1, source, destination, 0x2_0000);
        let job = job.expect(Status::HostError as u64, 0, Check::Nothing);
        queue.post(&mut tb, ring, vec![job]);
        queue.ring(&mut tb, ring);
        rest(&mut tb, &mut bystanders, 800);
        // Accesses that the guard has forwarded before may still come.
        let windows = tb.host.windows;
        tb.set_host_window(ATTACKER, low, host);
        tb.host.windows = windows;
        assert_eq!(queue.wait(&mut tb).status, Status::HostError as u64);
        assert!(faults(&mut tb) > before);
    }
    tb.set_host_window(ATTACKER, low, high);
    works_again(&mut tb, &mut queue);
    unharmed(&mut tb, &mut bystanders);
}

#[test]
fn queue_sets_change_hands() {
    let (mut tb, mut bystanders) = with_bystanders(12);
    let mut old = Queue::new(ATTACKER, 0, [3, 3, 3]);
    old.enable(&mut tb, false);
    // Work that waits in the scheduler for a slot of its function.
    tb.engines[1].hung = true;
    for number in [1, 0] {
        let mut queue = Queue::new(ATTACKER, number, [5, 5, 5]);
        if number == 1 {
            queue.enable(&mut tb, false);
        }
        for _ in 0..if number == 1 { 32 } else { 8 } {
            let job = DescriptorCase::new(H2cOp::Code as u64, COMPLETE).moving(
                queue.card + 0x8000,
                0,
                64,
            );
            queue.post(&mut tb, H2C, vec![job]);
        }
        queue.ring(&mut tb, H2C);
        tb.cycles(3000);
    }
    // Function 10 gets the queue sets of function 5.
    let queues = function_table::QUEUES_FIRST.with(ATTACKER * SETS)
        | function_table::QUEUES_COUNT.with(SETS)
        | function_table::QUEUES_VECTOR.with(1);
    tb.write(
        0,
        function_table::BASE + 10 * function_table::STRIDE + function_table::QUEUES,
        queues,
    );
    let mut new = Queue::new(10, 0, [3, 3, 3]);
    new.ring(&mut tb, H2C);
    assert_eq!(tb.take_errors(10), register::FUNCTION_ERRORS_DOORBELL_STATE.with(1));
    new.reset(&mut tb);
    new.enable(&mut tb, false);
    new.post(&mut tb, H2C, vec![DescriptorCase::new(0, COMPLETE)]);
    new.ring(&mut tb, H2C);
    tb.cycles(1000);
    tb.engines[1].hung = false;
    new.wait(&mut tb);
    works_again(&mut tb, &mut new);
    unharmed(&mut tb, &mut bystanders);
}

/// A function that asks for an interrupt for every descriptor, while interrupts are slow.
#[test]
fn a_flood_of_interrupts_does_not_delay_other_functions() {
    let mut tb = Testbench::new(&designs::QDMA, Timing::constant(31), SETS);
    tb.host.interrupt_stall = 0.998;
    let nop = || DescriptorCase::new(H2cOp::Nop as u64, COMPLETE | descriptor_flag::INTERRUPT);
    let mut flood: Vec<Queue> = (0..4).map(|set| Queue::new(1, set, [6, 2, 7])).collect();
    let mut victim = Queue::new(6, 0, [2, 2, 2]);
    flood.iter_mut().chain([&mut victim]).for_each(|queue| queue.enable(&mut tb, true));
    let mut before = None;
    for round in 0..400 {
        for queue in &mut flood {
            while queue.poll(&tb).is_some() {}
            queue.consumed(&mut tb);
            while queue.free(H2C) > 0 {
                queue.post(&mut tb, H2C, vec![nop()]);
            }
            queue.ring(&mut tb, H2C);
        }
        if round == 100 {
            victim.post(&mut tb, H2C, vec![nop()]);
            victim.ring(&mut tb, H2C);
        }
        for _ in 0..100 {
            tb.cycle();
            if before.is_none() && victim.poll(&tb).is_some() {
                before = Some(tb.host.raised.len());
            }
        }
        let raised_at = tb.host.raised.iter().position(|&raised| raised == vector(6));
        if let (Some(raised_at), Some(before)) = (raised_at, before) {
            assert!(before > 10, "there was no flood");
            // The interrupt that was on its way, and one whose arbitration had ended.
            assert!(raised_at <= before + 2, "{} of others went before", raised_at - before);
            return;
        }
    }
    panic!("the interrupt never came; {} of others did", tb.host.raised.len());
}

/// A driver that behaves at random: random registers of its page, random contexts, random
/// descriptors.
#[test]
fn a_driver_that_acts_at_random_affects_no_other_function() {
    for seed in [20, 21] {
        let (mut tb, mut bystanders) = with_bystanders(seed);
        let base = ATTACKER * HOST_WINDOW;
        let any = |tb: &mut Testbench, base: u64, window: u64| match tb.rng.random_range(0..8) {
            0 => tb.rng.random(),
            1 => tb.rng.random_range(0..16 * window),
            _ => base + tb.rng.random_range(0..window / 64) * 64,
        };
        for _ in 0..400 {
            // The content of its memory: descriptors that are nearly right, and contexts.
            for _ in 0..8 {
                let (op, flags) = (tb.rng.random_range(0..8), tb.rng.random_range(0..8));
                let host = any(&mut tb, base, HOST_WINDOW);
                let card = any(&mut tb, ATTACKER * CARD_WINDOW, CARD_WINDOW);
                let length = match tb.rng.random_range(0..4) {
                    0 => tb.rng.random(),
                    _ => tb.rng.random_range(0..3000),
                };
                let next = if tb.rng.random_bool(0.3) { any(&mut tb, base, 0x8000) } else { 0 };
                let pair = if tb.rng.random_bool(0.5) { (host, card) } else { (card, host) };
                let job = DescriptorCase::new(op, flags)
                    .moving(pair.0, pair.1, length)
                    .with(descriptor::NEXT, next & !64)
                    .with(descriptor::AFTER, tb.rng.random_range(0..4));
                let at = (base + tb.rng.random_range(0..256u64) * 128) as usize;
                tb.host.bytes[at..at + 128].copy_from_slice(&job.bytes);
            }
            let set = tb.rng.random_range(0..SETS + 1);
            let mut queue = Queue::new(ATTACKER, set % SETS, [3, 3, 3]);
            let mut somewhere = || base + tb.rng.random_range(0..0x10000u64 / 128) * 128;
            queue.rings[H2C].base = somewhere();
            queue.rings[C2H].base = somewhere();
            queue.cq_base = somewhere();
            let context = queue.context_bytes(tb.rng.random_bool(0.5));
            let at = base + 0x20000 + 64 * set;
            tb.host.bytes[at as usize..][..64].copy_from_slice(&context);
            let enable = QueueCommand::Enable as u64 | queue::CONTROL_CONTEXT_BASE.with(at / 64);
            let register = queue::BASE + set * queue::STRIDE;
            for _ in 0..4 {
                let (offset, value) = match tb.rng.random_range(0..8) {
                    0 => (tb.rng.random_range(0..0x20000), tb.rng.random()),
                    1 => (register + queue::CONTROL, enable),
                    2 => (register + queue::CONTROL, tb.rng.random_range(0..4)),
                    3 => (register + queue::CQ_CONSUMER, tb.rng.random_range(0..16)),
                    4 | 5 => (register + queue::C2H_PRODUCER, tb.rng.random_range(0..16)),
                    _ => (register + queue::H2C_PRODUCER, tb.rng.random_range(0..16)),
                };
                let strobe =
                    if tb.rng.random_bool(0.9) { 0xff } else { tb.rng.random_range(0..256) };
                tb.write_bytes(ATTACKER, offset, value, strobe);
            }
            if tb.rng.random_bool(0.02) {
                tb.reset_functions(1 << ATTACKER);
            }
            rest(&mut tb, &mut bystanders, 60);
        }
        unharmed(&mut tb, &mut bystanders);
        tb.take_errors(ATTACKER);
        for set in 0..SETS {
            let mut queue = Queue::new(ATTACKER, set, [2, 2, 2]);
            works_again(&mut tb, &mut queue);
        }
    }
}
