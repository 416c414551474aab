//! One handler core: registers, hardware loops, counters, and a step.
//!
//! [`Core::step`] executes one instruction against a [`Bus`] and counts its cycles. It does nothing
//! else: no memory, no clock and no I/O belong to it, so that a world with many cores and a single
//! core in a test run the same code. Three things may come out of a step. The instruction retires.
//! Or the bus is busy: nothing has changed but the cycle count, and the next step tries again. Or
//! the instruction traps: no register has changed, and the core does not go on by itself.
//!
//! Every word of 32 bits gives one of the three; no input panics.

mod cost;
mod execute;

use crate::riscv::isa::Reg;
use crate::riscv::memory::{Bus, FetchError};

pub use cost::Costs;

/// Why an instruction did not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// The word is no instruction of the cores.
    #[error("no instruction at {pc:#010x}: the word is {word:#010x}")]
    Illegal {
        /// Its address.
        pc: u32,
        /// The word; in the lower half if its lowest two bits are not 11.
        word: u32,
    },
    /// The handler may not execute there.
    #[error("execution of {pc:#010x} is not allowed")]
    Fetch {
        /// The address.
        pc: u32,
    },
    /// The handler may not read there.
    #[error("the instruction at {pc:#010x} reads {address:#010x}, which is not allowed")]
    Load {
        /// The instruction.
        pc: u32,
        /// The address that it accesses.
        address: u32,
    },
    /// The handler may not write there.
    #[error("the instruction at {pc:#010x} writes {address:#010x}, which is not allowed")]
    Store {
        /// The instruction.
        pc: u32,
        /// The address that it accesses.
        address: u32,
    },
    /// An atomic operation needs an address that is a multiple of 4.
    #[error("the atomic operation at {pc:#010x} is at {address:#010x}, no multiple of 4")]
    Misaligned {
        /// The instruction.
        pc: u32,
        /// The address that it accesses.
        address: u32,
    },
    /// `ecall`.
    #[error("ecall at {pc:#010x}")]
    Ecall {
        /// The instruction.
        pc: u32,
    },
    /// `ebreak`: a compiler puts it where the program cannot go on.
    #[error("ebreak at {pc:#010x}")]
    Ebreak {
        /// The instruction.
        pc: u32,
    },
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An instruction executed.
    Retired,
    /// The bus was busy; one cycle passed.
    Stalled,
    /// The instruction trapped.
    Trapped(Trap),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The program reached the address where the run should end.
    Reached,
    /// An instruction trapped.
    Trapped(Trap),
    /// The bound on cycles was reached.
    OutOfCycles,
}

/// What a core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Executed instructions.
    pub instructions: u64,
    /// Cycles, stalls included.
    pub cycles: u64,
    /// Executed loads and atomic operations.
    pub loads: u64,
    /// Executed stores.
    pub stores: u64,
    /// Cycles that instructions waited for a loaded register.
    pub load_use_stalls: u64,
    /// Cycles that jumps and taken branches cost beside their own.
    pub jump_stalls: u64,
    /// Cycles that memory took longer than one cycle.
    pub memory_stalls: u64,
    /// Cycles in which the bus was busy.
    pub busy_stalls: u64,
    /// Cycles of multiplications and divisions beside their own.
    pub arithmetic_stalls: u64,
}

impl Counters {
    /// Instructions per cycle; 0 before the first.
    #[must_use]
    pub fn ipc(&self) -> f64 {
        if self.cycles == 0 { 0.0 } else { self.instructions as f64 / self.cycles as f64 }
    }
}

/// A hardware loop: after the instruction at `end`, execution continues at `start`, if more than
/// one turn is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareLoop {
    /// Address of the first instruction.
    pub start: u32,
    /// Address of the last instruction.
    pub end: u32,
    /// Turns that are left, this one included.
    pub count: u32,
}

/// A core.
#[derive(Clone, Debug)]
pub struct Core {
    registers: [u32; 32],
    /// Address of the next instruction.
    pub pc: u32,
    /// The two hardware loops; the first takes precedence.
    pub loops: [HardwareLoop; 2],
    /// What the core has done.
    pub counters: Counters,
    costs: Costs,
    /// What the last instruction wrote.
    written: Writes,
    /// The register that the instruction before that one loaded, if that one did not wait: the load
    /// is in its last stage while the next instruction is decoded.
    written_back: Option<Reg>,
    /// Cycles that the last instruction keeps the next one in the decoder.
    held: u64,
    /// Cycles that the bus has been busy for the next instruction.
    busy: u64,
    /// The word that `lr.w` reserved.
    reservation: Option<u32>,
}

/// The registers that an instruction writes. A write to x0 counts here, though x0 stays zero.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    /// Computed, or an incremented address.
    computed: Option<Reg>,
    /// Loaded from memory.
    loaded: Option<Reg>,
}

impl Core {
    /// A core whose registers are zero and whose next instruction is at `pc`.
    #[must_use]
    pub fn new(pc: u32, costs: Costs) -> Self {
        Self {
            registers: [0; 32],
            pc,
            loops: [HardwareLoop::default(); 2],
            counters: Counters::default(),
            costs,
            written: Writes::default(),
            written_back: None,
            held: 0,
            busy: 0,
            reservation: None,
        }
    }

    /// The value of a register.
    #[must_use]
    pub fn register(&self, r: Reg) -> u32 {
        self.registers[r.number()]
    }

    /// Sets a register; x0 stays zero.
    pub fn set_register(&mut self, r: Reg, value: u32) {
        if r != Reg::ZERO {
            self.registers[r.number()] = value;
        }
    }

    /// Cycles that the next instruction waits for registers before it accesses memory. [`step`]
    /// counts them; a world of several cores waits for them first.
    ///
    /// [`step`]: Self::step
    pub fn waits(&self, bus: &mut impl Bus) -> u64 {
        bus.instruction(self.pc).map_or(0, |decoded| self.waits_for(&decoded.instr))
    }

    /// Executes one instruction.
    pub fn step(&mut self, bus: &mut impl Bus) -> Step {
        let pc = self.pc;
        let decoded = match bus.instruction(pc) {
            Ok(decoded) => decoded,
            Err(FetchError::Denied(pc)) => return Step::Trapped(Trap::Fetch { pc }),
            Err(FetchError::Illegal(word)) => return Step::Trapped(Trap::Illegal { pc, word }),
        };
        match self.execute(decoded, bus) {
            Ok(()) => {
                self.counters.instructions += 1;
                self.counters.cycles += 1;
                Step::Retired
            }
            Err(execute::NotDone::Busy) => {
                self.busy += 1;
                self.counters.busy_stalls += 1;
                self.counters.cycles += 1;
                Step::Stalled
            }
            Err(execute::NotDone::Trap(trap)) => Step::Trapped(trap),
        }
    }

    /// Executes until the next instruction would be at `end`, an instruction traps, or `max_cycles`
    /// have passed since the call.
    pub fn run(&mut self, bus: &mut impl Bus, end: u32, max_cycles: u64) -> Stop {
        let last = self.counters.cycles.saturating_add(max_cycles);
        while self.pc != end {
            if self.counters.cycles >= last {
                return Stop::OutOfCycles;
            }
            bus.set_cycle(self.counters.cycles);
            if let Step::Trapped(trap) = self.step(bus) {
                return Stop::Trapped(trap);
            }
        }
        Stop::Reached
    }
}
