//! A Reed-Solomon encoder alone, for figures. It has constant coefficients. Every cycle, it takes a
//! beat of every source and gives a beat of every parity. It is not in the device.

use fieldstone_codes::Profile;
use fieldstone_verilate::Model;
use fieldstone_verilate::bench::{Clock, Sink, Source, seeded_rng};
use rand::RngCore;

use super::designs;

/// Sources and parities of the encoder.
pub const SHAPE: (usize, usize) = (8, 4);
const BEAT: usize = 64;

/// The timing of a run of the encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderRun {
    /// Cycles from a beat of the sources to its parities.
    pub first_parity_cycles: u64,
    /// Beats of every source per cycle, from the first to the last.
    pub beats_per_cycle: f64,
}

/// Encodes `beats` (at least 2) random beats of every source without a pause and compares the
/// parities with the CPU's. `None` if they differ.
///
/// # Panics
/// When the encoder stops.
#[must_use]
pub fn encode(seed: u64, beats: usize) -> Option<EncoderRun> {
    let (k, m) = SHAPE;
    let code = Profile::rs(k, m).expect("a profile of the command line").code();
    let mut rng = seeded_rng(seed);
    let mut model = Model::new(&designs::RS_ENCODER);
    let mut source = Source::new(&model, "in", &["in_data_i"], 0.0);
    let mut sink = Sink::new(&model, "out", &["out_data_o"], 0.0);
    let mut expected = Vec::with_capacity(beats);
    for _ in 0..beats {
        let mut sources = vec![0; BEAT * k];
        rng.fill_bytes(&mut sources);
        source.push_bytes(&[&sources]);
        let inputs: Vec<&[u8]> = sources.chunks(BEAT).collect();
        let mut parities = vec![0; BEAT * m];
        let mut outputs: Vec<&mut [u8]> = parities.chunks_mut(BEAT).collect();
        code.encode().execute(&inputs, &mut outputs).expect("a beat each");
        expected.push(parities);
    }
    let mut clock = Clock::reset(&mut model);
    while sink.beats.len() < beats {
        clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut sink]);
        assert!(clock.cycles < 4 * beats as u64 + 1000, "the encoder has stopped");
    }
    let equal = sink.beats.iter().map(|beat| &beat[0]).eq(&expected);
    let cycles = sink.moved_at[beats - 1] - sink.moved_at[0];
    equal.then(|| EncoderRun {
        first_parity_cycles: sink.moved_at[0] - source.moved_at[0],
        beats_per_cycle: (beats - 1) as f64 / cycles as f64,
    })
}
