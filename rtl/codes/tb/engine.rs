//! Jobs of every kind: random maps, encoders, rebuilds, batches.

use fieldstone_codes::Profile;
use fieldstone_gf::{Element, LinearMap, Row, Shape, Target, Term};
use fieldstone_verilate::bench::SeededRng;
use rand::Rng;

use crate::bench::{CodeCase, Testbench, one_unit, two_units};

/// A random map: shards of different sizes, up to three steps, zero and repeated terms, rows
/// without terms.
pub fn random_map(rng: &mut SeededRng) -> LinearMap {
    let shards = |rng: &mut SeededRng, most: usize| -> Vec<u32> {
        (0..rng.random_range(1..=most)).map(|_| rng.random_range(1..=3)).collect()
    };
    let (input_elements, output_elements) = (shards(rng, 12), shards(rng, 4));
    let scratch_elements: u32 = if rng.random_bool(0.5) { rng.random_range(1..=6) } else { 0 };
    let step_count = if scratch_elements > 0 { rng.random_range(2..=3) } else { 1 };
    let mut targets: Vec<Target> = output_elements
        .iter()
        .enumerate()
        .flat_map(|(shard, &n)| (0..n).map(move |index| (shard as u16, index)))
        .map(|(shard, index)| Target::Output(Element { shard, index }))
        .collect();
    targets.extend((0..scratch_elements).map(Target::Scratch));
    let mut steps = vec![Vec::new(); step_count];
    let mut ready: Vec<u32> = Vec::new();
    for (step, rows) in steps.iter_mut().enumerate() {
        let mut written = Vec::new();
        let is_last = step + 1 == step_count;
        for at in (0..targets.len()).rev() {
            if is_last || rng.random_bool(0.5) {
                let target = targets.swap_remove(at);
                if let Target::Scratch(index) = target {
                    written.push(index);
                }
                let terms = (0..rng.random_range(0..=18)).map(|_| {
                    let coefficient = if rng.random_bool(0.2) { 0 } else { rng.random() };
                    if !ready.is_empty() && rng.random_bool(0.4) {
                        return Term::scratch(ready[rng.random_range(0..ready.len())], coefficient);
                    }
                    let shard = rng.random_range(0..input_elements.len());
                    let index = rng.random_range(0..input_elements[shard]);
                    Term::input(shard as u16, index, coefficient)
                });
                rows.push(Row { target, terms: terms.collect() });
            }
        }
        ready.extend(written);
    }
    let shape = Shape { input_elements, output_elements, scratch_elements };
    LinearMap::from_steps(shape, steps).expect("a valid map")
}

/// Runs `count` random jobs on one engine.
pub fn random_jobs(bench: &mut Testbench, count: u64) {
    let mut done = 0;
    while done < count {
        let map = random_map(&mut bench.rng);
        // Lengths around those of slices, and short ones, for which hazards are most likely.
        let element_beats = match bench.rng.random_range(0..4) {
            0 => 1,
            1 => bench.rng.random_range(1..=8),
            2 => bench.rng.random_range(60..=70),
            _ => bench.rng.random_range(1..=40),
        };
        let batch = bench.rng.random_range(1..=3);
        let built = bench.built;
        if let Some(job) = CodeCase::new(&map, &built, element_beats, batch, &mut bench.rng) {
            bench.memory.latency_cycles = bench.rng.random_range(1..=60);
            bench.memory.owner = bench.rng.random_range(0..3);
            job.run(bench);
            done += 1;
        }
    }
}

#[test]
fn random_maps_on_one_unit() {
    for (seed, stall) in [(1, 0.0), (2, 0.3)] {
        random_jobs(&mut Testbench::new(one_unit(), seed, stall), 15);
    }
}

#[test]
fn random_maps_on_two_units() {
    for (seed, stall) in [(3, 0.0), (4, 0.3)] {
        random_jobs(&mut Testbench::new(two_units(), seed, stall), 25);
    }
}

#[test]
fn codes_encode_and_rebuild() {
    let mut bench = Testbench::new(one_unit(), 5, 0.05);
    let profiles = [
        "rs:8+4",
        "rs:4+2",
        "rs:10+4",
        "jerasure-van:4+2",
        "jerasure-van:3+2,w=16",
        "cauchy-good:4+2",
        "zigzag:4+2",
        "clay:4+2",
        "copies:3",
    ];
    for profile in profiles {
        let profile: Profile = profile.parse().expect("a profile");
        let code = profile.code();
        let lost = bench.rng.random_range(0..profile.shards());
        let available: Vec<usize> = (0..profile.shards()).filter(|&shard| shard != lost).collect();
        let plan = code.repair(&[lost], &available).expect("one loss");
        for map in [code.encode(), &plan.map] {
            let elements = bench.rng.random_range(1..=20);
            let built = bench.built;
            let job = CodeCase::new(map, &built, elements, 2, &mut bench.rng).expect("it fits");
            job.run(&mut bench);
        }
    }
}

#[test]
fn a_program_is_loaded_once() {
    let mut bench = Testbench::new(one_unit(), 6, 0.0);
    let code = Profile::rs(4, 2).expect("a profile").code();
    let built = bench.built;
    let job = CodeCase::new(code.encode(), &built, 3, 1, &mut bench.rng).expect("it fits");
    let program_beats = job.descriptor.length / 64;
    let loaded = |bench: &mut Testbench| job.run(bench).read_beats - job.input_beats();
    assert_eq!(loaded(&mut bench), program_beats);
    assert_eq!(loaded(&mut bench), 1);
    // The same address with another function is another program.
    bench.memory.owner = 7;
    assert_eq!(loaded(&mut bench), program_beats);
    assert_eq!(loaded(&mut bench), 1);
    // Another map at the same address, of the same length.
    let parity = Profile::rs(4, 2).expect("a profile").code();
    let plan = parity.repair(&[0, 1], &[2, 3, 4, 5]).expect("two losses");
    let mut other = CodeCase::new(&plan.map, &built, 3, 1, &mut bench.rng).expect("it fits");
    assert_eq!(other.descriptor.length, job.descriptor.length);
    other.bytes.drain(..other.descriptor.source as usize);
    other.expected.drain(..other.descriptor.source as usize);
    let moved = job.descriptor.source;
    other.bytes.splice(0..0, vec![0; moved as usize]);
    other.expected.splice(0..0, vec![0; moved as usize]);
    let shift = moved.wrapping_sub(other.descriptor.source);
    for address in
        [&mut other.descriptor.source, &mut other.descriptor.input, &mut other.descriptor.output]
    {
        *address = address.wrapping_add(shift);
    }
    assert_eq!(other.run(&mut bench).read_beats - other.input_beats(), program_beats);
    assert_eq!(loaded(&mut bench), program_beats);
}
