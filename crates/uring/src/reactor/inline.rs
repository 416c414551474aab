//! Buffered writes without the ring.
//!
//! A buffered write is a copy into the page cache, a fraction of a microsecond per block. Some file
//! systems (ext4 among them) cannot promise io_uring that it will not block, so the ring hands
//! every such write to a kernel worker thread: two context switches for one copy, measured at about
//! three times the cost of the copy itself (`examples/batch_io.rs`). [`Reactor::write_inline`]
//! makes the copy where it stands instead.
//!
//! The price is that it can block after all: when too much dirty data waits for the disk, the kernel
//! makes writers wait. So it is for short writes of a server that syncs often; large ones, and
//! all of a direct file, belong into the ring.

use std::io;
use std::os::fd::RawFd;

use bytes::Bytes;

use super::{MAX_TRANSFER_BYTES, Reactor};
use crate::event::Token;
use crate::file::File;
use crate::gather::{Gather, Window};
use crate::op::Op;

impl Reactor {
    /// Writes all parts from `offset_bytes` on before it returns; the event follows in the next
    /// turn, as for [`Reactor::write`]. May block; see the module for when that pays.
    pub fn write_inline(
        &mut self,
        file: &File,
        offset_bytes: u64,
        parts: Vec<Bytes>,
        token: Token,
    ) {
        let (len, mut gather) = self.gather(parts);
        let result = if len > MAX_TRANSFER_BYTES {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        } else {
            write_whole(file.raw(), offset_bytes, &mut gather)
        };
        self.counters.inline_writes += 1;
        self.answer(Op::Write { file: file.clone(), offset_bytes, gather }, token, result);
    }
}

fn write_whole(raw: RawFd, offset_bytes: u64, gather: &mut Gather) -> io::Result<u32> {
    while !gather.is_done() {
        let at = offset_bytes + u64::from(gather.done_bytes());
        let at =
            libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: the window lies in parts that the gather owns and no other code can change.
        let written = unsafe {
            match gather.window() {
                Window::Run(from, len) => libc::pwrite(raw, from.cast(), len as usize, at),
                Window::Vectors(list, len) => libc::pwritev(raw, list, len.cast_signed(), at),
            }
        };
        match u32::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => gather.advance(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(gather.done_bytes())
}
