//! Parts that test benches share: a clock, a seeded random generator, and streams that stall at
//! random.
//!
//! Every stream is `valid`, `ready`, `data`: a beat moves in a cycle that ends with both set. A
//! cycle of a bench has four steps. Sources and sinks drive their ports ([`Source::drive`],
//! [`Sink::drive`]). The model settles with the clock low. Sources and sinks record the beats that
//! move ([`Source::sample`], [`Sink::sample`]). The clock rises. [`Clock::cycle`] does all of this.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Model, Port};

/// A seeded random generator.
pub type SeededRng = ChaCha8Rng;

/// The generator with this seed.
#[must_use]
pub fn seeded_rng(seed: u64) -> SeededRng {
    SeededRng::seed_from_u64(seed)
}

/// Bits `at..at + count` (up to 64) of a value in little-endian bytes.
#[must_use]
pub fn bits(bytes: &[u8], at: usize, count: usize) -> u64 {
    let bit = |bit: usize| u64::from(bytes[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit;
    (0..count).fold(0, |value, index| value | bit(index))
}

/// Sets bits `at..at + count` (up to 64) of a value in little-endian bytes.
pub fn set_bits(bytes: &mut [u8], at: usize, count: usize, value: u64) {
    for bit in 0..count {
        let (byte, mask) = (&mut bytes[(at + bit) / 8], 1 << ((at + bit) % 8));
        *byte = if value >> bit & 1 == 1 { *byte | mask } else { *byte & !mask };
    }
}

/// The ports `clk_i` and `rst_ni` of a model, and the number of cycles.
#[derive(Debug)]
pub struct Clock {
    clk: Port,
    rst_n: Port,
    /// Rising edges since the reset ended.
    pub cycles: u64,
}

impl Clock {
    /// Resets the model: four cycles with `rst_ni` low.
    #[must_use]
    pub fn reset(model: &mut Model) -> Self {
        let mut clock = Self { clk: model.port("clk_i"), rst_n: model.port("rst_ni"), cycles: 0 };
        clock.pulse_reset(model);
        clock
    }

    /// Resets the model again, in any state.
    pub fn pulse_reset(&mut self, model: &mut Model) {
        model.set(self.rst_n, 0);
        for _ in 0..4 {
            self.settle(model);
            self.rise(model);
        }
        model.set(self.rst_n, 1);
        model.assert_on();
        self.cycles = 0;
    }

    /// Lets the outputs follow the inputs, with the clock low.
    pub fn settle(&mut self, model: &mut Model) {
        model.set(self.clk, 0);
        model.eval();
    }

    /// Raises the clock.
    pub fn rise(&mut self, model: &mut Model) {
        model.set(self.clk, 1);
        model.eval();
        self.cycles += 1;
    }

    /// Runs one cycle with these streams.
    pub fn cycle(
        &mut self,
        model: &mut Model,
        rng: &mut SeededRng,
        streams: &mut [&mut dyn Stream],
    ) {
        for stream in streams.iter_mut() {
            stream.drive(model, rng);
        }
        self.settle(model);
        for stream in streams.iter_mut() {
            stream.sample(model, self.cycles);
        }
        self.rise(model);
    }
}

/// The bench's end of a stream.
pub trait Stream {
    /// Drives the inputs for this cycle.
    fn drive(&mut self, model: &mut Model, rng: &mut SeededRng);
    /// Records the beat that moves in this cycle, which ends at edge number `cycle`.
    fn sample(&mut self, model: &Model, cycle: u64);
}

/// The name of a stream's port; without a prefix, the name alone.
fn port_name(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}_{name}") }
}

/// Drives `PREFIX_valid_i` and `PREFIX_data_i` (or any data ports), and waits for `PREFIX_ready_o`.
/// Once valid, a beat does not change until it is taken.
#[derive(Debug)]
pub struct Source {
    valid: Port,
    ready: Option<Port>,
    data: Vec<Port>,
    /// Beats to send: one list of bytes per data port.
    pub queue: VecDeque<Vec<Vec<u8>>>,
    /// The chance of a pause before a beat.
    pub stall: f64,
    /// The cycle in which each beat moved.
    pub moved_at: Vec<u64>,
    offering: bool,
}

impl Source {
    /// A source for `{prefix}_valid_i`, `{prefix}_ready_o` (may be missing: always ready) and the
    /// data ports of these names.
    #[must_use]
    pub fn new(model: &Model, prefix: &str, data: &[&str], stall: f64) -> Self {
        let ready = port_name(prefix, "ready_o");
        Self {
            valid: model.port(&port_name(prefix, "valid_i")),
            ready: model.has_port(&ready).then(|| model.port(&ready)),
            data: data.iter().map(|name| model.port(name)).collect(),
            queue: VecDeque::new(),
            stall,
            moved_at: Vec::new(),
            offering: false,
        }
    }

    /// Adds a beat: one number per data port (each of up to 64 bits).
    pub fn push(&mut self, values: &[u64]) {
        assert_eq!(values.len(), self.data.len(), "one value per data port");
        let bytes = self.data.iter().zip(values);
        let bytes = bytes
            .map(|(port, value)| value.to_le_bytes()[..port.bits().div_ceil(8) as usize].to_vec());
        self.queue.push_back(bytes.collect());
    }

    /// Adds a beat of wide ports: little-endian bytes per data port.
    pub fn push_bytes(&mut self, values: &[&[u8]]) {
        assert_eq!(values.len(), self.data.len(), "one value per data port");
        self.queue.push_back(values.iter().map(|value| value.to_vec()).collect());
    }

    /// True if every beat has moved.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Stream for Source {
    fn drive(&mut self, model: &mut Model, rng: &mut SeededRng) {
        if !self.offering && !self.queue.is_empty() && !rng.random_bool(self.stall) {
            self.offering = true;
        }
        model.set(self.valid, u64::from(self.offering));
        if self.offering {
            for (port, bytes) in self.data.iter().zip(&self.queue[0]) {
                model.set_bytes(*port, bytes);
            }
        }
    }

    fn sample(&mut self, model: &Model, cycle: u64) {
        if self.offering && self.ready.is_none_or(|ready| model.is_set(ready)) {
            self.queue.pop_front();
            self.moved_at.push(cycle);
            self.offering = false;
        }
    }
}

/// Drives `PREFIX_ready_i` and collects the beats of `PREFIX_valid_o`.
#[derive(Debug)]
pub struct Sink {
    valid: Port,
    ready: Option<Port>,
    data: Vec<Port>,
    /// Collected beats: one list of bytes per data port.
    pub beats: VecDeque<Vec<Vec<u8>>>,
    /// The chance that the sink is not ready in a cycle.
    pub stall: f64,
    /// The cycle in which each beat moved.
    pub moved_at: Vec<u64>,
    held: Option<Vec<Vec<u8>>>,
}

impl Sink {
    /// A sink for `{prefix}_valid_o`, `{prefix}_ready_i` (may be missing: always ready) and the
    /// data ports of these names.
    #[must_use]
    pub fn new(model: &Model, prefix: &str, data: &[&str], stall: f64) -> Self {
        let ready = port_name(prefix, "ready_i");
        Self {
            valid: model.port(&port_name(prefix, "valid_o")),
            ready: model.has_port(&ready).then(|| model.port(&ready)),
            data: data.iter().map(|name| model.port(name)).collect(),
            beats: VecDeque::new(),
            stall,
            moved_at: Vec::new(),
            held: None,
        }
    }

    /// Takes the oldest beat, as numbers of up to 64 bits.
    pub fn pop(&mut self) -> Option<Vec<u64>> {
        let number = |bytes: &Vec<u8>| {
            bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        self.beats.pop_front().map(|beat| beat.iter().map(number).collect())
    }
}

impl Stream for Sink {
    fn drive(&mut self, model: &mut Model, rng: &mut SeededRng) {
        if let Some(ready) = self.ready {
            model.set(ready, u64::from(!rng.random_bool(self.stall)));
        }
    }

    /// Also asserts the rule of streams: an offered beat does not change until it is taken.
    fn sample(&mut self, model: &Model, cycle: u64) {
        if !model.is_set(self.valid) {
            assert!(self.held.is_none(), "a beat was withdrawn in cycle {cycle}");
            return;
        }
        let beat: Vec<Vec<u8>> = self.data.iter().map(|&port| model.bytes(port).to_vec()).collect();
        if let Some(held) = self.held.take() {
            assert_eq!(held, beat, "a beat changed while it waited, in cycle {cycle}");
        }
        if self.ready.is_none_or(|ready| model.is_set(ready)) {
            self.beats.push_back(beat);
            self.moved_at.push(cycle);
        } else {
            self.held = Some(beat);
        }
    }
}
