//! Simulated card memory for the queue engine: latency, stalls, answers in order, and errors where
//! the guard refuses an access.

use std::collections::VecDeque;

use fieldstone_fpga::regs::{BEAT_BYTES, MAX_FUNCTIONS};
use fieldstone_verilate::bench::{SeededRng, Sink, Source};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

use crate::bits;

/// The latency of a memory.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Fewest cycles.
    pub min_cycles: u64,
    /// Most additional cycles, at random.
    pub jitter_cycles: u64,
}

impl Latency {
    pub fn roll(self, rng: &mut SeededRng) -> u64 {
        self.min_cycles
            + if self.jitter_cycles == 0 { 0 } else { rng.random_range(0..=self.jitter_cycles) }
    }
}

struct Write {
    due: u64,
    at: usize,
    strobe: u64,
    beat: Vec<u8>,
    error: bool,
}

/// Writes that have not landed; they land in order.
#[derive(Default)]
struct Landing(VecDeque<Write>);

impl Landing {
    /// Lands at most one write. Returns the value of the port `done`.
    fn step(&mut self, now: u64, bytes: &mut [u8]) -> u64 {
        if self.0.front().is_none_or(|write| write.due > now) {
            return 0;
        }
        let write = self.0.pop_front().expect("there is one");
        if write.error {
            return 0b11;
        }
        for (i, &byte) in write.beat.iter().enumerate() {
            if write.strobe >> i & 1 == 1 {
                bytes[write.at + i] = byte;
            }
        }
        0b10
    }
}

/// Card memory, with its guard.
pub struct CardMemory {
    pub bytes: Vec<u8>,
    pub latency: Latency,
    /// The window of every function. The guard answers an access outside it with an error.
    pub windows: [(u64, u64); MAX_FUNCTIONS],
    pub reads: Sink,
    pub answers: Source,
    pub writes: Sink,
    /// Cycle in which each beat of data was written.
    pub written_at: Vec<u64>,
    /// Accesses that the guard refused.
    pub refused: u64,
    done: Port,
    due: VecDeque<(u64, u64, bool, bool)>,
    landing: Landing,
}

impl CardMemory {
    pub fn new(model: &Model, bytes: usize, latency: Latency, stall: f64) -> Self {
        Self {
            bytes: vec![0; bytes],
            latency,
            windows: [(0, 0); MAX_FUNCTIONS],
            reads: Sink::new(model, "card_read", &["card_read_data_o"], stall),
            answers: Source::new(model, "card_data", &["card_data_data_i"], stall),
            writes: Sink::new(model, "card_write", &["card_write_data_o"], stall),
            written_at: Vec::new(),
            refused: 0,
            done: model.port("card_done_i"),
            due: VecDeque::new(),
            landing: Landing::default(),
        }
    }

    fn refuses(&mut self, owner: u64, at: u64) -> bool {
        let (base, end) = self.windows[owner as usize];
        let refused = at < base || at + 64 > end;
        self.refused += u64::from(refused);
        refused
    }

    /// Before a cycle: lands writes, and offers answers.
    pub fn before(&mut self, model: &mut Model, now: u64) {
        model.set(self.done, self.landing.step(now, &mut self.bytes));
        while self.answers.queue.len() < 2 && self.due.front().is_some_and(|due| due.0 <= now) {
            let Some((_, at, last, error)) = self.due.pop_front() else { break };
            let zeros = [0; BEAT_BYTES];
            let beat =
                if error { &zeros } else { &self.bytes[at as usize..at as usize + BEAT_BYTES] };
            let fields = [(u64::from(last), 1), (u64::from(error), 1)];
            self.answers.push_bytes(&[&bits::with_beat(beat, &fields)]);
        }
    }

    /// After a cycle: takes requests.
    pub fn after(&mut self, now: u64, rng: &mut SeededRng) {
        while let Some(beat) = self.reads.beats.pop_front() {
            let request = &beat[0];
            let (beats, at) = (bits::get(request, 0, 6), bits::get(request, 6, 34) * 64);
            let owner = bits::get(request, 40, 4);
            let due = now + self.latency.roll(rng);
            for i in 0..=beats {
                let refused = self.refuses(owner, at + 64 * i);
                self.due.push_back((due, at + 64 * i, i == beats, refused));
            }
        }
        while let Some(beat) = self.writes.beats.pop_front() {
            let write = &beat[0];
            let (at, owner) = (bits::get(write, 576, 34) * 64, bits::get(write, 610, 4));
            let error = self.refuses(owner, at);
            self.written_at.push(now);
            self.landing.0.push_back(Write {
                due: now + self.latency.roll(rng),
                at: at as usize,
                strobe: bits::get(write, 512, 64),
                beat: write[..64].to_vec(),
                error,
            });
        }
    }
}
