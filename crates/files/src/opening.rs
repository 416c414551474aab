//! Opens the files of a shard folder. No other module does.
//!
//! A shard folder may come from anywhere: from an archive, from another user, from a disk that was
//! found. So this module opens its files with these rules:
//!
//! - **No link is followed.** With a symbolic link named `shard.3`, the maker of the folder could
//!   choose which file is read or overwritten. Only the last component counts: the path of the
//!   folder itself is the user's, and may contain links.
//! - **Regular files only.** A pipe without a writer would block for ever, and opening a device can
//!   have side effects. So the module checks a file's kind before it opens the file. It opens the
//!   file without waiting, and checks the kind again, because another file may have taken the name
//!   in between.
//! - **New files are new.** The module makes a file only under a name that does not exist, so it
//!   never writes to a file that was there before.
//!
//! Errors name the kind of a file that is not regular: [`FileKind`].

use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Error;

/// The kind of a file that is not regular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A symbolic link, to any target.
    Link,
    /// A folder.
    Folder,
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A block or character device, or any other kind.
    Device,
}

impl FileKind {
    /// `None` for a regular file.
    fn of(kind: FileType) -> Option<Self> {
        match kind {
            _ if kind.is_file() => None,
            _ if kind.is_symlink() => Some(Self::Link),
            _ if kind.is_dir() => Some(Self::Folder),
            _ if kind.is_fifo() => Some(Self::Pipe),
            _ if kind.is_socket() => Some(Self::Socket),
            _ => Some(Self::Device),
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "a symbolic link",
            Self::Folder => "a folder",
            Self::Pipe => "a named pipe",
            Self::Socket => "a socket",
            Self::Device => "a device",
        })
    }
}

/// Why a file of a shard folder was not opened.
#[derive(Debug)]
pub(crate) enum OpenFlaw {
    /// The path names a file that is not regular.
    NotRegular(FileKind),
    /// The system refuses to open the file.
    System(io::Error),
}

impl OpenFlaw {
    /// For `map_err`: the error of a job, whose operation on `path` was `doing`.
    pub(crate) fn of(doing: &'static str, path: &Path) -> impl FnOnce(Self) -> Error {
        move |flaw| match flaw {
            Self::NotRegular(found) => Error::NotRegular { path: path.to_path_buf(), found },
            Self::System(error) => Error::io(doing, path)(error),
        }
    }
}

/// The purpose of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenPurpose {
    /// Only reading.
    Read,
    /// Only writing to an existing file.
    Write,
}

/// Opens a regular file that exists.
pub(crate) fn open(path: &Path, purpose: OpenPurpose) -> Result<File, OpenFlaw> {
    check(fs::symlink_metadata(path))?;
    let mut options = OpenOptions::new();
    options.read(purpose == OpenPurpose::Read).write(purpose == OpenPurpose::Write);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        // The path became a link after the check.
        Some(libc::ELOOP) => OpenFlaw::NotRegular(FileKind::Link),
        _ => OpenFlaw::System(error),
    })?;
    check(file.metadata())?;
    Ok(file)
}

fn check(metadata: io::Result<fs::Metadata>) -> Result<(), OpenFlaw> {
    match FileKind::of(metadata.map_err(OpenFlaw::System)?.file_type()) {
        None => Ok(()),
        Some(found) => Err(OpenFlaw::NotRegular(found)),
    }
}

/// Opens for writing a file that was opened for reading before, as `known`. The file with this name
/// must still be the same.
pub(crate) fn open_again(path: &Path, known: &File) -> Result<File, Error> {
    let file = open(path, OpenPurpose::Write).map_err(OpenFlaw::of("write to", path))?;
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    let same = identity(&file).and_then(|now| Ok(now == identity(known)?));
    if same.map_err(Error::io("write to", path))? {
        return Ok(file);
    }
    let what = "was replaced by another file while it was read".to_owned();
    let cure = "run the repair again".to_owned();
    Err(Error::InTheWay { path: path.to_path_buf(), what, cure })
}

/// Makes a file for writing. The name must be free; even a link without a target is an error.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Removes a regular file, if there is one.
pub(crate) fn remove_leftover(path: &Path) -> Result<(), Error> {
    match check(fs::symlink_metadata(path)) {
        Err(OpenFlaw::System(error)) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(OpenFlaw::of("remove", path))?,
    }
    fs::remove_file(path).map_err(Error::io("remove", path))
}

/// Opens a folder. Its path may be a link.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}
