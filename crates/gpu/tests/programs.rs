//! Programs of maps in the interpreter, compared with the scalar kernel.

use fieldstone_codes::Profile;
use fieldstone_gf::{Kernel, LinearMap};
use fieldstone_gpu::interpreter::{Launch, Memory, Module, Param, run};
use fieldstone_gpu::program::{METHODS, Program, Tuning};
use fieldstone_gpu::selftest::maps::MapMaker;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Executes a program on random inputs with elements of `pitch` bytes, in memory without a byte to
/// spare, and compares all outputs.
fn check(map: &LinearMap, tuning: &Tuning, pitch: usize, seed: u64) {
    let program = Program::tuned(map, tuning).expect("the map is small");
    let module = Module::parse(program.text()).expect("the text is PTX");
    let kernel = module.kernel(Program::KERNEL).expect("it has its name");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let shards = |counts: &[u32]| -> Vec<Vec<u8>> {
        counts.iter().map(|&count| vec![0; count as usize * pitch]).collect()
    };
    let mut inputs = shards(&map.shape().input_elements);
    inputs.iter_mut().for_each(|input| rng.fill(&mut input[..]));
    let mut expected = shards(&map.shape().output_elements);
    let sources: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut targets: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute_with(Kernel::Scalar, &sources, &mut targets).expect("the buffers fit");
    let mut memory = Memory::new();
    let table: Vec<u8> = program.table().iter().flat_map(|word| word.to_le_bytes()).collect();
    let (inputs, table) = (memory.alloc_with(&inputs.concat()), memory.alloc_with(&table));
    let outputs = memory.alloc(expected.concat().len());
    let geometry = program.geometry();
    let launch = Launch {
        grid: geometry.blocks(pitch as u64),
        block: geometry.threads(),
        shared_bytes: geometry.shared_bytes,
        params: vec![
            Param::U64(inputs),
            Param::U64(outputs),
            Param::U64(table),
            Param::U32(pitch as u32),
        ],
        ..Launch::default()
    };
    if let Err(fault) = run(kernel, &launch, &mut memory) {
        panic!("{fault}");
    }
    let found = memory.read(outputs, expected.concat().len()).expect("every byte is written");
    assert!(found == expected.concat(), "other bytes: pitch {pitch}, {tuning:?}, {map:?}");
}

fn encode_and_repair(name: &str) -> Vec<std::sync::Arc<LinearMap>> {
    let code = name.parse::<Profile>().expect("a code").code();
    let shards = code.k() + code.m();
    let lost = |lost: &[usize]| {
        let left: Vec<usize> = (0..shards).filter(|shard| !lost.contains(shard)).collect();
        std::sync::Arc::clone(&code.repair(lost, &left).expect("few are lost").map)
    };
    vec![std::sync::Arc::clone(code.encode()), lost(&[0]), lost(&[0, 1])]
}

#[test]
fn every_method_of_every_kind_of_code() {
    for name in ["rs:4+2", "rs:12+4", "zigzag:4+2", "clay:4+2", "copies:3"] {
        for map in encode_and_repair(name).iter().take(if name == "copies:3" { 2 } else { 3 }) {
            for method in [None].into_iter().chain(METHODS.map(Some)) {
                check(map, &Tuning { method, ..Tuning::default() }, 1040, 7);
            }
        }
    }
}

/// The layers of this code are a component: blocks execute it through shared memory.
#[test]
fn components_share_memory() {
    let maps = encode_and_repair("clay:8+4");
    for (map, pitch) in maps.iter().zip([1040, 512, 16]) {
        check(map, &Tuning::default(), pitch, 3);
    }
    assert!(Program::compile(&maps[0]).expect("it fits").geometry().shared_bytes > 0);
    check(&maps[0], &Tuning { tiles: 1, ..Tuning::default() }, 3000 / 16 * 16, 4);
}

/// The layers multiply the same columns, so one code, with others for the last step, does them all.
#[test]
fn layers_share_codes() {
    let maps = encode_and_repair("clay:8+4");
    let merged = Tuning { merge: Some(true), ..Tuning::default() };
    let plain = Tuning { merge: Some(false), ..Tuning::default() };
    for map in &maps[..2] {
        let codes = |tuning| Program::tuned(map, tuning).expect("it fits").codes();
        assert!(codes(&plain) >= 16 && codes(&merged) <= 3, "{} codes", codes(&merged));
        check(map, &plain, 528, 2);
    }
    for name in ["clay:4+2", "zigzag:4+2", "zigzag:3+3", "rs:4+2"] {
        encode_and_repair(name).iter().for_each(|map| check(map, &merged, 1040, 5));
    }
}

#[test]
fn lengths_around_vectors_and_tiles() {
    let map = &encode_and_repair("rs:4+2")[0];
    for pitch in [16, 32, 496, 512, 528, 1008, 1024, 1040, 4096, 4112, 8192 + 16] {
        check(map, &Tuning::default(), pitch, pitch as u64);
    }
}

#[test]
fn shared_memory_of_many_elements_makes_tiles_narrow() {
    use fieldstone_gf::{Element, Row, Shape, Target, Term};
    // A chain: each scratch element needs the one before and an input, and all are one component.
    let scratch = 600;
    let mut steps: Vec<Vec<Row>> = (0..scratch)
        .map(|index| {
            let mut terms = vec![Term::input(0, index % 4, 1 + (index % 200) as u8)];
            if index > 0 {
                terms.push(Term::scratch(index - 1, 3));
            }
            vec![Row { target: Target::Scratch(index), terms }]
        })
        .collect();
    let target = Target::Output(Element { shard: 0, index: 0 });
    steps.push(vec![Row { target, terms: vec![Term::scratch(scratch - 1, 5)] }]);
    let shape =
        Shape { input_elements: vec![4], output_elements: vec![1], scratch_elements: scratch };
    let map = LinearMap::from_steps(shape, steps).expect("a chain");
    let geometry = Program::compile(&map).expect("it fits").geometry();
    assert!(geometry.tile_bytes < 1024, "{geometry:?}");
    check(&map, &Tuning::default(), 272, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn random_maps(
        seed in any::<u64>(), vectors in 1usize..150, tiles in 1u32..4, merge in any::<bool>(),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let map = MapMaker::default().make(&mut rng);
        check(&map, &Tuning { tiles, merge: Some(merge), ..Tuning::default() }, 16 * vectors, seed);
    }
}
