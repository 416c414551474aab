//! Placement jobs on the card. The units are the inputs.
//!
//! The memory of a slice holds the inputs, then the rows of results and their lengths. All of them
//! go through the lane's pinned buffer, which has the same layout. The rows become lists of devices
//! on the host, which takes longer than the kernel; so a slice is short, and while the host makes
//! the lists of one slice, the card works on the next ones.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_accel::{JobError, JobOutput};
use fieldstone_crush::{ItemId, OsdId, Osds};

use super::lane::{Lane, Need};
use super::{POISON, Work};
use crate::card::Card;
use crate::driver::DriverError;
use crate::images::Placer;
use crate::place;

/// Most inputs of a slice.
const SLICE_INPUTS: usize = 1 << 16;
/// The alignment of each part of a slice's memory.
const ALIGN: usize = 256;
/// Bytes of an input, of an item and of a length.
const WORD: usize = 4;

/// A placement job.
pub(super) struct PlaceWork {
    placer: Arc<Placer>,
    width: u32,
    xs: Vec<u32>,
    placements: Vec<Osds>,
}

/// Where the parts of a slice lie.
struct Layout {
    xs: Range<usize>,
    rows: Range<usize>,
    lens: Range<usize>,
}

impl Layout {
    fn new(inputs: usize, width: u32) -> Self {
        let part =
            |start: usize, len| start.next_multiple_of(ALIGN)..start.next_multiple_of(ALIGN) + len;
        let xs = part(0, WORD * inputs);
        let rows = part(xs.end, WORD * inputs * width as usize);
        let lens = part(rows.end, WORD * inputs);
        Self { xs, rows, lens }
    }
}

/// The width of a result, if the kernel has room for it.
pub(super) fn fitting_width(width: usize) -> Option<u32> {
    let width = u32::try_from(width).ok()?;
    place::shared_bytes(width).map(|_| width)
}

/// Little-endian numbers.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<WORD>().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// The device of an item; `None` for an empty position and for a bucket.
fn device(item: u32) -> Option<OsdId> {
    let item = ItemId(item.cast_signed());
    if item == ItemId::NONE { None } else { item.osd() }
}

impl PlaceWork {
    /// The work of a job. The width is one that [fits](fitting_width).
    pub(super) fn new(placer: Arc<Placer>, width: u32, xs: &[u32]) -> Self {
        let placements = vec![Osds::default(); xs.len()];
        Self { placer, width, xs: xs.to_vec(), placements }
    }
}

impl Work for PlaceWork {
    fn units(&self) -> usize {
        self.xs.len()
    }

    fn slice_units(&self) -> usize {
        SLICE_INPUTS
    }

    fn need(&self, units: usize) -> Need {
        let bytes = Layout::new(units, self.width).lens.end;
        Need { arena: bytes, staging: bytes }
    }

    fn start(
        &mut self,
        card: &Card,
        lane: &mut Lane,
        inputs: Range<usize>,
        poison: bool,
    ) -> Result<(), DriverError> {
        let layout = Layout::new(inputs.len(), self.width);
        let address = |part: &Range<usize>| lane.arena().plus(part.start as u64);
        let places = [&layout.xs, &layout.rows, &layout.lens].map(address);
        let results = layout.rows.start..layout.lens.end;
        let to = lane.staging_mut()[layout.xs.clone()].as_chunks_mut::<WORD>().0;
        for (to, x) in to.iter_mut().zip(&self.xs[inputs.clone()]) {
            *to = x.to_le_bytes();
        }
        lane.copy_in(card, layout.xs)?;
        if poison {
            card.driver().fill(lane.stream, places[1], POISON, results.len() as u64)?;
        }
        self.placer.launch(lane.stream, places, inputs.len() as u32, self.width)?;
        lane.copy_out(card, results)?;
        card.driver().record(lane.done, lane.stream)
    }

    fn end(&mut self, lane: &Lane, inputs: Range<usize>) -> Result<(), JobError> {
        let layout = Layout::new(inputs.len(), self.width);
        let rows = lane.staging()[layout.rows].chunks_exact(WORD * self.width as usize);
        let lens = words(&lane.staging()[layout.lens]);
        for (placement, (row, len)) in self.placements[inputs].iter_mut().zip(rows.zip(lens)) {
            if len > self.width {
                return Err(JobError::Device("a placement is too long".to_owned()));
            }
            *placement = Osds(words(row).take(len as usize).map(device).collect());
        }
        Ok(())
    }

    fn output(self: Box<Self>) -> JobOutput {
        JobOutput::Place(self.placements)
    }
}
