//! CHECKSUM descriptors: sums of blocks in card memory against the CPU's.
#![cfg(feature = "verilator")]

use fieldstone_accel::crc32c;
use fieldstone_rtl_common::card::{BEAT_BYTES, CardMemory};
use fieldstone_rtl_crc as designs;
use fieldstone_verilate::bench::{Clock, SeededRng, Sink, Source, bits, seeded_rng, set_bits};
use fieldstone_verilate::{Design, Model};
use rand::{Rng, RngCore};

/// Status codes of answers (`rtl/regs/device.toml`).
mod status {
    pub const OK: u64 = 0;
    pub const BAD_OP: u64 = 1;
    pub const BAD_ALIGNMENT: u64 = 2;
    pub const BAD_LENGTH: u64 = 3;
    pub const CARD_FAULT: u64 = 5;
    pub const BAD_PARAMETER: u64 = 7;
    pub const TOO_LONG: u64 = 15;
}

#[derive(Clone, Copy, Debug)]
struct CommandFields {
    op: u64,
    source: u64,
    destination: u64,
    length: u64,
    block_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Response {
    status: u64,
    result: u64,
    detail: u64,
    cycles: u64,
}

struct Testbench {
    model: Model,
    memory: CardMemory,
    rng: SeededRng,
    clock: Clock,
    commands: Source,
    answers: Sink,
    jobs: u16,
}

impl Testbench {
    fn new(seed: u64, stall: f64) -> Self {
        Self::of(&designs::CRC_ENGINE, seed, stall)
    }

    fn of(design: &'static Design, seed: u64, stall: f64) -> Self {
        let mut model = Model::new(design);
        let memory = CardMemory::new(&model, "", Vec::new(), stall);
        let commands = Source::new(&model, "command", &["command_i"], stall);
        let answers = Sink::new(&model, "answer", &["answer_o"], stall);
        let clock = Clock::reset(&mut model);
        Self { model, memory, rng: seeded_rng(seed), clock, commands, answers, jobs: 0 }
    }

    fn run(&mut self, descriptor: &CommandFields) -> Response {
        self.jobs += 1;
        let mut command = vec![0; 131];
        command[0] = descriptor.op as u8;
        command[8..16].copy_from_slice(&descriptor.source.to_le_bytes());
        command[16..24].copy_from_slice(&descriptor.destination.to_le_bytes());
        command[24..32].copy_from_slice(&descriptor.length.to_le_bytes());
        command[40..44].copy_from_slice(&(descriptor.block_bytes as u32).to_le_bytes());
        set_bits(&mut command, 1024, 4, self.memory.owner);
        set_bits(&mut command, 1028, 16, u64::from(self.jobs));
        self.commands.push_bytes(&[&command]);
        let began = self.clock.cycles;
        while self.answers.beats.is_empty() {
            let streams: &mut [&mut dyn fieldstone_verilate::bench::Stream] =
                &mut [&mut self.commands, &mut self.answers, &mut self.memory];
            self.clock.cycle(&mut self.model, &mut self.rng, streams);
            assert!(self.clock.cycles < began + 1_000_000, "wedged: {descriptor:?}");
        }
        assert!(self.memory.is_idle(), "an answer before memory was done");
        let answer = self.answers.beats.pop_front().expect("waited for");
        let answer = &answer[0];
        assert_eq!(bits(answer, 136, 16), u64::from(self.jobs), "the answer's tag");
        Response {
            status: bits(answer, 128, 8),
            result: bits(answer, 64, 64),
            detail: bits(answer, 0, 64),
            cycles: self.clock.cycles - began,
        }
    }

    /// Runs a job on `length` bytes in blocks. Checks every byte of the memory, the result, and the
    /// beats read.
    fn check(&mut self, length: usize, block_bytes: usize) -> Response {
        let run_beats = length.div_ceil(BEAT_BYTES);
        let source = self.rng.random_range(0..4);
        let destination = source + run_beats + self.rng.random_range(0..4);
        let sums = length.div_ceil(block_bytes);
        let beats = destination + (4 * sums).div_ceil(BEAT_BYTES) + 2;
        let mut bytes = vec![0; beats * BEAT_BYTES];
        self.rng.fill_bytes(&mut bytes);
        let run = &bytes[source * BEAT_BYTES..][..length];
        let sums: Vec<u32> = run.chunks(block_bytes).map(crc32c).collect();
        let mut expected = bytes.clone();
        let packed: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        expected[destination * BEAT_BYTES..][..packed.len()].copy_from_slice(&packed);
        self.memory.bytes = bytes;
        self.memory.beats = (0, 0);
        let answer = self.run(&CommandFields {
            op: 5,
            source: (source * BEAT_BYTES) as u64,
            destination: (destination * BEAT_BYTES) as u64,
            length: length as u64,
            block_bytes: block_bytes as u64,
        });
        assert_eq!(answer.status, status::OK, "{length} bytes in blocks of {block_bytes}");
        assert!(self.memory.bytes == expected, "{length} bytes in blocks of {block_bytes}");
        assert_eq!(answer.result, u64::from(sums[sums.len() - 1]));
        let written = packed.len().div_ceil(BEAT_BYTES);
        assert_eq!(self.memory.beats, (run_beats as u64, written as u64));
        answer
    }
}

#[test]
fn sums_of_blocks_are_those_of_the_cpu() {
    for (seed, stall) in [(1, 0.0), (2, 0.2), (3, 0.6)] {
        let mut bench = Testbench::new(seed, stall);
        for (length, block_bytes) in
            [(1, 1), (1, 4096), (64, 64), (65, 64), (100, 100), (5000, 7000)]
        {
            bench.check(length, block_bytes);
        }
        for _ in 0..30 {
            let length = bench.rng.random_range(1..40_000);
            let block_bytes = 64 * bench.rng.random_range(1..=80);
            bench.memory.latency_cycles = bench.rng.random_range(1..60);
            bench.memory.owner = bench.rng.random_range(0..16);
            bench.check(length, block_bytes);
        }
    }
}

#[test]
fn a_beat_per_cycle_whatever_the_blocks() {
    let mut bench = Testbench::new(4, 0.0);
    bench.memory.latency_cycles = 40;
    for block_bytes in [64, 512, 4096, 1 << 20] {
        let beats = 4096;
        let cycles = bench.check(beats * 64, block_bytes).cycles;
        println!("{beats} beats in blocks of {block_bytes} bytes: {cycles} cycles");
        assert!(beats as f64 / cycles as f64 >= 0.95, "{cycles} cycles");
    }
}

#[test]
fn bad_descriptors_and_broken_memory_are_answered() {
    let mut bench = Testbench::new(5, 0.2);
    bench.memory.bytes = vec![7; 100 * BEAT_BYTES];
    let good = CommandFields { op: 5, source: 0, destination: 5120, length: 4096, block_bytes: 64 };
    let over = 1 << 40;
    let cases = [
        (CommandFields { op: 4, ..good }, status::BAD_OP, 4),
        (CommandFields { source: 1, ..good }, status::BAD_ALIGNMENT, 1),
        (CommandFields { destination: 68, ..good }, status::BAD_ALIGNMENT, 68),
        (CommandFields { length: 0, ..good }, status::BAD_LENGTH, 0),
        (CommandFields { length: over, ..good }, status::BAD_LENGTH, over),
        (CommandFields { block_bytes: 0, ..good }, status::BAD_PARAMETER, 0),
        (CommandFields { block_bytes: 100, ..good }, status::BAD_PARAMETER, 100),
        (CommandFields { source: over, ..good }, status::CARD_FAULT, over),
        (CommandFields { source: over - 64, ..good }, status::CARD_FAULT, over - 64),
        (CommandFields { destination: over, ..good }, status::CARD_FAULT, over),
        // Errors of memory: for a read, and for a write.
        (CommandFields { source: 6400 - 64, ..good }, status::CARD_FAULT, 6400 - 64),
        (CommandFields { destination: 6400, ..good }, status::CARD_FAULT, 6400),
    ];
    for (descriptor, status, detail) in cases {
        let answer = bench.run(&descriptor);
        assert_eq!((answer.status, answer.detail), (status, detail), "{descriptor:?}");
        assert_eq!(answer.result, 0);
        assert!(bench.memory.bytes.iter().all(|&byte| byte == 7) || status == status::CARD_FAULT);
    }
    // Errors anywhere in the run; the next job succeeds.
    for _ in 0..20 {
        bench.memory.bytes = vec![7; 1000 * BEAT_BYTES];
        bench.memory.broken_from = bench.rng.random_range(0..900);
        let length = 900 * BEAT_BYTES as u64;
        let answer = bench.run(&CommandFields { destination: 950 * 64, length, ..good });
        assert_eq!(answer.status, status::CARD_FAULT);
        bench.memory.broken_from = usize::MAX;
        let length = bench.rng.random_range(1..10_000);
        bench.check(length, 256);
    }
}

/// MAX_CYCLES of `crc_engine_brief`.
const BRIEF_CYCLES: u64 = 3000;
/// Cycles of the work that may be in flight at the time limit: beats that have room, and their
/// sums.
const UNDER_WAY_CYCLES: u64 = 600;

#[test]
fn a_job_that_takes_too_long_is_ended_and_only_the_job() {
    for (seed, stall) in [(6, 0.0), (7, 0.3)] {
        let mut bench = Testbench::of(&designs::CRC_ENGINE_BRIEF, seed, stall);
        for block_bytes in [64, 256, 1 << 20, 0xffff_ffc0] {
            // First sums: the job asks for far more bytes than there is memory.
            let source = 0x8000;
            let mut bytes = vec![0; source + 64 * 6000];
            bench.rng.fill_bytes(&mut bytes);
            bench.memory.bytes.clone_from(&bytes);
            let (source, length) = (source as u64, 1 << 39);
            let descriptor = CommandFields { op: 5, source, destination: 0, length, block_bytes };
            let answer = bench.run(&descriptor);
            assert_eq!((answer.status, answer.result, answer.detail), (status::TOO_LONG, 0, 0));
            let late = answer.cycles - BRIEF_CYCLES;
            assert!(late < UNDER_WAY_CYCLES, "{late} cycles too late");
            // The written sums are right, and the job wrote no other byte.
            let beats = bench.memory.bytes.chunks(BEAT_BYTES).zip(bytes.chunks(BEAT_BYTES));
            let written = beats.take_while(|(now, before)| now != before).count();
            assert_eq!(written > 0, block_bytes < 1 << 20);
            let run = &bytes[source as usize..];
            let sums = run.chunks(block_bytes as usize).take(16 * written);
            let expected: Vec<u8> = sums.flat_map(|sum| crc32c(sum).to_le_bytes()).collect();
            assert!(bench.memory.bytes[..64 * written] == expected);
            assert!(bench.memory.bytes[64 * written..] == bytes[64 * written..]);
            // Another function's job is not affected.
            bench.memory.owner = (bench.memory.owner + 1) % 16;
            bench.check(40_000, 64);
        }
        // An error of memory has priority.
        bench.memory.bytes = vec![7; 64 * 500];
        let descriptor = CommandFields {
            op: 5,
            source: 0,
            destination: 0,
            length: 1 << 39,
            block_bytes: 1 << 20,
        };
        assert_eq!(bench.run(&descriptor).status, status::CARD_FAULT);
    }
}
