//! The engine's side of a bench: commands, answers, and a card memory with inputs and results.

use fieldstone_crush::{ItemId, Rows};
use fieldstone_fpga::regs::{H2cOp, descriptor, load_map, place};
use fieldstone_rtl_common::card::CardMemory;
use fieldstone_verilate::bench::{Clock, Dice, Sink, Source, Stream, bits, dice, set_bits};
use fieldstone_verilate::{Design, Model};
use rand::Rng;

/// The function in whose name everything is done.
pub const OWNER: u64 = 5;

/// A placement.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub source: u64,
    pub destination: u64,
    pub length: u64,
    pub epoch: u64,
    pub width: u64,
    pub rule: u64,
}

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub tag: u64,
    pub status: u64,
    pub result: u64,
    pub detail: u64,
}

/// A model with commands, answers, and card memory.
pub struct Bench {
    pub model: Model,
    pub clock: Clock,
    pub dice: Dice,
    pub commands: Source,
    pub answers: Sink,
    pub memory: CardMemory,
    next_tag: u64,
}

impl Bench {
    /// A reset model, with a chance of `stall` on every stream.
    pub fn new(design: &'static Design, seed: u64, stall: f64) -> Self {
        let mut model = Model::new(design);
        let clock = Clock::reset(&mut model);
        let mut memory = CardMemory::new(&model, "", vec![0; 1 << 20], stall);
        memory.owner = OWNER;
        Self {
            commands: Source::new(&model, "command", &["command_i"], stall),
            answers: Sink::new(&model, "answer", &["answer_o"], stall),
            memory,
            clock,
            dice: dice(seed),
            model,
            next_tag: 0x1234,
        }
    }

    /// One cycle; `others` are what the model has beside.
    pub fn cycle(&mut self, others: &mut [&mut dyn Stream]) {
        let mut streams: Vec<&mut dyn Stream> =
            vec![&mut self.commands, &mut self.answers, &mut self.memory];
        for other in others.iter_mut() {
            streams.push(&mut **other);
        }
        self.clock.cycle(&mut self.model, &mut self.dice, &mut streams);
    }

    /// Queues a descriptor; its answer will carry the tag returned.
    pub fn command(&mut self, descriptor: &[u8]) -> u64 {
        let mut command = descriptor.to_vec();
        command.resize(131, 0);
        self.next_tag = (self.next_tag + 1) & 0xffff;
        set_bits(&mut command, 1024, 4, OWNER);
        set_bits(&mut command, 1028, 16, self.next_tag);
        self.commands.push_bytes(&[&command]);
        self.next_tag
    }

    /// Queues a placement.
    pub fn place(&mut self, job: &Job) -> u64 {
        let mut bytes = vec![0; descriptor::BYTES];
        descriptor::OP.put(&mut bytes, H2cOp::Place as u64);
        descriptor::SOURCE.put(&mut bytes, job.source);
        descriptor::DESTINATION.put(&mut bytes, job.destination);
        descriptor::LENGTH.put(&mut bytes, job.length);
        place::EPOCH.put(&mut bytes, job.epoch);
        place::WIDTH.put(&mut bytes, job.width);
        place::RULE.put(&mut bytes, job.rule);
        self.command(&bytes)
    }

    /// Queues the loading of a map.
    pub fn load(&mut self, source: u64, length: u64, epoch: u64) -> u64 {
        let mut bytes = vec![0; descriptor::BYTES];
        descriptor::OP.put(&mut bytes, H2cOp::LoadMap as u64);
        descriptor::SOURCE.put(&mut bytes, source);
        descriptor::LENGTH.put(&mut bytes, length);
        load_map::EPOCH.put(&mut bytes, epoch);
        self.command(&bytes)
    }

    /// Waits for so many answers.
    pub fn wait(&mut self, answers: usize, others: &mut [&mut dyn Stream]) -> Vec<Answer> {
        let from = self.clock.cycles;
        while self.answers.beats.len() < answers {
            self.cycle(others);
            assert!(self.clock.cycles < from + 3_000_000, "wedged");
        }
        let beats = self.answers.beats.drain(..answers);
        beats
            .map(|beat| Answer {
                tag: bits(&beat[0], 136, 16),
                status: bits(&beat[0], 128, 8),
                result: bits(&beat[0], 64, 64),
                detail: bits(&beat[0], 0, 64),
            })
            .collect()
    }

    /// Random inputs in the memory at `at`.
    pub fn write_inputs(&mut self, at: u64, inputs: usize) -> Vec<u32> {
        let from: u32 = self.dice.random();
        let xs: Vec<u32> = (0..inputs as u32)
            .map(|x| if x % 2 == 0 { from.wrapping_add(x) } else { self.dice.random() })
            .collect();
        for (index, x) in xs.iter().enumerate() {
            self.memory.bytes[at as usize + 4 * index..][..4].copy_from_slice(&x.to_le_bytes());
        }
        xs
    }

    /// The row of a result, as it lies in the memory: a count, and 15 items.
    pub fn row(&self, destination: u64, index: usize) -> Vec<u32> {
        let at = destination as usize + 64 * index;
        let row = self.memory.bytes[at..at + 64].chunks(4);
        row.map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect()
    }

    /// Compares the results at `destination` with what the CPU says.
    pub fn check(&self, destination: u64, xs: &[u32], expected: &Rows, what: &str) {
        assert_eq!(expected.len(), xs.len());
        for (index, &x) in xs.iter().enumerate() {
            let expected = expected.row(index);
            let mut row = vec![ItemId::NONE.0 as u32; 16];
            row[0] = expected.len() as u32;
            for (to, from) in row[1..].iter_mut().zip(expected) {
                *to = from.0 as u32;
            }
            assert_eq!(self.row(destination, index), row, "{what}, input {index}: {x:#x}");
        }
    }
}
