//! Arrays of `struct iovec`.
//!
//! The buffers of a read may overlap, as C allows. So this module makes no slices of them, and
//! copies the bytes through their pointers.

use std::ptr::{self, NonNull};
use std::slice;

use fieldstone_block::Piece;
use fieldstone_buf::AlignedBuf;
use fieldstone_c_abi::array;
use fieldstone_embed::{Data, Error, REQUEST_BYTES_MAX};
use libc::iovec;
use smallvec::SmallVec;

use crate::status::{Failure, Status};

/// Largest number of entries in an array.
const IOVECS_MAX: usize = 1024;

/// Checked buffers of the caller: none is null or empty, and together they have at most
/// [`REQUEST_BYTES_MAX`] bytes.
#[derive(Default)]
pub(crate) struct Buffers(SmallVec<[iovec; 2]>);

// SAFETY: these are addresses. The caller of `of` guarantees that any thread may use the memory.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Checks an array, and copies its entries that are not empty.
    ///
    /// # Safety
    /// `iov` is null, or points to `count` entries. Their buffers live until the last use of this
    /// value, which may be on any thread.
    pub(crate) unsafe fn of(iov: *const iovec, count: usize) -> Result<Self, Failure> {
        // SAFETY: the caller guarantees the entries.
        let entries = unsafe { array("iov", iov, count, IOVECS_MAX) }?;
        let mut len_bytes: u64 = 0;
        for (at, entry) in entries.iter().enumerate() {
            if entry.iov_base.is_null() && entry.iov_len > 0 {
                return Err(Failure::new(Status::Null, format!("iov[{at}].iov_base is NULL")));
            }
            len_bytes = len_bytes.saturating_add(entry.iov_len as u64);
        }
        let max_bytes = REQUEST_BYTES_MAX as u64;
        if len_bytes > max_bytes {
            return Err(Error::TooLong { len_bytes, max_bytes }.into());
        }
        Ok(Self(entries.iter().filter(|entry| entry.iov_len > 0).copied().collect()))
    }

    /// The address and length of the only buffer; `None` if there are several or none.
    pub(crate) fn single(&self) -> Option<(NonNull<u8>, usize)> {
        let [only] = &self.0[..] else { return None };
        Some((NonNull::new(only.iov_base.cast())?, only.iov_len))
    }

    /// Bytes of all buffers.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.iov_len).sum()
    }

    /// Copies the bytes of all buffers.
    ///
    /// # Safety
    /// The buffers are initialised, and no thread writes them during the call.
    pub(crate) unsafe fn gather(&self) -> AlignedBuf {
        let parts = self.0.iter().map(|entry| {
            // SAFETY: the caller guarantees the bytes. There are at most `REQUEST_BYTES_MAX`, less
            // than `isize::MAX`.
            unsafe { slice::from_raw_parts(entry.iov_base.cast::<u8>(), entry.iov_len) }
        });
        AlignedBuf::concat(parts)
    }

    /// Copies the data of a read into the buffers, one buffer after the other.
    ///
    /// # Safety
    /// The buffers are writable, and no other thread uses them during the call.
    pub(crate) unsafe fn scatter(&self, data: &Data) {
        let mut room = self.0.iter();
        let (mut to, mut left): (*mut u8, usize) = (ptr::null_mut(), 0);
        for piece in data.pieces() {
            let mut from = 0;
            while from < piece.len_bytes() as usize {
                if left == 0 {
                    let Some(next) = room.next() else { return };
                    (to, left) = (next.iov_base.cast(), next.iov_len);
                    continue;
                }
                let len = left.min(piece.len_bytes() as usize - from);
                // SAFETY: `len` is within the buffer and the piece. The piece does not overlap the
                // buffer: its memory belongs to the library.
                unsafe {
                    match piece {
                        Piece::Data(data) => to.copy_from(data[from..from + len].as_ptr(), len),
                        Piece::Zeroes(_) => to.write_bytes(0, len),
                    }
                    to = to.add(len);
                }
                (from, left) = (from + len, left - len);
            }
        }
    }
}
