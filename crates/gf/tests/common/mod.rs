//! Random programs for tests.

use fieldstone_gf::{Element, LinearMap, Row, Shape, Source, Step, Target, Term};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Zero and one are as frequent as in real codes.
fn random_coefficient(rng: &mut ChaCha8Rng) -> u8 {
    match rng.random_range(0..8) {
        0 => 0,
        1..=3 => 1,
        _ => rng.random(),
    }
}

/// A valid random program of one to three steps.
pub fn random_map(rng: &mut ChaCha8Rng) -> LinearMap {
    let shape = Shape {
        input_elements: (0..rng.random_range(1..8)).map(|_| rng.random_range(1..5)).collect(),
        output_elements: (0..rng.random_range(1..6)).map(|_| rng.random_range(1..4)).collect(),
        scratch_elements: rng.random_range(0..5),
    };
    let inputs: Vec<Source> = shape
        .input_elements
        .iter()
        .enumerate()
        .flat_map(|(shard, &n)| (0..n).map(move |index| Element { shard: shard as u16, index }))
        .map(Source::Input)
        .collect();
    let mut targets: Vec<Target> = shape
        .output_elements
        .iter()
        .enumerate()
        .flat_map(|(shard, &n)| (0..n).map(move |index| Element { shard: shard as u16, index }))
        .map(Target::Output)
        .chain((0..shape.scratch_elements).map(Target::Scratch))
        .collect();
    let mut sources = inputs;
    let mut steps: Vec<Step> = Vec::new();
    while !targets.is_empty() {
        let last = steps.len() == 2;
        let mut step = Vec::new();
        let common = random_terms(rng, &sources);
        for target in std::mem::take(&mut targets) {
            if !last && rng.random_bool(0.4) {
                targets.push(target);
                continue;
            }
            // The same sources with other coefficients are frequent, so that rows fuse.
            let terms = if rng.random_bool(0.6) {
                let renew = |term: &Term| Term { coefficient: random_coefficient(rng), ..*term };
                common.iter().map(renew).collect()
            } else {
                random_terms(rng, &sources)
            };
            step.push(Row { target, terms });
        }
        sources.extend(step.iter().filter_map(|row| match row.target {
            Target::Scratch(index) => Some(Source::Scratch(index)),
            Target::Output(_) => None,
        }));
        steps.push(step);
    }
    LinearMap::from_steps(shape, steps).expect("the generator keeps the rules")
}

fn random_terms(rng: &mut ChaCha8Rng, sources: &[Source]) -> Vec<Term> {
    (0..rng.random_range(0..10))
        .map(|_| Term {
            source: sources[rng.random_range(0..sources.len())],
            coefficient: random_coefficient(rng),
        })
        .collect()
}
