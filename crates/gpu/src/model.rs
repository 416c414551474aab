//! A card in this process's memory, for tests: programs run in the interpreter.
//!
//! Work is done when it is submitted, so a test is the same each time. The interpreter checks what
//! a card does not: races, registers and shared memory that no thread wrote, accesses outside of
//! allocations. A fault of a program fails the card, as on a real one. Tests can let events
//! complete late, let the card fail at an operation, change a byte of its results, and bound its
//! memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fieldstone_buf::ALIGN_BYTES;

use crate::driver::{
    Argument, CardInfo, DeviceAddress, Driver, DriverError, Event, Function, Grid, Resources, Rows,
    Stream,
};
use crate::interpreter::{self, Launch, Memory, Module, Param};

/// Faults that a test wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Questions after an event's record until it is complete.
    pub delay: u32,
    /// The card fails at this launch, counted from 1.
    pub lose_at_launch: Option<u64>,
    /// After this launch, counted from 1, a byte that is copied out is wrong.
    pub corrupt_at_launch: Option<u64>,
    /// The driver refuses all programs.
    pub refuse_programs: bool,
    /// The card has memory for this many bytes at once.
    pub memory_bytes: Option<u64>,
}

#[derive(Default)]
struct State {
    memory: Memory,
    modules: HashMap<u64, Module>,
    /// Questions that are left until an event is complete.
    events: HashMap<u64, u32>,
    hosts: HashMap<usize, Layout>,
    /// Memory of the card that is in use: addresses and bytes.
    taken: HashMap<u64, u64>,
    next: u64,
    launches: u64,
    corrupt_next: bool,
    lost: Option<String>,
    faults: Faults,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The card.
pub struct Model {
    info: CardInfo,
    state: Mutex<State>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(Faults::default())
    }
}

impl Model {
    /// A card with these faults.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        let info = CardInfo {
            name: "model".to_owned(),
            driver: "interpreter".to_owned(),
            interface: "none".to_owned(),
            capability: "7.0".to_owned(),
            multiprocessors: 1,
            clock_khz: 1000,
            memory_bytes: 1 << 30,
            cache_bytes: 1 << 20,
            shared_bytes_max: 96 << 10,
        };
        let mut state = State { faults, ..State::default() };
        // The bytes between elements are computed, too, whatever they are.
        state.memory.allow_uninitialised(true);
        Self { info, state: Mutex::new(state) }
    }

    /// Bytes of the card's memory that are in use.
    #[must_use]
    pub fn memory_in_use(&self) -> u64 {
        self.state().taken.values().sum()
    }

    /// Handles that the card has given: programs, streams and events.
    #[must_use]
    pub fn handles(&self) -> u64 {
        self.state().next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a card that has not failed.
    fn working(&self, operation: &'static str) -> Result<MutexGuard<'_, State>, DriverError> {
        let state = self.state();
        match &state.lost {
            None => Ok(state),
            Some(error) => Err(DriverError::Failed { operation, error: error.clone() }),
        }
    }

    /// Does an operation whose failure fails the card.
    fn run(
        &self,
        operation: &'static str,
        act: impl FnOnce(&mut State) -> Result<(), String>,
    ) -> Result<(), DriverError> {
        let mut state = self.working(operation)?;
        let result = act(&mut state);
        if let Err(error) = &result {
            state.lost = Some(error.clone());
        }
        result.map_err(|error| DriverError::Failed { operation, error })
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Driver for Model {
    fn info(&self) -> &CardInfo {
        &self.info
    }

    fn load(&self, text: &str, kernel: &str, _shared: u32) -> Result<Function, DriverError> {
        let mut state = self.working("load a program")?;
        if state.faults.refuse_programs {
            return Err(DriverError::Program("the test wants it so".to_owned()));
        }
        let module = Module::parse(text).map_err(|error| DriverError::Program(words(error)))?;
        if module.kernel(kernel).is_none() {
            return Err(DriverError::Program(format!("there is no kernel {kernel}")));
        }
        let number = state.number();
        state.modules.insert(number, module);
        Ok(Function { module: number, kernel: number })
    }

    fn resources(&self, _function: Function, _grid: Grid) -> Result<Resources, DriverError> {
        Ok(Resources { registers: 0, local_bytes: 0, resident_blocks: 1 })
    }

    fn unload(&self, function: Function) {
        self.state().modules.remove(&function.module);
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let mut state = self.working("take memory of the card")?;
        let refused = DriverError::Memory { place: "card", bytes };
        let size = usize::try_from(bytes).map_err(|_| refused.clone())?;
        let in_use: u64 = state.taken.values().sum();
        if state.faults.memory_bytes.is_some_and(|most| bytes > most.saturating_sub(in_use)) {
            return Err(refused);
        }
        let address = state.memory.alloc(size);
        state.taken.insert(address, bytes);
        Ok(DeviceAddress(address))
    }

    fn free(&self, address: DeviceAddress) {
        // Only a test that frees twice sees an error.
        let mut state = self.state();
        let _ = state.memory.free(address.0);
        state.taken.remove(&address.0);
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DriverError> {
        let refused = DriverError::Memory { place: "host", bytes: bytes as u64 };
        let layout =
            Layout::from_size_align(bytes.max(1), ALIGN_BYTES).map_err(|_| refused.clone())?;
        // SAFETY: the size is not 0.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        self.state().hosts.insert(pointer.addr().get(), layout);
        Ok(pointer)
    }

    unsafe fn free_host(&self, pointer: NonNull<u8>) {
        if let Some(layout) = self.state().hosts.remove(&pointer.addr().get()) {
            // SAFETY: it was taken with this layout, and the caller says that nothing uses it.
            unsafe { dealloc(pointer.as_ptr(), layout) };
        }
    }

    fn stream(&self) -> Result<Stream, DriverError> {
        Ok(Stream(self.working("make a stream")?.number()))
    }

    fn event(&self) -> Result<Event, DriverError> {
        let mut state = self.working("make an event")?;
        let number = state.number();
        state.events.insert(number, 0);
        Ok(Event(number))
    }

    unsafe fn copy_in(
        &self,
        _stream: Stream,
        to: DeviceAddress,
        from: *const u8,
        rows: Rows,
    ) -> Result<(), DriverError> {
        self.run("copy to the card", |state| {
            (0..rows.rows).try_for_each(|row| {
                // SAFETY: the caller vouches for the rows.
                let bytes = unsafe {
                    std::slice::from_raw_parts(from.add(row * rows.host_pitch), rows.row_bytes)
                };
                state.memory.write(to.0 + (row * rows.card_pitch) as u64, bytes).map_err(words)
            })
        })
    }

    unsafe fn copy_out(
        &self,
        _stream: Stream,
        to: *mut u8,
        from: DeviceAddress,
        rows: Rows,
    ) -> Result<(), DriverError> {
        self.run("copy from the card", |state| {
            (0..rows.rows).try_for_each(|row| {
                let at = from.0 + (row * rows.card_pitch) as u64;
                let mut bytes = state.memory.read(at, rows.row_bytes).map_err(words)?;
                if let Some(last) = bytes.last_mut().filter(|_| state.corrupt_next) {
                    *last ^= 0x40;
                    state.corrupt_next = false;
                }
                // SAFETY: the caller vouches for the rows.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(to.add(row * rows.host_pitch), rows.row_bytes)
                };
                to.copy_from_slice(&bytes);
                Ok(())
            })
        })
    }

    fn copy_within(
        &self,
        _stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.run("copy within the card", |state| {
            state.memory.copy(to.0, from.0, bytes as usize).map_err(words)
        })
    }

    fn fill(
        &self,
        _stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.run("fill memory of the card", |state| {
            state.memory.fill(to.0, bytes as usize, byte).map_err(words)
        })
    }

    fn launch(
        &self,
        _stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        self.run("start a kernel", |state| {
            state.launches += 1;
            if Some(state.launches) == state.faults.lose_at_launch {
                return Err("the test lost the card".to_owned());
            }
            let params = arguments.iter().map(|argument| match *argument {
                Argument::U32(value) => Param::U32(value),
                Argument::U64(value) => Param::U64(value),
            });
            let launch = Launch {
                grid: grid.blocks,
                block: grid.threads,
                shared_bytes: grid.shared_bytes,
                params: params.collect(),
                ..Launch::default()
            };
            let module = state.modules.get(&function.module).ok_or("no such program")?;
            let kernel = module.kernels().first().ok_or("no kernel")?;
            interpreter::run(kernel, &launch, &mut state.memory).map_err(words)?;
            state.corrupt_next |= Some(state.launches) == state.faults.corrupt_at_launch;
            Ok(())
        })
    }

    fn record(&self, event: Event, _stream: Stream) -> Result<(), DriverError> {
        self.run("record an event", |state| {
            let delay = state.faults.delay;
            state.events.insert(event.0, delay);
            Ok(())
        })
    }

    fn is_complete(&self, event: Event) -> Result<bool, DriverError> {
        let mut state = self.working("ask for an event")?;
        let left = state.events.entry(event.0).or_default();
        let complete = *left == 0;
        *left = left.saturating_sub(1);
        Ok(complete)
    }

    fn wait(&self, event: Event) -> Result<(), DriverError> {
        self.working("wait for the card")?.events.insert(event.0, 0);
        Ok(())
    }

    fn wait_on_stream(&self, _stream: Stream, _event: Event) -> Result<(), DriverError> {
        self.working("let a stream wait").map(drop)
    }

    fn elapsed_ns(&self, _from: Event, _to: Event) -> Result<f64, DriverError> {
        // A model has no clock.
        self.working("read the card's clock").map(|_| 1.0)
    }
}
