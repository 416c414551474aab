//! The verilated device behind the driver's traits.
#![cfg(feature = "rtl")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fieldstone_accel::{Device, Job, JobId, SubmissionQueueId, execute};
use fieldstone_fpga::FpgaDevice;
use fieldstone_fpga::allocator::Allocator;
use fieldstone_fpga::bitstream::bitstream;
use fieldstone_fpga::card::{Build, Card, Grant};
use fieldstone_fpga::compilers::Compilers;
use fieldstone_fpga::descriptor::Descriptor;
use fieldstone_fpga::host::Mmio;
use fieldstone_fpga::queue_set::{QueueSet, State};
use fieldstone_fpga::regs::{
    H2cOp, ReconfigurableModule, Status, checksum, code, descriptor_flag, load_map, place, queue,
    register,
};
use fieldstone_fpga::tables::{MapTable, TableCompiler};
use fieldstone_fpga::verilated::{Options, Simulation};
use fieldstone_fpga::{reconfigure_stress, selftest};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// No compilers, for tests that need no tables.
struct NoTables;

impl TableCompiler for NoTables {
    fn map(&self, _: &Arc<fieldstone_crush::Map>, _: &Arc<[u32]>) -> Result<MapTable, String> {
        Err("no compiler".to_owned())
    }

    fn program(&self, _: &Arc<fieldstone_gf::LinearMap>, _: &Build) -> Result<Vec<u8>, String> {
        Err("no compiler".to_owned())
    }
}

fn start(seed: u64) -> (Arc<Simulation>, Arc<Card>) {
    let (host_bytes, card_bytes) = (4 << 20, 4 << 20);
    let options = Options { seed, host_bytes, card_bytes, ..Options::default() };
    let simulation = Simulation::start(&options).expect("a thread can be started");
    let (page, memory) = (simulation.function(0), simulation.memory());
    let window = simulation.card_window();
    let card = Card::open(page, memory, Box::new(NoTables), window, 4);
    (simulation, card.expect("the device is ours"))
}

fn wait(set: &mut QueueSet) {
    while matches!(set.state(), State::Enabling | State::Resetting) {
        set.poll_state();
    }
}

#[test]
fn registers_say_what_the_device_is() {
    let (simulation, card) = start(1);
    assert_eq!((card.function(), card.queue_sets()), (0, 4));
    assert!(card.build().item_lanes > 0 && card.build().lane_beats > 0);
    assert_eq!(card.take_errors(), 0);
    let page = simulation.function(0);
    let (first, second) = (page.read64(register::CYCLES), page.read64(register::CYCLES));
    assert!(first < second);
    assert_eq!(page.read64(0xf8), 0);
    assert_eq!(card.take_errors(), register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1));
}

/// Copies to the card and back, of many sizes, through rings that wrap around several times.
#[test]
fn copies_come_back() {
    let (simulation, card) = start(2);
    let (page, memory) = (simulation.function(0), simulation.memory());
    let mut free = Allocator::new(memory.window());
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (own, host) = (Arc::clone(&memory), Arc::clone(&memory));
    let set = QueueSet::new(1, page, own, &mut free, false);
    let mut set = set.expect("there is room for rings");
    set.enable();
    wait(&mut set);
    assert_eq!(set.state(), State::Enabled);
    let mut completions = Vec::new();
    for round in 0..300u16 {
        let bytes = if round % 50 == 0 { 20_000 } else { rng.random_range(1..500) };
        let from = free.allocate(bytes).expect("memory is free");
        let to = free.allocate(bytes).expect("memory is free");
        let data: Vec<u8> = (0..bytes).map(|_| rng.random()).collect();
        host.write(from.address, &data);
        host.write(to.address, &vec![0xa5; to.bytes as usize]);
        let there = 64 * rng.random_range(0..10_000);
        set.push_h2c(&Descriptor::to_card(from.address, there, bytes as u64));
        let back = Descriptor::to_host(there, to.address, bytes as u64, set.after());
        set.push_c2h(&back.flagged(descriptor_flag::COMPLETE).cookie(round));
        set.ring();
        completions.clear();
        while completions.is_empty() {
            set.poll(&mut completions).expect("sane completions");
            simulation.function(0).relax();
        }
        assert_eq!((completions[0].cookie, completions[0].status), (round, Ok(Status::Ok)));
        assert_eq!((completions[0].is_c2h, completions[0].result), (true, bytes as u64));
        let mut got = vec![0; to.bytes as usize];
        host.read(to.address, &mut got);
        assert_eq!(got[..bytes], data);
        assert!(got[bytes..].iter().all(|&byte| byte == 0xa5), "bytes behind the copy are kept");
        free.release(from);
        free.release(to);
        // H2C descriptors have no completion here: the ring learns of them from this one.
        if set.room().0 < 8 {
            set.push_h2c(&Descriptor::nop().flagged(descriptor_flag::COMPLETE));
            set.ring();
            while set.room().0 < 8 {
                set.poll(&mut completions).expect("sane completions");
            }
        }
    }
    assert_eq!((card.totals().host_faults, card.take_errors()), (0, 0));
    assert!(simulation.speed().cycles > 10_000 && !simulation.speed().busy.is_zero());
}

#[test]
fn an_error_stops_the_set_and_a_reset_brings_it_back() {
    let (simulation, card) = start(3);
    let memory = simulation.memory();
    let mut free = Allocator::new(memory.window());
    let set = QueueSet::new(0, simulation.function(0), memory, &mut free, false);
    let mut set = set.expect("there is room for rings");
    for round in 0..3 {
        set.enable();
        wait(&mut set);
        assert_eq!(set.state(), State::Enabled);
        set.push_h2c(&Descriptor::to_card(64, 0, 64).cookie(round));
        set.ring();
        let mut completions = Vec::new();
        while completions.is_empty() {
            set.poll(&mut completions).expect("sane completions");
        }
        assert_eq!((completions[0].cookie, completions[0].status), (round, Ok(Status::HostFault)));
        set.reset();
        wait(&mut set);
        assert_eq!(set.state(), State::Disabled);
    }
    assert!(set.take_allocation().is_some());
    assert_eq!(card.take_errors(), 0);
}

/// Random jobs of every kind that the compilers take; the results have the bits of software.
#[test]
fn random_jobs_have_the_bits_of_software() {
    let simulation = Simulation::start(&Options::default()).expect("a thread can be started");
    let (page, memory) = (simulation.function(0), simulation.memory());
    let window = simulation.card_window();
    let card = Card::open(page, memory, Box::new(Compilers), window, 8);
    let card = card.expect("the device is ours");
    for (seed, interrupts) in [(1, false), (2, true)] {
        let mut device = FpgaDevice::open(&card, interrupts).expect("a queue set is free");
        let options = selftest::Options { seed, count: 150, depth: 8, max_bytes: 16 << 10 };
        let report = selftest::run(&mut device, &options, |_| true);
        assert!(report.is_good(), "{report:?}");
        assert_eq!(device.resets(), 0);
    }
    let totals = card.totals();
    assert_eq!((totals.host_faults, totals.card_faults, card.take_errors()), (0, 0, 0));
    assert!(totals.card_reads > 0 && totals.card_writes > 0);
    let speed = simulation.speed();
    println!("{speed:?}: {:.0} cycles/s", speed.cycles as f64 / speed.busy.as_secs_f64());
}

/// The same while both memories and the host's interrupts stall at random, and the two completions
/// of a read come apart. The device's assertions are on.
#[test]
fn random_jobs_have_the_bits_of_software_when_everything_stalls() {
    for (seed, stall) in [(3, 0.1), (4, 0.5)] {
        let options = Options { seed, stall, completion_split: 0..40, ..Options::default() };
        let simulation = Simulation::start(&options).expect("a thread can be started");
        let (page, memory) = (simulation.function(0), simulation.memory());
        let window = simulation.card_window();
        let card = Card::open(page, memory, Box::new(Compilers), window, 8);
        let card = card.expect("the device is ours");
        let mut device = FpgaDevice::open(&card, true).expect("a queue set is free");
        let options = selftest::Options { seed, count: 100, depth: 8, max_bytes: 8 << 10 };
        let report = selftest::run(&mut device, &options, |_| true);
        assert!(report.is_good(), "{report:?}");
        let stress = reconfigure_stress::run(&mut device, seed, 4, |_| true);
        assert_eq!((stress.swaps, stress.failed, stress.wrong), (4, 0, 0), "{stress:?}");
        assert!(stress.device_jobs > 0, "{stress:?}");
        assert_eq!(device.resets(), 0);
        let totals = card.totals();
        assert_eq!((totals.host_faults, totals.card_faults, card.take_errors()), (0, 0, 0));
    }
}

/// After a queue set is disabled, its memory may be used for something else.
#[test]
fn a_disabled_queue_set_leaves_memory_alone() {
    let (simulation, _card) = start(5);
    let memory = simulation.memory();
    let page = simulation.function(0);
    let pass_time = |reads: u64| {
        for _ in 0..reads {
            page.read64(register::ID);
        }
    };
    for round in 0..60 {
        let mut free = Allocator::new(memory.window());
        let (page, own) = (simulation.function(0), Arc::clone(&memory));
        let set = QueueSet::new(1, page, own, &mut free, false);
        let mut set = set.expect("there is room for rings");
        set.enable();
        wait(&mut set);
        let from = free.allocate(64).expect("memory is free");
        let there = Descriptor::to_card(from.address, 0, 64).flagged(descriptor_flag::COMPLETE);
        (0..8).for_each(|_| set.push_h2c(&there));
        set.ring();
        // A read takes some 300 cycles, and the work four times that.
        pass_time(round % 6);
        set.reset();
        wait(&mut set);
        let rings = set.take_allocation().expect("the reset has ended");
        let mut bytes = vec![0xa5; rings.bytes as usize];
        memory.write(rings.address, &bytes);
        pass_time(8);
        memory.read(rings.address, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0xa5), "round {round}: the device wrote to it");
    }
}

/// A doorbell that the host sends behind an ENABLE lies before the context's data in the link.
#[test]
fn a_register_read_is_answered_while_a_queue_set_is_enabled() {
    let (simulation, card) = start(6);
    let memory = simulation.memory();
    let mut free = Allocator::new(memory.window());
    let mut set = |number| {
        let (page, own) = (simulation.function(0), Arc::clone(&memory));
        let set = QueueSet::new(number, page, own, &mut free, false);
        set.expect("there is room for rings")
    };
    let (mut working, mut enabled) = (set(1), set(2));
    working.enable();
    wait(&mut working);
    for round in 0..8 {
        enabled.enable();
        let nop = Descriptor::operation(H2cOp::Nop, 0, 0, 0);
        working.push_h2c(&nop.cookie(round).flagged(descriptor_flag::COMPLETE));
        working.ring();
        assert_ne!(simulation.function(0).read64(register::CYCLES), u64::MAX);
        wait(&mut enabled);
        assert_eq!(enabled.state(), State::Enabled);
        let mut completions = Vec::new();
        while completions.is_empty() {
            working.poll(&mut completions).expect("sane completions");
        }
        assert_eq!((completions[0].cookie, completions[0].status), (round, Ok(Status::Ok)));
        enabled.reset();
        wait(&mut enabled);
    }
    assert_eq!(card.take_errors(), 0);
}

/// A function-level reset of a virtual function that works, while the physical one works, too.
#[test]
fn a_function_is_reset_while_another_works() {
    let simulation = Simulation::start(&Options::default()).expect("a thread can be started");
    let memory = simulation.memory();
    let (host, window) = (memory.window(), simulation.card_window());
    let half = window.end / 2;
    let page = simulation.function(0);
    let card = Card::open(page, Arc::clone(&memory), Box::new(Compilers), 0..half, 8);
    let card = card.expect("the device is ours");
    let (own, mine) = (host.end - (1 << 20)..host.end, half..window.end);
    let grant = Grant { host: own.clone(), card: mine.clone(), queue_sets: 8..10, vector: 5 };
    card.grant(1, &grant).expect("function 0 grants");
    let other = Arc::clone(&card);
    let others = std::thread::spawn(move || {
        let mut device = FpgaDevice::open(&other, false).expect("a queue set is free");
        let options = selftest::Options { seed: 7, count: 60, depth: 8, max_bytes: 8 << 10 };
        (selftest::run(&mut device, &options, |_| true), device.resets())
    });
    for round in 0..12 {
        let mut free = Allocator::new(own.clone());
        let set = QueueSet::new(0, simulation.function(1), Arc::clone(&memory), &mut free, false);
        let mut set = set.expect("there is room for rings");
        set.enable();
        wait(&mut set);
        assert_eq!(set.state(), State::Enabled);
        let from = free.allocate(4096).expect("memory is free");
        for _ in 0..8 {
            let there = Descriptor::to_card(from.address, mine.start, 4096);
            let back = Descriptor::to_host(mine.start, from.address, 4096, set.after());
            set.push_h2c(&there.flagged(descriptor_flag::COMPLETE));
            set.push_c2h(&back.flagged(descriptor_flag::COMPLETE));
        }
        set.ring();
        (0..round % 4).for_each(|_| {
            simulation.function(1).read64(register::ID);
        });
        simulation.reset_function(1);
        let mut bytes = vec![0xa5; (1 << 20) - 4096];
        memory.write(own.start, &bytes);
        (0..8).for_each(|_| {
            simulation.function(1).read64(register::ID);
        });
        memory.read(own.start, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0xa5), "round {round}: the device wrote to it");
        // A new driver finds the function as it was granted, with its queue sets disabled.
    }
    let (report, resets) = others.join().expect("no panic");
    assert!(report.is_good() && resets == 0, "{resets} resets, {report:?}");
    simulation.reset_function(0);
    assert_eq!(register::FUNCTION_QUEUES.of(simulation.function(1).read64(register::FUNCTION)), 0);
}

/// A page of registers that loses the first doorbell of an H2C ring.
struct Forgetful {
    page: Arc<dyn Mmio>,
    loses: AtomicBool,
}

impl Mmio for Forgetful {
    fn read64(&self, offset: u64) -> u64 {
        self.page.read64(offset)
    }

    fn write64(&self, offset: u64, value: u64) {
        let part = offset.checked_sub(queue::BASE).map(|offset| offset % queue::STRIDE);
        let is_doorbell = part == Some(queue::H2C_PRODUCER);
        if !(is_doorbell && self.loses.swap(false, Ordering::Relaxed)) {
            self.page.write64(offset, value);
        }
    }

    fn relax(&self) {
        self.page.relax();
    }
}

/// The device then rests, and its clock with it: it counts fewer cycles than a device that is
/// stuck.
#[test]
fn a_lost_doorbell_costs_seconds() {
    let simulation = Simulation::start(&Options::default()).expect("a thread can be started");
    let page = Arc::new(Forgetful { page: simulation.function(0), loses: false.into() });
    let (memory, window) = (simulation.memory(), simulation.card_window());
    let mmio = Arc::clone(&page) as Arc<dyn Mmio>;
    let card = Card::open(mmio, memory, Box::new(NoTables), window, 4);
    let mut device = FpgaDevice::open(&card.expect("the device is ours"), false).expect("a set");
    let job = Job::Checksum { data: vec![1; 4096].into(), block_bytes: 4096 };
    let mut run = |number| {
        device.submit(SubmissionQueueId(0), JobId(number), job.clone()).expect("there is room");
        let mut completions = Vec::new();
        let begun = Instant::now();
        while completions.is_empty() {
            device.poll(SubmissionQueueId(0), &mut completions);
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "the driver did not notice the fault"
            );
        }
        while device.submit(SubmissionQueueId(0), JobId(0), job.clone()).is_err() {}
        while completions.len() < 2 {
            device.poll(SubmissionQueueId(0), &mut completions);
        }
        completions
    };
    page.loses.store(true, Ordering::Relaxed);
    let completions = run(1);
    assert!(completions[0].result.is_err(), "the engine repeats it");
    assert_eq!(completions[1].result, execute(&job));
    assert_eq!((device.resets(), device.is_lost()), (1, false));
}

/// A virtual function makes forbidden accesses again and again, while the physical function works.
/// Every forbidden access completes with its status on the offender's queue, and no other function
/// is affected.
#[test]
fn a_function_that_misbehaves_affects_no_other_function() {
    const ROUNDS: usize = 12;
    let simulation = Simulation::start(&Options::default()).expect("a thread can be started");
    let memory = simulation.memory();
    let (host, window) = (memory.window(), simulation.card_window());
    let card = Card::open(
        simulation.function(0),
        Arc::clone(&memory),
        Box::new(Compilers),
        window.start..window.end / 2,
        8,
    );
    let card = card.expect("the device is ours");
    let (own, mine) = (host.end - (1 << 20)..host.end, window.end / 2..window.end);
    let grant = Grant { host: own.clone(), card: mine.clone(), queue_sets: 8..10, vector: 5 };
    card.grant(1, &grant).expect("function 0 grants");

    let other = Arc::clone(&card);
    let others = std::thread::spawn(move || {
        let mut device = FpgaDevice::open(&other, false).expect("a queue set is free");
        let options = selftest::Options { seed: 5, count: 150, depth: 8, max_bytes: 8 << 10 };
        (selftest::run(&mut device, &options, |_| true), device.resets())
    });

    let mut free = Allocator::new(own.clone());
    let set = QueueSet::new(0, simulation.function(1), Arc::clone(&memory), &mut free, false);
    let mut set = set.expect("there is room for rings");
    // Good copies bring a bitstream to the tenant's card memory, for a later forbidden operation.
    let stream = bitstream(ReconfigurableModule::Tree);
    let staging = free.allocate(stream.len()).expect("memory is free");
    memory.write(staging.address, &stream);
    let copy = Descriptor::to_card(staging.address, mine.start, stream.len() as u64);
    let nothing = mine.start + (1 << 20);
    let op = |op, bytes| Descriptor::operation(op, nothing, nothing + 4096, bytes);
    let run = op(H2cOp::Code, 64)
        .with(code::ELEMENT_BYTES, 64)
        .with(code::BATCH, 1)
        .with(code::INPUT_BASE, nothing)
        .with(code::OUTPUT_BASE, nothing);
    let elsewhere = Descriptor::operation(H2cOp::Checksum, 0, nothing, 4096);
    let offences = [
        (copy.clone(), Status::Ok),
        (Descriptor::to_card(host.start + 4096, mine.start, 64), Status::HostFault),
        (Descriptor::to_card(own.end - 64, mine.start, 128), Status::HostFault),
        (Descriptor::to_card(staging.address, 0, 64), Status::CardFault),
        (Descriptor::to_card(staging.address, mine.end - 64, 128), Status::CardFault),
        (Descriptor::to_card(staging.address + 8, mine.start, 64), Status::BadAlignment),
        (Descriptor::to_card(staging.address, mine.start, 0), Status::BadLength),
        (
            Descriptor::operation(H2cOp::Reconfigure, mine.start, 0, stream.len() as u64),
            Status::NotPermitted,
        ),
        (op(H2cOp::LoadMap, 64).with(load_map::EPOCH, 1), Status::NotPermitted),
        (op(H2cOp::Place, 64).with(place::WIDTH, 3).with(place::EPOCH, 0xdead), Status::StaleEpoch),
        (run.clone(), Status::BadProgram),
        (run.with(code::BATCH, 0), Status::BadParameter),
        (elsewhere.with(checksum::BLOCK_BYTES, 4096), Status::CardFault),
    ];
    for round in 0..ROUNDS {
        for (number, (offence, expected)) in offences.iter().enumerate() {
            set.enable();
            wait(&mut set);
            assert_eq!(set.state(), State::Enabled);
            set.push_h2c(&offence.clone().flagged(descriptor_flag::COMPLETE));
            set.ring();
            let mut completions = Vec::new();
            while completions.is_empty() {
                set.poll(&mut completions).expect("sane completions");
                simulation.function(1).relax();
            }
            assert_eq!(completions[0].status, Ok(*expected), "offence {number}, round {round}");
            set.reset();
            wait(&mut set);
        }
    }
    let (report, resets) = others.join().expect("no panic");
    assert!(report.is_good() && resets == 0, "{resets} resets, {report:?}");
}
