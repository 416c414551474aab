//! Benches of the building blocks.
#![cfg(feature = "verilator")]

use fieldstone_rtl_common as designs;
use fieldstone_verilate::bench::{Clock, Sink, Source, seeded_rng};
use fieldstone_verilate::{Design, Model};
use rand::Rng;

#[path = "crossbar.rs"]
mod crossbar;

/// All beats leave a FIFO once and in order, with stalls on both sides.
fn fifo_keeps_order(design: &'static Design, seed: u64, stalls: (f64, f64)) {
    let mut rng = seeded_rng(seed);
    let mut model = Model::new(design);
    let mut source = Source::new(&model, "in", &["in_data_i"], stalls.0);
    let mut sink = Sink::new(&model, "out", &["out_data_o"], stalls.1);
    let width_bytes = model.port("in_data_i").bits() as usize / 8;
    let beats: Vec<Vec<u8>> =
        (0..500).map(|_| (0..width_bytes).map(|_| rng.random()).collect()).collect();
    beats.iter().for_each(|beat| source.push_bytes(&[beat]));
    let mut clock = Clock::reset(&mut model);
    while sink.beats.len() < beats.len() {
        clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut sink]);
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

/// A request stays until it is served. A requester waits for at most COUNT-1 services of others.
#[test]
fn arbiter_is_fair() {
    const COUNT: usize = 5;
    let mut rng = seeded_rng(7);
    let mut model = Model::new(&designs::ARBITER_5);
    let ports = ["request_i", "valid_o", "index_o", "served_i"].map(|name| model.port(name));
    let [request, valid, index, served] = ports;
    let mut clock = Clock::reset(&mut model);
    let mut requests = 0u64;
    let mut waited = [0; COUNT];
    let mut wins = [0; COUNT];
    for cycle in 0..5000 {
        let chance = if cycle < 2500 { 0.2 } else { 1.0 };
        (0..COUNT).for_each(|i| requests |= u64::from(rng.random_bool(chance)) << i);
        model.set(request, requests);
        model.set(served, 0);
        clock.settle(&mut model);
        assert_eq!(model.is_set(valid), requests != 0);
        if model.is_set(valid) && rng.random_bool(0.7) {
            let winner = model.get(index) as usize;
            assert!(requests >> winner & 1 == 1, "{winner} did not ask");
            model.set(served, 1);
            clock.settle(&mut model);
            assert_eq!(model.get(index) as usize, winner, "serving changed the choice");
            requests &= !(1 << winner);
            wins[winner] += 1;
            waited[winner] = 0;
            for (other, wait) in
                waited.iter_mut().enumerate().filter(|(i, _)| requests >> i & 1 == 1)
            {
                *wait += 1;
                assert!(*wait < COUNT, "{other} waits for the {wait}th time");
            }
        }
        clock.rise(&mut model);
    }
    assert!(wins.iter().all(|&wins| wins > 300), "{wins:?}");
}

/// A port is an address. After the end of its model it must not be used, even if another model has
/// the address.
#[test]
#[should_panic(expected = "a port of another model")]
fn a_port_of_a_model_that_has_ended_is_refused() {
    let port = Model::new(&designs::FIFO_1).port("in_data_i");
    let _ = Model::new(&designs::FIFO_1).get(port);
}
