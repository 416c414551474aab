//! Memory of the card full of noise, and the clock of the card.
//!
//! One block of memory is taken for the whole run. A case cuts it into *places*, each for one
//! object: its inputs, then its outputs. Launches take the places in turn, so that no bytes of an
//! object are still in the card's cache at its next turn.

use std::sync::Arc;

use fieldstone_gpu::Card;
use fieldstone_gpu::driver::{DeviceAddress, Driver, DriverError, Event, Rows, Stream};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use super::device;

/// The arena takes at most this many bytes, and at most half of the card's memory.
const ARENA_BYTES_MAX: u64 = 8 << 30;
/// Noise that is copied from the host; the card repeats it.
const NOISE_BYTES: u64 = 4 << 20;
/// Places begin at multiples of this number of bytes, so that objects begin with whole lines.
pub const PLACE_ALIGN_BYTES: u64 = 256;
/// A batch moves at least this many times the bytes of the card's cache.
const CACHES: u64 = 8;
/// Launches of a batch. The driver holds about a thousand launches that have not begun.
const LAUNCHES_MIN: u64 = 4;
const LAUNCHES_MAX: u64 = 4096;

/// Noise, the same in every run.
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// How a case uses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Objects that fit.
    places: u64,
    /// The distance of two places, in bytes.
    place_bytes: u64,
    /// Launches of a batch.
    pub launches: u64,
}

impl ArenaLayout {
    /// The layout for objects that take `object_bytes` each, inputs and outputs. `None` if not even
    /// one fits.
    pub fn new(arena_bytes: u64, cache_bytes: u64, object_bytes: u64) -> Option<Self> {
        let place_bytes = object_bytes.max(1).next_multiple_of(PLACE_ALIGN_BYTES);
        let places = arena_bytes / place_bytes;
        let launches = (CACHES * cache_bytes).div_ceil(place_bytes);
        let launches = launches.clamp(LAUNCHES_MIN, LAUNCHES_MAX);
        (places > 0).then_some(Self { places, place_bytes, launches })
    }

    /// The start of the place of a launch, in bytes from the start of the memory.
    pub fn offset(&self, launch: u64) -> u64 {
        launch % self.places * self.place_bytes
    }
}

/// The memory, with a stream for the work on it.
pub struct Arena {
    card: Arc<Card>,
    /// The stream of all timed work.
    pub stream: Stream,
    begin: Event,
    end: Event,
    base: DeviceAddress,
    len_bytes: u64,
}

impl Arena {
    /// Takes memory of the card, and fills it with noise.
    ///
    /// # Errors
    /// The card has failed or has too little memory.
    pub fn take(card: &Arc<Card>) -> Result<Self, DriverError> {
        let len_bytes = ARENA_BYTES_MAX.min(card.info().memory_bytes / 2);
        Self::with_bytes(card, len_bytes)
    }

    /// Takes this much memory.
    ///
    /// # Errors
    /// As [`Arena::take`].
    pub fn with_bytes(card: &Arc<Card>, len_bytes: u64) -> Result<Self, DriverError> {
        let driver = card.driver();
        let (stream, begin, end) = (driver.stream()?, driver.event()?, driver.event()?);
        let base = driver.allocate(len_bytes)?;
        let arena = Self { card: Arc::clone(card), stream, begin, end, base, len_bytes };
        arena.fill()?;
        Ok(arena)
    }

    fn fill(&self) -> Result<(), DriverError> {
        let mut filled = NOISE_BYTES.min(self.len_bytes);
        let bytes = noise(1, filled as usize);
        self.copy_in(0, &bytes, (bytes.len(), bytes.len()))?;
        let copies = |driver: &dyn Driver| {
            while filled < self.len_bytes {
                let more = filled.min(self.len_bytes - filled);
                driver.copy_within(self.stream, self.base.plus(filled), self.base, more)?;
                filled += more;
            }
            Ok(())
        };
        self.time(copies).map(drop)
    }

    /// The card.
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// Bytes of the memory.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The address of a byte of the memory.
    pub fn at(&self, offset: u64) -> DeviceAddress {
        self.base.plus(offset)
    }

    /// Does work on the stream, and waits for it. Returns the time that the card needed, in
    /// seconds.
    ///
    /// # Errors
    /// The card has failed.
    pub fn time(
        &self,
        work: impl FnOnce(&dyn Driver) -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        let driver = self.card.driver();
        driver.record(self.begin, self.stream)?;
        work(&**driver)?;
        driver.record(self.end, self.stream)?;
        driver.wait(self.end)?;
        Ok(driver.elapsed_ns(self.begin, self.end)? / 1e9)
    }

    /// The rows of these bytes, `pitch` bytes apart from `offset` on.
    fn rows(&self, offset: u64, len_bytes: usize, row_bytes: usize, pitch: usize) -> Rows {
        let count = len_bytes.checked_div(row_bytes).unwrap_or(0);
        let end = (count as u64).saturating_mul(pitch as u64).saturating_add(offset);
        assert!(pitch >= row_bytes && end <= self.len_bytes, "rows outside of the memory");
        device::rows(row_bytes, count, pitch)
    }

    /// Copies bytes from the host in rows of `row_bytes`, `pitch` bytes apart, and waits.
    ///
    /// # Errors
    /// The card has failed.
    ///
    /// # Panics
    /// The rows do not fit.
    pub fn copy_in(
        &self,
        offset: u64,
        bytes: &[u8],
        (row_bytes, pitch): (usize, usize),
    ) -> Result<(), DriverError> {
        let rows = self.rows(offset, bytes.len(), row_bytes, pitch);
        // SAFETY: the rows are inside both memories, and the function waits for the copy. After an
        // error the card does nothing more.
        let copy = |driver: &dyn Driver| unsafe {
            driver.copy_in(self.stream, self.at(offset), bytes.as_ptr(), rows)
        };
        self.time(copy).map(drop)
    }

    /// Copies bytes to the host; as [`Arena::copy_in`].
    ///
    /// # Errors
    /// The card has failed.
    ///
    /// # Panics
    /// The rows do not fit.
    pub fn copy_out(
        &self,
        offset: u64,
        bytes: &mut [u8],
        (row_bytes, pitch): (usize, usize),
    ) -> Result<(), DriverError> {
        let rows = self.rows(offset, bytes.len(), row_bytes, pitch);
        // SAFETY: the rows are inside both memories, the function has the bytes for itself, and it
        // waits for the copy. After an error the card does nothing more.
        let copy = |driver: &dyn Driver| unsafe {
            driver.copy_out(self.stream, bytes.as_mut_ptr(), self.at(offset), rows)
        };
        self.time(copy).map(drop)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.card.driver().free(self.base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_moves_much_more_than_the_cache_holds() {
        let (arena, cache) = (8 << 30, 50 << 20);
        for moved in [96 << 10, 1 << 20, 96 << 20, 1_610_612_736] {
            let layout = ArenaLayout::new(arena, cache, moved).expect("it fits");
            assert!(layout.launches * moved >= 7 * cache, "{moved}: {layout:?}");
            assert!(layout.launches >= LAUNCHES_MIN && layout.launches <= LAUNCHES_MAX);
            // The bytes between two turns of a place.
            assert!(layout.places * moved > 4 * cache, "{moved}: {layout:?}");
        }
        assert_eq!(ArenaLayout::new(arena, cache, (8 << 30) + 1), None);
    }

    #[test]
    fn places_do_not_overlap_and_are_inside() {
        let layout = ArenaLayout::new(1 << 20, 1 << 20, 100_000).expect("it fits");
        assert_eq!((layout.places, layout.place_bytes), (10, 100_096));
        let starts: Vec<u64> = (0..11).map(|launch| layout.offset(launch)).collect();
        assert!(starts[..10].windows(2).all(|pair| pair[1] - pair[0] == 100_096));
        assert!(starts[9] + 100_000 <= 1 << 20);
        assert_eq!(starts[10], 0, "the first place has its next turn");
    }
}
