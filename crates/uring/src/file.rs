//! Files that the reactor reads and writes.
//!
//! Opening, sizing and removing are plain blocking calls, because they happen when a volume or node
//! starts, not on the data path. The operations of requests (read, write, sync, discard) go through
//! the [`Reactor`](crate::Reactor).
//!
//! `Direct` files (`O_DIRECT`) bypass the page cache. The kernel then demands that offset, length
//! and memory address are multiples of the device's logical block size. 4096 always works, and an
//! [`AlignedBuf`](fieldstone_buf::AlignedBuf) satisfies this.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether transfers use the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    #[default]
    Buffered,
    /// Around the page cache (`O_DIRECT`): transfers must be aligned.
    Direct,
}

/// Whether to create a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Creation {
    /// The file must exist.
    #[default]
    Existing,
    /// The file is created, empty, if it does not exist.
    IfMissing,
    /// The file must not exist and is created empty.
    New,
}

/// How to open a file. The default opens an existing file for buffered reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Whether to create the file.
    pub creation: Creation,
    /// Whether to use the page cache.
    pub caching: Caching,
}

/// An open file. Clones share the descriptor. It closes with the last handle or operation.
#[derive(Clone, Debug)]
pub struct File {
    open: Arc<Open>,
    caching: Caching,
}

/// The state that the handles of a file share.
#[derive(Debug)]
struct Open {
    file: fs::File,
    /// The file's system does not support writes that must not block (`RWF_NOWAIT`).
    refuses_nowait: AtomicBool,
}

impl Open {
    fn new(file: fs::File) -> Arc<Self> {
        Arc::new(Self { file, refuses_nowait: AtomicBool::new(false) })
    }
}

impl File {
    /// Opens a file.
    ///
    /// # Errors
    /// The system's reason, with the path in the text. `EINVAL` for a direct file on a file system
    /// without direct I/O. The error keeps its kind.
    pub fn open(path: &Path, options: FileOptions) -> io::Result<Self> {
        let mut open = fs::OpenOptions::new();
        open.read(true).write(options.write || options.creation != Creation::Existing);
        match options.creation {
            Creation::Existing => {}
            Creation::IfMissing => {
                open.create(true);
            }
            Creation::New => {
                open.create_new(true);
            }
        }
        if options.caching == Caching::Direct {
            open.custom_flags(libc::O_DIRECT);
        }
        let file = open.open(path).map_err(|error| named(path, &error))?;
        Ok(Self { open: Open::new(file), caching: options.caching })
    }

    /// Wraps an open file. `caching` must match its `O_DIRECT` flag.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd, caching: Caching) -> Self {
        Self { open: Open::new(descriptor.into()), caching }
    }

    /// The caching with which the file was opened.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// The length of a regular file in bytes.
    ///
    /// # Errors
    /// Whatever `fstat` reports.
    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.open.file.metadata()?.len())
    }

    /// Cuts the file, or extends it with a hole.
    ///
    /// # Errors
    /// Whatever `ftruncate` reports: not open for writing, too large.
    pub fn set_len_bytes(&self, len_bytes: u64) -> io::Result<()> {
        self.open.file.set_len(len_bytes)
    }

    /// Space that the file takes on its device, in bytes.
    ///
    /// # Errors
    /// Whatever `fstat` reports.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        const STAT_BLOCK_BYTES: u64 = 512;
        Ok(self.open.file.metadata()?.blocks() * STAT_BLOCK_BYTES)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.open.file.as_raw_fd()
    }

    /// True once [`File::note_refuses_nowait`] was called for a handle of the file.
    pub(crate) fn refuses_nowait(&self) -> bool {
        self.open.refuses_nowait.load(Ordering::Relaxed)
    }

    /// Makes writes to the file never try `RWF_NOWAIT` again, because its file system cannot
    /// promise not to block.
    pub fn note_refuses_nowait(&self) {
        self.open.refuses_nowait.store(true, Ordering::Relaxed);
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.file.as_fd()
    }
}

/// Opens a file that must be a regular one, such as the files of a node's folder. Opening or
/// reading a FIFO waits for its other end, which may never come. So this function refuses FIFOs,
/// sockets and devices. It does not refuse a directory: the caller's next call fails on it, with
/// the system's own error text.
///
/// For plain calls only: on a descriptor that was opened like this, the ring fails operations that
/// should wait.
///
/// # Errors
/// The system's reason, or that the file is not regular.
pub fn open_regular(path: &Path, options: &mut fs::OpenOptions) -> io::Result<fs::File> {
    check_regular(options.custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// As [`open_regular`], for files that this program alone makes: a symbolic link is an error. In a
/// folder of another user, it could lead to a file of the caller.
///
/// # Errors
/// As [`open_regular`].
pub(crate) fn open_own(path: &Path, options: &mut fs::OpenOptions) -> io::Result<fs::File> {
    check_regular(options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?)
}

fn check_regular(file: fs::File) -> io::Result<fs::File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file: move it away first"))
}

/// Makes the names in a folder stable, after creating, renaming or removing a file in it.
///
/// # Errors
/// The system's reason, with the path in the text.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let folder = fs::File::open(path).map_err(|error| named(path, &error))?;
    folder.sync_all().map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_rules_and_lengths() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("f");
        let error = File::open(&path, FileOptions::default()).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains(path.to_str().expect("utf-8")), "{error}");

        let new = FileOptions { creation: Creation::New, ..FileOptions::default() };
        let file = File::open(&path, new).expect("created");
        file.set_len_bytes(1 << 20).expect("writable");
        assert_eq!(file.len_bytes().expect("open"), 1 << 20);
        assert_eq!(file.allocated_bytes().expect("open"), 0);
        assert_eq!(
            File::open(&path, new).expect_err("exists").kind(),
            io::ErrorKind::AlreadyExists
        );

        let again = FileOptions { creation: Creation::IfMissing, ..FileOptions::default() };
        assert_eq!(File::open(&path, again).expect("opens").len_bytes().expect("open"), 1 << 20);
        let read_only = File::open(&path, FileOptions::default()).expect("opens");
        assert!(read_only.set_len_bytes(0).is_err());
        sync_directory(folder.path()).expect("a folder");
        assert!(sync_directory(&path.join("x")).is_err());
    }
}
