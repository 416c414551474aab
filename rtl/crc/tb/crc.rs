//! CRC32C against the CPU's.
#![cfg(feature = "verilator")]

use fieldstone_accel::crc32c;
use fieldstone_rtl_crc as designs;
use fieldstone_verilate::Model;
use fieldstone_verilate::bench::{Clock, Sink, Source, seeded_rng};
use rand::Rng;

/// `crc32c_pkg::LATENCY`.
const LATENCY: u64 = 11;

/// Puts a message into the stream. An empty message is a last beat without valid bytes.
fn push(source: &mut Source, message: &[u8]) {
    let beats = message.len().div_ceil(64).max(1);
    for beat in 0..beats {
        let bytes = &message[64 * beat..message.len().min(64 * beat + 64)];
        let is_last = beat + 1 == beats;
        let mut data = [0xa5; 64];
        data[..bytes.len()].copy_from_slice(bytes);
        source.push_bytes(&[&data, &[u8::from(is_last)], &[bytes.len() as u8]]);
    }
}

#[test]
fn sums_are_those_of_the_cpu_at_every_length_and_pace() {
    for (seed, stall) in [(1, 0.0), (2, 0.4)] {
        let mut rng = seeded_rng(seed);
        let mut model = Model::new(&designs::CRC32C);
        let ports = ["in_data_i", "in_last_i", "in_bytes_i"];
        let mut source = Source::new(&model, "in", &ports, stall);
        let mut sink = Sink::new(&model, "out", &["out_sum_o"], 0.0);
        let mut sums = Vec::new();
        let mut last_beats = Vec::new();
        let mut lengths: Vec<usize> = (0..=260).collect();
        lengths.extend((0..60).map(|_| rng.random_range(0..5000)));
        for length in lengths {
            let message: Vec<u8> = (0..length).map(|_| rng.random()).collect();
            push(&mut source, &message);
            last_beats.push(source.queue.len() - 1);
            sums.push(u64::from(crc32c(&message)));
        }
        let mut clock = Clock::reset(&mut model);
        while sink.beats.len() < sums.len() {
            clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut sink]);
            assert!(clock.cycles < 20_000, "wedged");
        }
        for (index, &sum) in sums.iter().enumerate() {
            assert_eq!(sink.pop().expect("counted above")[0], sum, "message {index}");
            let last_beat_at = source.moved_at[last_beats[index]];
            assert_eq!(sink.moved_at[index] - last_beat_at, LATENCY, "message {index}");
        }
        if stall == 0.0 {
            // A beat in every cycle.
            assert!(source.moved_at.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }
}
