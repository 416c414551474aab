//! The host's side of a bench: commands, answers, and a card memory with inputs and results.

use fieldstone_crush::{AlgorithmKind, ChooseArgs, ItemId, Kernel, Map, RuleId};
use fieldstone_fpga::image::{Image, ImageError};
use fieldstone_fpga::regs::{H2cOp, Status, descriptor, load_map, place};
use fieldstone_rtl_common::card::CardMemory;
use fieldstone_verilate::bench::{
    Clock, SeededRng, Sink, Source, Stream, bits, seeded_rng, set_bits,
};
use fieldstone_verilate::{Design, Model};
use rand::Rng;

/// The function that all requests name, unless the memory expects another.
pub const OWNER: u64 = 5;

/// The row of a mapping without items.
pub const NOTHING: [u32; 16] = {
    let mut row = [ItemId::NONE.0 as u32; 16];
    row[0] = 0;
    row
};

/// A map with its weights, compiled for the device.
#[derive(Clone)]
pub struct Compiled {
    pub map: Map,
    pub args: Option<ChooseArgs>,
    pub reweights: Vec<u32>,
    pub image: Image,
}

impl Compiled {
    pub fn new(
        map: Map,
        args: Option<ChooseArgs>,
        reweights: Vec<u32>,
    ) -> Result<Self, ImageError> {
        let image = Image::compile(&map, &reweights, args.as_ref())?;
        Ok(Self { map, args, reweights, image })
    }

    /// The module that the map needs in the reconfigurable partition. Its number is that of the
    /// algorithm. `None` if the map needs none.
    pub fn module(&self) -> Option<u64> {
        let of_partition = |kind: &&AlgorithmKind| {
            matches!(kind, AlgorithmKind::Uniform | AlgorithmKind::List | AlgorithmKind::Tree)
        };
        self.image.algorithms().iter().find(of_partition).map(|&kind| kind as u64)
    }

    /// True if the map needs at most one module.
    pub fn fits_partition(&self) -> bool {
        self.image.algorithms().iter().filter(|&&kind| (kind as u64) <= 3).count() <= 1
    }

    /// The rows of a job, computed by the CPU.
    pub fn rows(&self, job: &PlacementCase, xs: &[u32]) -> Vec<Vec<u32>> {
        let rule = self.map.rule(RuleId(job.rule as u32)).expect("it is one of the map's");
        let rule = rule.with_choose_args(self.args.as_ref());
        let expected = rule.map_rows_with(Kernel::Scalar, xs, job.width as usize, &self.reweights);
        let row = |index| {
            let expected = expected.row(index);
            let mut row = NOTHING.to_vec();
            row[0] = expected.len() as u32;
            for (to, from) in row[1..].iter_mut().zip(expected) {
                *to = from.0 as u32;
            }
            row
        };
        (0..xs.len()).map(row).collect()
    }

    pub fn has_rule(&self, rule: RuleId) -> bool {
        self.image.misfit(rule).is_none()
    }
}

/// A PLACE command.
#[derive(Clone, Copy, Debug)]
pub struct PlacementCase {
    pub source: u64,
    pub destination: u64,
    pub length: u64,
    pub epoch: u64,
    pub width: u64,
    pub rule: u64,
}

/// The response to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    pub tag: u64,
    pub status: u64,
    pub result: u64,
    pub detail: u64,
}

/// A model with commands, answers, and card memory.
pub struct Bench {
    pub model: Model,
    pub clock: Clock,
    pub rng: SeededRng,
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
            rng: seeded_rng(seed),
            model,
            next_tag: 0x1234,
        }
    }

    /// One cycle; `others` are the model's other streams.
    pub fn cycle(&mut self, others: &mut [&mut dyn Stream]) {
        let mut streams: Vec<&mut dyn Stream> =
            vec![&mut self.commands, &mut self.answers, &mut self.memory];
        for other in others.iter_mut() {
            streams.push(&mut **other);
        }
        self.clock.cycle(&mut self.model, &mut self.rng, &mut streams);
    }

    /// Queues a descriptor. Returns the tag of its answer.
    pub fn command(&mut self, descriptor: &[u8]) -> u64 {
        let mut command = descriptor.to_vec();
        command.resize(131, 0);
        self.next_tag = (self.next_tag + 1) & 0xffff;
        set_bits(&mut command, 1024, 4, self.memory.owner);
        set_bits(&mut command, 1028, 16, self.next_tag);
        self.commands.push_bytes(&[&command]);
        self.next_tag
    }

    /// Queues a placement.
    pub fn place(&mut self, job: &PlacementCase) -> u64 {
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

    /// Waits for a number of answers. A mapping that cannot be filled may take very long, but not
    /// for ever: from time to time, a beat must move to or from the memory.
    pub fn wait(&mut self, answers: usize, others: &mut [&mut dyn Stream]) -> Vec<Response> {
        let mut moved = (self.clock.cycles, self.memory.beats);
        while self.answers.beats.len() < answers {
            self.cycle(others);
            if moved.1 != self.memory.beats {
                moved = (self.clock.cycles, self.memory.beats);
            }
            assert!(self.clock.cycles < moved.0 + 3_000_000, "wedged");
        }
        let beats = self.answers.beats.drain(..answers);
        beats
            .map(|beat| Response {
                tag: bits(&beat[0], 136, 16),
                status: bits(&beat[0], 128, 8),
                result: bits(&beat[0], 64, 64),
                detail: bits(&beat[0], 0, 64),
            })
            .collect()
    }

    /// Writes random inputs to the memory at `at`.
    pub fn write_inputs(&mut self, at: u64, inputs: usize) -> Vec<u32> {
        let from: u32 = self.rng.random();
        let xs: Vec<u32> = (0..inputs as u32)
            .map(|x| if x % 2 == 0 { from.wrapping_add(x) } else { self.rng.random() })
            .collect();
        for (index, x) in xs.iter().enumerate() {
            self.memory.bytes[at as usize + 4 * index..][..4].copy_from_slice(&x.to_le_bytes());
        }
        xs
    }

    /// The row of a result in the memory: a count, and 15 items.
    pub fn row(&self, destination: u64, index: usize) -> Vec<u32> {
        let at = destination as usize + 64 * index;
        let row = self.memory.bytes[at..at + 64].chunks(4);
        row.map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect()
    }

    /// Compares the results of a job with those of the CPU.
    pub fn check(&self, compiled: &Compiled, job: &PlacementCase, xs: &[u32], what: &str) {
        for (index, row) in compiled.rows(job, xs).into_iter().enumerate() {
            let (found, x) = (self.row(job.destination, index), xs[index]);
            assert_eq!(found, row, "{what}, {job:?}, input {index}: {x:#x}");
        }
    }

    /// Maps random inputs through every rule of the loaded map, with several commands at a time,
    /// and compares. Returns the number of mappings. Inputs lie at `inputs`, and results begin at
    /// `rows`.
    pub fn check_rules(
        &mut self,
        compiled: &Compiled,
        epoch: u64,
        most_inputs: usize,
        [inputs_at, rows_at]: [u64; 2],
        others: &mut [&mut dyn Stream],
        what: &str,
    ) -> u64 {
        let mut jobs = Vec::new();
        let (mut source, mut destination) = (inputs_at, rows_at);
        for (rule, _) in compiled.map.rules() {
            let width = [1, 2, 3, 3, 4, 6, 8, 15][self.rng.random_range(0..8)];
            let inputs = self.rng.random_range(1..=most_inputs);
            let (length, rule_slot) = (4 * inputs as u64, rule.0.into());
            let job = PlacementCase { source, destination, length, epoch, width, rule: rule_slot };
            let after = (destination + 64 * inputs as u64) as usize;
            self.memory.bytes[after..after + 64].fill(0xa5);
            let xs = self.write_inputs(source, inputs);
            let tag = self.place(&job);
            source += length.next_multiple_of(64);
            destination = after as u64 + 64;
            jobs.push((tag, rule, job, xs));
        }
        let answers = self.wait(jobs.len(), others);
        let mut mappings = 0;
        for (tag, rule, job, xs) in jobs {
            let answer = answers.iter().find(|answer| answer.tag == tag).expect("an answer each");
            if !compiled.has_rule(rule) {
                assert_eq!(answer.status, Status::BadParameter as u64, "{what}, {job:?}");
                continue;
            }
            assert_eq!(answer.status, Status::Ok as u64, "{what}, {job:?}");
            assert_eq!(answer.result, xs.len() as u64);
            self.check(compiled, &job, &xs, what);
            let after = job.destination as usize + 64 * xs.len();
            assert!(self.memory.bytes[after..after + 64].iter().all(|&byte| byte == 0xa5));
            mappings += xs.len() as u64;
        }
        mappings
    }
}
