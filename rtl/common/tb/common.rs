//! Benches of the building blocks.
#![cfg(feature = "verilator")]

use fieldstone_rtl_common as designs;
use fieldstone_verilate::bench::{Clock, Sink, Source, dice};
use fieldstone_verilate::{Design, Model};
use rand::Rng;

/// Whatever goes into a queue comes out, once, in order, whoever stalls.
fn fifo_keeps_order(design: &'static Design, seed: u64, stalls: (f64, f64)) {
    let mut dice = dice(seed);
    let mut model = Model::new(design);
    let mut source = Source::new(&model, "in", &["in_data_i"], stalls.0);
    let mut sink = Sink::new(&model, "out", &["out_data_o"], stalls.1);
    let width_bytes = model.port("in_data_i").bits() as usize / 8;
    let beats: Vec<Vec<u8>> =
        (0..500).map(|_| (0..width_bytes).map(|_| dice.random()).collect()).collect();
    beats.iter().for_each(|beat| source.push_bytes(&[beat]));
    let mut clock = Clock::reset(&mut model);
    while sink.beats.len() < beats.len() {
        clock.cycle(&mut model, &mut dice, &mut [&mut source, &mut sink]);
        assert!(clock.cycles < 20_000, "wedged");
    }
    let out: Vec<Vec<u8>> = sink.beats.iter().map(|beat| beat[0].clone()).collect();
    assert_eq!(out, beats);
}

#[test]
fn fifos_keep_order_under_stalls() {
    for (seed, stalls) in [(0.0, 0.0), (0.5, 0.1), (0.1, 0.5), (0.7, 0.7)].into_iter().enumerate() {
        fifo_keeps_order(&designs::FIFO_4, seed as u64, stalls);
        fifo_keeps_order(&designs::FIFO_1, seed as u64, stalls);
    }
}
