//! Checks a stripe: are its shards consistent, and if not, which shard is wrong?
//!
//! A stripe is consistent if encoding its data gives its parities. With m >= 2 parities, one wrong
//! shard can be found without any checksum: the check treats each shard in turn as lost, repairs it
//! from others, and tests whether the stripe is then consistent. At most one of these repairs gives
//! a consistent stripe, because codewords differ in at least m + 1 shards. If no repair does, more
//! than one shard is wrong. Several wrong shards can, with bad luck, look like another single wrong
//! shard; only checksums exclude that.

use crate::{Code, Layout};
use fieldstone_gf::{LinearMap, ShapeError};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The parities belong to the data.
    Consistent,
    /// Exactly this shard does not fit the others.
    Wrong(usize),
    /// The stripe is wrong, but no single shard explains it, or there are too few parities to
    /// decide.
    Unknown,
}

/// True if the parities belong to the data. `shards` are all k + m, of equal lengths.
///
/// # Errors
/// Numbers or lengths of shards do not fit the code.
pub fn verify(code: &dyn Code, shards: &[&[u8]]) -> Result<bool, ShapeError> {
    check_count(code, shards)?;
    let (data, parities) = shards.split_at(code.k());
    let expected = run(code.layout(), code.encode(), data)?;
    for (at, (parity, expected)) in parities.iter().zip(&expected).enumerate() {
        let (given, expected) = (parity.len(), expected.len());
        if given != expected {
            return Err(ShapeError::Length {
                side: "input",
                shard: code.k() + at,
                expected,
                given,
            });
        }
    }
    Ok(parities.iter().zip(&expected).all(|(parity, expected)| *parity == &expected[..]))
}

/// Finds the wrong shard of a stripe. `shards` are all k + m, of equal lengths.
///
/// # Errors
/// Numbers or lengths of shards do not fit the code.
pub fn locate(code: &dyn Code, shards: &[&[u8]]) -> Result<Verdict, ShapeError> {
    if verify(code, shards)? {
        return Ok(Verdict::Consistent);
    }
    if code.m() < 2 {
        return Ok(Verdict::Unknown);
    }
    for suspect in 0..shards.len() {
        // Any k whole shards are enough: verify then compares all others.
        let others = (0..shards.len()).filter(|&shard| shard != suspect);
        let others: Vec<usize> = others.take(code.k()).collect();
        let plan = code.repair(&[suspect], &others).expect("k other shards are there");
        // With only k shards the code has no choice: it reads them whole.
        let inputs: Vec<&[u8]> = plan.reads.iter().map(|read| shards[read.shard]).collect();
        let repaired = run(code.layout(), &plan.map, &inputs)?;
        let mut mended = shards.to_vec();
        mended[suspect] = &repaired[0];
        if verify(code, &mended)? {
            return Ok(Verdict::Wrong(suspect));
        }
    }
    Ok(Verdict::Unknown)
}

fn check_count(code: &dyn Code, shards: &[&[u8]]) -> Result<(), ShapeError> {
    let (expected, given) = (code.k() + code.m(), shards.len());
    if expected == given {
        return Ok(());
    }
    Err(ShapeError::ShardCount { side: "input", expected, given })
}

/// Executes a map from whole shards to whole shards.
fn run(layout: Layout, map: &LinearMap, inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, ShapeError> {
    let mut outputs = vec![vec![0; inputs[0].len()]; map.outputs()];
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    layout.execute(map, inputs, &mut slices)?;
    Ok(outputs)
}
