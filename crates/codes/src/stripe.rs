//! Whole stripes in memory.
//!
//! A [`Code`] gives maps and plans to programs that move bytes between disks, networks and devices.
//! A program that has the shards in memory needs less: parities of data, the missing shards, and
//! parities after a small write. This module has functions for that, for Rust and for the bindings
//! of other languages. They check every number and length, and their errors name shards.
//!
//! [`decode`] reads any k whole shards and copies no data. If reading costs more than computing,
//! make a plan with [`Code::repair`], read only its ranges, and execute it with [`repair`].

use std::ops::Range;

use thiserror::Error;

use crate::{Code, CodeError, DeltaPlan, Layout, Profile, RepairPlan, ShardRead, Verdict, check};

/// Why a stripe cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StripeError {
    /// The named shards are not valid, or too few are left.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The number of buffers differs from that of the code or plan.
    #[error("{given} {what} were given instead of {expected}")]
    Count {
        /// The kind of buffers.
        what: &'static str,
        /// The expected number.
        expected: usize,
        /// The given number.
        given: usize,
    },
    /// Buffers of different lengths.
    #[error("{what} {number} has {given} bytes instead of {expected}")]
    Length {
        /// The kind of buffer.
        what: &'static str,
        /// Its number.
        number: usize,
        /// Bytes that it must have.
        expected: usize,
        /// Bytes that it has.
        given: usize,
    },
    /// The shards' length is not a multiple of the code's granule.
    #[error(
        "shards of {profile} have multiples of {granule_bytes} bytes, and {shard_bytes} is none"
    )]
    Granule {
        /// The code.
        profile: Profile,
        /// [`Layout::granule_bytes`].
        granule_bytes: usize,
        /// The given length.
        shard_bytes: usize,
    },
    /// Bytes that are not inside the shard.
    #[error("{len_bytes} bytes at {offset_bytes} are not inside a shard of {shard_bytes} bytes")]
    OutOfShard {
        /// Their offset.
        offset_bytes: usize,
        /// Their number.
        len_bytes: usize,
        /// Bytes of the shard.
        shard_bytes: usize,
    },
    /// A part of a word.
    #[error("{profile} is updated in whole words of {word_bytes} bytes")]
    PartOfWord {
        /// The code.
        profile: Profile,
        /// Bytes of its words.
        word_bytes: usize,
    },
}

/// Computes the m parities of the k data shards, all of one length.
///
/// # Errors
/// Numbers or lengths do not fit the code. Then no parity is written.
pub fn encode(
    code: &dyn Code,
    data: &[&[u8]],
    parities: &mut [&mut [u8]],
) -> Result<(), StripeError> {
    check_count("data shards", code.k(), data.len())?;
    check_count("parity shards", code.m(), parities.len())?;
    let shard_bytes = data[0].len();
    check_granule(code, shard_bytes)?;
    check_lengths("shard", shard_bytes, data.iter().map(|shard| shard.len()), 0)?;
    let lengths = parities.iter().map(|shard| shard.len());
    check_lengths("shard", shard_bytes, lengths, code.k())?;
    let done = code.layout().execute(code.encode(), data, parities);
    done.expect("numbers and lengths were checked");
    Ok(())
}

/// Computes the shards `lost`, data or parity, into `outputs`. `shards` are all k + m, with `None`
/// for missing ones. The function reads any k of the others, data first; it never reads a lost
/// shard, even if it is given. Without lost shards it does nothing.
///
/// # Errors
/// Fewer than k shards are left, or numbers or lengths do not fit the code. Then no output is
/// written.
pub fn decode(
    code: &dyn Code,
    shards: &[Option<&[u8]>],
    lost: &[usize],
    outputs: &mut [&mut [u8]],
) -> Result<(), StripeError> {
    check_count("shards", code.k() + code.m(), shards.len())?;
    check_count("buffers for lost shards", lost.len(), outputs.len())?;
    if lost.is_empty() {
        return Ok(());
    }
    let there = |shard: &usize| shards[*shard].is_some() && !lost.contains(shard);
    // With only k shards the code has no choice: it reads them whole.
    let available: Vec<usize> = (0..shards.len()).filter(there).take(code.k()).collect();
    let plan = code.repair(lost, &available)?;
    let whole = |shard: usize| shards[shard].expect("plans read what is available");
    let shard_bytes = whole(available[0]).len();
    check_granule(code, shard_bytes)?;
    for &shard in &available {
        check_lengths("shard", shard_bytes, std::iter::once(whole(shard).len()), shard)?;
    }
    for (&shard, output) in lost.iter().zip(outputs.iter()) {
        check_lengths("shard", shard_bytes, std::iter::once(output.len()), shard)?;
    }
    let inputs: Vec<&[u8]> = plan.reads.iter().map(|read| whole(read.shard)).collect();
    let done = code.layout().execute(&plan.map, &inputs, outputs);
    done.expect("numbers and lengths were checked");
    Ok(())
}

/// Executes a plan of [`Code::repair`]. `inputs[i]` holds the ranges of `plan.reads[i]`, one after
/// the other, and `outputs[i]` becomes shard `plan.lost[i]`.
///
/// # Errors
/// Numbers or lengths do not fit the plan. Then no output is written.
pub fn repair(
    code: &dyn Code,
    plan: &RepairPlan,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) -> Result<(), StripeError> {
    check_count("reads", plan.reads.len(), inputs.len())?;
    check_count("buffers for lost shards", plan.lost.len(), outputs.len())?;
    let shard_bytes = outputs[0].len();
    check_granule(code, shard_bytes)?;
    for (&shard, output) in plan.lost.iter().zip(outputs.iter()) {
        check_lengths("shard", shard_bytes, std::iter::once(output.len()), shard)?;
    }
    for (at, (read, input)) in plan.reads.iter().zip(inputs).enumerate() {
        let expected = read_bytes(code, read, shard_bytes);
        check_lengths("read", expected, std::iter::once(input.len()), at)?;
    }
    let done = code.layout().execute(&plan.map, inputs, outputs);
    done.expect("numbers and lengths were checked");
    Ok(())
}

/// Bytes that a repair reads from one shard of `shard_bytes` bytes.
#[must_use]
pub fn read_bytes(code: &dyn Code, read: &ShardRead, shard_bytes: usize) -> usize {
    // If only some elements are read, elements are equal parts of a shard.
    let part = shard_bytes as u128 * u128::from(read.element_count());
    usize::try_from(part / u128::from(code.elements())).expect("no more than a shard")
}

/// Updates the parities for a write to data shard `shard`: the bytes at `offset_bytes` were `old`
/// and are `new`. The function does not need the other data shards.
///
/// # Errors
/// Numbers or lengths do not fit the code; or the write is not inside the shard; or it is not of
/// whole words in a code over words of 16 or 32 bits. Then no parity is written.
pub fn update(
    code: &dyn Code,
    shard: usize,
    offset_bytes: usize,
    old: &[u8],
    new: &[u8],
    parities: &mut [&mut [u8]],
) -> Result<(), StripeError> {
    check_count("parity shards", code.m(), parities.len())?;
    check_lengths("new content of shard", old.len(), std::iter::once(new.len()), shard)?;
    let profile = code.profile();
    if shard >= code.k() {
        return Err(CodeError::NoSuchDataShard { shard, profile }.into());
    }
    let Some(shard_bytes) = parities.first().map(|parity| parity.len()) else { return Ok(()) };
    check_granule(code, shard_bytes)?;
    let lengths = parities.iter().map(|parity| parity.len());
    check_lengths("shard", shard_bytes, lengths, code.k())?;
    let len_bytes = old.len();
    let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= shard_bytes);
    let Some(end) = end else {
        return Err(StripeError::OutOfShard { offset_bytes, len_bytes, shard_bytes });
    };
    if let Layout::Words { field } = code.layout() {
        let word_bytes = field.bytes();
        if !offset_bytes.is_multiple_of(word_bytes) || !len_bytes.is_multiple_of(word_bytes) {
            return Err(StripeError::PartOfWord { profile, word_bytes });
        }
    }
    let delta: Vec<u8> = old.iter().zip(new).map(|(old, new)| old ^ new).collect();
    for part in delta_parts(code, shard_bytes, offset_bytes..end) {
        let plan = code.delta(shard, part.elements.clone())?;
        let delta = &delta[part.bytes.start - offset_bytes..part.bytes.end - offset_bytes];
        add(code, &plan, &part, delta, parities);
    }
    Ok(())
}

/// True if the parities belong to the data. `shards` are all k + m, of one length.
///
/// # Errors
/// Numbers or lengths do not fit the code.
pub fn verify(code: &dyn Code, shards: &[&[u8]]) -> Result<bool, StripeError> {
    check_stripe(code, shards)?;
    Ok(check::verify(code, shards).expect("numbers and lengths were checked"))
}

/// Finds the wrong shard of a stripe by [`check::locate`]. `shards` are all k + m, of one length.
///
/// # Errors
/// Numbers or lengths do not fit the code.
pub fn locate(code: &dyn Code, shards: &[&[u8]]) -> Result<Verdict, StripeError> {
    check_stripe(code, shards)?;
    Ok(check::locate(code, shards).expect("numbers and lengths were checked"))
}

/// A part of a write that one delta plan covers.
struct DeltaPart {
    /// The bytes in the shard.
    bytes: Range<usize>,
    /// The elements of these bytes.
    elements: Range<u32>,
    /// Offset of element 0, in all shards.
    origin_bytes: usize,
    /// Distance of the elements' beginnings.
    stride_bytes: usize,
    /// The bytes of each of the elements, or of the whole shard in a code over words.
    columns: Range<usize>,
}

/// Cuts a range of a shard into parts: each has whole elements, or bytes of one element. In a code
/// over words, every element has bits in the whole range, so the range is one part.
fn delta_parts(code: &dyn Code, shard_bytes: usize, mut range: Range<usize>) -> Vec<DeltaPart> {
    let elements = code.elements();
    let block_bytes = match code.layout() {
        Layout::Contiguous => shard_bytes,
        Layout::Packets { packet_bytes } => packet_bytes * elements as usize,
        Layout::Words { .. } if range.is_empty() => return Vec::new(),
        Layout::Words { .. } => {
            let (bytes, columns) = (range.clone(), range);
            let (elements, origin_bytes, stride_bytes) = (0..elements, 0, shard_bytes);
            return vec![DeltaPart { bytes, elements, origin_bytes, stride_bytes, columns }];
        }
    };
    let stride_bytes = block_bytes / elements as usize;
    let mut parts = Vec::new();
    while !range.is_empty() {
        let origin_bytes = range.start / block_bytes * block_bytes;
        let end = range.end.min(origin_bytes + block_bytes);
        let (element, column) = {
            let at = range.start - origin_bytes;
            (at / stride_bytes, at % stride_bytes)
        };
        let whole = if column == 0 { (end - range.start) / stride_bytes } else { 0 };
        let columns = match whole {
            0 => column..stride_bytes.min(column + end - range.start),
            _ => 0..stride_bytes,
        };
        let count = whole.max(1);
        let bytes = range.start..range.start + count * columns.len();
        range.start = bytes.end;
        let elements = element as u32..(element + count) as u32;
        parts.push(DeltaPart { bytes, elements, origin_bytes, stride_bytes, columns });
    }
    parts
}

/// Adds the effect of a part's delta to the parities.
fn add(
    code: &dyn Code,
    plan: &DeltaPlan,
    part: &DeltaPart,
    delta: &[u8],
    parities: &mut [&mut [u8]],
) {
    let words = matches!(code.layout(), Layout::Words { .. });
    let width = part.columns.len();
    // A shard of words is one range for any elements.
    let elements_of = |write: &ShardRead| if words { 1 } else { write.element_count() as usize };
    let mut deltas: Vec<Vec<u8>> =
        plan.writes.iter().map(|write| vec![0; elements_of(write) * width]).collect();
    let mut outputs: Vec<&mut [u8]> = deltas.iter_mut().map(Vec::as_mut_slice).collect();
    let done = match code.layout() {
        Layout::Words { .. } => code.layout().execute(&plan.map, &[delta], &mut outputs),
        // The part has equally many bytes of each of its elements, so it is a stripe of equal
        // elements.
        Layout::Contiguous | Layout::Packets { .. } => plan.map.execute(&[delta], &mut outputs),
    };
    done.expect("the buffers were made for the map's shape");
    for (write, delta) in plan.writes.iter().zip(&deltas) {
        let parity = &mut parities[write.shard - code.k()];
        let elements = write.elements.iter().cloned().flatten();
        for (element, delta) in elements.zip(delta.chunks_exact(width)) {
            let at = part.origin_bytes + element as usize * part.stride_bytes;
            let place = &mut parity[at + part.columns.start..at + part.columns.end];
            place.iter_mut().zip(delta).for_each(|(byte, delta)| *byte ^= delta);
        }
    }
}

fn check_stripe(code: &dyn Code, shards: &[&[u8]]) -> Result<(), StripeError> {
    check_count("shards", code.k() + code.m(), shards.len())?;
    let shard_bytes = shards[0].len();
    check_granule(code, shard_bytes)?;
    check_lengths("shard", shard_bytes, shards.iter().map(|shard| shard.len()), 0)
}

fn check_count(what: &'static str, expected: usize, given: usize) -> Result<(), StripeError> {
    if expected == given { Ok(()) } else { Err(StripeError::Count { what, expected, given }) }
}

fn check_granule(code: &dyn Code, shard_bytes: usize) -> Result<(), StripeError> {
    let granule_bytes = code.layout().granule_bytes(code.elements());
    if shard_bytes.is_multiple_of(granule_bytes) {
        return Ok(());
    }
    Err(StripeError::Granule { profile: code.profile(), granule_bytes, shard_bytes })
}

/// Checks the lengths of buffers, which are numbered from `first`.
fn check_lengths(
    what: &'static str,
    expected: usize,
    lengths: impl Iterator<Item = usize>,
    first: usize,
) -> Result<(), StripeError> {
    for (number, given) in (first..).zip(lengths) {
        if given != expected {
            return Err(StripeError::Length { what, number, expected, given });
        }
    }
    Ok(())
}
