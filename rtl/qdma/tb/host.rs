//! The simulated host of the queue engine: its memory, and the link in between, which keeps the
//! rules of PCIe ([`fieldstone_fpga::pcie`]). The host asserts the promise of the guards, that no
//! access is outside its function's window, and that requests keep within the limits of the link.

use std::collections::{HashSet, VecDeque};

use fieldstone_fpga::pcie::{Downstream, Limits, Tags, Upstream};
use fieldstone_fpga::regs::{BEAT_BYTES, MAX_FUNCTIONS};
use fieldstone_verilate::Model;
use fieldstone_verilate::bench::{SeededRng, Sink, Source, Stream};
use rand::Rng;

use crate::bits;
use crate::memory::Latency;

/// The kind of a read's tag that says that a descriptor is read (`qdma_pkg`).
const READ_DESCRIPTOR: u64 = 1;

/// A posted request of the device.
enum Posted {
    Write { at: usize, strobe: u64, beat: Vec<u8> },
    Interrupt(u64),
}

/// A read request of the device.
struct ReadRequest {
    tag: u64,
    at: u64,
    beats: u64,
    /// Cycles from memory back to the device.
    back_cycles: u64,
}

/// A beat that answers a read.
struct Beat {
    bytes: Vec<u8>,
    /// The read's tag, at its last beat.
    ends: Option<u64>,
}

/// The host: its memory, and the link to the device.
pub struct Host {
    pub bytes: Vec<u8>,
    /// Cycles from a read to its data: half of them on the way to memory. A write, an interrupt,
    /// and each way of a register access take half of them, too.
    pub latency: Latency,
    pub limits: Limits,
    /// Memory answers a read with one completion; else every beat is a completion of its own.
    pub whole_completions: bool,
    /// The window of every function, as the bench told the device.
    pub windows: [(u64, u64); MAX_FUNCTIONS],
    /// Beats (by byte address) that answer a read with an error.
    pub broken: HashSet<u64>,
    reads: Sink,
    data: Source,
    writes: Sink,
    interrupts: Sink,
    accesses: Source,
    answers: Sink,
    /// Chance of a stall of the streams towards the host.
    pub stall: f64,
    /// Chance of a stall of interrupts.
    pub interrupt_stall: f64,
    /// Cycle in which the device sent each beat of data.
    pub written_at: Vec<u64>,
    /// Interrupts that have arrived, by vector.
    pub raised: VecDeque<u64>,
    /// Answers to register reads that have arrived.
    pub answered: VecDeque<u64>,
    /// Read requests without a full answer, and the largest number of them.
    tags: Tags,
    pub most_in_flight: usize,
    /// Descriptors that the device has read, by function.
    pub descriptor_reads: [u64; MAX_FUNCTIONS],
    /// The tags that end with the beats that the device has not taken, a place per beat.
    ends: VecDeque<Option<u64>>,
    up: Upstream<Posted, ReadRequest, u64>,
    down: Downstream<Vec<u8>, Beat>,
}

impl Host {
    pub fn new(model: &Model, bytes: usize, latency: Latency, stall: f64) -> Self {
        Self {
            bytes: vec![0; bytes],
            latency,
            limits: Limits::default(),
            whole_completions: false,
            windows: [(0, 0); MAX_FUNCTIONS],
            broken: HashSet::new(),
            reads: Sink::new(model, "host_read", &["host_read_data_o"], stall),
            data: Source::new(model, "host_data", &["host_data_data_i"], stall),
            writes: Sink::new(model, "host_write", &["host_write_data_o"], stall),
            interrupts: Sink::new(model, "interrupt", &["interrupt_data_o"], stall),
            accesses: Source::new(model, "mmio", &["mmio_data_i"], stall),
            answers: Sink::new(model, "mmio_answer", &["mmio_answer_data_o"], stall),
            stall,
            interrupt_stall: stall,
            written_at: Vec::new(),
            raised: VecDeque::new(),
            answered: VecDeque::new(),
            tags: Tags::default(),
            most_in_flight: 0,
            descriptor_reads: [0; MAX_FUNCTIONS],
            ends: VecDeque::new(),
            up: Upstream::default(),
            down: Downstream::default(),
        }
    }

    /// Sends a register access on its way. Accesses are done in order.
    pub fn access(&mut self, now: u64, rng: &mut SeededRng, is_write: bool, request: Vec<u8>) {
        self.down.access(now + self.latency.roll(rng) / 2, is_write, request);
    }

    /// True if no register access is on its way to the device, and nothing on its way to the host.
    pub fn is_quiet(&self) -> bool {
        self.down.has_no_access() && self.up.is_idle()
    }

    /// Register accesses that the device has not taken.
    pub fn accesses(&self) -> usize {
        self.down.accesses()
    }

    fn assert_inside(&self, owner: u64, at: u64) {
        let (base, end) = self.windows[owner as usize];
        assert!(at >= base && at + 64 <= end, "function {owner} reached host memory at {at:#x}");
    }

    /// The streams at the device's boundary.
    pub fn streams(&mut self) -> [&mut dyn Stream; 6] {
        [
            &mut self.accesses,
            &mut self.answers,
            &mut self.reads,
            &mut self.data,
            &mut self.writes,
            &mut self.interrupts,
        ]
    }

    /// Before a cycle: what has arrived at the host, and what arrives at the device.
    pub fn before(&mut self, now: u64, rng: &mut SeededRng) {
        while let Some(posted) = self.up.arrived_posted(now) {
            match posted {
                Posted::Interrupt(vector) => self.raised.push_back(vector),
                Posted::Write { at, strobe, beat } => {
                    for (i, &byte) in beat.iter().enumerate() {
                        if strobe >> i & 1 == 1 {
                            self.bytes[at + i] = byte;
                        }
                    }
                }
            }
        }
        while let Some(read) = self.up.arrived_read(now) {
            self.answer(&read, now, rng);
        }
        while let Some(answer) = self.up.arrived_answer(now) {
            self.answered.push_back(answer);
        }
        if self.accesses.is_done()
            && let Some(request) = self.down.offered_access(now)
        {
            self.accesses.push_bytes(&[request]);
        }
        while self.data.queue.len() < 2
            && let Some(Beat { bytes, ends }) = self.down.arrived_data(now)
        {
            self.data.push_bytes(&[&bytes]);
            self.ends.push_back(ends);
        }
        // Without a free tag, the host takes no read.
        let is_full = self.tags.in_flight() >= self.limits.tags;
        self.reads.stall = if is_full { 1.0 } else { self.stall };
        self.writes.stall = self.stall;
        self.interrupts.stall = self.interrupt_stall;
    }

    /// Memory answers a read. Where each beat is a completion of its own, beats of two reads may
    /// mix.
    fn answer(&mut self, read: &ReadRequest, now: u64, rng: &mut SeededRng) {
        let mut due = now + read.back_cycles;
        for i in 0..read.beats {
            let (at, last) = (read.at + 64 * i, i + 1 == read.beats);
            let error = self.broken.contains(&at);
            let beat = &self.bytes[at as usize..at as usize + BEAT_BYTES];
            let fields = [(u64::from(last), 1), (u64::from(error), 1), (read.tag, 10)];
            let ends = last.then_some(read.tag);
            self.down.complete(due, Beat { bytes: bits::with_beat(beat, &fields), ends });
            if !self.whole_completions {
                due += rng.random_range(0..=self.latency.jitter_cycles / 4);
            }
        }
    }

    /// After a cycle: what the device has sent and taken.
    pub fn after(&mut self, now: u64, rng: &mut SeededRng) {
        if self.accesses.is_done() && self.accesses.moved_at.last() == Some(&now) {
            self.down.take_access();
        }
        while self.ends.len() > self.data.queue.len() {
            if let Some(Some(tag)) = self.ends.pop_front() {
                self.tags.give_back(tag).expect("the read is in flight");
            }
        }
        // A read or an answer that leaves in the same cycle as a write leaves before or after it,
        // at random.
        let writes_first = rng.random_bool(0.5);
        if writes_first {
            self.take_posted(now, rng);
        }
        while let Some(beat) = self.reads.beats.pop_front() {
            self.take_read(&beat[0], now, rng);
        }
        while let Some(answer) = self.answers.pop() {
            self.up.answer(now + self.latency.roll(rng) / 2, answer[0]);
        }
        if !writes_first {
            self.take_posted(now, rng);
        }
    }

    fn take_read(&mut self, request: &[u8], now: u64, rng: &mut SeededRng) {
        let (two, at) = (bits::get(request, 0, 1), bits::get(request, 1, 58) * 64);
        let (tag, owner) = (bits::get(request, 59, 10), bits::get(request, 69, 4));
        let beats = 1 + two;
        if tag >> 8 == READ_DESCRIPTOR {
            self.descriptor_reads[owner as usize] += 1;
        }
        self.limits.check_read(at, 64 * beats).expect("a read as PCIe allows it");
        (0..beats).for_each(|i| self.assert_inside(owner, at + 64 * i));
        let cycles = self.latency.roll(rng);
        let back_cycles = cycles - cycles / 2;
        self.up.read(now + cycles / 2, ReadRequest { tag, at, beats, back_cycles });
        self.tags.take(tag).expect("a tag for each read");
        self.most_in_flight = self.most_in_flight.max(self.tags.in_flight());
    }

    /// Takes writes and interrupts. An interrupt that leaves in the same cycle as a write leaves
    /// before it: the device must not count on more.
    fn take_posted(&mut self, now: u64, rng: &mut SeededRng) {
        while let Some(vector) = self.interrupts.pop() {
            self.up.post(now + self.latency.roll(rng) / 2, Posted::Interrupt(vector[0]));
        }
        while let Some(mut beat) = self.writes.beats.pop_front() {
            let write = &mut beat[0];
            let (at, owner) = (bits::get(write, 576, 58) * 64, bits::get(write, 634, 4));
            let strobe = bits::get(write, 512, 64);
            self.limits.check_write(at, strobe).expect("a write as PCIe allows it");
            self.assert_inside(owner, at);
            self.written_at.push(now);
            write.truncate(BEAT_BYTES);
            let write = Posted::Write { at: at as usize, strobe, beat: std::mem::take(write) };
            self.up.post(now + self.latency.roll(rng) / 2, write);
        }
    }
}
