//! An engine with a card memory, and cases for it.

use fieldstone_fpga::program::{EngineShape, Program};
use fieldstone_gf::LinearMap;
use fieldstone_rtl_codes as designs;
use fieldstone_rtl_common::card::{BEAT_BYTES, CardMemory};
use fieldstone_verilate::bench::{
    Clock, SeededRng, Sink, Source, Stream, bits, seeded_rng, set_bits,
};
use fieldstone_verilate::{Design, Model, Port};
use rand::{Rng, RngCore};

/// A design and its parameters (`designs.toml`).
#[derive(Clone, Copy)]
pub struct Built {
    pub design: &'static Design,
    pub shape: EngineShape,
}

/// The engine as in the device.
pub fn one_unit() -> Built {
    Built { design: &designs::CODES_ENGINE, shape: EngineShape::default() }
}

/// The small engine with two units.
pub fn two_units() -> Built {
    let shape = EngineShape { lanes: 5, lane_beats: 128, operations: 256 };
    Built { design: &designs::CODES_ENGINE_2, shape }
}

/// The small engine with a short MAX_CYCLES.
pub fn brief() -> Built {
    Built { design: &designs::CODES_ENGINE_BRIEF, ..two_units() }
}

/// MAX_CYCLES of that engine.
pub const BRIEF_CYCLES: u64 = 8000;

/// Status codes of answers (`rtl/regs/device.toml`).
pub mod status {
    pub const OK: u64 = 0;
    pub const BAD_OP: u64 = 1;
    pub const BAD_ALIGNMENT: u64 = 2;
    pub const BAD_LENGTH: u64 = 3;
    pub const CARD_FAULT: u64 = 5;
    pub const BAD_PARAMETER: u64 = 7;
    pub const BAD_PROGRAM: u64 = 12;
    pub const TOO_LONG: u64 = 15;
}

/// The fields of a CODE descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandFields {
    pub op: u64,
    pub source: u64,
    pub length: u64,
    pub element_bytes: u64,
    pub batch: u64,
    pub input: u64,
    pub output: u64,
    pub input_stride: u64,
    pub output_stride: u64,
    pub input_batch: u64,
    pub output_batch: u64,
}

impl CommandFields {
    fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut put = |at: usize, len: usize, value: u64| {
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        };
        put(0, 1, self.op);
        put(8, 8, self.source);
        put(24, 8, self.length);
        put(40, 4, self.element_bytes);
        put(44, 4, self.batch);
        put(48, 8, self.input);
        put(56, 8, self.output);
        put(64, 8, self.input_stride);
        put(72, 8, self.output_stride);
        put(80, 8, self.input_batch);
        put(88, 8, self.output_batch);
        bytes
    }
}

/// The engine's response, and its counts for the job.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    pub status: u64,
    pub result: u64,
    pub detail: u64,
    pub read_beats: u64,
    pub write_beats: u64,
    pub busy_cycles: u64,
}

/// Counters of the engine: beats read, beats written, busy cycles.
type Counters = [u64; 3];

/// An engine with its memory.
pub struct Testbench {
    pub built: Built,
    pub model: Model,
    pub memory: CardMemory,
    pub rng: SeededRng,
    clock: Clock,
    commands: Source,
    answers: Sink,
    counters: [Port; 3],
    function_reset: Port,
    jobs: u16,
}

impl Testbench {
    /// A new engine. Every stream pauses with the chance `stall`.
    pub fn new(built: Built, seed: u64, stall: f64) -> Self {
        let mut model = Model::new(built.design);
        let mut memory = CardMemory::new(&model, "", Vec::new(), stall);
        memory.latency_cycles = 40;
        let commands = Source::new(&model, "command", &["command_i"], stall);
        let answers = Sink::new(&model, "answer", &["answer_o"], stall);
        let counters =
            ["read_beats_o", "write_beats_o", "busy_cycles_o"].map(|name| model.port(name));
        let function_reset = model.port("function_reset_i");
        model.set(function_reset, 0);
        let clock = Clock::reset(&mut model);
        let rng = seeded_rng(seed);
        let jobs = 0;
        Self { built, model, memory, rng, clock, commands, answers, counters, function_reset, jobs }
    }

    /// Resets a function, while the engine has no job.
    pub fn reset_function(&mut self, function: u64) {
        self.model.set(self.function_reset, 1 << function);
        self.cycle();
        self.model.set(self.function_reset, 0);
    }

    fn counters(&self) -> Counters {
        self.counters.map(|port| self.model.get(port))
    }

    fn push(&mut self, descriptor: &CommandFields) {
        self.jobs += 1;
        let mut command = vec![0; 131];
        command[..128].copy_from_slice(&descriptor.bytes());
        set_bits(&mut command, 1024, 4, self.memory.owner);
        set_bits(&mut command, 1028, 16, u64::from(self.jobs));
        self.commands.push_bytes(&[&command]);
    }

    fn cycle(&mut self) {
        let streams: &mut [&mut dyn Stream] =
            &mut [&mut self.commands, &mut self.answers, &mut self.memory];
        self.clock.cycle(&mut self.model, &mut self.rng, streams);
    }

    /// Resets the engine a number of cycles after a job has begun. The memory also forgets its
    /// pending answers.
    pub fn interrupt(&mut self, descriptor: &CommandFields, cycles: u64) {
        self.push(descriptor);
        (0..cycles).for_each(|_| self.cycle());
        self.clock.pulse_reset(&mut self.model);
        let (stall, latency_cycles) = (self.memory.stall, self.memory.latency_cycles);
        self.memory = CardMemory::new(&self.model, "", Vec::new(), stall);
        self.memory.latency_cycles = latency_cycles;
        self.commands = Source::new(&self.model, "command", &["command_i"], stall);
        self.answers = Sink::new(&self.model, "answer", &["answer_o"], stall);
    }

    /// Runs one job, from its command to its answer.
    pub fn run(&mut self, descriptor: &CommandFields) -> Response {
        let before = self.counters();
        self.push(descriptor);
        let limit = self.clock.cycles + 2_000_000;
        while self.answers.beats.is_empty() {
            self.cycle();
            assert!(self.clock.cycles < limit, "wedged: {descriptor:?}");
        }
        assert!(self.memory.is_idle(), "an answer before memory was done");
        let answer = self.answers.beats.pop_front().expect("waited for");
        let answer = &answer[0];
        assert_eq!(bits(answer, 136, 16), u64::from(self.jobs), "the answer's tag");
        let after = self.counters();
        Response {
            status: bits(answer, 128, 8),
            result: bits(answer, 64, 64),
            detail: bits(answer, 0, 64),
            read_beats: after[0] - before[0],
            write_beats: after[1] - before[1],
            busy_cycles: after[2] - before[2],
        }
    }
}

/// A map with random inputs, and its layout in card memory: program, inputs, outputs, and gaps
/// between.
pub struct CodeCase {
    pub map: LinearMap,
    pub program: Program,
    pub element_beats: usize,
    pub batch: usize,
    pub descriptor: CommandFields,
    /// The memory's content before the job.
    pub bytes: Vec<u8>,
    /// The content after it.
    pub expected: Vec<u8>,
}

impl CodeCase {
    /// `None` if the map does not fit into the engine.
    pub fn new(
        map: &LinearMap,
        built: &Built,
        element_beats: usize,
        batch: usize,
        rng: &mut SeededRng,
    ) -> Option<Self> {
        let program = Program::compile(map, &built.shape).ok()?;
        let element_bytes = element_beats * BEAT_BYTES;
        let shard_beats = |elements: &[u32], rng: &mut SeededRng| {
            let most = elements.iter().max().map_or(0, |&n| n as usize);
            most * element_beats + rng.random_range(0..3)
        };
        let (inputs, outputs) = (map.inputs(), map.outputs());
        let input_stride = shard_beats(&map.shape().input_elements, rng);
        let output_stride = shard_beats(&map.shape().output_elements, rng);
        let input_batch = input_stride * inputs + rng.random_range(0..3);
        let output_batch = output_stride * outputs + rng.random_range(0..3);
        let source = rng.random_range(0..4);
        let input = source + program.bytes().len() / BEAT_BYTES + rng.random_range(0..4);
        let output = input + input_batch * batch + rng.random_range(0..4);
        let mut bytes = vec![0; (output + output_batch * batch) * BEAT_BYTES];
        rng.fill_bytes(&mut bytes);
        bytes[source * BEAT_BYTES..][..program.bytes().len()].copy_from_slice(program.bytes());

        let mut expected = bytes.clone();
        let (before, after) = expected.split_at_mut(output * BEAT_BYTES);
        for stripe in 0..batch {
            let shards = map.shape().input_elements.iter().enumerate();
            let shards = shards.map(|(shard, &elements)| {
                let at = (input + stripe * input_batch + shard * input_stride) * BEAT_BYTES;
                &before[at..at + elements as usize * element_bytes]
            });
            let shards: Vec<&[u8]> = shards.collect();
            let mut rest = &mut after[stripe * output_batch * BEAT_BYTES..];
            let mut targets = Vec::new();
            for &elements in &map.shape().output_elements {
                let (shard, others) = rest.split_at_mut(output_stride * BEAT_BYTES);
                targets.push(&mut shard[..elements as usize * element_bytes]);
                rest = others;
            }
            map.execute(&shards, &mut targets).expect("lengths are those of the shape");
        }
        let at = |beats: usize| (beats * BEAT_BYTES) as u64;
        let descriptor = CommandFields {
            op: 4,
            source: at(source),
            length: program.bytes().len() as u64,
            element_bytes: element_bytes as u64,
            batch: batch as u64,
            input: at(input),
            output: at(output),
            input_stride: at(input_stride),
            output_stride: at(output_stride),
            input_batch: at(input_batch),
            output_batch: at(output_batch),
        };
        let map = map.clone();
        Some(Self { map, program, element_beats, batch, descriptor, bytes, expected })
    }

    /// Beats of shards that the job reads: every used element once.
    pub fn input_beats(&self) -> u64 {
        (self.program.fills() * self.element_beats * self.batch) as u64
    }

    /// Beats that the job writes.
    pub fn output_beats(&self) -> u64 {
        let elements: u32 = self.map.shape().output_elements.iter().sum();
        elements as u64 * (self.element_beats * self.batch) as u64
    }

    /// Bytes from the first output to the end of the last.
    pub fn output_end(&self) -> u64 {
        let CommandFields { output_stride, output_batch, element_bytes, .. } = self.descriptor;
        let outputs = &self.map.shape().output_elements;
        let last = *outputs.last().expect("a job has outputs");
        (self.batch as u64 - 1) * output_batch
            + (outputs.len() as u64 - 1) * output_stride
            + u64::from(last) * element_bytes
    }

    /// Runs the job, and checks every byte of the memory and every counter.
    pub fn run(&self, bench: &mut Testbench) -> Response {
        bench.memory.bytes.clone_from(&self.bytes);
        let answer = bench.run(&self.descriptor);
        assert_eq!(answer.status, status::OK, "{:?}", self.map);
        assert!(bench.memory.bytes == self.expected, "other bytes: {:?}", self.map);
        assert_eq!(answer.result, self.output_beats() * BEAT_BYTES as u64);
        assert_eq!(answer.write_beats, self.output_beats());
        let program_beats = self.descriptor.length / BEAT_BYTES as u64;
        let read_beats = answer.read_beats - self.input_beats();
        assert!(
            read_beats == program_beats || read_beats == 1,
            "every element is read once, and the program or its header, but {read_beats} beats more"
        );
        answer
    }
}
