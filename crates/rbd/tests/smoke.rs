//! Valid answers with random changes, and plain random bytes: a bounded replacement for the fuzzer.
//!
//! `RBD_FUZZ_RUNS=1000000` runs more inputs, `RBD_FUZZ_SEED=7` others.

use fieldstone_rbd::fuzz;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers that lengths and counts must survive.
const NUMBERS: [u32; 8] = [0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// One to three changes.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..4) {
        if input.len() < 2 {
            return;
        }
        let at = random.random_range(1..input.len());
        match random.random_range(0..6) {
            0 => input[at] = random.random(),
            1 => input[at] ^= 1 << random.random_range(0..8),
            2 => drop(input.remove(at)),
            3 => {
                let from = random.random_range(0..other.len());
                input.splice(at..at, other[from..].iter().copied().take(16));
            }
            4 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                let len = number.len().min(input.len() - at);
                input[at..at + len].copy_from_slice(&number[..len]);
            }
            _ => input.truncate(at),
        }
    }
}

#[test]
fn smoke() {
    let seeds = fuzz::seeds();
    let mut random = ChaCha8Rng::seed_from_u64(number("RBD_FUZZ_SEED", 1));
    let runs = number("RBD_FUZZ_RUNS", 40_000);
    let mut understood = 0;
    for _ in 0..runs {
        let mut input = seeds[random.random_range(0..seeds.len())].clone();
        let other = &seeds[random.random_range(0..seeds.len())];
        mutate(&mut input, other, &mut random);
        understood += u64::from(fuzz::answer(&input));
    }
    assert!(understood > runs / 20 && understood < runs, "{understood} of {runs}");
}

#[test]
fn smoke_noise() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for len in 0..20_000 {
        let noise: Vec<u8> = (0..len % 200).map(|_| random.random()).collect();
        let _ = fuzz::answer(&noise);
    }
}
