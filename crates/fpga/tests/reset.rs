//! Function-level reset over the simulated link. Its request and its answer keep the order of PCIe:
//! the request passes no register write before it, and the answer passes no write of the device.
#![cfg(feature = "rtl")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_fpga::allocator::Allocator;
use fieldstone_fpga::card::{Card, Grant, OpenError};
use fieldstone_fpga::compilers::Compilers;
use fieldstone_fpga::descriptor::Descriptor;
use fieldstone_fpga::host::Mmio;
use fieldstone_fpga::queue_set::{QueueSet, State};
use fieldstone_fpga::regs::{
    H2cOp, QueueState, checksum, descriptor_flag, function_table, queue, register,
};
use fieldstone_fpga::verilated::{Options, Simulation};

const DISABLED: u64 = QueueState::Disabled as u64;

/// A virtual function with a queue set and memory of its own.
struct Tenant {
    function: u16,
    host: Range<u64>,
    card: Range<u64>,
}

/// A device with functions 1 and 2, and the physical function, which does nothing.
fn start(seed: u64) -> (Arc<Simulation>, Arc<Card>, [Tenant; 2]) {
    let simulation = Simulation::start(&Options { seed, ..Options::default() });
    let simulation = simulation.expect("a thread can be started");
    let (host, window) = (simulation.memory().window(), simulation.card_window());
    let card = Card::open(
        simulation.function(0),
        simulation.memory(),
        Box::new(Compilers),
        0..window.end / 2,
        8,
    );
    let card = card.expect("the device is ours");
    let tenants = [1, 2].map(|function| {
        let part = u64::from(function - 1) << 20;
        let host = host.end - (2 << 20) + part..host.end - (1 << 20) + part;
        let card = window.end / 2 + (part << 3)..window.end / 2 + (part << 3) + (8 << 20);
        Tenant { function, host, card }
    });
    for tenant in &tenants {
        card.grant(tenant.function, &tenant.grant(8 + tenant.function)).expect("it is granted");
    }
    (simulation, card, tenants)
}

impl Tenant {
    fn grant(&self, set: u16) -> Grant {
        let (host, card) = (self.host.clone(), self.card.clone());
        Grant { host, card, queue_sets: set..set + 1, vector: 5 }
    }

    /// The queue set, and the allocator of the rest of the host memory.
    fn set(&self, simulation: &Arc<Simulation>) -> (QueueSet, Allocator) {
        let mut free = Allocator::new(self.host.clone());
        let (page, memory) = (simulation.function(self.function), simulation.memory());
        let set = QueueSet::new(0, page, memory, &mut free, false);
        (set.expect("there is room for rings"), free)
    }
}

fn wait(set: &mut QueueSet) {
    while matches!(set.state(), State::Enabling | State::Resetting) {
        set.poll_state();
    }
}

fn control(page: &dyn Mmio) -> u64 {
    queue::CONTROL_STATE.of(page.read64(queue::BASE + queue::CONTROL))
}

#[test]
fn a_reset_passes_no_enable_before_it() {
    let (simulation, _card, [tenant, _]) = start(41);
    let page = simulation.function(tenant.function);
    for round in 0..100 {
        let (mut set, _) = tenant.set(&simulation);
        set.enable();
        simulation.reset_function(tenant.function);
        let since = page.read64(register::CYCLES);
        while page.read64(register::CYCLES) - since < 1000 {
            assert_eq!(control(&*page), DISABLED, "round {round}");
        }
    }
}

#[test]
fn the_answer_of_a_reset_passes_no_write_before_it() {
    let (simulation, _card, [tenant, _]) = start(42);
    let (page, memory) = (simulation.function(tenant.function), simulation.memory());
    for round in 0..60 {
        let (mut set, mut free) = tenant.set(&simulation);
        set.enable();
        wait(&mut set);
        assert_eq!(set.state(), State::Enabled);
        let to = free.allocate(4096).expect("memory is free");
        for _ in 0..8 {
            set.push_c2h(&Descriptor::to_host(tenant.card.start, to.address, 4096, 0));
        }
        set.ring();
        (0..1 + round % 3).for_each(|_| {
            page.read64(register::ID);
        });
        simulation.reset_function(tenant.function);
        // The reset is done, so the host gives the memory to something else.
        let mut bytes = vec![0xa5; (tenant.host.end - tenant.host.start) as usize];
        memory.write(tenant.host.start, &bytes);
        (0..4).for_each(|_| {
            page.read64(register::ID);
        });
        memory.read(tenant.host.start, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0xa5), "round {round}: the device wrote to it");
    }
}

/// A function whose job takes long delays the reset of no other one.
#[test]
fn resets_of_two_functions_end_by_themselves() {
    let (simulation, card, [slow, quick]) = start(43);
    let (mut set, _) = slow.set(&simulation);
    set.enable();
    wait(&mut set);
    let job = Descriptor::operation(H2cOp::Checksum, slow.card.start, slow.card.start, 4 << 20);
    let job = job.with(checksum::BLOCK_BYTES, 4 << 20);
    set.push_h2c(&job.flagged(descriptor_flag::COMPLETE));
    set.ring();
    // The engine begins.
    let page = simulation.function(0);
    let since = page.read64(register::CYCLES);
    while page.read64(register::CYCLES) - since < 2000 {}
    // The queue set is at work, so its function keeps it.
    let grant = slow.grant(40);
    assert_eq!(card.grant(slow.function, &grant), Err(OpenError::InUse(slow.function)));
    let is_done = Arc::new(AtomicBool::new(false));
    let (machine, done) = (Arc::clone(&simulation), Arc::clone(&is_done));
    let reset = std::thread::spawn(move || {
        machine.reset_function(slow.function);
        done.store(true, Ordering::Release);
    });
    let page = simulation.function(slow.function);
    while control(&*page) == QueueState::Enabled as u64 {}
    for _ in 0..3 {
        simulation.reset_function(quick.function);
    }
    assert!(!is_done.load(Ordering::Acquire), "the long job holds the reset of its function up");
    // The reset of all functions waits for the one that is under way, and empties the table.
    simulation.reset_function(0);
    reset.join().expect("no panic");
    let entry = function_table::BASE + u64::from(quick.function) * function_table::STRIDE;
    assert_eq!(simulation.function(0).read64(entry + function_table::HOST_END), 0);
    assert_eq!(control(&*page), QueueState::Absent as u64);
}
