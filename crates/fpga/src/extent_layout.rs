//! The layout of a job in memory, and its operation.
//!
//! A job has one extent of host memory and one of card memory with the same layout: its inputs,
//! then its outputs, each at a multiple of 64 bytes. Copies move the inputs to the card, one
//! operation makes the outputs, and copies move them back.
//!
//! Checksums of a coding job's outputs are one more output, behind the others. A second operation
//! makes them from the outputs in card memory, which then lie there without gaps.

use bytes::Bytes;
use fieldstone_accel::{Job, JobOutput, Shard};
use fieldstone_buf::AlignedBuf;
use fieldstone_crush::{ItemId, Osds};

use crate::bounds::{MAX_JOB_BYTES, MAX_PLACEMENTS, MAX_SHARDS};
use crate::descriptor::Descriptor;
use crate::regs::{BEAT_BYTES, H2cOp, MAX_WIDTH, PLACE_ROW_BYTES, checksum, code, place};

/// Bytes of a job's extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPart {
    /// Its offset.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

/// The layout of a job's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentLayout {
    /// The inputs.
    pub inputs: Vec<ExtentPart>,
    /// The outputs.
    pub outputs: Vec<ExtentPart>,
    /// Bytes of the extent.
    pub bytes: usize,
    /// Distance of two inputs, and of two outputs.
    strides: (usize, usize),
    /// Bytes of an element, for coding jobs.
    element_bytes: usize,
    /// Bytes per block of the checksums, for coding jobs with checksums.
    checksum_block_bytes: Option<usize>,
}

impl ExtentLayout {
    /// Lays the job out, if it has a form that the device can do: a right number of bytes in whole
    /// beats, within the bounds. The limits of maps and programs are checked elsewhere.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        match job {
            Job::Code { map, inputs, checksum_block_bytes } => {
                let slices: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
                let element_bytes = map.element_bytes(&slices).ok()?;
                if element_bytes == 0 || !element_bytes.is_multiple_of(BEAT_BYTES) {
                    return None;
                }
                let elements = &map.shape().output_elements;
                let outputs = elements.iter().map(|&count| count as usize * element_bytes);
                let inputs = inputs.iter().map(Bytes::len);
                let layout = Self::shards(inputs.collect(), outputs.collect(), element_bytes)?;
                match *checksum_block_bytes {
                    None => Some(layout),
                    Some(block_bytes) => layout.with_checksums(block_bytes),
                }
            }
            Job::Place { width, xs, .. } => {
                if !(1..=MAX_WIDTH).contains(width) || xs.len() > MAX_PLACEMENTS {
                    return None;
                }
                Self::shards(vec![4 * xs.len()], vec![PLACE_ROW_BYTES * xs.len()], 0)
            }
            Job::Checksum { data, block_bytes } => {
                let is_single = data.len() <= *block_bytes;
                let is_whole = block_bytes.is_multiple_of(BEAT_BYTES);
                if *block_bytes == 0 || !(is_single || is_whole) {
                    return None;
                }
                Self::shards(vec![data.len()], vec![4 * data.len().div_ceil(*block_bytes)], 0)
            }
        }
    }

    /// Inputs one stride apart, then outputs one stride apart.
    fn shards(inputs: Vec<usize>, outputs: Vec<usize>, element_bytes: usize) -> Option<Self> {
        let count_fits = |shards: &[usize]| (1..=MAX_SHARDS).contains(&shards.len());
        if !count_fits(&inputs) || !count_fits(&outputs) || inputs.contains(&0) {
            return None;
        }
        let stride = |shards: &[usize]| {
            let longest = shards.iter().copied().max().unwrap_or(0);
            let stride = longest.checked_next_multiple_of(BEAT_BYTES)?;
            (stride.checked_mul(shards.len())? <= MAX_JOB_BYTES).then_some(stride)
        };
        let strides = (stride(&inputs)?, stride(&outputs)?);
        let parts = |from: usize, stride: usize, shards: Vec<usize>| -> Vec<ExtentPart> {
            let offset = |index: usize| from + index * stride;
            let parts = shards.into_iter().enumerate();
            parts.map(|(index, bytes)| ExtentPart { offset: offset(index), bytes }).collect()
        };
        let outputs_at = strides.0 * inputs.len();
        let bytes = outputs_at + strides.1 * outputs.len();
        let (inputs, outputs) =
            (parts(0, strides.0, inputs), parts(outputs_at, strides.1, outputs));
        Some(Self { inputs, outputs, bytes, strides, element_bytes, checksum_block_bytes: None })
    }

    /// Adds the checksums of the outputs. `None` if the outputs are not all of the same length, in
    /// whole blocks, or if a block is not in whole beats.
    fn with_checksums(mut self, block_bytes: usize) -> Option<Self> {
        let is_whole = block_bytes > 0 && block_bytes.is_multiple_of(BEAT_BYTES);
        let stride = self.strides.1;
        let fits =
            |part: &ExtentPart| part.bytes == stride && part.bytes.is_multiple_of(block_bytes);
        if !is_whole || !self.outputs.iter().all(fits) || self.outputs.len() == MAX_SHARDS {
            return None;
        }
        let bytes = 4 * (self.outputs.len() * stride / block_bytes);
        self.outputs.push(ExtentPart { offset: self.bytes, bytes });
        self.bytes += bytes.next_multiple_of(BEAT_BYTES);
        self.checksum_block_bytes = Some(block_bytes);
        Some(self)
    }

    /// The job is a coding job that asks for checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.checksum_block_bytes.is_some()
    }

    /// The operation that makes the checksums of a coding job's outputs. `None` if the job asks for
    /// no checksums.
    #[must_use]
    pub fn checksum_of_outputs(&self, base: u64) -> Option<Descriptor> {
        let block_bytes = self.checksum_block_bytes?;
        let (sums, shards) = self.outputs.split_last()?;
        let bytes = shards.len() * self.strides.1;
        let (from, to) = (base + shards[0].offset as u64, base + sums.offset as u64);
        let operation = Descriptor::operation(H2cOp::Checksum, from, to, bytes as u64);
        Some(operation.with(checksum::BLOCK_BYTES, block_bytes as u64))
    }

    /// Calls `give` with the bytes of every input and the input's part.
    pub fn each_input(&self, job: &Job, mut give: impl FnMut(ExtentPart, &[u8])) {
        match job {
            Job::Code { inputs, .. } => {
                self.inputs.iter().zip(inputs).for_each(|(part, input)| give(*part, input));
            }
            Job::Place { xs, .. } => {
                let bytes: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
                give(self.inputs[0], &bytes);
            }
            Job::Checksum { data, .. } => give(self.inputs[0], data),
        }
    }

    /// The operation of `count` coding jobs, by the program of `bytes` at `program`. Their extents
    /// in card memory begin at `base`, and are `stride` apart.
    #[must_use]
    pub fn code(
        &self,
        base: u64,
        (program, bytes): (u64, u64),
        (count, stride): (usize, u64),
    ) -> Descriptor {
        let outputs_at = self.outputs[0].offset as u64;
        Descriptor::operation(H2cOp::Code, program, 0, bytes)
            .with(code::ELEMENT_BYTES, self.element_bytes as u64)
            .with(code::BATCH, count as u64)
            .with(code::INPUT_BATCH, stride)
            .with(code::OUTPUT_BATCH, stride)
            .with(code::INPUT_BASE, base)
            .with(code::OUTPUT_BASE, base + outputs_at)
            .with(code::INPUT_STRIDE, self.strides.0 as u64)
            .with(code::OUTPUT_STRIDE, self.strides.1 as u64)
    }

    /// The operation of a placement job, with the rule at this slot of this epoch's map.
    #[must_use]
    pub fn place(&self, base: u64, epoch: u32, rule: u16, width: usize) -> Descriptor {
        self.stream(H2cOp::Place, base)
            .with(place::EPOCH, epoch.into())
            .with(place::WIDTH, width as u64)
            .with(place::RULE, rule.into())
    }

    /// The operation of a checksum job.
    #[must_use]
    pub fn checksum(&self, base: u64, block_bytes: usize) -> Descriptor {
        // A block longer than the data gives the same result as one of the data's length.
        let block_bytes = block_bytes.min(self.inputs[0].bytes.next_multiple_of(BEAT_BYTES));
        self.stream(H2cOp::Checksum, base).with(checksum::BLOCK_BYTES, block_bytes as u64)
    }

    /// An operation from the only input to the only output.
    fn stream(&self, op: H2cOp, base: u64) -> Descriptor {
        let output = base + self.outputs[0].offset as u64;
        Descriptor::operation(op, base, output, self.inputs[0].bytes as u64)
    }

    /// Makes the result from the outputs; `read` reads them.
    ///
    /// # Errors
    /// The device wrote a row that is no placement.
    pub fn output(
        &self,
        job: &Job,
        mut read: impl FnMut(ExtentPart, &mut [u8]),
    ) -> Result<JobOutput, String> {
        let mut outputs = self.outputs.iter().map(|&part| {
            let mut output = AlignedBuf::stale(part.bytes);
            read(part, &mut output);
            output
        });
        match job {
            Job::Code { .. } => {
                let mut outputs: Vec<AlignedBuf> = outputs.collect();
                let sums = self.checksum_block_bytes.and_then(|_| outputs.pop());
                let mut sums = words(sums.as_deref().unwrap_or_default());
                let blocks = self.checksum_block_bytes.map_or(0, |len| self.strides.1 / len);
                let shards = outputs.into_iter().map(|data| Shard {
                    data: data.freeze(),
                    checksums: sums.by_ref().take(blocks).collect(),
                });
                Ok(JobOutput::Code(shards.collect()))
            }
            Job::Place { width, .. } => {
                let rows = outputs.next().unwrap_or_else(|| AlignedBuf::zeroed(0));
                let rows = rows.chunks_exact(PLACE_ROW_BYTES).map(|row| placement(row, *width));
                Ok(JobOutput::Place(rows.collect::<Result<_, _>>()?))
            }
            Job::Checksum { .. } => {
                let sums = outputs.next().unwrap_or_else(|| AlignedBuf::zeroed(0));
                Ok(JobOutput::Checksum(words(&sums).collect()))
            }
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    bytes.chunks_exact(4).map(word)
}

/// The devices of one row: a count, then items.
fn placement(row: &[u8], width: usize) -> Result<Osds, String> {
    let mut words = words(row);
    let count = words.next().unwrap_or(0) as usize;
    if count > width {
        return Err(format!("a placement of {count} items, {width} were asked for"));
    }
    let device = |item: u32| {
        let item = ItemId(item.cast_signed());
        item.osd().filter(|_| item != ItemId::NONE)
    };
    Ok(Osds(words.take(count).map(device).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counts_and_items() {
        let mut row = [0xff; PLACE_ROW_BYTES];
        for (index, word) in [3u32, 7, 0x7fff_ffff, 0].into_iter().enumerate() {
            row[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
        }
        let placed = placement(&row, 3).expect("three are not more than three");
        let ids: Vec<_> = placed.iter().map(|osd| osd.map(|osd| osd.0)).collect();
        assert_eq!(ids, [Some(7), None, Some(0)]);
        assert!(placement(&row, 2).is_err());
    }
}
