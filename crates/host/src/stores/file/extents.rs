//! The ranges of a file that hold data, and its holes.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc;

use fieldstone_block::{EXTENTS_MAX, Extent, ExtentKind};
use fieldstone_uring::start_thread;

use super::FileMail;
use crate::store::Mailer;

/// A question for the extents of a range, for the request with this index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) index: u32,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

/// Starts a thread that answers questions by mail, until the returned sender is dropped.
///
/// # Errors
/// The system cannot start a thread.
pub(super) fn start(file: fs::File, mailer: Mailer) -> io::Result<mpsc::Sender<Question>> {
    let (ask, asked) = mpsc::channel::<Question>();
    start_thread("extents", move || {
        for Question { index, offset_bytes, len_bytes } in asked {
            let found = extents(&file, offset_bytes, len_bytes);
            mailer.send(Box::new(FileMail::Extents(index, found)));
        }
    })?;
    Ok(ask)
}

/// The extents of a range, as the file system reports them.
fn extents(file: &fs::File, offset_bytes: u64, len_bytes: u64) -> io::Result<Vec<Extent>> {
    let end = offset_bytes + len_bytes;
    let (mut at, mut list) = (offset_bytes, Vec::new());
    while at < end && list.len() < EXTENTS_MAX {
        let data = match seek(file, at, libc::SEEK_DATA) {
            Ok(data) => data.min(end),
            Err(error) => match error.raw_os_error() {
                // Only a hole follows.
                Some(libc::ENXIO) => end,
                // A block device, or a file system without these seeks: the rest counts as data.
                Some(libc::EINVAL | libc::EOPNOTSUPP) => at,
                _ => return Err(error),
            },
        };
        if data > at {
            list.push(Extent { len_bytes: data - at, kind: ExtentKind::Hole });
        }
        if data < end {
            let hole = seek(file, data, libc::SEEK_HOLE).map_or(end, |hole| hole.min(end));
            list.push(Extent { len_bytes: hole.max(data + 1) - data, kind: ExtentKind::Data });
            at = hole.max(data + 1);
        } else {
            at = end;
        }
    }
    Ok(list)
}

fn seek(file: &fs::File, offset_bytes: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset_bytes).map_err(io::Error::other)?;
    // SAFETY: lseek takes no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}
