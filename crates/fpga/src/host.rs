//! What the driver needs from the machine: registers, and memory that the device sees.
//!
//! On silicon these two are all that changes: an implementation over a PCIe function's mapped page
//! and pinned memory, instead of those of the simulated devices.

use std::ops::Range;

/// The page of registers of one function.
pub trait Mmio: Send + Sync {
    /// Reads the register at `offset`. A device that is gone reads as all ones.
    fn read64(&self, offset: u64) -> u64;

    /// Writes the register at `offset`. Writes arrive in order, and after everything that was
    /// written to [`DmaMemory`] before.
    fn write64(&self, offset: u64, value: u64);

    /// Interrupts of the function so far, or `None` where there are none.
    fn interrupts(&self) -> Option<u64> {
        None
    }

    /// Called when there is nothing to do but to ask again.
    fn relax(&self) {
        std::hint::spin_loop();
    }
}

/// Host memory that the device reads and writes.
///
/// # Panics
/// Accesses outside of the window are mistakes of the driver.
pub trait DmaMemory: Send + Sync {
    /// The bus addresses that there are, both ends multiples of 64, address 0 not among them.
    fn window(&self) -> Range<u64>;

    /// Reads bytes. Two bytes of one aligned word of 8 bytes are of one moment; a word that is read
    /// later is of a later moment.
    fn read(&self, address: u64, data: &mut [u8]);

    /// Writes bytes.
    fn write(&self, address: u64, data: &[u8]);
}
