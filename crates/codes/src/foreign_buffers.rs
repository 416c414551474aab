//! Foreign buffers: memory of another language that a call borrows.
//!
//! Rust's borrows guarantee that no buffer is written while it is read. C and Python have no
//! borrows, so bindings pass addresses and lengths. This module turns them into slices, after all
//! checks that an address allows: it is not null, the buffer does not run past the end of memory,
//! and a written buffer overlaps no other. Buffers that are only read may overlap.
//!
//! The check compares each written buffer with every other. That is no more work than the
//! multiplications and additions of the code that follows, and needs no memory.

use std::fmt;
use std::ops::Range;
use std::slice;

use thiserror::Error;

/// The caller's name for a buffer: an argument, or one entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The argument.
    pub argument: &'static str,
    /// The number of the entry, if the argument is a list.
    pub index: Option<usize>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.argument),
            None => f.write_str(self.argument),
        }
    }
}

/// An error of foreign buffers.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BufferError {
    /// The address is null although the buffer is not empty.
    #[error("{0} is NULL")]
    Null(Name),
    /// The length exceeds the address space.
    #[error("{0} is longer than the address space")]
    TooLong(Name),
    /// A written buffer shares memory with another one.
    #[error("{written} overlaps {other}")]
    Overlap {
        /// The written buffer.
        written: Name,
        /// The other buffer, which is read or written.
        other: Name,
    },
}

#[derive(Clone, Copy)]
struct Buffer {
    name: Name,
    start: *mut u8,
    len_bytes: usize,
}

impl Buffer {
    fn new(name: Name, start: *mut u8, len_bytes: usize) -> Result<Self, BufferError> {
        if len_bytes > 0 && start.is_null() {
            return Err(BufferError::Null(name));
        }
        let fits = isize::try_from(len_bytes).is_ok();
        if !fits || start.addr().checked_add(len_bytes).is_none() {
            return Err(BufferError::TooLong(name));
        }
        Ok(Self { name, start, len_bytes })
    }

    fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.len_bytes
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.addresses(), other.addresses());
        a.start.max(b.start) < a.end.min(b.end)
    }
}

/// The slices to read, and the slices to write.
pub type Slices<'a> = (Vec<&'a [u8]>, Vec<&'a mut [u8]>);

/// The buffers of one call, in the order in which they were added.
#[derive(Default)]
pub struct ForeignBuffers {
    reads: Vec<Buffer>,
    writes: Vec<Buffer>,
}

impl ForeignBuffers {
    /// Adds a buffer to read, without access to its memory.
    ///
    /// # Errors
    /// [`BufferError::Null`] and [`BufferError::TooLong`]. An empty buffer may have any address.
    pub fn read(
        &mut self,
        argument: &'static str,
        index: Option<usize>,
        start: *const u8,
        len_bytes: usize,
    ) -> Result<(), BufferError> {
        let name = Name { argument, index };
        self.reads.push(Buffer::new(name, start.cast_mut(), len_bytes)?);
        Ok(())
    }

    /// Adds a buffer to write, without access to its memory.
    ///
    /// # Errors
    /// As those of [`ForeignBuffers::read`].
    pub fn write(
        &mut self,
        argument: &'static str,
        index: Option<usize>,
        start: *mut u8,
        len_bytes: usize,
    ) -> Result<(), BufferError> {
        self.writes.push(Buffer::new(Name { argument, index }, start, len_bytes)?);
        Ok(())
    }

    /// All buffers as slices: those to read, and those to write.
    ///
    /// # Errors
    /// [`BufferError::Overlap`].
    ///
    /// # Safety
    /// While the slices live, every buffer is memory of the given length, initialised and readable,
    /// and writable if it was added as such. No other code writes any of these bytes, or reads
    /// bytes that are written.
    pub unsafe fn slices<'a>(&self) -> Result<Slices<'a>, BufferError> {
        self.check_overlaps()?;
        let some = |buffer: &&Buffer| buffer.len_bytes > 0;
        let read = |buffer: &Buffer| -> &'a [u8] {
            // SAFETY: by the caller's contract the memory is valid; the address is not null and the
            // length fits an isize. The check above has shown that no written buffer overlaps it.
            Some(buffer).filter(some).map_or(&[], |buffer| unsafe {
                slice::from_raw_parts(buffer.start, buffer.len_bytes)
            })
        };
        let write = |buffer: &Buffer| -> &'a mut [u8] {
            // SAFETY: as above; no two written buffers overlap, so each slice is the only one of
            // its memory.
            Some(buffer).filter(some).map_or(&mut [], |buffer| unsafe {
                slice::from_raw_parts_mut(buffer.start, buffer.len_bytes)
            })
        };
        Ok((self.reads.iter().map(read).collect(), self.writes.iter().map(write).collect()))
    }

    fn check_overlaps(&self) -> Result<(), BufferError> {
        for (at, written) in self.writes.iter().enumerate() {
            let others = self.reads.iter().chain(&self.writes[..at]);
            if let Some(other) = others.into_iter().find(|other| written.overlaps(other)) {
                return Err(BufferError::Overlap { written: written.name, other: other.name });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(argument: &'static str, index: usize) -> Name {
        Name { argument, index: Some(index) }
    }

    /// Lends reads and writes, which are given as first and end bytes in one array.
    fn lend(reads: &[(usize, usize)], writes: &[(usize, usize)]) -> Result<(), BufferError> {
        let mut memory = [0u8; 64];
        let start = memory.as_mut_ptr();
        let mut buffers = ForeignBuffers::default();
        for (at, (from, end)) in reads.iter().enumerate() {
            buffers.read("in", Some(at), start.wrapping_add(*from), end - from)?;
        }
        for (at, (from, end)) in writes.iter().enumerate() {
            buffers.write("out", Some(at), start.wrapping_add(*from), end - from)?;
        }
        // SAFETY: all ranges are in the array, and the slices do not leave this function.
        let (inputs, outputs) = unsafe { buffers.slices() }?;
        assert!(
            inputs.iter().map(|input| input.len()).eq(reads.iter().map(|(from, end)| end - from))
        );
        for (output, (from, end)) in outputs.into_iter().zip(writes) {
            output.fill(9);
            assert_eq!(output.len(), end - from);
        }
        let written: usize = writes.iter().map(|(from, end)| end - from).sum();
        assert_eq!(memory.iter().filter(|&&byte| byte == 9).count(), written);
        Ok(())
    }

    #[test]
    fn what_is_written_overlaps_nothing() {
        assert_eq!(lend(&[(0, 8), (4, 12), (8, 8)], &[(12, 20), (20, 21), (30, 64)]), Ok(()));
        // Buffers that touch do not overlap, and an empty buffer overlaps no other.
        assert_eq!(lend(&[(4, 8), (9, 9)], &[(0, 4), (8, 12)]), Ok(()));
        let overlap = |written, other| Err(BufferError::Overlap { written, other });
        assert_eq!(lend(&[(0, 8), (8, 16)], &[(15, 20)]), overlap(name("out", 0), name("in", 1)));
        assert_eq!(lend(&[(0, 8)], &[(8, 16), (10, 11)]), overlap(name("out", 1), name("out", 0)));
        assert_eq!(lend(&[(10, 11)], &[(8, 16)]), overlap(name("out", 0), name("in", 0)));
        let message = lend(&[], &[(3, 4), (3, 4)]).unwrap_err().to_string();
        assert_eq!(message, "out[1] overlaps out[0]");
    }

    #[test]
    fn impossible_buffers_are_refused() {
        let mut buffers = ForeignBuffers::default();
        let old = Name { argument: "old", index: None };
        assert_eq!(buffers.read("old", None, std::ptr::null(), 1), Err(BufferError::Null(old)));
        assert_eq!(BufferError::Null(old).to_string(), "old is NULL");
        assert_eq!(buffers.read("old", None, std::ptr::null(), 0), Ok(()));
        let byte = 0u8;
        let long = buffers.read("old", None, &raw const byte, usize::MAX / 2 + 1);
        assert_eq!(long, Err(BufferError::TooLong(old)));
        let last = std::ptr::without_provenance_mut(usize::MAX - 7);
        assert!(buffers.write("out", Some(3), last, 8).is_err());
        assert!(buffers.write("out", Some(3), last, 7).is_ok());
    }
}
