//! Coding jobs on the card. The units are the columns of the elements.
//!
//! A slice is the same range of columns of all elements, so a copy of a shard has a row for each
//! element. The link is slow with short rows: with rows of 21 KB it copies at 0.86 of its rate. A
//! map of many elements therefore has larger slices, so that a row has [`ROW_BYTES`] if possible. A
//! job that fits is one slice. Then a shard is one run of bytes, if an element is a multiple of
//! [`PITCH_ALIGN_BYTES`].

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{JobError, JobOutput, Shard, crc32c};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;

use super::lane::{Lane, Need};
use super::{POISON, Work};
use crate::card::{Card, Loaded};
use crate::driver::{DriverError, Rows};
use crate::program::PITCH_ALIGN_BYTES;

/// The wanted length of rows.
const ROW_BYTES: usize = 64 << 10;
/// The length of a slice, inputs and outputs together, if rows of [`ROW_BYTES`] are less.
const SLICE_BYTES_LEAST: usize = 16 << 20;
/// Most bytes of a slice.
const SLICE_BYTES_MOST: usize = 64 << 20;

const ALIGN: usize = PITCH_ALIGN_BYTES as usize;

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
}

/// The longest range of columns of a slice, for a map with this number of elements.
fn columns_max(elements: usize) -> usize {
    let wanted = ROW_BYTES.saturating_mul(elements);
    wanted.clamp(SLICE_BYTES_LEAST, SLICE_BYTES_MOST) / elements.max(1) / ALIGN * ALIGN
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
        let (map, inputs) = (Arc::clone(map), inputs.to_vec());
        Some(Self {
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
            let to = lane.arena().plus((first * pitch(columns.len())) as u64);
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
            .map(|(first, count)| (self.elements.0 + first, self.rows(columns, count)))
            .collect();
        for (output, (first, rows)) in self.outputs.iter_mut().zip(places) {
            let from = lane.arena().plus((first * pitch(columns.len())) as u64);
            let to = output[columns.start..].as_mut_ptr();
            // SAFETY: as above, for the outputs; no other slice writes these columns.
            unsafe { card.driver().copy_out(lane.stream, to, from, rows)? };
        }
        Ok(())
    }

    /// Copies a slice's inputs to the lane's pinned buffer.
    fn stage(&self, lane: &mut Lane, columns: &Range<usize>) {
        let mut rows = lane.staging_mut().chunks_exact_mut(pitch(columns.len()));
        for input in &self.inputs {
            for (element, row) in input.chunks_exact(self.element_bytes).zip(rows.by_ref()) {
                row[..columns.len()].copy_from_slice(&element[columns.clone()]);
            }
        }
    }

    /// Copies a complete slice's outputs from the lane's pinned buffer.
    fn unstage(&mut self, lane: &Lane, columns: &Range<usize>) {
        let mut rows = lane.staging().chunks_exact(pitch(columns.len())).skip(self.elements.0);
        for output in &mut self.outputs {
            for (element, row) in output.chunks_exact_mut(self.element_bytes).zip(rows.by_ref()) {
                element[columns.clone()].copy_from_slice(&row[..columns.len()]);
            }
        }
    }
}

impl Work for CodeWork {
    fn units(&self) -> usize {
        self.element_bytes
    }

    fn slice_units(&self) -> usize {
        columns_max(self.elements.0 + self.elements.1)
    }

    fn need(&self, units: usize) -> Need {
        let arena = (self.elements.0 + self.elements.1) * pitch(units);
        Need { arena, staging: if self.direct == (true, true) { 0 } else { arena } }
    }

    fn start(
        &mut self,
        card: &Card,
        lane: &mut Lane,
        columns: Range<usize>,
        poison: bool,
    ) -> Result<(), DriverError> {
        let pitch = pitch(columns.len());
        let (ins, outs) = (self.elements.0 * pitch, self.elements.1 * pitch);
        let outputs_at = lane.arena().plus(ins as u64);
        if self.direct.0 {
            self.copy_in(card, lane, &columns)?;
        } else {
            self.stage(lane, &columns);
            lane.copy_in(card, 0..ins)?;
        }
        if poison {
            card.driver().fill(lane.stream, outputs_at, POISON, outs as u64)?;
        }
        self.program.launch(lane.stream, lane.arena(), outputs_at, pitch as u32)?;
        if self.direct.1 {
            self.copy_out(card, lane, &columns)?;
        } else {
            lane.copy_out(card, ins..ins + outs)?;
        }
        card.driver().record(lane.done, lane.stream)
    }

    fn end(&mut self, lane: &Lane, columns: Range<usize>) -> Result<(), JobError> {
        if !self.direct.1 {
            self.unstage(lane, &columns);
        }
        Ok(())
    }

    fn output(self: Box<Self>) -> JobOutput {
        let sums = |data: &[u8]| match self.checksum_block_bytes {
            None => Vec::new(),
            Some(block_bytes) => data.chunks(block_bytes).map(crc32c).collect(),
        };
        let shard = |output: AlignedBuf| {
            let checksums = sums(&output);
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
