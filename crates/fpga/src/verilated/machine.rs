//! The thread that clocks the model, and the simulated host and card around it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

use fieldstone_verilate::bench::{Clock, SeededRng, seeded_rng};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

use super::{HOST_BASE, Message, Options, Request, Shared, WriteRun, designs};
use crate::memory_port::{BEAT, Read, Reads, Write, Writes, apply, beat_of};
use crate::pcie::{Downstream, Limits, Tags, Upstream, latency};

/// Cycles between two updates of the shared cycle counter.
const CYCLES_PER_NOTE: u64 = 256;

/// The model with everything at its boundary.
pub struct Machine {
    model: Model,
    clock: Clock,
    rng: SeededRng,
    options: Options,
    shared: Arc<Shared>,
    incoming: Receiver<Message>,
    idle: Port,
    resets: Resets,
    link: Link,
    mmio: Mmio,
    host: SimHost,
    interrupt: Interrupts,
    card: SimCard,
    /// The cycle of the last update of the shared counter.
    noted: u64,
}

/// What is on its way between the host and the device.
#[derive(Default)]
struct Link {
    up: Upstream<Posted, HostRead, Answer>,
    down: Downstream<Access, HostBeat>,
    limits: Limits,
    /// Reads of the device that wait for their last beat.
    tags: Tags,
}

/// What the host sends to the device.
enum Access {
    Register(Request),
    /// A function-level reset is an access to the configuration space: non-posted, in order with
    /// the accesses to registers. It names any number of functions, a bit each.
    Reset(u64, SyncSender<()>),
}

/// What the device answers.
enum Answer {
    Register(SyncSender<u64>, u64),
    Reset(SyncSender<()>),
}

/// A posted request of the device.
enum Posted {
    Write(Write),
    /// By vector.
    Interrupt(usize),
}

/// A read of host memory, and the cycles that its data takes back to the device.
struct HostRead {
    read: Read,
    back_cycles: u64,
}

/// A beat that answers a read of host memory. Without data, it is an error.
struct HostBeat {
    tag: u64,
    is_last: bool,
    data: Option<[u8; BEAT]>,
}

/// Function-level resets that have arrived at the device. Each function is reset by itself.
struct Resets {
    held: Port,
    done: Port,
    under_way: Vec<Reset>,
    /// The functions whose reset is held.
    functions: u64,
}

/// A reset of some functions, a bit each: of those that wait for an earlier reset of theirs to end,
/// and of those that are not done.
struct Reset {
    waiting: u64,
    begun: u64,
    answer: SyncSender<()>,
}

struct Mmio {
    valid: Port,
    ready: Port,
    write: Port,
    function: Port,
    offset: Port,
    strobe: Port,
    data: Port,
    answer_valid: Port,
    answer_data: Port,
    /// Reads that the device has not answered.
    asked: VecDeque<SyncSender<u64>>,
}

struct SimHost {
    read_valid: Port,
    read_ready: Port,
    read_tag: Port,
    read_address: Port,
    read_two: Port,
    data_valid: Port,
    data_ready: Port,
    data_tag: Port,
    data_error: Port,
    data_last: Port,
    data: Port,
    write_valid: Port,
    write_ready: Port,
    write_address: Port,
    write_strobe: Port,
    write_data: Port,
    /// The beat at the port, and whether it is offered.
    beat: Option<HostBeat>,
    is_offered: bool,
}

struct Interrupts {
    valid: Port,
    ready: Port,
    vector: Port,
}

struct SimCard {
    read_valid: Port,
    read_ready: Port,
    read_address: Port,
    read_beats_minus_1: Port,
    data_valid: Port,
    data_ready: Port,
    data: Port,
    write_valid: Port,
    write_ready: Port,
    write_address: Port,
    write_strobe: Port,
    write_data: Port,
    write_done: Port,
    memory: Vec<u8>,
    reads: Reads,
    writes: Writes,
    /// The last run of writes, and whether a read has been requested since.
    run: WriteRun,
    run_is_over: bool,
}

impl Machine {
    /// A machine fresh from reset.
    pub fn new(
        options: &Options,
        shared: Arc<Shared>,
        incoming: Receiver<Message>,
    ) -> io::Result<Self> {
        let mut model = Model::new(&designs::FS_TOP);
        if let Some(path) = &options.trace {
            let refused = |error: io::Error| {
                let text = format!("waves cannot be written to {}: {error}", path.display());
                io::Error::new(error.kind(), text)
            };
            // The model's writer gives no reason if it cannot open a file, and does not always
            // report the failure.
            std::fs::File::create(path).map_err(refused)?;
            if !model.open_trace(path) {
                return Err(refused(io::Error::other("the writer of waves refuses it")));
            }
        }
        let port = |name: &str| model.port(name);
        let mmio = Mmio {
            valid: port("mmio_valid_i"),
            ready: port("mmio_ready_o"),
            write: port("mmio_write_i"),
            function: port("mmio_function_i"),
            offset: port("mmio_offset_i"),
            strobe: port("mmio_strobe_i"),
            data: port("mmio_data_i"),
            answer_valid: port("mmio_answer_valid_o"),
            answer_data: port("mmio_answer_data_o"),
            asked: VecDeque::new(),
        };
        let host = SimHost {
            read_valid: port("host_read_valid_o"),
            read_ready: port("host_read_ready_i"),
            read_tag: port("host_read_tag_o"),
            read_address: port("host_read_address_o"),
            read_two: port("host_read_two_o"),
            data_valid: port("host_data_valid_i"),
            data_ready: port("host_data_ready_o"),
            data_tag: port("host_data_tag_i"),
            data_error: port("host_data_error_i"),
            data_last: port("host_data_last_i"),
            data: port("host_data_i"),
            write_valid: port("host_write_valid_o"),
            write_ready: port("host_write_ready_i"),
            write_address: port("host_write_address_o"),
            write_strobe: port("host_write_strobe_o"),
            write_data: port("host_write_data_o"),
            beat: None,
            is_offered: false,
        };
        let interrupt = Interrupts {
            valid: port("interrupt_valid_o"),
            ready: port("interrupt_ready_i"),
            vector: port("interrupt_vector_o"),
        };
        let card = SimCard {
            read_valid: port("card_read_valid_o"),
            read_ready: port("card_read_ready_i"),
            read_address: port("card_read_address_o"),
            read_beats_minus_1: port("card_read_beats_minus_1_o"),
            data_valid: port("card_data_valid_i"),
            data_ready: port("card_data_ready_o"),
            data: port("card_data_i"),
            write_valid: port("card_write_valid_o"),
            write_ready: port("card_write_ready_i"),
            write_address: port("card_write_address_o"),
            write_strobe: port("card_write_strobe_o"),
            write_data: port("card_write_data_o"),
            write_done: port("card_write_done_i"),
            memory: vec![0; options.card_bytes],
            reads: Reads::default(),
            writes: Writes::default(),
            run: WriteRun::default(),
            run_is_over: true,
        };
        let idle = port("idle_o");
        let resets = Resets {
            held: port("function_reset_i"),
            done: port("function_reset_done_o"),
            under_way: Vec::new(),
            functions: 0,
        };
        let clock = Clock::reset(&mut model);
        Ok(Self {
            model,
            clock,
            rng: seeded_rng(options.seed),
            options: options.clone(),
            shared,
            incoming,
            idle,
            resets,
            link: Link { limits: options.limits, ..Link::default() },
            mmio,
            host,
            interrupt,
            card,
            noted: 0,
        })
    }

    /// Clocks the design until all senders of requests are dropped.
    pub fn run(mut self) {
        let mut since = Instant::now();
        loop {
            match self.incoming.try_recv() {
                Ok(message) => self.receive(message),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if self.is_idle() => {
                    self.note(since);
                    let Ok(message) = self.incoming.recv() else { return };
                    self.receive(message);
                    since = Instant::now();
                }
                Err(TryRecvError::Empty) => {}
            }
            self.cycle();
            if self.clock.cycles - self.noted >= CYCLES_PER_NOTE {
                self.note(since);
                since = Instant::now();
            }
        }
    }

    /// True if nothing is in flight, and the device reports idle.
    fn is_idle(&self) -> bool {
        self.resets.under_way.is_empty()
            && self.mmio.asked.is_empty()
            && self.host.beat.is_none()
            && self.link.up.is_idle()
            && self.link.down.is_idle()
            && self.link.tags.in_flight() == 0
            && self.card.reads.is_idle()
            && self.card.writes.is_idle()
            && self.model.is_set(self.idle)
    }

    /// Sends a register access or a reset on its way.
    fn receive(&mut self, message: Message) {
        let due = self.clock.cycles + latency(&self.options.mmio_latency, &mut self.rng);
        let (is_posted, access) = match message {
            Message::Access(request) => (request.value.is_some(), Access::Register(request)),
            Message::Reset(functions, done) => (false, Access::Reset(functions, done)),
        };
        self.link.down.access(due, is_posted, access);
    }

    fn note(&mut self, since: Instant) {
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.noted = self.clock.cycles;
        self.shared.cycles.store(self.noted, Ordering::Relaxed);
        self.shared.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn cycle(&mut self) {
        let now = self.clock.cycles;
        let model = &mut self.model;
        let (split, rng) = (&self.options.completion_split, &mut self.rng);
        self.link.arrive(&self.shared, now, || latency(split, rng));
        let (range, rng) = (&self.options.host_latency, &mut self.rng);
        self.resets.drive(model, &mut self.link, now, || now + latency(range, rng) / 2);
        let (stall, rng) = (self.options.stall, &mut self.rng);
        let mut goes = || stall <= 0.0 || !rng.random_bool(stall);
        self.mmio.drive(model, &self.link, now);
        self.host.drive(model, &mut self.link, now, &mut goes);
        self.card.drive(model, now, &mut goes);
        model.set(self.interrupt.ready, u64::from(goes()));
        self.clock.settle(model);
        let (range, rng) = (&self.options.host_latency, &mut self.rng);
        let mut round_trip = || latency(range, rng);
        // Answers and interrupts before writes: the device must not count on the order within a
        // cycle.
        self.mmio.sample(model, &mut self.link, || now + round_trip() / 2);
        if both(model, self.interrupt.valid, self.interrupt.ready) {
            let vector = model.get(self.interrupt.vector) as usize;
            self.link.up.post(now + round_trip() / 2, Posted::Interrupt(vector));
        }
        self.host.sample(model, &mut self.link, now, round_trip);
        self.card.sample(model, now, self.options.card_latency);
        self.shared.write_run.set(self.card.run);
        self.clock.rise(model);
    }
}

impl Link {
    /// What arrives at the host in this cycle. `split` gives the cycles between two completions of
    /// a read.
    fn arrive(&mut self, shared: &Shared, now: u64, mut split: impl FnMut() -> u64) {
        while let Some(posted) = self.up.arrived_posted(now) {
            match posted {
                Posted::Interrupt(vector) => {
                    shared.interrupts[vector].fetch_add(1, Ordering::Release);
                }
                Posted::Write(write) => {
                    // A write is not answered, so one to an address without memory is lost.
                    if !apply(&mut shared.host(), HOST_BASE / BEAT as u64, &write) {
                        tracing::error!("the device wrote to no memory: beat {:#x}", write.beat);
                    }
                }
            }
            shared.notify();
        }
        while let Some(HostRead { read, back_cycles }) = self.up.arrived_read(now) {
            let memory = shared.host();
            let mut due = now + back_cycles;
            for index in 0..read.beats {
                due += if index > 0 { split() } else { 0 };
                let range = beat_of(memory.len(), HOST_BASE / BEAT as u64, read.beat + index);
                let data = range.map(|range| {
                    let mut data = [0; BEAT];
                    data.copy_from_slice(&memory[range]);
                    data
                });
                let beat = HostBeat { tag: read.tag, is_last: index + 1 == read.beats, data };
                self.down.complete(due, beat);
            }
        }
        while let Some(answer) = self.up.arrived_answer(now) {
            // Who waits may be dropped.
            let _ = match answer {
                Answer::Register(reader, value) => reader.send(value).is_ok(),
                Answer::Reset(caller) => caller.send(()).is_ok(),
            };
        }
    }
}

impl Resets {
    /// Takes resets that arrive, and drives those under way from what the device said in the last
    /// cycle. `arrival` gives the cycle at which an answer that leaves now arrives.
    fn drive(
        &mut self,
        model: &mut Model,
        link: &mut Link,
        now: u64,
        mut arrival: impl FnMut() -> u64,
    ) {
        while matches!(link.down.offered_access(now), Some(Access::Reset(..)))
            && let Some(Access::Reset(functions, answer)) = link.down.take_access()
        {
            self.under_way.push(Reset { waiting: functions, begun: 0, answer });
        }
        let done = model.get(self.done);
        let ended = self.functions & done;
        self.functions &= !ended;
        for reset in &mut self.under_way {
            reset.begun &= !ended;
            // A bit that is still set is of an earlier reset.
            let begins = reset.waiting & !(self.functions | done);
            self.functions |= begins;
            (reset.waiting, reset.begun) = (reset.waiting & !begins, reset.begun | begins);
        }
        for reset in self.under_way.extract_if(.., |reset| reset.waiting | reset.begun == 0) {
            link.up.answer(arrival(), Answer::Reset(reset.answer));
        }
        model.set(self.held, self.functions);
    }
}

impl Mmio {
    fn drive(&self, model: &mut Model, link: &Link, now: u64) {
        let Some(Access::Register(request)) = link.down.offered_access(now) else {
            return model.set(self.valid, 0);
        };
        model.set(self.valid, 1);
        model.set(self.write, u64::from(request.value.is_some()));
        model.set(self.function, u64::from(request.function) & 0xf);
        model.set(self.offset, request.offset & 0x1_ffff);
        model.set(self.strobe, 0xff);
        model.set(self.data, request.value.unwrap_or(0));
    }

    /// `arrival` gives the cycle at which an answer that leaves now arrives.
    fn sample(&mut self, model: &Model, link: &mut Link, arrival: impl FnOnce() -> u64) {
        if model.is_set(self.answer_valid)
            && let Some(answer) = self.asked.pop_front()
        {
            let value = model.get(self.answer_data);
            link.up.answer(arrival(), Answer::Register(answer, value));
        }
        if both(model, self.valid, self.ready)
            && let Some(Access::Register(request)) = link.down.take_access()
            && let Some(answer) = request.answer
        {
            self.asked.push_back(answer);
        }
    }
}

impl SimHost {
    fn drive(
        &mut self,
        model: &mut Model,
        link: &mut Link,
        now: u64,
        goes: &mut dyn FnMut() -> bool,
    ) {
        // Without a free tag, the host takes no read.
        let has_tag = link.tags.in_flight() < link.limits.tags;
        model.set(self.read_ready, u64::from(goes() && has_tag));
        model.set(self.write_ready, u64::from(goes()));
        if self.beat.is_none() {
            self.beat = link.down.arrived_data(now);
        }
        self.is_offered = self.is_offered || (self.beat.is_some() && goes());
        let Some(beat) = self.beat.as_ref().filter(|_| self.is_offered) else {
            return model.set(self.data_valid, 0);
        };
        model.set(self.data_valid, 1);
        model.set(self.data_tag, beat.tag);
        model.set(self.data_error, u64::from(beat.data.is_none()));
        model.set(self.data_last, u64::from(beat.is_last));
        model.set_bytes(self.data, beat.data.as_ref().unwrap_or(&[0; BEAT]));
    }

    fn sample(
        &mut self,
        model: &Model,
        link: &mut Link,
        now: u64,
        mut round_trip: impl FnMut() -> u64,
    ) {
        if both(model, self.data_valid, self.data_ready)
            && let Some(beat) = self.beat.take()
        {
            self.is_offered = false;
            if beat.is_last {
                link.tags.give_back(beat.tag).expect("the read is in flight");
            }
        }
        if both(model, self.read_valid, self.read_ready) {
            let beats = 1 + model.get(self.read_two);
            let (tag, beat) = (model.get(self.read_tag), model.get(self.read_address));
            let bytes = beats * BEAT as u64;
            link.limits.check_read(beat * BEAT as u64, bytes).expect("a read as PCIe allows it");
            let cycles = round_trip();
            let read =
                HostRead { read: Read { tag, beat, beats }, back_cycles: cycles - cycles / 2 };
            link.up.read(now + cycles / 2, read);
            link.tags.take(tag).expect("a tag for each read");
        }
        if both(model, self.write_valid, self.write_ready) {
            let (beat, strobe) = (model.get(self.write_address), model.get(self.write_strobe));
            link.limits.check_write(beat * BEAT as u64, strobe).expect("a write as PCIe allows it");
            let data = data_of(model, self.write_data);
            link.up.post(now + round_trip() / 2, Posted::Write(Write { beat, strobe, data }));
        }
    }
}

impl SimCard {
    fn drive(&mut self, model: &mut Model, now: u64, goes: &mut dyn FnMut() -> bool) {
        model.set(self.read_ready, u64::from(goes()));
        model.set(self.write_ready, u64::from(goes()));
        match self.reads.offer(now, goes) {
            None => model.set(self.data_valid, 0),
            Some(Read { beat, .. }) => {
                model.set(self.data_valid, 1);
                // Guards in the device keep requests inside the memory; the rest reads as zero.
                match beat_of(self.memory.len(), 0, beat) {
                    Some(range) => model.set_bytes(self.data, &self.memory[range]),
                    None => model.set_bytes(self.data, &[0; BEAT]),
                }
            }
        }
        let landed = self.writes.land(now);
        model.set(self.write_done, u64::from(landed.is_some()));
        if let Some(write) = landed {
            apply(&mut self.memory, 0, &write);
            self.run.last_landed = now;
        }
    }

    fn sample(&mut self, model: &Model, now: u64, latency: u64) {
        if both(model, self.data_valid, self.data_ready) {
            self.reads.take();
        }
        if both(model, self.read_valid, self.read_ready) {
            let beats = 1 + model.get(self.read_beats_minus_1);
            let beat = model.get(self.read_address);
            self.reads.push(now + latency, Read { tag: 0, beat, beats });
            self.run_is_over = true;
        }
        if both(model, self.write_valid, self.write_ready) {
            if std::mem::take(&mut self.run_is_over) {
                self.run = WriteRun { first_taken: now, last_landed: now };
            }
            let (beat, strobe) = (model.get(self.write_address), model.get(self.write_strobe));
            let data = data_of(model, self.write_data);
            self.writes.push(now + latency, Write { beat, strobe, data });
        }
    }
}

/// True when a beat moves in this cycle.
fn both(model: &Model, valid: Port, ready: Port) -> bool {
    model.is_set(valid) && model.is_set(ready)
}

fn data_of(model: &Model, port: Port) -> [u8; BEAT] {
    let mut data = [0; BEAT];
    data.copy_from_slice(model.bytes(port));
    data
}
