//! The queue engine with its surroundings: host memory, card memory, engines, and interrupts.

use fieldstone_fpga::regs::{MAX_FUNCTIONS, PAGE_BYTES, function_table, register};
use fieldstone_verilate::bench::{Clock, SeededRng, seeded_rng};
use fieldstone_verilate::{Design, Model, Port};

use crate::bits;
use crate::engines::{Engine, EngineEvent};
use crate::host::Host;
use crate::memory::{CardMemory, Latency};

/// Bytes of host memory of each function.
pub const HOST_WINDOW: u64 = 4 << 20;
/// Bytes of card memory of each function.
pub const CARD_WINDOW: u64 = 2 << 20;

/// The latencies and stalls of the testbench.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub seed: u64,
    /// Chance of a stall, on every stream.
    pub stall: f64,
    pub host: Latency,
    pub card: Latency,
}

impl Timing {
    /// No stalls, and a constant 250 cycles to the host and back.
    pub fn constant(seed: u64) -> Self {
        let (host, card) = (
            Latency { min_cycles: 250, jitter_cycles: 0 },
            Latency { min_cycles: 60, jitter_cycles: 0 },
        );
        Self { seed, stall: 0.0, host, card }
    }

    /// Stalls on every stream, and random latencies.
    pub fn random(seed: u64, stall: f64) -> Self {
        let (host, card) = (
            Latency { min_cycles: 5, jitter_cycles: 200 },
            Latency { min_cycles: 3, jitter_cycles: 40 },
        );
        Self { seed, stall, host, card }
    }
}

pub struct Testbench {
    pub model: Model,
    pub clock: Clock,
    pub rng: SeededRng,
    pub host: Host,
    pub card: CardMemory,
    /// Place, code, checksum, reconfigure.
    pub engines: Vec<Engine>,
    /// Actions of engines since the log was last taken.
    pub log: Vec<EngineEvent>,
    idle: Port,
    function_reset: Port,
    function_reset_done: Port,
}

/// Most cycles for a register access: no part of the testbench holds one up for longer.
const MAX_ACCESS_CYCLES: u64 = 20_000;

impl Testbench {
    /// A testbench in which function f has window number f, and `sets` queue sets from f * `sets`
    /// on.
    pub fn new(design: &'static Design, timing: Timing, sets: u64) -> Self {
        let mut model = Model::new(design);
        let Timing { seed, stall, .. } = timing;
        let functions = MAX_FUNCTIONS as u64;
        let host_bytes = (functions * HOST_WINDOW) as usize;
        let card_bytes = (functions * CARD_WINDOW) as usize;
        let engines = ["place", "code", "checksum", "reconfigure"];
        let clock = Clock::reset(&mut model);
        let mut tb = Self {
            clock,
            rng: seeded_rng(seed),
            host: Host::new(&model, host_bytes, timing.host, stall),
            card: CardMemory::new(&model, card_bytes, timing.card, stall),
            engines: engines.map(|name| Engine::new(&model, name, stall)).into(),
            log: Vec::new(),
            idle: model.port("idle_o"),
            function_reset: model.port("function_reset_i"),
            function_reset_done: model.port("function_reset_done_o"),
            model,
        };
        tb.model.set(tb.function_reset, 0);
        for f in 0..functions {
            tb.write_host_window(f, f * HOST_WINDOW, (f + 1) * HOST_WINDOW);
            tb.write_card_window(f, f * CARD_WINDOW, (f + 1) * CARD_WINDOW);
            let queues = function_table::QUEUES_FIRST.with(f * sets)
                | function_table::QUEUES_COUNT.with(sets)
                | function_table::QUEUES_VECTOR.with(vector(f));
            tb.write(0, table(f) + function_table::QUEUES, queues);
        }
        // Inputs that no part of the testbench drives begin at random.
        let status = tb.model.port("device_i");
        let bytes = vec![0; status.bits().div_ceil(8) as usize];
        tb.model.set_bytes(status, &bytes);
        tb.settle();
        tb
    }

    /// Sets the function's window of host memory, from the next cycles on.
    pub fn set_host_window(&mut self, function: u64, base: u64, end: u64) {
        // Accesses that have left are of the old window.
        let old = self.host.windows[function as usize];
        self.write_host_window(function, base, end);
        self.host.windows[function as usize] = old;
        self.settle();
        self.host.windows[function as usize] = (base, end);
    }

    fn write_host_window(&mut self, function: u64, base: u64, end: u64) {
        self.write(0, table(function) + function_table::HOST_BASE, base);
        self.write(0, table(function) + function_table::HOST_END, end);
        self.host.windows[function as usize] = (base, end);
    }

    /// Sets the function's window of card memory, in the device and in the card's guard.
    fn write_card_window(&mut self, function: u64, base: u64, end: u64) {
        self.write(0, table(function) + function_table::CARD_BASE, base);
        self.write(0, table(function) + function_table::CARD_END, end);
        self.card.windows[function as usize] = (base, end);
    }

    /// One cycle.
    pub fn cycle(&mut self) {
        let now = self.clock.cycles;
        self.host.before(now, &mut self.rng);
        self.card.before(&mut self.model, now);
        self.engines.iter_mut().for_each(|engine| engine.before(now, &mut self.log));
        let mut streams: Vec<&mut dyn fieldstone_verilate::bench::Stream> =
            vec![&mut self.card.reads, &mut self.card.answers, &mut self.card.writes];
        streams.extend(self.host.streams());
        for engine in &mut self.engines {
            streams.push(&mut engine.commands);
            streams.push(&mut engine.answers);
        }
        self.clock.cycle(&mut self.model, &mut self.rng, &mut streams);
        self.host.after(now, &mut self.rng);
        self.card.after(now, &mut self.rng);
        for (number, engine) in self.engines.iter_mut().enumerate() {
            engine.after(now, &mut self.rng, number, &mut self.log);
        }
    }

    pub fn cycles(&mut self, count: u64) {
        (0..count).for_each(|_| self.cycle());
    }

    /// Sends a write of a register of a function's page. Writes are done in order.
    pub fn write(&mut self, function: u64, offset: u64, value: u64) {
        self.write_bytes(function, offset, value, 0xff);
    }

    /// Sends a write of the bytes of a register that `strobe` selects.
    pub fn write_bytes(&mut self, function: u64, offset: u64, value: u64, strobe: u64) {
        assert!(offset < PAGE_BYTES as u64);
        let request = [(value, 64), (strobe, 8), (offset, 17), (function, 4), (1, 1)];
        let request = bits::pack(&request);
        self.host.access(self.clock.cycles, &mut self.rng, true, request);
    }

    /// Reads a register.
    pub fn read(&mut self, function: u64, offset: u64) -> u64 {
        let request = bits::pack(&[(0, 64), (0xff, 8), (offset, 17), (function, 4), (0, 1)]);
        self.host.access(self.clock.cycles, &mut self.rng, false, request);
        for _ in 0..MAX_ACCESS_CYCLES {
            if let Some(answer) = self.host.answered.pop_front() {
                return answer;
            }
            self.cycle();
        }
        panic!("no answer to the read of register {offset:#x} of function {function}");
    }

    /// True if the device reports idle, and nothing is on its way to it or from it.
    pub fn is_idle(&self) -> bool {
        self.host.is_quiet() && self.model.is_set(self.idle)
    }

    /// Runs until all writes so far are done.
    pub fn settle(&mut self) {
        self.read(0, register::ID);
    }

    /// Holds the reset of these functions (a bit each), or ends it.
    pub fn hold_resets(&mut self, functions: u64) {
        self.model.set(self.function_reset, functions);
    }

    /// The functions whose reset is held and done.
    pub fn resets_done(&self) -> u64 {
        self.model.get(self.function_reset_done)
    }

    /// Resets functions as a host does: holds the resets until they are done.
    pub fn reset_functions(&mut self, functions: u64) {
        self.hold_resets(functions);
        for _ in 0..MAX_ACCESS_CYCLES {
            if self.resets_done() == functions {
                self.hold_resets(0);
                self.cycles(2);
                return;
            }
            self.cycle();
        }
        panic!("the reset of functions {functions:#x} does not end");
    }

    /// Reads and clears the function's errors.
    pub fn take_errors(&mut self, function: u64) -> u64 {
        let errors = self.read(function, register::FUNCTION_ERRORS);
        self.write(function, register::FUNCTION_ERRORS, errors);
        errors
    }
}

/// The interrupt vector of a function in this testbench.
pub fn vector(function: u64) -> u64 {
    0x40 + function
}

fn table(function: u64) -> u64 {
    function_table::BASE + function * function_table::STRIDE
}
