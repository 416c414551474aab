//! Buffered writes without the ring.
//!
//! A buffered write is a copy into the page cache, a fraction of a microsecond per block. Some file
//! systems cannot promise io_uring that such a write will not block, so the ring hands each of them
//! to a kernel worker thread. That is two context switches for one copy, measured at about three
//! times the cost of the copy itself (`examples/batch_io.rs`). [`Reactor::write_inline`] instead
//! makes the copy in the calling thread.
//!
//! The price is that the write can block: when too much dirty data waits for the disk, when the
//! block's page or the file's inode is being written, or when the rest of the page must be read
//! first. On a hanging disk each of these waits is endless, and the core waits with the disk. The
//! file system decides which writes can block:
//!
//! | file system | `RWF_NOWAIT` | the write |
//! |---|---|---|
//! | XFS, btrfs | honoured | never blocks: what the kernel cannot copy at once goes to the ring |
//! | ext4, tmpfs, others | refused (`EOPNOTSUPP`) | blocks, or goes to the ring (`unsure`) |
//!
//! For 4 KiB writes into a file on XFS that is synced every 32 writes, the kernel copies 98 of 100
//! at once. On ext4 it copies none. The first write to a file shows which kind of file system it is
//! on.
//!
//! The caller knows the state of its disk. It lets a write block only while the disk keeps pace
//! (`host::pace` has the rule and the remaining risk). So a hanging disk blocks at most one write
//! before its writes go to the ring, and most likely none.

use std::io;
use std::os::fd::RawFd;

use bytes::Bytes;
use fieldstone_block::Nanos;

use super::{MAX_TRANSFER_BYTES, Reactor};
use crate::clock;
use crate::event::Token;
use crate::file::File;
use crate::gather::{Gather, Window};
use crate::op::Op;

/// The action for a write when the file system cannot promise not to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsure {
    /// Write anyway, and possibly block.
    Block,
    /// Leave the write to the ring.
    Ring,
}

/// How a write was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inlined {
    /// In the calling thread, without blocking.
    AtOnce,
    /// In the calling thread. The write could block. It took this long, to the precision of a clock
    /// tick (1 to 10 ms).
    Blocking(Nanos),
    /// On the ring, all of it or the rest.
    Ring,
}

/// The result of an attempt to write without blocking.
enum Attempt {
    Whole,
    Rest,
    Unsupported,
}

impl Reactor {
    /// Writes all parts from `offset_bytes` on before it returns, or leaves the rest to the ring.
    /// In both cases the event follows in a later turn, as for [`Reactor::write`]. If the file
    /// system cannot promise not to block, `unsure` decides; see the module.
    pub fn write_inline(
        &mut self,
        file: &File,
        offset_bytes: u64,
        parts: Vec<Bytes>,
        unsure: Unsure,
        token: Token,
    ) -> Inlined {
        let (len, mut gather) = self.gather(parts);
        let write = |gather| Op::Write { file: file.clone(), offset_bytes, gather };
        if len == 0 || len > MAX_TRANSFER_BYTES {
            self.transfer(write(gather), len, token);
            return Inlined::AtOnce;
        }
        let attempt = if file.refuses_nowait() {
            Ok(Attempt::Unsupported)
        } else {
            write_nowait(file, offset_bytes, &mut gather)
        };
        let (result, inlined) = match (attempt, unsure) {
            (Ok(Attempt::Whole), _) => (Ok(gather.done_bytes()), Inlined::AtOnce),
            (Err(error), _) => (Err(error), Inlined::AtOnce),
            (Ok(Attempt::Unsupported), Unsure::Block) => {
                let start = clock::coarse_now();
                let result = write_whole(file.raw(), offset_bytes, &mut gather);
                (result, Inlined::Blocking(clock::coarse_now().since(start)))
            }
            (Ok(Attempt::Rest | Attempt::Unsupported), _) => {
                self.transfer(write(gather), len, token);
                return Inlined::Ring;
            }
        };
        self.counters.inline_writes += 1;
        self.answer(write(gather), token, result);
        inlined
    }
}

/// Writes as many bytes as the kernel takes without blocking.
fn write_nowait(file: &File, offset_bytes: u64, gather: &mut Gather) -> io::Result<Attempt> {
    while !gather.is_done() {
        match write_window(file.raw(), offset_bytes, gather, libc::RWF_NOWAIT) {
            Ok(0) => return Ok(Attempt::Rest),
            Ok(count) => gather.advance(count),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => return Ok(Attempt::Rest),
                // A kernel before 4.13 gives the second error.
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    file.note_refuses_nowait();
                    return Ok(Attempt::Unsupported);
                }
                _ => return Err(error),
            },
        }
    }
    Ok(Attempt::Whole)
}

/// Writes everything, and blocks if it must.
fn write_whole(raw: RawFd, offset_bytes: u64, gather: &mut Gather) -> io::Result<u32> {
    while !gather.is_done() {
        match write_window(raw, offset_bytes, gather, 0) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => gather.advance(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gather.done_bytes())
}

/// One system call.
fn write_window(
    raw: RawFd,
    offset_bytes: u64,
    gather: &mut Gather,
    flags: libc::c_int,
) -> io::Result<u32> {
    let at = offset_bytes + u64::from(gather.done_bytes());
    let at = libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: the window lies in parts that the gather owns and no other code can change.
    let written = unsafe {
        match gather.window() {
            Window::Run(from, len) if flags == 0 => {
                libc::pwrite(raw, from.cast(), len as usize, at)
            }
            Window::Run(from, len) => {
                let run = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len as usize };
                libc::pwritev2(raw, &raw const run, 1, at, flags)
            }
            Window::Vectors(list, len) => libc::pwritev2(raw, list, len.cast_signed(), at, flags),
        }
    };
    u32::try_from(written).map_err(|_| io::Error::last_os_error())
}
