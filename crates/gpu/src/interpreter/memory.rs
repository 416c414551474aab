//! Global memory: allocations, and the bytes that no thread wrote.
//!
//! An address holds the number of its allocation in the high bits, so a lookup is a shift, and
//! between allocations there are gaps that no plausible offset crosses. No number is used twice:
//! an access to a freed allocation is an error. An allocation is aligned to 256 bytes and to no
//! more, as programs may not rely on more.

use super::fault::{MemoryError, Nearest};
use super::trace::{How, Trace, Who};

/// The bits of an address below the number of the allocation.
const NUMBER_SHIFT: u32 = 36;
/// The alignment of allocations in bytes.
const ALIGNMENT: u64 = 256;
/// What bytes hold that no thread wrote.
const POISON: u8 = 0xc9;

/// The global memory of a card.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By number. A freed allocation is `None`.
    allocations: Vec<Option<Allocation>>,
    allow_uninitialised: bool,
    launch: Tracing,
}

/// How the accesses of the present launch are traced.
#[derive(Clone, Copy, Debug, Default)]
struct Tracing {
    /// Whether races are allowed.
    races: bool,
    /// Number of threads in a block.
    block: u32,
}

#[derive(Clone, Debug)]
struct Allocation {
    start: u64,
    bytes: Vec<u8>,
    defined: Vec<bool>,
    /// Empty until the launch accesses the allocation.
    traces: Vec<Trace>,
}

impl Memory {
    /// Memory without allocations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether bytes that no thread wrote may be read. At first they may not.
    pub fn allow_uninitialised(&mut self, allow: bool) {
        self.allow_uninitialised = allow;
    }

    /// Allocates a number of bytes, and returns the address of the first. The bytes are
    /// unwritten.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let number = self.allocations.len() as u64;
        // An odd multiple of the alignment, different for neighbours.
        let start = ((number + 1) << NUMBER_SHIFT) + ALIGNMENT * (1 + 2 * (number % 8));
        let (bytes, defined) = (vec![POISON; bytes], vec![false; bytes]);
        let allocation = Allocation { start, bytes, defined, traces: Vec::new() };
        self.allocations.push(Some(allocation));
        start
    }

    /// Allocates as many bytes as the slice has, and writes them. Returns the address of the first.
    pub fn alloc_with(&mut self, bytes: &[u8]) -> u64 {
        let start = self.alloc(bytes.len());
        if let Some(Some(allocation)) = self.allocations.last_mut() {
            allocation.bytes.copy_from_slice(bytes);
            allocation.defined.fill(true);
        }
        start
    }

    /// Frees the allocation that begins at an address.
    ///
    /// # Errors
    ///
    /// No allocation begins there.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let slot = number(address).and_then(|number| self.allocations.get_mut(number));
        match slot {
            Some(slot) if slot.as_ref().is_some_and(|found| found.start == address) => {
                *slot = None;
                Ok(())
            }
            _ => Err(MemoryError::NotAllocated(address)),
        }
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not all in one allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, at) = self.locate(address, bytes.len())?;
        allocation.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        allocation.defined[at..at + bytes.len()].fill(true);
        Ok(())
    }

    /// Writes one value to a number of bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not all in one allocation.
    pub fn fill(&mut self, address: u64, bytes: usize, value: u8) -> Result<(), MemoryError> {
        let (allocation, at) = self.locate(address, bytes)?;
        allocation.bytes[at..at + bytes].fill(value);
        allocation.defined[at..at + bytes].fill(true);
        Ok(())
    }

    /// Reads bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not all in one allocation, or no thread wrote one of them.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, MemoryError> {
        let number = self.find(address, bytes)?;
        let allocation =
            self.allocations[number].as_ref().ok_or_else(|| self.outside(address, bytes))?;
        let at = (address - allocation.start) as usize;
        if !self.allow_uninitialised {
            check_defined(address, &allocation.defined[at..at + bytes])?;
        }
        Ok(allocation.bytes[at..at + bytes].to_vec())
    }

    /// Copies bytes from one address to another. A copy of a byte that no thread wrote is such a
    /// byte. The ranges may overlap.
    ///
    /// # Errors
    ///
    /// The bytes at an address are not all in one allocation.
    pub fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), MemoryError> {
        let (allocation, at) = self.locate(from, bytes)?;
        let values = allocation.bytes[at..at + bytes].to_vec();
        let defined = allocation.defined[at..at + bytes].to_vec();
        let (allocation, at) = self.locate(to, bytes)?;
        allocation.bytes[at..at + bytes].copy_from_slice(&values);
        allocation.defined[at..at + bytes].copy_from_slice(&defined);
        Ok(())
    }

    /// Begins a launch: forgets who accessed what. `block` is the number of threads in a block.
    pub(super) fn begin_launch(&mut self, block: u32, races: bool) {
        self.launch = Tracing { races, block };
        for allocation in self.allocations.iter_mut().flatten() {
            allocation.traces = Vec::new();
        }
    }

    /// The bytes that a thread reads.
    ///
    /// # Errors
    ///
    /// They are not all in one allocation, no thread wrote one of them, or another thread did.
    pub(super) fn load(
        &mut self,
        address: u64,
        bytes: u32,
        who: Who,
    ) -> Result<&[u8], MemoryError> {
        let (launch, allow) = (self.launch, self.allow_uninitialised);
        let (allocation, at) = self.locate(address, bytes as usize)?;
        let end = at + bytes as usize;
        if !allow {
            check_defined(address, &allocation.defined[at..end])?;
        }
        allocation.access(How::Read, at..end, who, launch)?;
        Ok(&allocation.bytes[at..end])
    }

    /// Writes bytes of a thread.
    ///
    /// # Errors
    ///
    /// They are not all in one allocation, or another thread accessed one of them.
    pub(super) fn store(
        &mut self,
        address: u64,
        bytes: &[u8],
        who: Who,
    ) -> Result<(), MemoryError> {
        let launch = self.launch;
        let (allocation, at) = self.locate(address, bytes.len())?;
        allocation.access(How::Write, at..at + bytes.len(), who, launch)?;
        allocation.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        allocation.defined[at..at + bytes.len()].fill(true);
        Ok(())
    }

    /// Adds to a word of 32 bits in one step, and returns its value of before.
    ///
    /// # Errors
    ///
    /// It is not in an allocation, no thread wrote it, or another thread accesses it otherwise.
    pub(super) fn add(&mut self, address: u64, value: u32, who: Who) -> Result<u32, MemoryError> {
        let (launch, allow) = (self.launch, self.allow_uninitialised);
        let (allocation, at) = self.locate(address, 4)?;
        if !allow {
            check_defined(address, &allocation.defined[at..at + 4])?;
        }
        allocation.access(How::Atomic, at..at + 4, who, launch)?;
        Ok(add_word(&mut allocation.bytes[at..at + 4], value))
    }

    /// The allocation that bytes are in, and where they begin in it.
    fn locate(
        &mut self,
        address: u64,
        bytes: usize,
    ) -> Result<(&mut Allocation, usize), MemoryError> {
        let number = self.find(address, bytes)?;
        match &mut self.allocations[number] {
            Some(allocation) => {
                let at = (address - allocation.start) as usize;
                Ok((allocation, at))
            }
            None => Err(MemoryError::NotAllocated(address)),
        }
    }

    /// The number of the allocation that bytes are in.
    fn find(&self, address: u64, bytes: usize) -> Result<usize, MemoryError> {
        let found = number(address).filter(|&number| {
            let allocation = self.allocations.get(number).and_then(Option::as_ref);
            allocation.is_some_and(|allocation| allocation.holds(address, bytes))
        });
        found.ok_or_else(|| self.outside(address, bytes))
    }

    #[cold]
    fn outside(&self, address: u64, bytes: usize) -> MemoryError {
        let distance = |allocation: &&Allocation| {
            let end = allocation.start + allocation.bytes.len() as u64;
            allocation.start.saturating_sub(address).max(address.saturating_sub(end))
        };
        let nearest = self.allocations.iter().flatten().min_by_key(distance);
        let nearest = nearest.map_or(Nearest::None, |allocation| Nearest::Allocation {
            address: allocation.start,
            bytes: allocation.bytes.len(),
        });
        MemoryError::Outside { address, bytes, nearest }
    }
}

impl Allocation {
    fn holds(&self, address: u64, bytes: usize) -> bool {
        let at = address.checked_sub(self.start);
        let rest = at.and_then(|at| (self.bytes.len() as u64).checked_sub(at));
        rest.is_some_and(|rest| rest >= bytes as u64)
    }

    /// Notes an access to a range of the allocation.
    fn access(
        &mut self,
        how: How,
        range: std::ops::Range<usize>,
        who: Who,
        launch: Tracing,
    ) -> Result<(), MemoryError> {
        if launch.races {
            return Ok(());
        }
        if self.traces.is_empty() {
            self.traces = vec![Trace::default(); self.bytes.len()];
        }
        for (at, trace) in range.clone().zip(&mut self.traces[range]) {
            *trace = trace
                .after(how, who.index, launch.block)
                .map_err(|access| MemoryError::Race { address: self.start + at as u64, access })?;
        }
        Ok(())
    }
}

/// The number of the allocation that an address is in, if any is.
fn number(address: u64) -> Option<usize> {
    usize::try_from((address >> NUMBER_SHIFT).checked_sub(1)?).ok()
}

fn check_defined(address: u64, defined: &[bool]) -> Result<(), MemoryError> {
    match defined.iter().position(|&defined| !defined) {
        Some(at) => Err(MemoryError::Uninitialised(address + at as u64)),
        None => Ok(()),
    }
}

/// Adds to the little-endian word in four bytes, and returns its value of before.
pub(super) fn add_word(bytes: &mut [u8], value: u32) -> u32 {
    let before = bytes.iter().rev().fold(0, |word: u32, &byte| word << 8 | u32::from(byte));
    bytes.copy_from_slice(&before.wrapping_add(value).to_le_bytes());
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_to_256_and_no_more() {
        let mut memory = Memory::new();
        for bytes in [0, 1, 1000, 5] {
            assert_eq!(memory.alloc(bytes) % 512, 256);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut memory = Memory::new();
        let (a, b) = (memory.alloc(8), memory.alloc_with(&[1, 2, 3, 4]));
        memory.fill(a, 2, 9).unwrap();
        memory.copy(a + 2, b, 4).unwrap();
        memory.write(a + 6, &[7, 8]).unwrap();
        assert_eq!(memory.read(a, 8).unwrap(), [9, 9, 1, 2, 3, 4, 7, 8]);
        memory.copy(a + 1, a, 4).unwrap();
        assert_eq!(memory.read(a, 8).unwrap(), [9, 9, 9, 1, 2, 4, 7, 8]);
    }

    #[test]
    fn a_byte_that_no_thread_wrote_is_not_read() {
        let mut memory = Memory::new();
        let (a, b) = (memory.alloc(8), memory.alloc(8));
        memory.write(a, &[1; 7]).unwrap();
        memory.copy(b, a, 8).unwrap();
        for start in [a, b] {
            assert_eq!(memory.read(start, 7).unwrap(), [1; 7]);
            assert_eq!(memory.read(start, 8), Err(MemoryError::Uninitialised(start + 7)));
        }
        memory.allow_uninitialised(true);
        assert_eq!(memory.read(a, 8).unwrap().len(), 8);
    }

    #[test]
    fn accesses_outside_name_the_nearest_allocation() {
        let mut memory = Memory::new();
        let none = MemoryError::Outside { address: 16, bytes: 1, nearest: Nearest::None };
        assert_eq!(memory.write(16, &[0]), Err(none));
        let (a, b) = (memory.alloc(8), memory.alloc(8));
        let nearest = Nearest::Allocation { address: a, bytes: 8 };
        for (address, bytes) in [(a - 1, 1), (a + 8, 1), (a + 5, 4), (a - 1, 9)] {
            let expected = MemoryError::Outside { address, bytes, nearest };
            assert_eq!(memory.read(address, bytes), Err(expected.clone()));
            assert_eq!(memory.fill(address, bytes, 0), Err(expected));
        }
        let nearest = Nearest::Allocation { address: b, bytes: 8 };
        let expected = MemoryError::Outside { address: u64::MAX, bytes: 2, nearest };
        assert_eq!(memory.copy(u64::MAX, b, 2), Err(expected));
    }

    #[test]
    fn a_freed_allocation_is_gone() {
        let mut memory = Memory::new();
        let a = memory.alloc_with(&[1, 2]);
        assert_eq!(memory.free(a + 1), Err(MemoryError::NotAllocated(a + 1)));
        memory.free(a).unwrap();
        assert_eq!(memory.free(a), Err(MemoryError::NotAllocated(a)));
        assert!(matches!(memory.read(a, 1), Err(MemoryError::Outside { .. })));
        assert_ne!(memory.alloc(2), a);
    }
}
