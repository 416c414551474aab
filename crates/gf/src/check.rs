//! Checks the outputs of a map without trusting those who computed them: a device may be wrong.
//!
//! A map is linear. So a weighted sum of its outputs is a weighted sum of its inputs, and the
//! weights of the inputs follow from the map (R. Freivalds, "Probabilistic machines can use less
//! running time", 1977). The check draws the weights of the outputs at random, and compares both
//! sums at every position. It draws [`SUMS`] sets of weights.
//!
//! ```text
//!   sum over outputs of w(o) * output(o)  =  sum over inputs of v(i) * input(i),   v = w times map
//! ```
//!
//! **What it finds.** Right outputs always pass. A position at which one output is wrong never
//! passes. A position at which several outputs are wrong passes with a probability of
//! 255^-[`SUMS`]. That is also the probability with which *all* positions pass if the outputs were
//! computed from a wrong input: its effect on the outputs is in the same proportion everywhere.
//!
//! **Cost.** The check reads every byte of inputs and outputs once, and multiplies it [`SUMS`]
//! times. Encoding k inputs to m outputs multiplies every byte of the inputs m times.

use crate::compile::MAX_PASS_SOURCES;
use crate::execute::{Options, StoreMode, Update};
use crate::field;
use crate::map::{Element, LinearMap, Shape, Source, Target, Term};

/// Independent sets of weights.
pub const SUMS: usize = 2;
/// Positions that are compared at once: the sums stay in the first-level cache.
const SLICE_BYTES: usize = 4096;

/// The coefficients (weights) of an element in each of the sums.
type SumCoefficients = [u8; SUMS];

/// Checks outputs of one map.
#[derive(Debug)]
pub struct OutputCheck {
    shape: Shape,
    /// Both sides of the comparison, added up: maps from some elements to [`SUMS`] outputs. The
    /// elements are those of the inputs and of the outputs, in this order.
    sums: Vec<LinearMap>,
}

impl OutputCheck {
    /// A check of outputs of `map`. The weights follow from `seed`.
    #[must_use]
    pub fn new(map: &LinearMap, seed: u64) -> Self {
        let sum = |weights: &[SumCoefficients]| {
            let term = |set: usize| {
                let terms = (0u16..).zip(weights).map(move |(at, w)| Term::input(at, 0, w[set]));
                terms.collect()
            };
            let rows = (0..SUMS).map(term).collect();
            LinearMap::new(weights.len(), SUMS, 1, rows).expect("few inputs of one element each")
        };
        let weights = weights(map, seed);
        Self {
            shape: map.shape().clone(),
            sums: weights.chunks(MAX_PASS_SOURCES).map(sum).collect(),
        }
    }

    /// True if the map computes `outputs` from `inputs`, as far as the check can tell. False if the
    /// lengths of the buffers do not fit the map.
    #[must_use]
    pub fn passes(&self, inputs: &[&[u8]], outputs: &[&[u8]]) -> bool {
        let Some(elements) = self.elements(inputs, outputs) else { return false };
        let element_bytes = elements.first().map_or(0, |element| element.len());
        let mut sums = [[0; SLICE_BYTES]; SUMS];
        (0..element_bytes).step_by(SLICE_BYTES).all(|start| {
            let end = element_bytes.min(start + SLICE_BYTES);
            let mut update = Update::Replace;
            for (sum, elements) in self.sums.iter().zip(elements.chunks(MAX_PASS_SOURCES)) {
                let mut sources: [&[u8]; MAX_PASS_SOURCES] = [&[]; MAX_PASS_SOURCES];
                for (source, element) in sources.iter_mut().zip(elements) {
                    *source = &element[start..end];
                }
                let mut targets = sums.each_mut().map(|sum| &mut sum[..end - start]);
                // The sums are read at once.
                let options = Options { update, stores: StoreMode::Plain, ..Options::default() };
                sum.execute_with(options, &sources[..elements.len()], &mut targets)
                    .expect("all slices have the same length");
                update = Update::Accumulate;
            }
            // All bits at once: the compiler makes vectors of this loop.
            sums.iter().all(|sum| sum[..end - start].iter().fold(0, |all, byte| all | byte) == 0)
        })
    }

    /// The elements of all buffers. `None` if the buffers do not fit the map.
    fn elements<'a>(&self, inputs: &[&'a [u8]], outputs: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
        let Shape { input_elements, output_elements, .. } = &self.shape;
        if inputs.len() != input_elements.len() || outputs.len() != output_elements.len() {
            return None;
        }
        let element_bytes = inputs[0].len() / input_elements[0] as usize;
        let buffers = inputs.iter().chain(outputs);
        let counts = input_elements.iter().chain(output_elements);
        let mut elements = Vec::with_capacity(buffers.size_hint().0);
        for (buffer, &count) in buffers.zip(counts) {
            if buffer.len() != count as usize * element_bytes {
                return None;
            }
            // Without bytes there is nothing to compare.
            elements.extend(buffer.chunks_exact(element_bytes.max(1)));
        }
        Some(elements)
    }
}

/// The weights of all elements of inputs and outputs. Those of the outputs are random and not 0.
/// Those of the inputs follow from the last step of the map to the first.
fn weights(map: &LinearMap, seed: u64) -> Vec<SumCoefficients> {
    let mut random = seed;
    let mut draw = || 1 + (next(&mut random) % 255) as u8;
    let shape = map.shape();
    let zeroes = |elements: &u32| vec![[0; SUMS]; *elements as usize];
    let mut inputs: Vec<Vec<SumCoefficients>> = shape.input_elements.iter().map(zeroes).collect();
    let mut outputs: Vec<Vec<SumCoefficients>> = shape.output_elements.iter().map(zeroes).collect();
    outputs.iter_mut().flatten().flatten().for_each(|weight| *weight = draw());
    let mut scratch = vec![[0; SUMS]; shape.scratch_elements as usize];
    for row in map.steps().iter().rev().flatten() {
        let weights = match row.target {
            Target::Output(Element { shard, index }) => outputs[usize::from(shard)][index as usize],
            Target::Scratch(index) => scratch[index as usize],
        };
        for term in &row.terms {
            let sums = match term.source {
                Source::Input(Element { shard, index }) => {
                    &mut inputs[usize::from(shard)][index as usize]
                }
                Source::Scratch(index) => &mut scratch[index as usize],
            };
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum ^= field::mul(term.coefficient, weight);
            }
        }
    }
    inputs.into_iter().chain(outputs).flatten().collect()
}

/// The next number of a sequence (SplitMix64, by G. Steele, D. Lea and C. Flood).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
