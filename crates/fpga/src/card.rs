//! A function of a device, shared by the owners of its queue sets.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::allocator::Allocator;
use crate::host::{DmaMemory, Mmio};
use crate::maps::Maps;
use crate::regs::{
    IDENTIFICATION, MAX_FUNCTIONS, MAX_QUEUE_SETS, PartitionState, ReconfigurableModule, VERSION,
    function_table, register,
};
use crate::tables::TableCompiler;

/// How the device was built, from its `BUILD` register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Build {
    /// Items that a bucket kernel hashes in one cycle.
    pub item_lanes: u32,
    /// Mappings in flight.
    pub contexts: u32,
    /// Operands of the codes engine's multiply-add tree.
    pub code_lanes: u32,
    /// Processing units of the codes engine.
    pub code_units: u32,
    /// Beats that one bank of a code lane's buffer holds.
    pub lane_beats: u32,
    /// Operations that the program table holds.
    pub program_ops: u32,
}

impl Build {
    fn of(register: u64) -> Self {
        use register::{
            BUILD_CODE_LANES, BUILD_CODE_UNITS, BUILD_CONTEXTS, BUILD_ITEM_LANES, BUILD_LANE_BEATS,
            BUILD_PROGRAM_OPS,
        };
        let part = |bits: crate::field::Bits| bits.of(register) as u32;
        Self {
            item_lanes: part(BUILD_ITEM_LANES),
            contexts: part(BUILD_CONTEXTS),
            code_lanes: part(BUILD_CODE_LANES),
            code_units: part(BUILD_CODE_UNITS),
            lane_beats: part(BUILD_LANE_BEATS),
            program_ops: part(BUILD_PROGRAM_OPS),
        }
    }
}

/// The resources that a function may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Host memory.
    pub host: Range<u64>,
    /// Card memory.
    pub card: Range<u64>,
    /// Its queue sets, by the device's numbers for them.
    pub queue_sets: Range<u16>,
    /// Its interrupt vector.
    pub vector: u8,
}

/// The reconfigurable partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The loaded module; `None` for a number that this driver does not know.
    pub module: Option<ReconfigurableModule>,
    /// The partition's state; `None` for a number that this driver does not know.
    pub state: Option<PartitionState>,
    /// Successful reconfigurations since reset.
    pub swaps: u64,
}

/// Totals since the device was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Clock cycles.
    pub cycles: u64,
    /// Accesses to host memory that the guards refused.
    pub host_faults: u64,
    /// Accesses to card memory that the guards refused.
    pub card_faults: u64,
    /// Beats that the codes engine has read.
    pub card_reads: u64,
    /// Beats that the codes engine has written.
    pub card_writes: u64,
    /// Cycles in which the codes engine had a job.
    pub code_busy: u64,
    /// Draws of one item from one bucket, for all placements.
    pub draws: u64,
    /// Cycles that the last draw took, from its request to its answer.
    pub last_draw_cycles: u64,
}

/// Why a function cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// There is no Fieldstone device.
    #[error("the ID register reads {found:#x}, not {IDENTIFICATION:#x}: no Fieldstone device")]
    NotOurs {
        /// The value of the ID register.
        found: u64,
    },
    /// The device has another version of the registers.
    #[error("the device's registers are version {found}, this driver knows version {VERSION}")]
    Version {
        /// The device's version.
        found: u64,
    },
    /// No queue set is left.
    #[error("all {0} queue sets of the function are in use: further users need --accel cpu")]
    NoQueueSet(u16),
    /// No memory is left for rings.
    #[error("host memory has no room for another queue set")]
    NoMemory,
    /// The device did not take the queue set's context.
    #[error("queue set {0} does not become ready")]
    NotReady(u16),
    /// The device keeps a function's queue sets while one of them is not disabled.
    #[error("function {0} has queue sets at work: reset the function before it gets others")]
    InUse(u16),
    /// Only the physical function may grant resources.
    #[error("function {0} is not the physical function")]
    NotPhysical(u16),
    /// A grant of resources that the device does not have.
    #[error("there is no function {function} with queue sets {queue_sets:?}")]
    Grant {
        /// The function.
        function: u16,
        /// Its queue sets.
        queue_sets: Range<u16>,
    },
}

/// A function of a device.
pub struct Card {
    pub(crate) mmio: Arc<dyn Mmio>,
    pub(crate) memory: Arc<dyn DmaMemory>,
    pub(crate) tables: Box<dyn TableCompiler>,
    function: u16,
    queue_sets: u16,
    build: Build,
    shared: Mutex<Shared>,
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut card = f.debug_struct("Card");
        card.field("function", &self.function).field("build", &self.build).finish_non_exhaustive()
    }
}

/// State that the queue sets of a function share.
pub(crate) struct Shared {
    pub host: Allocator,
    pub card: Allocator,
    pub free_sets: Vec<u16>,
    pub maps: Maps,
}

impl Card {
    /// Opens the function with these registers. `card` is its window of card memory. A physical
    /// function gets this window, all of `memory`, and the device's first `queue_sets`. A virtual
    /// function gets nothing here: the physical function must have granted its resources before.
    ///
    /// # Errors
    /// The device is none that this driver knows, or the physical function has queue sets of
    /// another driver at work.
    pub fn open(
        mmio: Arc<dyn Mmio>,
        memory: Arc<dyn DmaMemory>,
        tables: Box<dyn TableCompiler>,
        card: Range<u64>,
        queue_sets: u16,
    ) -> Result<Arc<Self>, OpenError> {
        let found = mmio.read64(register::ID);
        if found != IDENTIFICATION {
            return Err(OpenError::NotOurs { found });
        }
        let found = mmio.read64(register::VERSION);
        if found != VERSION {
            return Err(OpenError::Version { found });
        }
        let function = register::FUNCTION_NUMBER.of(mmio.read64(register::FUNCTION)) as u16;
        let is_physical = function == 0;
        if is_physical {
            let host = memory.window();
            let grant = Grant { host, card: card.clone(), queue_sets: 0..queue_sets, vector: 0 };
            write_grant(&*mmio, 0, &grant)?;
        }
        let queue_sets = register::FUNCTION_QUEUES.of(mmio.read64(register::FUNCTION)) as u16;
        let module = if is_physical { partition(&*mmio).module } else { None };
        let shared = Shared {
            host: Allocator::new(memory.window()),
            card: Allocator::new(card),
            free_sets: (0..queue_sets).rev().collect(),
            maps: Maps::new(module, is_physical),
        };
        let build = Build::of(mmio.read64(register::BUILD));
        let shared = Mutex::new(shared);
        Ok(Arc::new(Self { mmio, memory, tables, function, queue_sets, build, shared }))
    }

    /// Grants resources to another function.
    ///
    /// # Errors
    /// This is not the physical function, or there is no such function, or it has queue sets at
    /// work. Nothing is granted then.
    pub fn grant(&self, function: u16, grant: &Grant) -> Result<(), OpenError> {
        if self.function != 0 {
            return Err(OpenError::NotPhysical(self.function));
        }
        write_grant(&*self.mmio, function, grant)
    }

    /// The function's number; 0 is the physical one.
    #[must_use]
    pub fn function(&self) -> u16 {
        self.function
    }

    /// Number of queue sets of the function.
    #[must_use]
    pub fn queue_sets(&self) -> u16 {
        self.queue_sets
    }

    /// How the device was built.
    #[must_use]
    pub fn build(&self) -> Build {
        self.build
    }

    /// The state of the reconfigurable partition (only the physical function can read it).
    #[must_use]
    pub fn partition(&self) -> Partition {
        partition(&*self.mmio)
    }

    /// The device's totals (for the physical function; a virtual one reads cycles only).
    #[must_use]
    pub fn totals(&self) -> Totals {
        let read = |offset| if self.function == 0 { self.mmio.read64(offset) } else { 0 };
        let faults = read(register::FAULTS);
        let draws = read(register::DRAWS);
        Totals {
            cycles: self.mmio.read64(register::CYCLES),
            host_faults: register::FAULTS_HOST.of(faults),
            card_faults: register::FAULTS_CARD.of(faults),
            card_reads: read(register::CARD_READS),
            card_writes: read(register::CARD_WRITES),
            code_busy: read(register::CODE_BUSY),
            draws: register::DRAWS_COUNT.of(draws),
            last_draw_cycles: register::DRAWS_LAST_CYCLES.of(draws),
        }
    }

    /// Free resources: bytes of host memory, bytes of card memory, queue sets.
    #[must_use]
    pub fn free(&self) -> (u64, u64, usize) {
        let shared = self.shared();
        (shared.host.free_bytes(), shared.card.free_bytes(), shared.free_sets.len())
    }

    /// Reads and clears the function's errors outside of any queue, as the bits of
    /// `FUNCTION_ERRORS`.
    pub fn take_errors(&self) -> u64 {
        let errors = self.mmio.read64(register::FUNCTION_ERRORS);
        if errors != 0 {
            self.mmio.write64(register::FUNCTION_ERRORS, errors);
        }
        errors
    }

    /// Locks the state that the queue sets share. After a panic elsewhere the state is still
    /// consistent: no change takes two steps with a possible panic between them.
    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn partition(mmio: &dyn Mmio) -> Partition {
    let state = mmio.read64(register::RM_STATE);
    Partition {
        module: ReconfigurableModule::from_number(register::RM_STATE_MODULE_ID.of(state)),
        state: PartitionState::from_number(register::RM_STATE_STATE.of(state)),
        swaps: register::RM_STATE_SWAPS.of(state),
    }
}

fn write_grant(mmio: &dyn Mmio, function: u16, grant: &Grant) -> Result<(), OpenError> {
    use function_table::{
        CARD_BASE, CARD_END, HOST_BASE, HOST_END, QUEUES, QUEUES_COUNT, QUEUES_FIRST, QUEUES_VECTOR,
    };
    let queue_sets = grant.queue_sets.clone();
    if usize::from(function) >= MAX_FUNCTIONS || usize::from(queue_sets.end) > MAX_QUEUE_SETS {
        return Err(OpenError::Grant { function, queue_sets });
    }
    let entry = function_table::BASE + u64::from(function) * function_table::STRIDE;
    let queues = QUEUES_FIRST.with(queue_sets.start.into())
        | QUEUES_COUNT.with(queue_sets.len() as u64)
        | QUEUES_VECTOR.with(grant.vector.into());
    let windows = [
        (HOST_BASE, grant.host.start),
        (HOST_END, grant.host.end),
        (CARD_BASE, grant.card.start),
        (CARD_END, grant.card.end),
        (QUEUES, queues),
    ];
    // Without a queue set, the function accesses no memory while its windows change.
    mmio.write64(entry + QUEUES, 0);
    if mmio.read64(entry + QUEUES) != 0 {
        return Err(OpenError::InUse(function));
    }
    for (offset, value) in windows {
        mmio.write64(entry + offset, value);
    }
    Ok(())
}
