//! Valid sessions, mutated at random, and plain random bytes: a bounded stand-in for the fuzzer.

use fieldstone_nbd::fuzz::{Coverage, seeds, session};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

#[test]
fn seeds_are_served_to_the_end() {
    for (index, seed) in seeds().iter().enumerate() {
        let coverage = session(seed);
        assert!(coverage.goodbye && !coverage.violation, "seed {index}: {coverage:?}");
        assert_eq!(coverage.transmission, index != 1, "only the second just looks around");
    }
}

/// Changes bits and bytes, cuts, doubles and moves ranges, and sets lengths to extremes.
fn mutate(input: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..input.len());
        let len = rng.random_range(1..=input.len() - at).min(1 << rng.random_range(0..12));
        match rng.random_range(0..6) {
            0 => input[at] ^= 1 << rng.random_range(0..8),
            1 => input[at] = rng.random(),
            2 => {
                input.drain(at..at + len);
            }
            3 => {
                let copy = input[at..at + len].to_vec();
                let to = rng.random_range(0..=input.len());
                input.splice(to..to, copy);
            }
            4 => {
                let extreme = *[0u32, 1, 0xff, 0xffff, 1 << 20, 1 << 31, u32::MAX]
                    .choose(rng)
                    .expect("not empty");
                for (byte, new) in input[at..].iter_mut().zip(extreme.to_be_bytes()) {
                    *byte = new;
                }
            }
            _ => input[..8].copy_from_slice(&rng.random::<[u8; 8]>()),
        }
        if input.len() < 8 {
            input.resize(8, 0);
        }
    }
}

#[test]
fn mutated_sessions_keep_every_property() {
    let mut rng = ChaCha8Rng::seed_from_u64(0x6e62_6400);
    let seeds = seeds();
    let (mut all, mut transmission, mut violations, mut goodbyes) = (Coverage::default(), 0, 0, 0);
    for _ in 0..20_000 {
        let mut input = seeds.choose(&mut rng).expect("not empty").clone();
        mutate(&mut input, &mut rng);
        let coverage = session(&input);
        transmission += u32::from(coverage.transmission);
        violations += u32::from(coverage.violation);
        goodbyes += u32::from(coverage.goodbye);
        all.requests += coverage.requests;
        all.peak_memory_bytes = all.peak_memory_bytes.max(coverage.peak_memory_bytes);
    }
    // The mutations must not all be harmless, and must not all fail at the beginning.
    assert!(
        transmission > 8_000 && violations > 4_000 && goodbyes > 2_000 && all.requests > 50_000
    );
    assert!(all.peak_memory_bytes > 256 << 10, "the memory bound was never in reach: {all:?}");
}

#[test]
fn random_bytes_keep_every_property() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..2_000 {
        let len = rng.random_range(0..300);
        let mut input: Vec<u8> = (0..len).map(|_| rng.random()).collect();
        if rng.random_bool(0.5) && len > 12 {
            input[8..12].copy_from_slice(&[0, 0, 0, 3]);
        }
        session(&input);
    }
}
