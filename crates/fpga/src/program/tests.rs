//! Compares programs with [`LinearMap::execute`], on an engine in a few lines of Rust. So these
//! tests check the layout and the compiler without the device. The RTL has its own benches in
//! `rtl/codes`.

use fieldstone_codes::Profile;
use fieldstone_gf::{Shape, Step, Term, field};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Fills in one beat of a program.
const FILLS_PER_BEAT: usize = 8;

/// One byte per beat is enough here, because programs treat all bytes alike.
struct Engine {
    shape: EngineShape,
    banks: Vec<Vec<u8>>,
    /// Scratch written and not yet fenced, by lane and offset.
    unfenced: Vec<(usize, usize)>,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

impl Engine {
    fn new(shape: EngineShape) -> Self {
        let banks = vec![vec![0; shape.lane_beats]; shape.lanes];
        Self { shape, banks, unfenced: Vec::new() }
    }

    /// Runs one pass: each element has one byte.
    fn run(&mut self, program: &[u8], inputs: &[Vec<u8>], outputs: &mut [Vec<u8>]) {
        let (fills, operations) = (u16_at(program, 4), u16_at(program, 6));
        let slice_beats = u16_at(program, 8);
        assert_eq!(program[0..4], MAGIC.to_le_bytes());
        assert_eq!(program[12..16], crc32c(&program[64..]).to_le_bytes());
        let fill_beats = fills.div_ceil(FILLS_PER_BEAT);
        assert_eq!(program.len(), 64 * (1 + fill_beats + operations));
        assert!((1..=64).contains(&slice_beats));
        for fill in program[64..].chunks(8).take(fills) {
            let (shard, element) = (u16_at(fill, 0), u16_at(fill, 2));
            let (lane, offset) = (u16_at(fill, 4), u16_at(fill, 6));
            assert!(offset + slice_beats <= self.shape.lane_beats);
            self.banks[lane][offset] = inputs[shard][element];
        }
        let mut sum = 0;
        for operation in program[64 * (1 + fill_beats)..].chunks(64) {
            if operation[48] & FENCE != 0 {
                self.unfenced.clear();
            }
            for lane in 0..MAX_LANES {
                let (offset, coefficient) = (u16_at(operation, 4 * lane), operation[4 * lane + 2]);
                if coefficient != 0 {
                    assert!(!self.unfenced.contains(&(lane, offset)), "no fence");
                    sum ^= field::mul(coefficient, self.banks[lane][offset]);
                }
            }
            if operation[48] & LAST == 0 {
                continue;
            }
            if operation[48] & SCRATCH == 0 {
                outputs[u16_at(operation, 52)][u16_at(operation, 54)] = sum;
            } else {
                let (lane, offset) = (usize::from(operation[49]), u16_at(operation, 50));
                assert!(offset + slice_beats <= self.shape.lane_beats);
                self.banks[lane][offset] = sum;
                self.unfenced.push((lane, offset));
            }
            sum = 0;
        }
    }
}

fn assert_same(map: &LinearMap, shape: &EngineShape, rng: &mut ChaCha8Rng) -> Program {
    let program = Program::compile(map, shape).expect("the map fits");
    let (inputs, outputs) = (&map.shape().input_elements, &map.shape().output_elements);
    let inputs: Vec<Vec<u8>> =
        inputs.iter().map(|&n| (0..n).map(|_| rng.random()).collect()).collect();
    let mut expected: Vec<Vec<u8>> = outputs.iter().map(|&n| vec![0; n as usize]).collect();
    let mut computed: Vec<Vec<u8>> = outputs.iter().map(|&n| vec![1; n as usize]).collect();
    let slices: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(|output| &mut output[..]).collect();
    map.execute(&slices, &mut targets).expect("one byte per element");
    Engine::new(*shape).run(program.bytes(), &inputs, &mut computed);
    assert_eq!(computed, expected);
    program
}

fn encoder(profile: &str) -> std::sync::Arc<LinearMap> {
    let profile: Profile = profile.parse().expect("a profile");
    profile.code().encode().clone()
}

#[test]
fn codes_compile_and_compute_the_same() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let shape = EngineShape::default();
    let profiles = ["rs:8+4", "rs:4+2", "rs:20+4", "zigzag:4+2", "clay:4+2", "copies:3"];
    for profile in
        profiles.into_iter().chain(["jerasure-van:4+2,w=16", "cauchy-good:5+3", "clay:8+4"])
    {
        let parsed: Profile = profile.parse().expect("a profile");
        let code = parsed.code();
        assert_same(code.encode(), &shape, &mut rng);
        let available: Vec<usize> = (1..parsed.shards()).collect();
        let plan = code.repair(&[0], &available).expect("one loss");
        assert_same(&plan.map, &shape, &mut rng);
    }
}

#[test]
fn rows_that_can_be_spread_take_one_operation() {
    let shape = EngineShape::default();
    // The smallest number of operations: one per row and 8 terms.
    for (profile, operations, slice_beats) in
        [("rs:8+4", 4, 64), ("rs:4+2", 2, 64), ("zigzag:4+2", 16, 16), ("rs:16+4", 8, 32)]
    {
        let program = Program::compile(&encoder(profile), &shape).expect("it fits");
        assert_eq!(program.operations(), operations, "{profile}");
        assert_eq!(program.slice_beats(), slice_beats, "{profile}");
    }
}

#[test]
fn what_no_output_depends_on_is_left_out() {
    let shape = Shape { input_elements: vec![2, 1], output_elements: vec![2], scratch_elements: 2 };
    let output = |index, terms| fieldstone_gf::Row {
        target: Target::Output(fieldstone_gf::Element { shard: 0, index }),
        terms,
    };
    let scratch = |index, terms| fieldstone_gf::Row { target: Target::Scratch(index), terms };
    let steps: Vec<Step> = vec![
        vec![scratch(0, vec![Term::input(0, 0, 7)]), scratch(1, vec![Term::input(0, 1, 1)])],
        // Input 1.0 cancels, and scratch 1 has no reader.
        vec![
            output(0, vec![Term::input(1, 0, 9), Term::input(1, 0, 9), Term::scratch(0, 3)]),
            output(1, vec![]),
        ],
    ];
    let map = LinearMap::from_steps(shape, steps).expect("a valid map");
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let program = assert_same(&map, &EngineShape::default(), &mut rng);
    assert_eq!((program.fills(), program.operations()), (1, 3));
    // All terms are zero, but the program still reads one element.
    let zeros = LinearMap::new(1, 1, 1, vec![vec![]]).expect("a valid map");
    assert_eq!(assert_same(&zeros, &EngineShape::default(), &mut rng).fills(), 1);
}

#[test]
fn what_does_not_fit_is_refused() {
    let shape = EngineShape { lanes: 2, lane_beats: 64, operations: 16 };
    let none = LinearMap::new(1, 0, 1, vec![]).expect("a valid map");
    assert_eq!(Program::compile(&none, &shape), Err(ProgramError::NoOutputs));
    let wide = |inputs: usize, rows: usize| {
        let terms = (0..inputs as u16).map(|shard| Term::input(shard, 0, 1)).collect();
        LinearMap::new(inputs, rows, 1, vec![terms; rows]).expect("a valid map")
    };
    assert_eq!(
        Program::compile(&wide(17, 1), &shape),
        Err(ProgramError::TooManyFills { fills: 17, room: 16 })
    );
    assert_eq!(
        Program::compile(&wide(16, 3), &shape),
        Err(ProgramError::TooManyOperations { operations: 24, room: 16 })
    );
    let full = Program::compile(&wide(16, 2), &shape).expect("exactly the table");
    assert_eq!((full.operations(), full.slice_beats()), (16, 8));
    let many = EngineShape { operations: 4096, ..shape };
    assert_eq!(
        Program::compile(&wide(129, 1), &many),
        Err(ProgramError::TooManyElements { elements: 129, room: 128 })
    );
    let far = LinearMap::new(1, 1, 70_000, vec![vec![Term::input(0, 65_536, 1)]; 70_000]);
    let far = Program::compile(&far.expect("a valid map"), &many);
    assert!(matches!(far, Err(ProgramError::TooManyOperations { .. })));
    for bad in [
        EngineShape { lanes: 0, ..shape },
        EngineShape { lanes: 13, ..shape },
        EngineShape { lane_beats: 63, ..shape },
        EngineShape { operations: 0, ..shape },
    ] {
        assert_eq!(Program::compile(&none, &bad), Err(ProgramError::Shape(bad)));
    }
}

#[test]
fn element_numbers_have_16_bits() {
    let mut rows = vec![vec![]; 1];
    rows[0] = vec![Term::input(0, 65_536, 1)];
    let shape =
        Shape { input_elements: vec![65_537], output_elements: vec![1], scratch_elements: 0 };
    let target = Target::Output(fieldstone_gf::Element { shard: 0, index: 0 });
    let terms = rows.remove(0);
    let map = LinearMap::from_steps(shape, vec![vec![fieldstone_gf::Row { target, terms }]]);
    let compiled = Program::compile(&map.expect("a valid map"), &EngineShape::default());
    assert_eq!(compiled, Err(ProgramError::ElementNumber { index: 65_536 }));
}
#[test]
fn elements_are_dealt_so_that_rows_take_few_operations() {
    let shape = EngineShape::default();
    let compiled = |map: &LinearMap| {
        let sums = Sums::new(map).sums;
        let least: usize = sums.iter().map(|sum| sum.operations_at_least(shape.lanes)).sum();
        (Program::compile(map, &shape).expect("it fits").operations(), least)
    };
    for profile in ["clay:4+2", "clay:8+4", "zigzag:8+2", "rs:20+8"] {
        let (operations, least) = compiled(&encoder(profile));
        assert_eq!(operations, least, "{profile}");
    }
    // Matrices of bits: rows of many terms, in no order.
    for profile in ["jerasure-van:8+3,w=16", "jerasure-van:4+2,w=32", "cauchy-good:8+3"] {
        let (operations, least) = compiled(&encoder(profile));
        assert!(
            operations * 5 <= least * 6,
            "{profile}: {operations} operations, {least} at least"
        );
    }
}
