//! A queue set that its function has no longer, and one that a function keeps: the driver against
//! the software model of the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fieldstone_fpga::Card;
use fieldstone_fpga::allocator::Allocator;
use fieldstone_fpga::card::{Grant, OpenError};
use fieldstone_fpga::host::{DmaMemory, Mmio};
use fieldstone_fpga::model::{DeviceModel, ModelTables, Options};
use fieldstone_fpga::queue_set::{QueueSet, State};
use fieldstone_fpga::regs::{QueueState, function_table, queue, register};

/// A page of registers. From a moment on, CONTROL reads as this.
struct Changed {
    page: Arc<dyn Mmio>,
    control: AtomicU64,
}

/// CONTROL reads as the device gives it.
const UNCHANGED: u64 = u64::MAX - 1;

impl Mmio for Changed {
    fn read64(&self, offset: u64) -> u64 {
        let value = self.page.read64(offset);
        let changed = self.control.load(Ordering::Relaxed);
        let part = offset.checked_sub(queue::BASE).map(|offset| offset % queue::STRIDE);
        if part == Some(queue::CONTROL) && changed != UNCHANGED { changed } else { value }
    }

    fn write64(&self, offset: u64, value: u64) {
        self.page.write64(offset, value);
    }

    fn relax(&self) {
        self.page.relax();
    }
}

fn start(seed: u64) -> (DeviceModel, Arc<Card>) {
    let model = DeviceModel::new(&Options { seed, ..Options::default() });
    let tables = Box::new(ModelTables::new(&model));
    let card = Card::open(model.function(0), model.memory(), tables, model.card_window(), 4);
    (model, card.expect("the device is ours"))
}

fn wait(set: &mut QueueSet) {
    while matches!(set.state(), State::Enabling | State::Resetting) {
        set.poll_state();
    }
}

/// A set that the function does not have may be another function's, and at work. So the driver does
/// not take it for a disabled one: it never gives the memory back.
#[test]
fn the_memory_of_a_set_that_is_absent_stays_in_use() {
    // ABSENT, states that no device of today has, and a bus without a device.
    for found in [QueueState::Absent as u64, 9, 0xffff_ff0f, u64::MAX] {
        for resets in [false, true] {
            let (model, _card) = start(1);
            let page = Changed { page: model.function(0), control: UNCHANGED.into() };
            let page = Arc::new(page);
            let mmio: Arc<dyn Mmio> = page.clone();
            let mut free = Allocator::new(model.memory().window());
            let set = QueueSet::new(0, mmio, model.memory(), &mut free, false);
            let mut set = set.expect("there is room for rings");
            set.enable();
            if resets {
                wait(&mut set);
                assert_eq!(set.state(), State::Enabled);
                set.reset();
            }
            page.control.store(found, Ordering::Relaxed);
            set.poll_state();
            assert_eq!(set.state(), State::Lost, "{found:#x}, {resets}");
            assert!(set.take_allocation().is_none());
        }
    }
}

#[test]
fn a_function_keeps_its_sets_while_one_is_at_work() {
    let (model, card) = start(2);
    let (page, memory) = (model.function(3), model.memory());
    let (host, window) = (memory.window(), model.card_window());
    let grant = |first: u16, count| {
        let (host, card) = (host.clone(), window.clone());
        Grant { host, card, queue_sets: first..first + count, vector: 3 }
    };
    assert_eq!(card.grant(3, &grant(4, 2)), Ok(()));
    let absent = queue::BASE + 2 * queue::STRIDE;
    assert_eq!(page.read64(absent + queue::CONTROL), QueueState::Absent as u64);
    assert_eq!(page.read64(absent), 0);
    let range = register::FUNCTION_ERRORS_DOORBELL_RANGE.with(1);
    assert_eq!(page.read64(register::FUNCTION_ERRORS), range);
    let mut free = Allocator::new(host.end - (1 << 20)..host.end);
    let set = QueueSet::new(1, page.clone(), memory, &mut free, false);
    let mut set = set.expect("there is room for rings");
    set.enable();
    wait(&mut set);
    let entry = function_table::BASE + 3 * function_table::STRIDE + function_table::QUEUES;
    let (own, before) = (model.function(0), model.function(0).read64(entry));
    for (first, count) in [(4, 1), (5, 2), (3, 3), (6, 2), (0, 0)] {
        assert_eq!(card.grant(3, &grant(first, count)), Err(OpenError::InUse(3)));
        let queues = function_table::QUEUES_FIRST.with(first.into())
            | function_table::QUEUES_COUNT.with(count.into());
        card.take_errors();
        own.write64(entry, queues);
        let refused = register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1);
        assert_eq!((own.read64(entry), card.take_errors()), (before, refused));
    }
    // Function 0 may give the function more queue sets, or another vector, at any time.
    let more = function_table::QUEUES_FIRST.with(4) | function_table::QUEUES_COUNT.with(3);
    own.write64(entry, more);
    assert_eq!((own.read64(entry), card.take_errors()), (more, 0));
    assert_eq!(page.read64(absent + queue::CONTROL), QueueState::Disabled as u64);
    set.reset();
    wait(&mut set);
    assert_eq!(set.state(), State::Disabled);
    assert_eq!(card.grant(3, &grant(6, 1)), Ok(()));
    assert_eq!(card.take_errors(), 0);
    assert!(set.take_allocation().is_some());
}
