//! What executes a function of a program: the model of the core ([`Interpreter`]), or in a test
//! another core that is compared with it, such as RTL.

use super::core::{Core, Costs, Counters, Stop};
use super::isa::Reg;
use super::memory::Bus;

/// A call of a function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its first instruction.
    pub entry: u32,
    /// Where it returns to; nothing is there.
    pub end: u32,
    /// The stack pointer: the end of the stack.
    pub stack: u32,
    /// The first argument.
    pub argument: u32,
}

impl Function {
    /// A core that is about to execute it.
    #[must_use]
    pub fn start(&self, costs: Costs) -> Core {
        let mut core = Core::new(self.entry, costs);
        core.set_register(Reg::SP, self.stack);
        core.set_register(Reg::RA, self.end);
        core.set_register(Reg::A0, self.argument);
        core
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Whether it returned.
    pub stop: Stop,
    /// The result, if it did.
    pub result: u32,
    /// What the core counted.
    pub counters: Counters,
}

/// Executes functions.
pub trait Processor {
    /// Executes one to its end, or for about `max_cycles`.
    fn call(&mut self, function: &Function, bus: &mut impl Bus, max_cycles: u64) -> Returned;
}

/// The model of the core.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// What its instructions cost.
    pub costs: Costs,
}

impl Processor for Interpreter {
    fn call(&mut self, function: &Function, bus: &mut impl Bus, max_cycles: u64) -> Returned {
        let mut core = function.start(self.costs);
        let stop = core.run(bus, function.end, max_cycles);
        Returned { stop, result: core.register(Reg::A0), counters: core.counters }
    }
}
