//! Arrays of `struct iovec`.
//!
//! Buffers that are read into may overlap each other, as C allows. So no slice is made of them; the
//! bytes are copied through their pointers.

use std::ptr;
use std::slice;

use fieldstone_block::Piece;
use fieldstone_buf::AlignedBuf;
use fieldstone_c_abi::array;
use fieldstone_embed::{Data, Error, REQUEST_BYTES_MAX};
use libc::iovec;
use smallvec::SmallVec;

use crate::status::{Failure, Status};

/// Entries of an array at most.
const IOVECS_MAX: usize = 1024;

/// The caller's buffers, which were checked: none that has bytes is null, and all together have no
/// more than a request may have.
#[derive(Default)]
pub(crate) struct Buffers(SmallVec<[iovec; 2]>);

// SAFETY: these are addresses. Who makes them vouches that any thread may use the memory.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Takes an array over.
    ///
    /// # Safety
    /// `iov` is null or that of `count` entries. Their memory stays until the last use of this
    /// value, which any thread may make.
    pub(crate) unsafe fn of(iov: *const iovec, count: usize) -> Result<Self, Failure> {
        // SAFETY: the caller vouches for the entries.
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

    /// All bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.iov_len).sum()
    }

    /// A copy of what is in them.
    ///
    /// # Safety
    /// The buffers hold bytes that no thread writes meanwhile.
    pub(crate) unsafe fn gather(&self) -> AlignedBuf {
        let parts = self.0.iter().map(|entry| {
            // SAFETY: the caller vouches for the bytes; so few do not exceed an isize.
            unsafe { slice::from_raw_parts(entry.iov_base.cast::<u8>(), entry.iov_len) }
        });
        AlignedBuf::concat(parts)
    }

    /// Copies what was read into them, one after the other.
    ///
    /// # Safety
    /// The buffers are writable, and no thread uses them meanwhile.
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
                // SAFETY: `len` is within the buffer and the piece. The piece is memory of ours.
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
