//! Every decorator and the whole stack against one model of the contract.
//!
//! A seed fixes the requests, the backend's temper and the shape of the device. The decorator under
//! test stands over a backend that completes in any order and fails at times (`chaos`); the oracle
//! knows what each cell may hold (`oracle`); the harness compares (`harness`).

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod oracle;

use chaos::{Chaos, Temper};
use fieldstone_block::{Align, Backend, Ram};
use harness::{Harness, Shape};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEEDS: u64 = 1500;

/// A shape and a temper from a seed. `blocks` lets the backend want blocks larger than a cell.
fn draw(seed: u64, blocks: bool) -> (Shape, Temper) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let cell_bytes = [4, 256, 1024][random.random_range(0..3)];
    let cells_per_block = if blocks { [1, 4, 16][random.random_range(0..3)] } else { 1 };
    let cells = cells_per_block as usize * random.random_range(3..20);
    let max_delay = 10_000;
    let shape = Shape {
        cells,
        cell_bytes,
        trim_bytes: cell_bytes * cells_per_block,
        requests: 120,
        max_in_flight: [1, 3, 12, 40][random.random_range(0..4)],
        sequential: [0.0, 0.5, 0.95][random.random_range(0..3)],
        max_gap: [0, 3_000, 30_000][random.random_range(0..3)],
    };
    let failing = [0, 0, 20][random.random_range(0..3)];
    (shape, Temper { block_bytes: cell_bytes * cells_per_block, max_delay, failing })
}

fn check_seed<B: Backend>(
    seed: u64,
    blocks: bool,
    stack: impl Fn(Chaos, &Shape) -> B,
    chaos_of: impl Fn(&B) -> &Chaos,
) -> Harness<B> {
    let (shape, temper) = draw(seed, blocks);
    let size_bytes = shape.cells as u64 * u64::from(shape.cell_bytes);
    let backend = stack(Chaos::new(size_bytes, temper, seed ^ 0xc4a0), &shape);
    let mut harness = Harness::new(backend, shape, seed);
    if let Err(error) = harness.run(|backend, tag| chaos_of(backend).is_stable(tag)) {
        panic!("seed {seed}: {error}\n{shape:?}\n{temper:?}");
    }
    harness
}

#[test]
fn ram_keeps_the_contract() {
    for seed in 0..SEEDS / 5 {
        let (shape, _) = draw(seed, false);
        let shape = Shape { cell_bytes: 1028, trim_bytes: 1, cells: 200, ..shape };
        let mut harness = Harness::new(Ram::new(200 * 1028), shape, seed);
        harness.run(|_, _| true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn chaos_itself_keeps_the_contract() {
    for seed in 0..SEEDS / 5 {
        check_seed(seed, false, |chaos, _| chaos, |chaos| chaos);
    }
}

#[test]
fn align_keeps_the_contract() {
    for seed in 0..SEEDS {
        check_seed(seed, true, |chaos, _| Align::new(chaos), Align::inner);
    }
}
