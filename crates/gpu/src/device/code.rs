//! Coding jobs on the card. The units are the columns of the elements.
//!
//! A slice is the same range of columns of all elements, so a copy of a shard has a row for each
//! element. The link is slow with short rows: with rows of 21 KB it copies at 0.86 of its rate. A
//! map of many elements therefore has larger slices, so that a row has [`ROW_BYTES`] if possible. A
//! job that fits is one slice. Then a shard is one run of bytes, if an element is a multiple of
//! [`PITCH_ALIGN_BYTES`].
//!
//! If a job wants checksums, the card computes them behind the program, from the outputs in its
//! memory, where blocks do not reach across elements; else the host does. The memory of a slice
//! begins with the checksums, so that a lane's buffer has room for them alone if the card reads and
//! writes everything else directly.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{JobError, JobOutput, Shard, crc32c};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;

use super::lane::{Lane, Need};
use super::{POISON, Work};
use crate::card::{Card, Loaded};
use crate::checksum::{self, Blocks, Sums};
use crate::driver::{DriverError, Rows};
use crate::program::PITCH_ALIGN_BYTES;

/// The wanted length of rows.
const ROW_BYTES: usize = 64 << 10;
/// The length of a slice, inputs and outputs together, if rows of [`ROW_BYTES`] are less.
const SLICE_BYTES_MIN: usize = 16 << 20;
/// Most bytes of a slice.
const SLICE_BYTES_MAX: usize = 64 << 20;

const ALIGN: usize = PITCH_ALIGN_BYTES as usize;
/// Inputs begin at multiples of this number of bytes behind the checksums.
const SUMS_ALIGN_BYTES: usize = 256;

/// A coding job.
pub(super) struct CodeWork {
    program: Arc<Loaded>,
    map: Arc<LinearMap>,
    inputs: Vec<Bytes>,
    outputs: Vec<AlignedBuf>,
    checksum_block_bytes: Option<usize>,
    element_bytes: usize,
    /// Elements of all inputs, and of all outputs.
    elements: (usize, usize),
    /// The card reads all inputs, and writes all outputs, directly.
    direct: (bool, bool),
    sums: Option<CardSums>,
}

/// Checksums that the card computes.
struct CardSums {
    kernel: Arc<Sums>,
    block_bytes: usize,
    /// Those of each output, as far as they are known.
    of_outputs: Vec<Vec<u32>>,
}

impl CardSums {
    /// `None` if blocks reach across elements or the card cannot compute them.
    fn new(
        card: &Card,
        block_bytes: usize,
        output_elements: &[u32],
        element_bytes: usize,
    ) -> Option<Self> {
        if element_bytes == 0 || !checksum::fits(element_bytes, block_bytes) {
            return None;
        }
        let blocks = element_bytes / block_bytes;
        let of_outputs = output_elements.iter().map(|&count| vec![0; count as usize * blocks]);
        Some(Self { kernel: card.sums()?, block_bytes, of_outputs: of_outputs.collect() })
    }
}

/// Bytes of a checksum.
const SUM_BYTES: usize = size_of::<u32>();

/// The longest range of columns of a slice, for a map with this number of elements.
fn columns_max(elements: usize) -> usize {
    let wanted = ROW_BYTES.saturating_mul(elements);
    wanted.clamp(SLICE_BYTES_MIN, SLICE_BYTES_MAX) / elements.max(1) / ALIGN * ALIGN
}

/// Where the elements of a map's shards lie in the memory of a slice, and how many they are.
fn first_elements(counts: &[u32]) -> impl Iterator<Item = (usize, usize)> + '_ {
    counts.iter().scan(0, |first, &count| {
        let place = *first;
        *first += count as usize;
        Some((place, count as usize))
    })
}

/// The distance of elements in the memory of a slice.
fn pitch(columns: usize) -> usize {
    columns.next_multiple_of(ALIGN)
}

impl CodeWork {
    /// The work of a job. `None` if the inputs do not fit the map, or the map has more elements
    /// than a slice has room for.
    pub(super) fn new(
        card: &Arc<Card>,
        program: Arc<Loaded>,
        map: &Arc<LinearMap>,
        inputs: &[Bytes],
        checksum_block_bytes: Option<usize>,
    ) -> Option<Self> {
        let slices: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let element_bytes = map.element_bytes(&slices).ok()?;
        let (ins, outs) = program.program().elements();
        let elements = (ins as usize, outs as usize);
        if columns_max(elements.0 + elements.1) == 0 || checksum_block_bytes == Some(0) {
            return None;
        }
        let lengths = map.shape().output_elements.iter().map(|&n| n as usize * element_bytes);
        let pinned: Option<Vec<AlignedBuf>> =
            lengths.clone().map(|len| card.host_buffer(len)).collect();
        let direct = (inputs.iter().all(|i| card.reads_directly(i)), pinned.is_some());
        let outputs = pinned.unwrap_or_else(|| lengths.map(AlignedBuf::stale).collect());
        let sums = checksum_block_bytes.and_then(|block_bytes| {
            CardSums::new(card, block_bytes, &map.shape().output_elements, element_bytes)
        });
        // A slice has whole blocks.
        let sums = sums.filter(|sums| sums.block_bytes <= columns_max(elements.0 + elements.1));
        let (map, inputs) = (Arc::clone(map), inputs.to_vec());
        Some(Self {
            sums,
            program,
            map,
            inputs,
            outputs,
            checksum_block_bytes,
            element_bytes,
            elements,
            direct,
        })
    }

    /// Bytes before the inputs in the memory of a slice: the checksums of its outputs.
    fn sums_bytes(&self, columns: usize) -> usize {
        let blocks = self.sums.as_ref().map_or(0, |sums| columns / sums.block_bytes);
        (self.elements.1 * blocks * SUM_BYTES).next_multiple_of(SUMS_ALIGN_BYTES)
    }

    /// Where an element lies in the memory of a slice, among those of inputs and then outputs.
    fn place(&self, columns: usize, element: usize) -> usize {
        self.sums_bytes(columns) + element * pitch(columns)
    }

    /// The rows of a slice, for a shard with this number of elements.
    fn rows(&self, columns: &Range<usize>, elements: usize) -> Rows {
        Rows {
            row_bytes: columns.len(),
            rows: elements,
            host_pitch: self.element_bytes,
            card_pitch: pitch(columns.len()),
        }
    }

    fn copy_in(&self, card: &Card, lane: &Lane, columns: &Range<usize>) -> Result<(), DriverError> {
        let places = first_elements(&self.map.shape().input_elements);
        for (input, (first, count)) in self.inputs.iter().zip(places) {
            let to = lane.arena().plus(self.place(columns.len(), first) as u64);
            let (from, rows) = (input[columns.start..].as_ptr(), self.rows(columns, count));
            // SAFETY: the job keeps its inputs until the slice is complete. They have `count`
            // elements of `element_bytes` bytes, and the slice fits into the arena.
            unsafe { card.driver().copy_in(lane.stream, to, from, rows)? };
        }
        Ok(())
    }

    fn copy_out(
        &mut self,
        card: &Card,
        lane: &Lane,
        columns: &Range<usize>,
    ) -> Result<(), DriverError> {
        let places: Vec<_> = first_elements(&self.map.shape().output_elements)
            .map(|(first, count)| {
                let place = self.place(columns.len(), self.elements.0 + first);
                (place, self.rows(columns, count))
            })
            .collect();
        for (output, (place, rows)) in self.outputs.iter_mut().zip(places) {
            let from = lane.arena().plus(place as u64);
            let to = output[columns.start..].as_mut_ptr();
            // SAFETY: as above, for the outputs; no other slice writes these columns.
            unsafe { card.driver().copy_out(lane.stream, to, from, rows)? };
        }
        Ok(())
    }

    /// Copies a slice's inputs to the lane's pinned buffer.
    fn stage(&self, lane: &mut Lane, columns: &Range<usize>) {
        let inputs_at = self.place(columns.len(), 0);
        let mut rows = lane.staging_mut()[inputs_at..].chunks_exact_mut(pitch(columns.len()));
        for input in &self.inputs {
            for (element, row) in input.chunks_exact(self.element_bytes).zip(rows.by_ref()) {
                row[..columns.len()].copy_from_slice(&element[columns.clone()]);
            }
        }
    }

    /// Copies a complete slice's outputs from the lane's pinned buffer.
    fn unstage(&mut self, lane: &Lane, columns: &Range<usize>) {
        let outputs_at = self.place(columns.len(), self.elements.0);
        let mut rows = lane.staging()[outputs_at..].chunks_exact(pitch(columns.len()));
        for output in &mut self.outputs {
            for (element, row) in output.chunks_exact_mut(self.element_bytes).zip(rows.by_ref()) {
                element[columns.clone()].copy_from_slice(&row[..columns.len()]);
            }
        }
    }
}

impl CodeWork {
    /// Starts the checksums of a slice's outputs, and their copy to the lane's buffer.
    fn start_sums(
        &self,
        card: &Card,
        lane: &mut Lane,
        columns: &Range<usize>,
    ) -> Result<(), DriverError> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let blocks = Blocks {
            data: lane.arena().plus(self.place(columns.len(), self.elements.0) as u64),
            rows: self.elements.1 as u32,
            row_bytes: columns.len() as u32,
            pitch: pitch(columns.len()) as u32,
            block_bytes: sums.block_bytes as u32,
        };
        sums.kernel.launch(lane.stream, &blocks, lane.arena())?;
        lane.copy_out(card, 0..self.sums_bytes(columns.len()))
    }

    /// Takes the checksums of a complete slice from the lane's buffer.
    fn take_sums(&mut self, lane: &Lane, columns: &Range<usize>) {
        let Some(CardSums { block_bytes, of_outputs, .. }) = &mut self.sums else { return };
        let (in_element, blocks) =
            (self.element_bytes / *block_bytes, columns.len() / *block_bytes);
        let first = columns.start / *block_bytes;
        let mut sums = lane.staging().as_chunks::<SUM_BYTES>().0.iter();
        for of_output in of_outputs {
            for of_element in of_output.chunks_exact_mut(in_element) {
                for (to, bytes) in of_element[first..first + blocks].iter_mut().zip(&mut sums) {
                    *to = u32::from_le_bytes(*bytes);
                }
            }
        }
    }
}

impl Work for CodeWork {
    fn units(&self) -> usize {
        self.element_bytes
    }

    fn slice_units(&self) -> usize {
        let columns = columns_max(self.elements.0 + self.elements.1);
        let whole = |sums: &CardSums| columns / sums.block_bytes * sums.block_bytes;
        self.sums.as_ref().map_or(columns, whole)
    }

    fn need(&self, units: usize) -> Need {
        let arena = self.place(units, self.elements.0 + self.elements.1);
        let direct = self.direct == (true, true);
        Need { arena, staging: if direct { self.sums_bytes(units) } else { arena } }
    }

    fn start(
        &mut self,
        card: &Card,
        lane: &mut Lane,
        columns: Range<usize>,
        poison: bool,
    ) -> Result<(), DriverError> {
        let pitch = pitch(columns.len());
        let at = |element| self.place(columns.len(), element);
        let (ins, outs, end) = (at(0), at(self.elements.0), at(self.elements.0 + self.elements.1));
        let (inputs_at, outputs_at) =
            (lane.arena().plus(ins as u64), lane.arena().plus(outs as u64));
        if self.direct.0 {
            self.copy_in(card, lane, &columns)?;
        } else {
            self.stage(lane, &columns);
            lane.copy_in(card, ins..outs)?;
        }
        if poison {
            card.driver().fill(lane.stream, outputs_at, POISON, (end - outs) as u64)?;
        }
        self.program.launch(lane.stream, inputs_at, outputs_at, pitch as u32)?;
        self.start_sums(card, lane, &columns)?;
        if self.direct.1 {
            self.copy_out(card, lane, &columns)?;
        } else {
            lane.copy_out(card, outs..end)?;
        }
        card.driver().record(lane.done, lane.stream)
    }

    fn end(&mut self, lane: &Lane, columns: Range<usize>) -> Result<(), JobError> {
        if !self.direct.1 {
            self.unstage(lane, &columns);
        }
        self.take_sums(lane, &columns);
        Ok(())
    }

    fn output(self: Box<Self>) -> JobOutput {
        let of_host = |data: &[u8]| match self.checksum_block_bytes {
            None => Vec::new(),
            Some(block_bytes) => data.chunks(block_bytes).map(crc32c).collect(),
        };
        let mut of_card = self.sums.map(|sums| sums.of_outputs.into_iter());
        let shard = |output: AlignedBuf| {
            let known = of_card.as_mut().and_then(Iterator::next);
            let checksums = known.unwrap_or_else(|| of_host(&output));
            Shard { data: output.freeze(), checksums }
        };
        JobOutput::Code(self.outputs.into_iter().map(shard).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_long_as_the_slice_allows() {
        // rs:4+2, clay:4+2, clay:8+4, and more elements than there is room for.
        assert_eq!(columns_max(6), (16 << 20) / 6 / 16 * 16);
        assert_eq!(columns_max(48), (16 << 20) / 48 / 16 * 16);
        assert_eq!(columns_max(768), 64 << 10);
        assert_eq!(columns_max(2048), 32 << 10);
        assert_eq!(columns_max(1 << 23), 0);
    }
}
