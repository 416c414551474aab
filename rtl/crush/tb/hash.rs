//! Benches of the hash and of the logarithm.
#![cfg(feature = "verilator")]

use fieldstone_crush::hash::{hash2, hash3, hash4};
use fieldstone_crush::ln::crush_ln;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::bench::{Clock, Sink, Source, seeded_rng};
use fieldstone_verilate::{Design, Model};
use rand::Rng;

/// Random words, with gaps between the beats. Every hash has the same latency.
fn hashes(design: &'static Design, args: usize, cycles: u64, hash: fn(&[u32]) -> u32) {
    for (seed, stall) in [(1, 0.0), (2, 0.4)] {
        let mut rng = seeded_rng(seed);
        let mut model = Model::new(design);
        let mut clock = Clock::reset(&mut model);
        let mut source = Source::new(&model, "", &["args_i"], stall);
        let mut sink = Sink::new(&model, "", &["hash_o"], 0.0);
        let mut expected = Vec::new();
        for beat in 0..2000 {
            // Negative numbers are also items; zeros and ones come early.
            let words: Vec<u32> = (0..args)
                .map(|_| if beat < 20 { rng.random_range(0..2) } else { rng.random() })
                .collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            source.push_bytes(&[&bytes]);
            expected.push(u64::from(hash(&words)));
        }
        while sink.beats.len() < expected.len() {
            clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut sink]);
            assert!(clock.cycles < 20_000, "wedged");
        }
        for (&start, &end) in source.moved_at.iter().zip(&sink.moved_at) {
            assert_eq!(end - start, cycles);
        }
        let hashes: Vec<u64> = std::iter::from_fn(|| sink.pop()).map(|beat| beat[0]).collect();
        assert_eq!(hashes, expected);
    }
}

#[test]
fn hashes_are_those_of_the_software() {
    hashes(&designs::HASH_2, 2, 9, |w| hash2(w[0], w[1]));
    hashes(&designs::HASH_3, 3, 45, |w| hash3(w[0], w[1], w[2]));
    hashes(&designs::HASH_4, 4, 18, |w| hash4(w[0], w[1], w[2], w[3]));
}

#[test]
fn the_logarithm_is_exact_for_all_inputs() {
    const STAGES: usize = 8;
    let mut model = Model::new(&designs::LN);
    let (clk, valid) = (model.port("clk_i"), model.port("valid_i"));
    let (u, n) = (model.port("u_i"), model.port("n_o"));
    model.set(valid, 0xff);
    for cycle in 0..=usize::from(u16::MAX) + STAGES {
        model.set(u, cycle as u64 & 0xffff);
        model.set(clk, 0);
        model.eval();
        if let Some(before) = cycle.checked_sub(STAGES) {
            assert_eq!(model.get(n), (1 << 48) - crush_ln(before as u16), "of {before}");
        }
        model.set(clk, 1);
        model.eval();
    }
}
