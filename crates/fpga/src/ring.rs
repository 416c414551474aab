//! Rings in host memory: descriptors towards the device, completions from it.
//!
//! Indices count entries since the queue set was enabled, modulo 2^32. The device gets them modulo
//! twice the ring's size, so that a full ring differs from an empty one. A completion is new if its
//! phase bit has the value of this pass over the ring: 1 in the first pass, 0 in the second, and so
//! on.

use crate::descriptor::{Completion, Descriptor};
use crate::host::DmaMemory;
use crate::regs::{COMPLETION_BYTES, DESCRIPTOR_BYTES};

/// A ring of descriptors.
#[derive(Debug)]
pub struct DescriptorRing {
    base: u64,
    log2: u32,
    written: u32,
    completed: u32,
    rung: u32,
}

impl DescriptorRing {
    /// Bytes of a ring of 2^`log2` entries.
    #[must_use]
    pub fn bytes(log2: u32) -> usize {
        DESCRIPTOR_BYTES << log2
    }

    /// An empty ring at a bus address.
    #[must_use]
    pub fn new(base: u64, log2: u32) -> Self {
        Self { base, log2, written: 0, completed: 0, rung: 0 }
    }

    /// Its address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its entries, as a power of two.
    #[must_use]
    pub fn log2(&self) -> u32 {
        self.log2
    }

    /// Descriptors that fit now.
    #[must_use]
    pub fn room(&self) -> u32 {
        (1 << self.log2) - self.written.wrapping_sub(self.completed)
    }

    /// Descriptors written since the queue set was enabled.
    #[must_use]
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Descriptors that the driver has written, but not yet told the device.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.written.wrapping_sub(self.rung)
    }

    /// Writes a descriptor, for which there must be room.
    pub fn push(&mut self, memory: &dyn DmaMemory, descriptor: &Descriptor) {
        assert!(self.room() > 0, "the caller has asked for room");
        let slot = self.written & ((1 << self.log2) - 1);
        memory.write(self.base + u64::from(slot) * DESCRIPTOR_BYTES as u64, &descriptor.0);
        self.written = self.written.wrapping_add(1);
    }

    /// The doorbell's value, if the device does not know it yet.
    pub fn ring(&mut self) -> Option<u64> {
        (self.waiting() > 0).then(|| {
            self.rung = self.written;
            u64::from(self.written & ((2 << self.log2) - 1))
        })
    }

    /// The device has completed `index` descriptors. False if that is impossible.
    #[must_use]
    pub fn complete(&mut self, index: u32) -> bool {
        let news = index.wrapping_sub(self.completed);
        let possible = news <= self.rung.wrapping_sub(self.completed);
        if possible {
            self.completed = index;
        }
        possible
    }

    /// Empties the ring.
    pub fn clear(&mut self) {
        *self = Self::new(self.base, self.log2);
    }
}

/// A ring of completions.
#[derive(Debug)]
pub struct CompletionRing {
    base: u64,
    log2: u32,
    read: u32,
    told: u32,
}

impl CompletionRing {
    /// Bytes of a ring of 2^`log2` entries.
    #[must_use]
    pub fn bytes(log2: u32) -> usize {
        COMPLETION_BYTES << log2
    }

    /// An empty ring at a bus address, whose memory it clears.
    #[must_use]
    pub fn new(memory: &dyn DmaMemory, base: u64, log2: u32) -> Self {
        let mut ring = Self { base, log2, read: 0, told: 0 };
        ring.clear(memory);
        ring
    }

    /// Its address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its entries, as a power of two.
    #[must_use]
    pub fn log2(&self) -> u32 {
        self.log2
    }

    /// The next completion, if the device has written it.
    pub fn pop(&mut self, memory: &dyn DmaMemory) -> Option<Completion> {
        let slot = self.read & ((1 << self.log2) - 1);
        let turn_is_odd = self.read >> self.log2 & 1 == 1;
        let address = self.base + u64::from(slot) * COMPLETION_BYTES as u64;
        let mut bytes = [0; COMPLETION_BYTES];
        // The first word has the phase bit. The driver reads it before the rest, and then once more
        // with the rest.
        memory.read(address, &mut bytes[..8]);
        if Completion::phase(&bytes) == turn_is_odd {
            return None;
        }
        memory.read(address, &mut bytes);
        self.read = self.read.wrapping_add(1);
        Some(Completion::parse(&bytes))
    }

    /// The doorbell's value, if the driver has read a completion since the last.
    pub fn ring(&mut self) -> Option<u64> {
        (self.told != self.read).then(|| {
            self.told = self.read;
            u64::from(self.read & ((2 << self.log2) - 1))
        })
    }

    /// Empties the ring and clears its memory, because no old phase bit may look new.
    pub fn clear(&mut self, memory: &dyn DmaMemory) {
        memory.write(self.base, &vec![0; Self::bytes(self.log2)]);
        (self.read, self.told) = (0, 0);
    }
}
