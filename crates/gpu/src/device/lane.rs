//! Lanes: streams with memory of the card and of the host for one slice.
//!
//! A lane has no memory at first. [`Lane::reserve`] takes as much as a slice needs, in powers of
//! two, so a lane grows a few times and then never again. A device for small jobs stays small.
//! Growing frees the old arena first. This happens only while the lane is idle, when nothing uses
//! the arena.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_buf::AlignedBuf;

use crate::card::Card;
use crate::driver::{DeviceAddress, DriverError, Event, Rows, Stream};

/// The smallest arena, and the smallest buffer.
const BYTES_MIN: usize = 1 << 20;

/// The memory that a slice needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// Bytes in the card's memory.
    pub(super) arena: usize,
    /// Bytes in the lane's pinned buffer.
    pub(super) staging: usize,
}

/// The slice that a lane works on.
pub(super) struct Slice {
    /// The number of its job.
    pub(super) flight: u64,
    pub(super) units: Range<usize>,
}

/// A stream with memory for one slice.
pub(super) struct Lane {
    pub(super) stream: Stream,
    /// Recorded behind the last copy of a slice.
    pub(super) done: Event,
    pub(super) slice: Option<Slice>,
    arena: Option<(DeviceAddress, usize)>,
    staging: Option<AlignedBuf>,
}

impl Lane {
    /// A lane without memory.
    pub(super) fn new(card: &Card) -> Result<Self, DriverError> {
        let (stream, done) = card.take_stream()?;
        Ok(Self { stream, done, slice: None, arena: None, staging: None })
    }

    /// Takes the memory that the lane's next slice needs, unless it has that already. The lane is
    /// idle. After an error it may have less than before.
    pub(super) fn reserve(&mut self, card: &Arc<Card>, need: Need) -> Result<(), DriverError> {
        let class = |bytes: usize| bytes.max(BYTES_MIN).next_power_of_two();
        if self.arena.is_none_or(|(_, bytes)| bytes < need.arena) {
            let bytes = class(need.arena);
            self.free_arena(card);
            self.arena = Some((card.driver().allocate(bytes as u64)?, bytes));
        }
        if self.staging().len() < need.staging {
            let bytes = class(need.staging);
            self.staging = None;
            let refused = DriverError::Memory { place: "host", bytes: bytes as u64 };
            self.staging = Some(card.host_buffer(bytes).ok_or(refused)?);
        }
        Ok(())
    }

    /// The first address of the card's memory for the slice.
    pub(super) fn arena(&self) -> DeviceAddress {
        self.arena.map_or(DeviceAddress(0), |(address, _)| address)
    }

    /// The pinned buffer.
    pub(super) fn staging(&self) -> &[u8] {
        self.staging.as_deref().unwrap_or_default()
    }

    /// The pinned buffer, to fill it.
    pub(super) fn staging_mut(&mut self) -> &mut [u8] {
        self.staging.as_deref_mut().unwrap_or_default()
    }

    /// Starts the copy of a range of the buffer to the same range of the arena.
    pub(super) fn copy_in(&self, card: &Card, range: Range<usize>) -> Result<(), DriverError> {
        let (to, from) = (self.arena().plus(range.start as u64), &self.staging()[range]);
        // SAFETY: no code touches the buffer until the lane's slice is complete, and the arena was
        // reserved with at least as many bytes as the buffer's part of the slice.
        unsafe { card.driver().copy_in(self.stream, to, from.as_ptr(), Rows::one(from.len())) }
    }

    /// Starts the copy of a range of the arena to the same range of the buffer.
    pub(super) fn copy_out(&mut self, card: &Card, range: Range<usize>) -> Result<(), DriverError> {
        let (stream, from) = (self.stream, self.arena().plus(range.start as u64));
        let to = &mut self.staging_mut()[range];
        // SAFETY: as for the copy in.
        unsafe { card.driver().copy_out(stream, to.as_mut_ptr(), from, Rows::one(to.len())) }
    }

    /// Gives the arena back. The lane is idle.
    pub(super) fn free_arena(&mut self, card: &Card) {
        if let Some((address, _)) = self.arena.take() {
            card.driver().free(address);
        }
    }

    /// Never gives the buffer back, as a copy may still be under way.
    pub(super) fn forget_staging(&mut self) {
        std::mem::forget(self.staging.take());
    }
}
