//! The queue engine with its surroundings: host memory, card memory, engines, and interrupts.

use fieldstone_fpga::regs::{MAX_FUNCTIONS, PAGE_BYTES, function_table, register};
use fieldstone_verilate::bench::{Clock, SeededRng, Sink, Source, seeded_rng};
use fieldstone_verilate::{Design, Model, Port};

use crate::bits;
use crate::engines::{Engine, EngineEvent};
use crate::memory::{CardMemory, HostMemory, Latency};

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
    pub host: HostMemory,
    pub card: CardMemory,
    /// Place, code, checksum, reconfigure.
    pub engines: Vec<Engine>,
    /// Actions of engines since the log was last taken.
    pub log: Vec<EngineEvent>,
    pub interrupts: Sink,
    mmio: Source,
    idle: Port,
    answers: Sink,
}

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
            host: HostMemory::new(&model, host_bytes, timing.host, stall),
            card: CardMemory::new(&model, card_bytes, timing.card, stall),
            engines: engines.map(|name| Engine::new(&model, name, stall)).into(),
            log: Vec::new(),
            interrupts: Sink::new(&model, "interrupt", &["interrupt_data_o"], stall),
            mmio: Source::new(&model, "mmio", &["mmio_data_i"], stall),
            idle: model.port("idle_o"),
            answers: Sink::new(&model, "mmio_answer", &["mmio_answer_data_o"], stall),
            model,
        };
        for f in 0..functions {
            tb.set_host_window(f, f * HOST_WINDOW, (f + 1) * HOST_WINDOW);
            tb.set_card_window(f, f * CARD_WINDOW, (f + 1) * CARD_WINDOW);
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
        self.write(0, table(function) + function_table::HOST_BASE, base);
        self.write(0, table(function) + function_table::HOST_END, end);
        self.settle();
        self.host.windows[function as usize] = (base, end);
    }

    /// Sets the function's window of card memory, in the device and in the card's guard.
    pub fn set_card_window(&mut self, function: u64, base: u64, end: u64) {
        self.write(0, table(function) + function_table::CARD_BASE, base);
        self.write(0, table(function) + function_table::CARD_END, end);
        self.settle();
        self.card.windows[function as usize] = (base, end);
    }

    /// One cycle.
    pub fn cycle(&mut self) {
        let now = self.clock.cycles;
        self.host.before(&mut self.model, now);
        self.card.before(&mut self.model, now);
        self.engines.iter_mut().for_each(|engine| engine.before(now, &mut self.log));
        let mut streams: Vec<&mut dyn fieldstone_verilate::bench::Stream> = vec![
            &mut self.mmio,
            &mut self.answers,
            &mut self.host.reads,
            &mut self.host.answers,
            &mut self.host.writes,
            &mut self.card.reads,
            &mut self.card.answers,
            &mut self.card.writes,
            &mut self.interrupts,
        ];
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

    /// Queues a write of a register of a function's page. Writes are done in order.
    pub fn write(&mut self, function: u64, offset: u64, value: u64) {
        assert!(offset < PAGE_BYTES as u64);
        let request = [(value, 64), (offset, 17), (function, 4), (1, 1)];
        self.mmio.push_bytes(&[&bits::pack(&request)]);
    }

    /// Reads a register.
    pub fn read(&mut self, function: u64, offset: u64) -> u64 {
        let request = [(0, 64), (offset, 17), (function, 4), (0, 1)];
        self.mmio.push_bytes(&[&bits::pack(&request)]);
        for _ in 0..100_000 {
            if let Some(answer) = self.answers.pop() {
                return answer[0];
            }
            self.cycle();
        }
        panic!("no answer to a register read");
    }

    /// True if the device reports idle, and no request for it waits.
    pub fn is_idle(&self) -> bool {
        self.mmio.is_done() && self.model.is_set(self.idle)
    }

    /// Runs until all writes so far are done.
    pub fn settle(&mut self) {
        while !self.mmio.is_done() {
            self.cycle();
        }
        self.read(0, register::ID);
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
