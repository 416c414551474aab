//! `rs_encoder` against the CPU's `rs:8+4`.

use fieldstone_codes::Profile;
use fieldstone_rtl_codes as designs;
use fieldstone_verilate::Model;
use fieldstone_verilate::bench::{Clock, Sink, Source, seeded_rng};
use rand::RngCore;

const K: usize = 8;
const M: usize = 4;
const BEATS: usize = 200;
/// Cycles from a beat of sources to its parities, of the encoder alone. The encoder is not in the
/// device. The number to compare with DeLiBA-K's 150 is the device's own, which `fpga bench`
/// counts.
const FIRST_PARITY_CYCLES: u64 = 4;

fn parities(sources: &[u8]) -> Vec<u8> {
    let code = Profile::rs(K, M).expect("a profile").code();
    let inputs: Vec<&[u8]> = sources.chunks(64).collect();
    let mut parities = vec![0; 64 * M];
    let mut outputs: Vec<&mut [u8]> = parities.chunks_mut(64).collect();
    code.encode().execute(&inputs, &mut outputs).expect("64 bytes each");
    parities
}

#[test]
fn parities_are_those_of_the_cpu_and_come_at_once() {
    for (seed, stalls) in [(1, (0.0, 0.0)), (2, (0.4, 0.1)), (3, (0.1, 0.6))] {
        let mut rng = seeded_rng(seed);
        let mut model = Model::new(&designs::RS_ENCODER);
        let mut source = Source::new(&model, "in", &["in_data_i"], stalls.0);
        let mut sink = Sink::new(&model, "out", &["out_data_o"], stalls.1);
        let mut expected = Vec::new();
        for _ in 0..BEATS {
            let mut sources = vec![0; 64 * K];
            rng.fill_bytes(&mut sources);
            source.push_bytes(&[&sources]);
            expected.push(parities(&sources));
        }
        let mut clock = Clock::reset(&mut model);
        while sink.beats.len() < BEATS {
            clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut sink]);
            assert!(clock.cycles < 10_000, "wedged");
        }
        assert!(sink.beats.iter().map(|beat| &beat[0]).eq(&expected));
        if stalls == (0.0, 0.0) {
            assert_eq!(sink.moved_at[0] - source.moved_at[0], FIRST_PARITY_CYCLES);
            let every_cycle = |at: &[u64]| at.windows(2).all(|pair| pair[1] == pair[0] + 1);
            assert!(every_cycle(&source.moved_at) && every_cycle(&sink.moved_at));
        }
    }
}
