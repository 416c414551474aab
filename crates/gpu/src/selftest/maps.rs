//! Random linear maps: codes of every family, dense and sparse matrices, programs with scratch.

use std::sync::Arc;

use fieldstone_codes::{Code, Profile};
use fieldstone_gf::{Element, LinearMap, Row, Shape, Target, Term};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

/// The codes whose maps are used.
const CODES: [&str; 14] = [
    "rs:2+1",
    "rs:4+2",
    "rs:6+3",
    "rs:10+4",
    "rs:20+4",
    "vandermonde:5+3",
    "cauchy-good:4+3",
    "copies:3",
    "zigzag:2+2",
    "zigzag:4+2",
    "zigzag:3+3",
    "clay:2+1",
    "clay:4+2",
    "clay:3+3",
];

/// Makes maps from a stream of random numbers.
pub struct MapMaker {
    codes: Vec<Arc<dyn Code>>,
}

impl Default for MapMaker {
    fn default() -> Self {
        let profiles = CODES.iter().filter_map(|name| name.parse::<Profile>().ok());
        Self { codes: profiles.map(|profile| profile.code()).collect() }
    }
}

impl MapMaker {
    /// The next map.
    pub fn make(&self, rng: &mut ChaCha8Rng) -> Arc<LinearMap> {
        match rng.random_range(0..4) {
            0 => self.of_code(rng),
            1 => Arc::new(dense(rng)),
            2 => Arc::new(sparse(rng)),
            _ => Arc::new(with_scratch(rng)),
        }
    }

    /// The encoder of a code, the repair of some of its losses, or an update of its parities.
    fn of_code(&self, rng: &mut ChaCha8Rng) -> Arc<LinearMap> {
        let code = self.codes.choose(rng).expect("there are codes");
        let shards = code.k() + code.m();
        match rng.random_range(0..3) {
            0 => Arc::clone(code.encode()),
            1 => {
                let mut order: Vec<usize> = (0..shards).collect();
                order.shuffle(rng);
                let lost = rng.random_range(1..=code.m());
                let (lost, left) = order.split_at(lost);
                let plan = code.repair(lost, left).expect("no more than m shards are lost");
                Arc::clone(&plan.map)
            }
            _ => {
                let shard = rng.random_range(0..code.k());
                let all = code.delta(shard, 0..code.elements());
                all.map_or_else(|_| Arc::clone(code.encode()), |plan| Arc::clone(&plan.map))
            }
        }
    }
}

/// A matrix without zeros over shards of one element.
fn dense(rng: &mut ChaCha8Rng) -> LinearMap {
    let (inputs, outputs) = (rng.random_range(1..=12), rng.random_range(1..=9));
    let mut term = |shard| Term::input(shard, 0, rng.random_range(1..=255));
    let rows = (0..outputs).map(|_| (0..inputs).map(&mut term).collect()).collect();
    LinearMap::new(usize::from(inputs), outputs, 1, rows).expect("all elements exist")
}

/// Rows with few terms over shards of several elements; zeros, ones, repeated and missing terms.
fn sparse(rng: &mut ChaCha8Rng) -> LinearMap {
    let (inputs, outputs) = (rng.random_range(1..=5u16), rng.random_range(1..=4));
    let elements = rng.random_range(1..=6);
    let mut row = |_| {
        let terms = rng.random_range(0..=5);
        let term = |rng: &mut ChaCha8Rng| {
            let coefficient = match rng.random_range(0..4) {
                0 => 1,
                1 => rng.random_range(0..4),
                _ => rng.random(),
            };
            Term::input(rng.random_range(0..inputs), rng.random_range(0..elements), coefficient)
        };
        (0..terms).map(|_| term(rng)).collect()
    };
    let rows = (0..outputs * elements as usize).map(&mut row).collect();
    LinearMap::new(usize::from(inputs), outputs, elements, rows).expect("all elements exist")
}

/// Several steps: each writes scratch elements from inputs and earlier scratch, the last one
/// writes the outputs.
fn with_scratch(rng: &mut ChaCha8Rng) -> LinearMap {
    let shards = |rng: &mut ChaCha8Rng| -> Vec<u32> {
        (0..rng.random_range(1..4)).map(|_| rng.random_range(1..4)).collect()
    };
    let (input_elements, output_elements) = (shards(rng), shards(rng));
    let steps = rng.random_range(1..4u32);
    let width = rng.random_range(1..12u32);
    let terms = |rng: &mut ChaCha8Rng, scratch: u32| -> Vec<Term> {
        let term = |rng: &mut ChaCha8Rng| {
            let coefficient = if rng.random_bool(0.3) { 1 } else { rng.random() };
            if scratch > 0 && rng.random_bool(0.6) {
                return Term::scratch(rng.random_range(0..scratch), coefficient);
            }
            let shard = rng.random_range(0..input_elements.len());
            Term::input(shard as u16, rng.random_range(0..input_elements[shard]), coefficient)
        };
        (0..rng.random_range(1..5)).map(|_| term(rng)).collect()
    };
    let mut program = Vec::new();
    for step in 0..steps {
        let row = |index| Row { target: Target::Scratch(index), terms: terms(rng, step * width) };
        program.push((step * width..(step + 1) * width).map(row).collect());
    }
    let mut last = Vec::new();
    for (shard, &elements) in (0u16..).zip(&output_elements) {
        for index in 0..elements {
            let target = Target::Output(Element { shard, index });
            last.push(Row { target, terms: terms(rng, steps * width) });
        }
    }
    program.push(last);
    let shape = Shape { input_elements, output_elements, scratch_elements: steps * width };
    LinearMap::from_steps(shape, program).expect("rows read only earlier scratch")
}
