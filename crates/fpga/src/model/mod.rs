//! A software model of the device, for tests of the driver. The model has the same registers,
//! rings, descriptors, rules and errors as the real device, and makes faults on request.
//!
//! It has no clock: time passes when a driver reads a register or [relaxes](Mmio::relax), in steps
//! that the seed decides. A step is one descriptor of some queue set. The CPU crates do the
//! operations. The model does not decode tables. Instead of the compilers, [`ModelTables`] makes
//! bytes without a meaning, and tells the device by their checksum which table they stand for. So a
//! table that arrives damaged, or not at all, is an error here as it is on the real device.

mod operations;
mod registers;
mod sets;
mod tables;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_gf::LinearMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::host::{DmaMemory, Mmio};
use crate::regs::{MAX_FUNCTIONS, PartitionState, ReconfigurableModule, Status};
use sets::Set;
use tables::KnownMap;
pub use tables::ModelTables;

/// Where host memory begins on the bus.
const HOST_BASE: u64 = 0x1_0000_0000;

/// The faults to make.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The chance that a descriptor ends with an error.
    pub wrong_status: f64,
    /// The chance that a placement or a coding operation takes longer than an operation may.
    pub too_long: f64,
    /// The chance that a completion is not written.
    pub lost_completion: f64,
    /// The chance that a completion names a descriptor that does not exist.
    pub wrong_index: f64,
    /// The chance that an interrupt is not raised.
    pub lost_interrupt: f64,
    /// The chance that a bitstream is damaged on its way into the partition.
    pub bad_bitstream: f64,
    /// Queue sets do nothing, and resets do not end.
    pub stuck: bool,
    /// The clock does not advance.
    pub frozen: bool,
    /// The device is gone: registers read as all ones.
    pub gone: bool,
}

/// How a device model is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides how time passes.
    pub seed: u64,
    /// Size of host memory.
    pub host_bytes: usize,
    /// Size of card memory.
    pub card_bytes: usize,
    /// Queue sets.
    pub queue_sets: u16,
    /// The faults to make.
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        let (host_bytes, card_bytes) = (32 << 20, 32 << 20);
        Self { seed: 0, host_bytes, card_bytes, queue_sets: 64, faults: Faults::default() }
    }
}

/// The device. All clones are one device.
#[derive(Clone)]
pub struct DeviceModel(Arc<Mutex<State>>);

/// A function, with the resources that the physical function granted it.
#[derive(Clone, Debug, Default)]
struct Function {
    host: Range<u64>,
    card: Range<u64>,
    first_set: u16,
    sets: u16,
    vector: u8,
    errors: u64,
    interrupts: u64,
}

struct Partition {
    module: ReconfigurableModule,
    state: PartitionState,
    swaps: u64,
}

struct State {
    rng: ChaCha8Rng,
    cycles: u64,
    host: Vec<u8>,
    card: Vec<u8>,
    functions: Vec<Function>,
    sets: Vec<Set>,
    partition: Partition,
    loaded: Option<(u32, Arc<KnownMap>)>,
    maps: HashMap<u32, Arc<KnownMap>>,
    programs: HashMap<u32, Arc<LinearMap>>,
    faults: Faults,
    host_faults: u64,
    card_faults: u64,
    /// Number of operations done, by their code in `h2c_op`.
    done: [u64; 8],
}

/// An error of an operation: its status, and the wrong field or value.
type Failure = (Status, u64);

impl DeviceModel {
    /// A device after reset.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: ChaCha8Rng::seed_from_u64(options.seed),
            cycles: 0,
            host: vec![0; options.host_bytes],
            card: vec![0; options.card_bytes],
            functions: vec![Function::default(); MAX_FUNCTIONS],
            sets: (0..options.queue_sets).map(|_| Set::default()).collect(),
            partition: Partition {
                module: ReconfigurableModule::None,
                state: PartitionState::Running,
                swaps: 0,
            },
            loaded: None,
            maps: HashMap::new(),
            programs: HashMap::new(),
            faults: options.faults.clone(),
            host_faults: 0,
            card_faults: 0,
            done: [0; 8],
        })))
    }

    /// The registers of a function.
    #[must_use]
    pub fn function(&self, function: u16) -> Arc<ModelFunction> {
        Arc::new(ModelFunction { model: self.clone(), function })
    }

    /// All of host memory.
    #[must_use]
    pub fn memory(&self) -> Arc<ModelMemory> {
        let window = HOST_BASE..HOST_BASE + self.state().host.len() as u64;
        Arc::new(ModelMemory { model: self.clone(), window })
    }

    /// A part of host memory, as a virtual machine has it.
    #[must_use]
    pub fn memory_part(&self, window: Range<u64>) -> Arc<ModelMemory> {
        Arc::new(ModelMemory { model: self.clone(), window })
    }

    /// Card memory.
    #[must_use]
    pub fn card_window(&self) -> Range<u64> {
        0..self.state().card.len() as u64
    }

    /// Sets the faults to make from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// How many operations of the H2C ring ended without an error.
    #[must_use]
    pub fn done(&self, operation: crate::regs::H2cOp) -> u64 {
        self.state().done[operation as usize]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registers of one function of a device model.
pub struct ModelFunction {
    model: DeviceModel,
    function: u16,
}

impl Mmio for ModelFunction {
    fn read64(&self, offset: u64) -> u64 {
        let mut state = self.model.state();
        if state.faults.gone {
            return u64::MAX;
        }
        state.pass_time();
        state.read_register(usize::from(self.function), offset)
    }

    fn write64(&self, offset: u64, value: u64) {
        let mut state = self.model.state();
        if !state.faults.gone {
            state.write_register(usize::from(self.function), offset, value);
        }
    }

    fn interrupts(&self) -> Option<u64> {
        Some(self.model.state().functions[usize::from(self.function)].interrupts)
    }

    fn relax(&self) {
        self.model.state().pass_time();
    }
}

/// Host memory of a device model.
pub struct ModelMemory {
    model: DeviceModel,
    window: Range<u64>,
}

impl DmaMemory for ModelMemory {
    fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    fn read(&self, address: u64, data: &mut [u8]) {
        assert!(self.window.contains(&address), "the driver stays in its window");
        let at = (address - HOST_BASE) as usize;
        data.copy_from_slice(&self.model.state().host[at..at + data.len()]);
    }

    fn write(&self, address: u64, data: &[u8]) {
        assert!(self.window.contains(&address), "the driver stays in its window");
        let at = (address - HOST_BASE) as usize;
        self.model.state().host[at..at + data.len()].copy_from_slice(data);
    }
}

impl State {
    /// Advances some cycles, and does some descriptors.
    fn pass_time(&mut self) {
        if self.faults.frozen || self.faults.gone {
            return;
        }
        self.cycles += self.rng.random_range(1..1 << 14);
        if self.faults.stuck {
            return;
        }
        for _ in 0..self.rng.random_range(0..6) {
            self.step();
        }
    }

    /// True with this probability.
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability)
    }

    /// The index range of host memory, if the function may reach it.
    fn host_range(
        &mut self,
        function: usize,
        address: u64,
        bytes: u64,
    ) -> Result<Range<usize>, Failure> {
        let window = self.functions[function].host.clone();
        let there = HOST_BASE..HOST_BASE + self.host.len() as u64;
        let end = address.saturating_add(bytes);
        if address < window.start || end > window.end || address < there.start || end > there.end {
            self.host_faults += 1;
            return Err((Status::HostFault, address));
        }
        Ok((address - HOST_BASE) as usize..(end - HOST_BASE) as usize)
    }

    /// The index range of card memory, if the function may reach it.
    fn card_range(
        &mut self,
        function: usize,
        address: u64,
        bytes: u64,
    ) -> Result<Range<usize>, Failure> {
        let window = self.functions[function].card.clone();
        let end = address.saturating_add(bytes);
        if address < window.start || end > window.end || end > self.card.len() as u64 {
            self.card_faults += 1;
            return Err((Status::CardFault, address));
        }
        Ok(address as usize..end as usize)
    }
}
