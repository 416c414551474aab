//! The driver's view of the machine: registers, and memory that the device can access.
//!
//! On silicon only these two traits change: an implementation over a PCIe function's mapped page
//! and pinned memory replaces those of the simulated devices.

use std::ops::Range;

/// The page of registers of one function.
pub trait Mmio: Send + Sync {
    /// Reads the register at `offset`. What the device has written to [`DmaMemory`] before its
    /// answer is there when the answer has come. A device that is gone reads as all ones.
    fn read64(&self, offset: u64) -> u64;

    /// Writes the register at `offset`. Writes are posted. They arrive in order, and after
    /// everything that was written to [`DmaMemory`] before.
    fn write64(&self, offset: u64, value: u64);

    /// Number of the function's interrupts so far, or `None` without interrupts.
    fn interrupts(&self) -> Option<u64> {
        None
    }

    /// Called when the caller can only poll again.
    fn relax(&self) {
        std::hint::spin_loop();
    }
}

/// Host memory that the device reads and writes.
///
/// # Panics
/// Accesses outside of the window are mistakes of the driver.
pub trait DmaMemory: Send + Sync {
    /// The range of bus addresses. Both ends are multiples of 64, and address 0 is not in the
    /// range.
    fn window(&self) -> Range<u64>;

    /// Reads bytes. The bytes of one aligned word of 8 bytes are read at one moment. A word that is
    /// read later is read at a later moment.
    fn read(&self, address: u64, data: &mut [u8]);

    /// Writes bytes.
    fn write(&self, address: u64, data: &[u8]);
}
