//! Memory of the host that the card reads and writes directly.
//!
//! The card copies from and to such *pinned* memory at the full rate of its link, while other
//! memory goes through a copy of the driver first. To take pinned memory from the driver is slow,
//! so a card keeps the buffers that come back, by size class.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_buf::{ALIGN_BYTES, AlignedBuf};

use crate::driver::Driver;

/// The smallest class. Classes are powers of two.
const CLASS_BYTES_MIN: usize = 64 << 10;
/// Most pinned memory of a card. Pinned memory is taken from all other programs.
pub const HOST_BYTES_MAX: usize = 8 << 30;

/// Pinned memory, taken and kept.
#[derive(Default)]
struct Kept {
    free: BTreeMap<usize, Vec<NonNull<u8>>>,
    /// All blocks: first address and length.
    blocks: BTreeMap<usize, usize>,
    bytes: usize,
}

impl Kept {
    /// Takes the largest block that no buffer uses out of the pool.
    fn take_idle(&mut self) -> Option<NonNull<u8>> {
        let (class, blocks) = self.free.iter_mut().rev().find(|(_, blocks)| !blocks.is_empty())?;
        let pointer = blocks.pop()?;
        self.bytes -= class;
        self.blocks.remove(&pointer.addr().get());
        Some(pointer)
    }
}

// SAFETY: the blocks are plain memory, owned by the pool or by one loan.
unsafe impl Send for Kept {}

/// The pinned memory of a card.
pub(crate) struct HostMemory {
    driver: Arc<dyn Driver>,
    kept: Mutex<Kept>,
}

/// A block that a buffer uses. Dropping it gives the block back.
struct Loan {
    memory: Arc<HostMemory>,
    pointer: NonNull<u8>,
    class: usize,
}

// SAFETY: a loan only carries the address back.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Drop for Loan {
    fn drop(&mut self) {
        self.memory.lock().free.entry(self.class).or_default().push(self.pointer);
    }
}

impl HostMemory {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { driver, kept: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No code under the lock can panic with the lists half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of pinned memory with arbitrary content, or none if there is too much already.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Option<AlignedBuf> {
        let class = len_bytes.max(CLASS_BYTES_MIN).checked_next_power_of_two()?;
        let kept = self.lock().free.get_mut(&class).and_then(Vec::pop);
        let pointer = kept.or_else(|| self.grow(class))?;
        if !pointer.addr().get().is_multiple_of(ALIGN_BYTES) {
            self.lock().free.entry(class).or_default().push(pointer);
            return None;
        }
        let loan = Loan { memory: Arc::clone(self), pointer, class };
        // SAFETY: the block is initialised, has at least this length, and belongs to the loan.
        Some(unsafe { AlignedBuf::foreign(pointer, len_bytes, loan) })
    }

    /// A new block. Blocks of other classes that no buffer uses make room for it.
    fn grow(&self, class: usize) -> Option<NonNull<u8>> {
        let mut idle = Vec::new();
        let mut kept = self.lock();
        while kept.bytes + class > HOST_BYTES_MAX {
            match kept.take_idle() {
                Some(block) => idle.push(block),
                None => break,
            }
        }
        let fits = kept.bytes + class <= HOST_BYTES_MAX;
        kept.bytes += if fits { class } else { 0 };
        drop(kept);
        for pointer in idle {
            // SAFETY: the driver gave the block, and no buffer uses it.
            unsafe { self.driver.free_host(pointer) };
        }
        let pointer = if fits { self.driver.allocate_host(class).ok() } else { None };
        let mut kept = self.lock();
        match pointer {
            Some(pointer) => drop(kept.blocks.insert(pointer.addr().get(), class)),
            None => kept.bytes -= if fits { class } else { 0 },
        }
        pointer
    }

    /// Whether all of these bytes are in pinned memory.
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        let (first, len) = (bytes.as_ptr().addr(), bytes.len());
        let kept = self.lock();
        let block = kept.blocks.range(..=first).next_back();
        block.is_some_and(|(start, class)| first + len <= start + class)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // No loan is left: each has a reference to this value.
        let kept = std::mem::take(&mut *self.lock());
        for pointer in kept.free.into_values().flatten() {
            // SAFETY: the driver gave the block, and no buffer uses it.
            unsafe { self.driver.free_host(pointer) };
        }
    }
}
