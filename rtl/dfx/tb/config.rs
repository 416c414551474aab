//! The configuration port: what it refuses, when it drains, and its state afterwards.

use fieldstone_accel::crc32c;
use fieldstone_fpga::regs::{
    BITSTREAM_MAGIC, PartitionState, ReconfigurableModule, Status, VERSION,
};
use fieldstone_rtl_common::card::{BEAT_BYTES, CardMemory};
use fieldstone_rtl_dfx::DFX_CONFIG;
use fieldstone_verilate::bench::{Clock, SeededRng, Sink, Source, bits, seeded_rng, set_bits};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

const FRAME_CYCLES: u64 = 16;

/// A bitstream for `module` with `frames` beats of random frames.
fn bitstream(rng: &mut SeededRng, module: u32, frames: usize) -> Vec<u8> {
    let frames: Vec<u8> = (0..frames * BEAT_BYTES).map(|_| rng.random()).collect();
    let mut head = vec![0; BEAT_BYTES];
    let words =
        [BITSTREAM_MAGIC as u32, module, frames.len() as u32, crc32c(&frames), VERSION as u32];
    for (at, word) in words.into_iter().enumerate() {
        head[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
    }
    seal(&mut head);
    [head, frames].concat()
}

/// Corrects the head's own checksum.
fn seal(head: &mut [u8]) {
    let sum = crc32c(&head[..60]);
    head[60..64].copy_from_slice(&sum.to_le_bytes());
}

/// The fields of a response.
#[derive(Debug, PartialEq, Eq)]
struct Response {
    status: u64,
    module: u64,
    detail: u64,
}

impl Response {
    fn new(status: Status, module: ReconfigurableModule, detail: u64) -> Self {
        Self { status: status as u64, module: module as u64, detail }
    }
}

struct Testbench {
    model: Model,
    clock: Clock,
    rng: SeededRng,
    commands: Source,
    answers: Sink,
    memory: CardMemory,
    /// Cycles for which mappings in flight use the partition after the drain has begun.
    busy: u64,
    loading_cycles: u64,
    /// Changes a byte of the memory when the loading begins.
    corrupt_while_loading: Option<usize>,
    busy_port: Port,
    state: Port,
    module: Port,
    ready: Port,
    decouple: Port,
    swaps: Port,
}

impl Testbench {
    fn new(seed: u64) -> Self {
        let mut model = Model::new(&DFX_CONFIG);
        let clock = Clock::reset(&mut model);
        Self {
            clock,
            rng: seeded_rng(seed),
            commands: Source::new(&model, "command", &["command_i"], 0.3),
            answers: Sink::new(&model, "answer", &["answer_o"], 0.3),
            memory: CardMemory::new(&model, "", Vec::new(), 0.2),
            busy: 0,
            loading_cycles: 0,
            corrupt_while_loading: None,
            busy_port: model.port("partition_busy_i"),
            state: model.port("state_o"),
            module: model.port("module_o"),
            ready: model.port("partition_ready_o"),
            decouple: model.port("decouple_o"),
            swaps: model.port("swaps_o"),
            model,
        }
    }

    fn is(&self, state: PartitionState) -> bool {
        self.model.get(self.state) == state as u64
    }

    fn cycle(&mut self) {
        if self.is(PartitionState::Draining) {
            self.busy = self.busy.saturating_sub(1);
        }
        self.model.set(self.busy_port, u64::from(self.busy > 0));
        let streams: &mut [&mut dyn fieldstone_verilate::bench::Stream] =
            &mut [&mut self.commands, &mut self.answers, &mut self.memory];
        self.clock.cycle(&mut self.model, &mut self.rng, streams);
        let loading = self.is(PartitionState::Loading);
        self.loading_cycles += u64::from(loading);
        if loading && let Some(at) = self.corrupt_while_loading.take() {
            self.memory.bytes[at] ^= 0x10;
        }
        let loaded = self.model.get(self.module) != ReconfigurableModule::None as u64;
        assert_eq!(
            self.model.is_set(self.decouple),
            !loaded,
            "decoupled exactly when nothing is loaded"
        );
        assert_eq!(self.model.is_set(self.ready), loaded && self.is(PartitionState::Running));
        assert!(!loading || (self.busy == 0 && !loaded), "loading a partition in use");
    }

    /// Gives a command for the bytes at `source` and waits for its answer.
    fn command(&mut self, owner: u64, source: u64, length: u64) -> Response {
        let tag = self.rng.random::<u16>();
        let mut command = vec![0; 131];
        set_bits(&mut command, 64, 64, source);
        set_bits(&mut command, 192, 64, length);
        set_bits(&mut command, 1024, 4, owner);
        set_bits(&mut command, 1028, 16, u64::from(tag));
        self.commands.push_bytes(&[&command]);
        let start = self.clock.cycles;
        while self.answers.beats.is_empty() {
            self.cycle();
            assert!(self.clock.cycles < start + 50_000, "no answer");
        }
        let answer = self.answers.beats.remove(0).expect("there is one").remove(0);
        assert_eq!(bits(&answer, 136, 16), u64::from(tag));
        Response {
            status: bits(&answer, 128, 8),
            module: bits(&answer, 64, 64),
            detail: bits(&answer, 0, 64),
        }
    }

    /// Writes a bitstream to the memory at beat `at`, and loads it.
    fn load(&mut self, at: usize, bitstream: &[u8]) -> Response {
        self.memory.bytes = vec![0; 64 * 1024];
        self.memory.bytes[at * BEAT_BYTES..][..bitstream.len()].copy_from_slice(bitstream);
        self.command(0, (at * BEAT_BYTES) as u64, bitstream.len() as u64)
    }
}

#[test]
fn good_bitstreams_load_after_the_partition_has_drained() {
    let mut bench = Testbench::new(1);
    let modules =
        [ReconfigurableModule::Uniform, ReconfigurableModule::List, ReconfigurableModule::Tree];
    for swap in 0..12 {
        let module = modules[bench.rng.random_range(0..3)];
        let frames = bench.rng.random_range(1..200);
        let stream = bitstream(&mut bench.rng, module as u32, frames);
        bench.busy = bench.rng.random_range(0..300);
        bench.loading_cycles = 0;
        let at = bench.rng.random_range(0..500);
        assert_eq!(bench.load(at, &stream), Response::new(Status::Ok, module, 0));
        assert_eq!(bench.model.get(bench.module), module as u64);
        assert_eq!(bench.model.get(bench.swaps), swap + 1);
        assert!(
            bench.loading_cycles >= FRAME_CYCLES * (frames as u64 - 1),
            "{}",
            bench.loading_cycles
        );
        assert_eq!(bench.busy, 0);
    }
}

#[test]
fn bad_bitstreams_are_refused_and_the_old_module_goes_on() {
    let mut bench = Testbench::new(2);
    let good = bitstream(&mut bench.rng, ReconfigurableModule::List as u32, 70);
    assert_eq!(bench.load(3, &good).status, Status::Ok as u64);
    let old = ReconfigurableModule::List;
    let refused = |detail| Response::new(Status::BadBitstream, old, detail);
    // A flipped bit anywhere in the head, with and without a corrected checksum.
    for (offset, detail) in [(0, 0), (4, 4), (8, 8), (16, 16)] {
        let mut stream = good.clone();
        stream[offset] ^= 0x80;
        assert_eq!(bench.load(5, &stream), refused(60), "byte {offset}");
        seal(&mut stream[..BEAT_BYTES]);
        assert_eq!(bench.load(5, &stream), refused(detail), "byte {offset}");
    }
    for _ in 0..20 {
        let mut stream = good.clone();
        let at = bench.rng.random_range(BEAT_BYTES..stream.len());
        stream[at] ^= 1 << bench.rng.random_range(0..8);
        assert_eq!(bench.load(7, &stream), refused(12), "byte {at}");
    }
    let none = bitstream(&mut bench.rng, ReconfigurableModule::None as u32, 2);
    assert_eq!(bench.load(7, &none), refused(4));
    assert!(bench.is(PartitionState::Running) && bench.model.get(bench.module) == old as u64);
    assert_eq!(bench.model.get(bench.swaps), 1);
}

#[test]
fn bad_commands_and_broken_memory_are_answered() {
    let mut bench = Testbench::new(3);
    let good = bitstream(&mut bench.rng, ReconfigurableModule::Tree as u32, 100);
    let none = ReconfigurableModule::None;
    bench.load(0, &good[..BEAT_BYTES]);
    assert_eq!(bench.command(3, 0, 6464), Response::new(Status::NotPermitted, none, 3));
    assert_eq!(bench.command(0, 32, 6464), Response::new(Status::BadAlignment, none, 32));
    assert_eq!(bench.command(0, 1 << 40, 6464), Response::new(Status::CardFault, none, 1 << 40));
    for length in [0, 64, 129, 6463, (1 << 24) + 64, 1 << 63] {
        assert_eq!(bench.command(0, 0, length), Response::new(Status::BadLength, none, length));
    }
    bench.memory.broken_from = 4;
    assert_eq!(bench.load(4, &good), Response::new(Status::CardFault, none, 4 * 64));
    bench.memory.broken_from = 60;
    assert_eq!(bench.load(4, &good).status, Status::CardFault as u64);
    bench.memory.broken_from = usize::MAX;
    assert_eq!(bench.load(4, &good), Response::new(Status::Ok, ReconfigurableModule::Tree, 0));
}

#[test]
fn bytes_that_change_after_they_were_verified_leave_the_partition_decoupled() {
    let mut bench = Testbench::new(4);
    let good = bitstream(&mut bench.rng, ReconfigurableModule::Uniform as u32, 90);
    assert_eq!(bench.load(0, &good).status, Status::Ok as u64);
    bench.corrupt_while_loading = Some(80 * BEAT_BYTES);
    assert_eq!(
        bench.load(0, &good),
        Response::new(Status::BadBitstream, ReconfigurableModule::None, 12)
    );
    assert!(bench.is(PartitionState::Failed));
    assert_eq!(bench.load(0, &good).status, Status::Ok as u64);
    assert!(bench.is(PartitionState::Running));
}
