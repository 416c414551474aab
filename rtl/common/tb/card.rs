//! A card memory for benches, at one client's ports of `fs_pkg`.

use std::collections::VecDeque;

use fieldstone_verilate::bench::{SeededRng, Stream, bits, set_bits};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

/// Bytes of a beat.
pub const BEAT_BYTES: usize = 64;

/// `card_read_t`, `card_data_t`, `card_write_t` and `card_done_t` of one client, and the memory
/// behind them. The memory answers reads in order, after a latency, with random pauses.
#[derive(Debug)]
pub struct CardMemory {
    /// The content. Beats past its end read as zeros with an error; a write to them is answered
    /// with an error.
    pub bytes: Vec<u8>,
    /// Cycles from a read request to its first beat, and from a write to its answer.
    pub latency_cycles: u64,
    /// The chance of a pause, for each of the streams.
    pub stall: f64,
    /// The memory answers beats from this number on with errors.
    pub broken_from: usize,
    /// The function that every request must name.
    pub owner: u64,
    /// Beats read and written so far.
    pub beats: (u64, u64),
    cycle: u64,
    pending: VecDeque<PendingBeat>,
    /// Writes without an answer: the cycle of the answer, and whether it is an error.
    landing: VecDeque<(u64, bool)>,
    offering: bool,
    read: [Port; 3],
    data: [Port; 3],
    write: Option<[Port; 4]>,
    /// Waiting requests of both ports.
    held: [Held; 2],
}

/// Asserts the rule of streams on an output of the design: an offered beat does not change until it
/// is taken. For benches that read ports themselves; a [`Sink`](fieldstone_verilate::bench::Sink)
/// also asserts it.
#[derive(Debug)]
pub struct Held {
    port: String,
    beat: Option<Vec<u8>>,
}

impl Held {
    /// For the port of this name, at which no beat is offered yet.
    #[must_use]
    pub fn new(port: impl Into<String>) -> Self {
        Self { port: port.into(), beat: None }
    }

    /// Checks one cycle: the offered beat, if there is one, and whether it is taken.
    ///
    /// # Panics
    ///
    /// If the beat that was offered before has changed or disappeared.
    pub fn check(&mut self, offered: Option<&[u8]>, is_taken: bool, cycle: u64) {
        let port = &self.port;
        if let Some(held) = self.beat.take() {
            let offered = offered
                .unwrap_or_else(|| panic!("{port}: a request was withdrawn in cycle {cycle}"));
            assert!(held == offered, "{port}: a request changed while it waited, in cycle {cycle}");
        }
        if !is_taken {
            self.beat = offered.map(<[u8]>::to_vec);
        }
    }

    /// Checks one cycle of a valid, a ready and a data port.
    pub fn sample(&mut self, model: &Model, [valid, ready, data]: [Port; 3], cycle: u64) {
        let offered = model.is_set(valid).then(|| model.bytes(data));
        self.check(offered, model.is_set(ready), cycle);
    }
}

#[derive(Debug)]
struct PendingBeat {
    from_cycle: u64,
    beat: usize,
    last: bool,
}

impl CardMemory {
    /// The memory behind the ports `{prefix}read_valid_o`, `{prefix}read_ready_i`,
    /// `{prefix}read_o`, `{prefix}data_valid_i`, `{prefix}data_ready_o`, `{prefix}data_i` and, if
    /// there is such a port, `{prefix}write_valid_o`, `{prefix}write_ready_i`, `{prefix}write_o`,
    /// `{prefix}done_i`.
    #[must_use]
    pub fn new(model: &Model, prefix: &str, bytes: Vec<u8>, stall: f64) -> Self {
        let port = |name: &str| model.port(&format!("{prefix}{name}"));
        let has_writes = model.has_port(&format!("{prefix}write_o"));
        Self {
            bytes,
            latency_cycles: 20,
            stall,
            broken_from: usize::MAX,
            owner: 0,
            beats: (0, 0),
            cycle: 0,
            pending: VecDeque::new(),
            landing: VecDeque::new(),
            offering: false,
            read: ["read_valid_o", "read_ready_i", "read_o"].map(port),
            data: ["data_valid_i", "data_ready_o", "data_i"].map(port),
            write: has_writes
                .then(|| ["write_valid_o", "write_ready_i", "write_o", "done_i"].map(port)),
            held: ["read_o", "write_o"].map(|name| Held::new(format!("{prefix}{name}"))),
        }
    }

    /// True if no answer is pending.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.landing.is_empty()
    }

    fn is_error(&self, beat: usize) -> bool {
        beat >= self.broken_from || (beat + 1) * BEAT_BYTES > self.bytes.len()
    }
}

impl Stream for CardMemory {
    fn drive(&mut self, model: &mut Model, rng: &mut SeededRng) {
        model.set(self.read[1], u64::from(!rng.random_bool(self.stall)));
        let due = self.pending.front().is_some_and(|pending| pending.from_cycle <= self.cycle);
        self.offering = due && (self.offering || !rng.random_bool(self.stall));
        model.set(self.data[0], u64::from(self.offering));
        if self.offering {
            let PendingBeat { beat, last, .. } = self.pending[0];
            let mut data = vec![0; BEAT_BYTES + 1];
            if let Some(bytes) = self.bytes.get(beat * BEAT_BYTES..(beat + 1) * BEAT_BYTES) {
                data[..BEAT_BYTES].copy_from_slice(bytes);
            }
            set_bits(&mut data, 512, 1, u64::from(last));
            set_bits(&mut data, 513, 1, u64::from(self.is_error(beat)));
            model.set_bytes(self.data[2], &data);
        }
        if let Some([_, ready, _, done]) = self.write {
            model.set(ready, u64::from(!rng.random_bool(self.stall)));
            let landed = self.landing.front().filter(|(from_cycle, _)| *from_cycle <= self.cycle);
            let landed = landed.copied().filter(|_| !rng.random_bool(self.stall));
            model.set(done, landed.map_or(0, |(_, error)| 2 | u64::from(error)));
            if landed.is_some() {
                self.landing.pop_front();
            }
        }
    }

    /// Also asserts the rule of streams.
    fn sample(&mut self, model: &Model, cycle: u64) {
        self.cycle += 1;
        self.held[0].sample(model, self.read, cycle);
        if let Some([valid, ready, request, _]) = self.write {
            self.held[1].sample(model, [valid, ready, request], cycle);
        }
        let [valid, ready, _] = self.data;
        if model.is_set(valid) && model.is_set(ready) {
            self.pending.pop_front();
            self.offering = false;
            self.beats.0 += 1;
        }
        let [valid, ready, request] = self.read;
        if model.is_set(valid) && model.is_set(ready) {
            let request = model.bytes(request);
            assert_eq!(bits(request, 40, 4), self.owner, "a read for another function");
            let (first, beats) = (bits(request, 6, 34) as usize, bits(request, 0, 6) as usize + 1);
            let from_cycle = self.cycle + self.latency_cycles;
            let pending = (0..beats).map(|at| PendingBeat {
                from_cycle,
                beat: first + at,
                last: at + 1 == beats,
            });
            self.pending.extend(pending);
        }
        let Some([valid, ready, request, _]) = self.write else { return };
        if model.is_set(valid) && model.is_set(ready) {
            let request = model.bytes(request);
            assert_eq!(bits(request, 610, 4), self.owner, "a write for another function");
            let (beat, strobe) = (bits(request, 576, 34) as usize, bits(request, 512, 64));
            let error = self.is_error(beat);
            if !error {
                let target = &mut self.bytes[beat * BEAT_BYTES..(beat + 1) * BEAT_BYTES];
                for (at, byte) in
                    target.iter_mut().enumerate().filter(|(at, _)| strobe >> at & 1 == 1)
                {
                    *byte = request[at];
                }
            }
            self.beats.1 += 1;
            self.landing.push_back((self.cycle + self.latency_cycles, error));
        }
    }
}
