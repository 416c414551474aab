//! Aligned, reference-counted buffers for the data path.
//!
//! Every payload travels as [`bytes::Bytes`], so that sending it to three nodes, keeping it in the
//! cache and coding it later share one allocation. The buffers of this crate start on a 4 KiB
//! boundary. `O_DIRECT` demands that, and it costs nothing elsewhere. Freezing a buffer keeps the
//! alignment.

mod budget;
mod cutter;
mod pool;

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

pub use budget::{Budget, Lease};
pub use cutter::Cutter;

/// Alignment of every buffer, in bytes: the largest logical block size that `O_DIRECT` asks for.
pub const ALIGN_BYTES: usize = 4096;

/// An owned byte buffer whose first byte lies on an [`ALIGN_BYTES`] boundary.
pub struct AlignedBuf {
    pointer: NonNull<u8>,
    len_bytes: usize,
    capacity_bytes: usize,
    origin: Origin,
}

/// The origin of a buffer's memory.
enum Origin {
    /// The pool of freed buffers. `None` if a thread took the memory while it was ending.
    Pool(Option<&'static pool::Home>),
    /// Memory of another part of the program. Dropping the loan gives the memory back.
    Foreign { _loan: Box<dyn Any + Send + Sync> },
}

// SAFETY: the buffer owns its memory exclusively, like a Vec<u8>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only allow reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let mut buffer = Self::stale(len_bytes);
        buffer.fill(0);
        buffer
    }

    /// A buffer of `len_bytes` bytes with old content, for a reader that overwrites all bytes, or
    /// cuts off or clears the rest. Any other use is wrong, because the bytes may be another
    /// user's.
    #[must_use]
    pub fn stale(len_bytes: usize) -> Self {
        let capacity_bytes = pool::capacity_for(len_bytes);
        let (pointer, home) = pool::take(capacity_bytes);
        Self { pointer, len_bytes, capacity_bytes, origin: Origin::Pool(home) }
    }

    /// A buffer over memory of another part of the program. The buffer drops `loan` when it no
    /// longer uses the memory: when the buffer is dropped or, after [`AlignedBuf::freeze`], with
    /// the last of the bytes.
    ///
    /// # Panics
    /// `pointer` does not lie on an [`ALIGN_BYTES`] boundary.
    ///
    /// # Safety
    /// Until `loan` is dropped, the `len_bytes` bytes at `pointer` are initialised and valid for
    /// reads and writes, and no other code uses them.
    #[must_use]
    pub unsafe fn foreign(
        pointer: NonNull<u8>,
        len_bytes: usize,
        loan: impl Send + Sync + 'static,
    ) -> Self {
        assert!(pointer.addr().get().is_multiple_of(ALIGN_BYTES), "foreign memory is not aligned");
        let origin = Origin::Foreign { _loan: Box::new(loan) };
        Self { pointer, len_bytes, capacity_bytes: len_bytes, origin }
    }

    /// A buffer that holds a copy of `source`.
    #[must_use]
    pub fn copy_from(source: &[u8]) -> Self {
        let mut buffer = Self::stale(source.len());
        buffer.copy_from_slice(source);
        buffer
    }

    /// A buffer built by concatenating `parts`.
    #[must_use]
    pub fn concat<'a>(parts: impl IntoIterator<Item = &'a [u8]> + Clone) -> Self {
        let total: usize = parts.clone().into_iter().map(<[u8]>::len).sum();
        let mut buffer = Self::stale(total);
        let mut rest = &mut buffer[..];
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        assert!(rest.is_empty(), "the iterator gave other parts the second time");
        buffer
    }

    /// Drops everything behind the first `len_bytes` bytes.
    pub fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = self.len_bytes.min(len_bytes);
    }

    /// Turns the buffer into shared, immutable bytes without copying.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// As [`AlignedBuf::freeze`]. The lease (a [`Lease`], or several of them) ends when the last of
    /// the bytes is dropped.
    #[must_use]
    pub fn freeze_leased(self, lease: impl Send + 'static) -> Bytes {
        Bytes::from_owner(Leased { buffer: self, _lease: lease })
    }
}

/// A buffer with the lease for its memory.
struct Leased<L> {
    buffer: AlignedBuf,
    _lease: L,
}

impl<L> AsRef<[u8]> for Leased<L> {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match &self.origin {
            // SAFETY: taken with this capacity and home in `stale`, and owned by this buffer alone.
            Origin::Pool(home) => unsafe {
                pool::give(self.pointer, self.capacity_bytes, *home);
            },
            // The loan is dropped with the fields, after this function.
            Origin::Foreign { .. } => {}
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised; the first len_bytes bytes are owned.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialised; this buffer owns the first len_bytes bytes
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len_bytes)
    }
}

/// True when `O_DIRECT` I/O can use `data` directly.
#[must_use]
pub fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(ALIGN_BYTES) && data.len().is_multiple_of(ALIGN_BYTES)
}

/// Joins several buffers into one. A single buffer stays as it is; more are copied.
#[must_use]
pub fn join(parts: &[Bytes]) -> Bytes {
    match parts {
        [only] => only.clone(),
        _ => AlignedBuf::concat(parts.iter().map(|part| &part[..])).freeze(),
    }
}

/// A shared block of `len_bytes` zero bytes; small ones come from one static page.
#[must_use]
pub fn zeroes(len_bytes: usize) -> Bytes {
    #[repr(align(4096))]
    struct Page([u8; 65536]);
    static PAGE: Page = Page([0; 65536]);
    if len_bytes <= PAGE.0.len() {
        Bytes::from_static(&PAGE.0[..len_bytes])
    } else {
        AlignedBuf::zeroed(len_bytes).freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_and_concatenations_are_aligned_and_equal(
            parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..9000), 0..5
            )
        ) {
            let whole: Vec<u8> = parts.concat();
            let joined = AlignedBuf::concat(parts.iter().map(Vec::as_slice));
            prop_assert_eq!(&*joined, &whole[..]);
            let copied = AlignedBuf::copy_from(&whole).freeze();
            prop_assert_eq!(&copied[..], &whole[..]);
            prop_assert_eq!(copied.as_ptr().addr() % ALIGN_BYTES, 0);
        }
    }

    #[test]
    fn a_lease_ends_with_the_last_of_the_bytes() {
        let budget = Budget::new(8192);
        let mut lease = Lease::new(&budget);
        assert!(lease.grow_to(8192));
        let bytes = AlignedBuf::zeroed(8192).freeze_leased(lease.split_off());
        let part = bytes.slice(4096..4097);
        drop(bytes);
        assert_eq!(budget.used_bytes(), 8192);
        drop(part);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_loan_of_foreign_memory_ends_with_the_last_of_the_bytes() {
        struct Loan(std::sync::mpsc::Sender<AlignedBuf>, Option<AlignedBuf>);
        impl Drop for Loan {
            fn drop(&mut self) {
                let _ = self.0.send(self.1.take().expect("lent once"));
            }
        }
        let (sender, returned) = std::sync::mpsc::channel();
        let mut memory = AlignedBuf::zeroed(10_000);
        let pointer = NonNull::new(memory.as_mut_ptr()).expect("allocated");
        let loan = Loan(sender, Some(memory));
        // SAFETY: the loan keeps the memory, and gives it to this test when it ends.
        let mut buffer = unsafe { AlignedBuf::foreign(pointer, 10_000, loan) };
        buffer.fill(7);
        buffer.truncate(9_000);
        let bytes = buffer.freeze();
        let part = bytes.slice(8_999..);
        drop(bytes);
        assert!(returned.try_recv().is_err(), "a part is in use");
        assert_eq!(part[..], [7]);
        drop(part);
        let memory = returned.try_recv().expect("the loan has ended");
        assert!(memory.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn zero_length_buffers_are_fine() {
        assert!(AlignedBuf::zeroed(0).is_empty());
        assert!(AlignedBuf::copy_from(&[]).freeze().is_empty());
        assert!(zeroes(0).is_empty());
        assert_eq!(zeroes(100_000).len(), 100_000);
        assert!(is_aligned(&zeroes(8192)));
    }
}
