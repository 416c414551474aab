//! Parity updates: the effect of a change of one data shard on the parities.
//!
//! Every map is linear, so the parities' deltas are the encoder's outputs for the data's delta,
//! with zeros for all other inputs. The encoder itself gives the coefficients of that part, for any
//! number of steps. Byte column c of its input holds 1 in changed element c and 0 elsewhere. Then
//! byte column c of a parity element is the coefficient of that element.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_gf::{LinearMap, Term};

use crate::program::Program;
use crate::{DeltaPlan, ShardRead};

/// Columns of one probe; bounds the probe's memory.
const PROBE_COLUMNS: usize = 64;

/// The plan for a change of `elements` of data shard `shard`. The shard and the elements exist.
pub(crate) fn plan(encode: &LinearMap, k: usize, shard: usize, elements: Range<u32>) -> DeltaPlan {
    let parity_elements = &encode.shape().output_elements;
    // For each element of each parity, the terms over the changed elements.
    let mut terms: Vec<Vec<Vec<Term>>> =
        parity_elements.iter().map(|&count| vec![Vec::new(); count as usize]).collect();
    let changed: Vec<u32> = elements.clone().collect();
    for (part, columns) in changed.chunks(PROBE_COLUMNS).enumerate() {
        let outputs = probe(encode, shard, columns);
        for (parity, output) in terms.iter_mut().zip(&outputs) {
            for (row, coefficients) in parity.iter_mut().zip(output.chunks(columns.len())) {
                let first = part * PROBE_COLUMNS;
                let nonzero = coefficients.iter().enumerate().filter(|(_, c)| **c != 0);
                row.extend(nonzero.map(|(at, &c)| Term::input(0, (first + at) as u32, c)));
            }
        }
    }
    let touched = |parity: &[Vec<Term>]| -> Vec<u32> {
        let rows = parity.iter().enumerate();
        rows.filter(|(_, row)| !row.is_empty()).map(|(element, _)| element as u32).collect()
    };
    let touched: Vec<(usize, Vec<u32>)> = terms
        .iter()
        .map(|parity| touched(parity))
        .enumerate()
        .filter(|(_, elements)| !elements.is_empty())
        .collect();
    let counts = touched.iter().map(|(_, elements)| elements.len() as u32).collect();
    let mut program = Program::new(vec![changed.len() as u32], counts);
    for (output, (parity, elements)) in touched.iter().enumerate() {
        for (index, &element) in elements.iter().enumerate() {
            let terms = std::mem::take(&mut terms[*parity][element as usize]);
            program.output(output, index as u32, terms);
        }
    }
    let writes = touched.into_iter().map(|(parity, rows)| ShardRead::of(k + parity, rows));
    DeltaPlan { shard, elements, writes: writes.collect(), map: Arc::new(program.finish()) }
}

/// Executes the encoder on unit deltas: column c has a 1 in element `changed[c]` of the shard.
fn probe(encode: &LinearMap, shard: usize, changed: &[u32]) -> Vec<Vec<u8>> {
    let (width, shape) = (changed.len(), encode.shape());
    let longest = shape.input_elements.iter().copied().max().unwrap_or(0) as usize;
    let zeros = vec![0u8; longest * width];
    let mut units = zeros.clone();
    for (column, &element) in changed.iter().enumerate() {
        units[element as usize * width + column] = 1;
    }
    let inputs: Vec<&[u8]> = (shape.input_elements.iter().enumerate())
        .map(|(input, &count)| {
            let bytes = if input == shard { &units } else { &zeros };
            &bytes[..count as usize * width]
        })
        .collect();
    let mut outputs: Vec<Vec<u8>> =
        shape.output_elements.iter().map(|&count| vec![0; count as usize * width]).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    encode.execute(&inputs, &mut slices).expect("the buffers were made for the map's shape");
    outputs
}
