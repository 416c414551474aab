//! The check of outputs lets right outputs pass, and finds wrong ones as its essay says.

mod common;

use common::random_map;
use fieldstone_gf::{LinearMap, Matrix, OutputCheck};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn slices(buffers: &[Vec<u8>]) -> Vec<&[u8]> {
    buffers.iter().map(|buffer| &buffer[..]).collect()
}

/// Random inputs of a map, and its outputs.
fn buffers(map: &LinearMap, bytes: usize, rng: &mut ChaCha8Rng) -> Buffers {
    let shape = map.shape();
    let mut random = |&n: &u32| (0..n as usize * bytes).map(|_| rng.random()).collect();
    let inputs: Vec<Vec<u8>> = shape.input_elements.iter().map(&mut random).collect();
    let mut outputs: Vec<Vec<u8>> =
        shape.output_elements.iter().map(|&n| vec![0; n as usize * bytes]).collect();
    let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
    map.execute(&slices(&inputs), &mut targets).expect("lengths fit");
    (inputs, outputs)
}

type Buffers = (Vec<Vec<u8>>, Vec<Vec<u8>>);

fn passes(check: &OutputCheck, tested: &Buffers) -> bool {
    check.passes(&slices(&tested.0), &slices(&tested.1))
}

proptest! {
    #[test]
    fn right_outputs_pass_and_one_wrong_byte_does_not(
        seed: u64,
        bytes in prop_oneof![0usize..600, 4_090usize..4_100, 0usize..20_000],
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let map = random_map(&mut rng);
        let mut tested = buffers(&map, bytes, &mut rng);
        let check = OutputCheck::new(&map, seed);
        prop_assert!(passes(&check, &tested));
        if bytes > 0 {
            let shard = rng.random_range(0..tested.1.len());
            let at = rng.random_range(0..tested.1[shard].len());
            tested.1[shard][at] ^= rng.random_range(1..=255u8);
            prop_assert!(!passes(&check, &tested), "output {shard}, byte {at}");
            tested.1[shard].push(0);
            prop_assert!(!passes(&check, &tested), "an output is too long");
            tested.1.pop();
            prop_assert!(!passes(&check, &tested), "an output is missing");
        }
    }
}

/// Encoding of RS(4, 2) over a Vandermonde matrix, with shards of 64 KiB.
fn stripe(rng: &mut ChaCha8Rng) -> (LinearMap, Buffers) {
    let matrix = Matrix::from_fn(2, 4, |row, column| if row == 0 { 1 } else { 1 << column });
    let map = LinearMap::from_matrix(&matrix).expect("a small matrix");
    let tested = buffers(&map, 64 << 10, rng);
    (map, tested)
}

/// The outputs follow from other inputs: at each position all outputs are wrong, in proportion.
#[test]
fn a_device_that_reads_a_wrong_input_is_found() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (map, right) = stripe(&mut rng);
    let mut tested = right.clone();
    let mut missed = 0;
    for seed in 0..4000 {
        let shard = rng.random_range(0..4);
        let (from, to) = (rng.random_range(0..32 << 10), rng.random_range(32 << 10..64 << 10));
        tested.0[shard][from..to].iter_mut().for_each(|byte| *byte ^= 0x81);
        missed += u32::from(passes(&OutputCheck::new(&map, seed), &tested));
        tested.0[shard][from..to].copy_from_slice(&right.0[shard][from..to]);
    }
    // One in 65,025 is expected. With one set of weights it would be 16.
    assert!(missed <= 2, "{missed} of 4000");
}

#[test]
fn lines_that_changed_places_are_found() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (map, mut tested) = stripe(&mut rng);
    let check = OutputCheck::new(&map, 3);
    let swap = |tested: &mut Buffers, low: usize, high: usize| {
        let (front, back) = tested.1[1].split_at_mut(high * 64);
        front[low * 64..][..64].swap_with_slice(&mut back[..64]);
    };
    for _ in 0..500 {
        let (low, high) = (rng.random_range(0..512), rng.random_range(512..1024));
        swap(&mut tested, low, high);
        assert!(!passes(&check, &tested), "lines {low} and {high}");
        swap(&mut tested, low, high);
    }
    assert!(passes(&check, &tested));
}

#[test]
fn outputs_of_other_data_are_found() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let (map, right) = stripe(&mut rng);
    let (_, other) = stripe(&mut rng);
    for seed in 0..200 {
        let tested = (right.0.clone(), other.1.clone());
        assert!(!passes(&OutputCheck::new(&map, seed), &tested));
        let zeroes = (right.0.clone(), vec![vec![0; 64 << 10]; 2]);
        assert!(!passes(&OutputCheck::new(&map, seed), &zeroes));
    }
}
