//! Errors of the jobs, with the name of the file and a way to solve the problem.

use std::io;
use std::path::{Path, PathBuf};

use fieldstone_codes::Profile;
use thiserror::Error;

use crate::opening::FileKind;

/// Why a job on an encoded file was not done, or not finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses an operation: no permission, no space, an error of a disk.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file. The names of standard input and output are `stdin` and `stdout`.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk is full.
    #[error("there is no room for {}; free some space, or name another place", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder to encode into is not empty.
    #[error(
        "{} is not empty ({found} is in it); name another folder, or empty it",
        folder.display()
    )]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// One of the files in it.
        found: String,
    },
    /// The output file exists.
    #[error("{} exists; name another file, or remove it", .0.display())]
    OutputExists(PathBuf),
    /// Another process changes the folder, or reads a folder that this process would change.
    #[error("another process is at work in {}; wait for its end", .0.display())]
    InUse(PathBuf),
    /// A length of units that the code cannot have.
    #[error("units of {given_bytes} bytes do not fit {profile}: {reason}")]
    Unit {
        /// The code.
        profile: Profile,
        /// The given length.
        given_bytes: u64,
        /// The reason, and a length that the code can have.
        reason: String,
    },
    /// The file is longer than the bound.
    #[error(
        "the input has more than {} bytes, the most that one encoding holds",
        crate::MAX_FILE_BYTES
    )]
    TooLong,
    /// The folder has neither a manifest nor a shard.
    #[error("{} holds no encoded file: {reason}", folder.display())]
    NothingHere {
        /// The folder.
        folder: PathBuf,
        /// The content of the folder.
        reason: String,
    },
    /// A newer release has written the file.
    #[error(
        "{} has format {found}, and this version of fieldstone knows formats up to {known}; use a \
         newer one",
        path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format that this release knows.
        known: u64,
    },
    /// The manifest is lost and the shards are of several files.
    #[error(
        "{} holds shards of several encodings ({ids}) and no valid manifest that says which one \
         counts; move those of the others away",
        folder.display()
    )]
    Mixed {
        /// The folder.
        folder: PathBuf,
        /// The ids of the encodings.
        ids: String,
    },
    /// A file that a repair would overwrite may be more than a damaged copy of the lost file.
    #[error("{} {what}; {cure}", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// The kind of the file, or its state.
        what: String,
        /// A way to solve the problem.
        cure: String,
    },
    /// A file of a shard folder is a link, a pipe, a device or a folder.
    #[error(
        "{} is {found} and no regular file: it is neither read nor written; move it away",
        path.display()
    )]
    NotRegular {
        /// The file.
        path: PathBuf,
        /// The kind of the file.
        found: FileKind,
    },
    /// The header of a shard is intact, but this release cannot decode the encoding that it
    /// describes.
    #[error(
        "the header of {} describes an encoding that cannot be: {reason}; bring {} or another \
         shard back from a copy",
        path.display(),
        crate::MANIFEST_FILE
    )]
    Impossible {
        /// The shard.
        path: PathBuf,
        /// The error of the code or the length of units, and the bound.
        reason: String,
    },
    /// A stripe has too few good shards.
    #[error(
        "stripe {stripe} (bytes {start} to {end} of the file) cannot be read: {profile} needs \
         {needed} good shards there, and {good} are: {flaws}; bring shards back from a copy"
    )]
    TooFewShards {
        /// The stripe.
        stripe: u64,
        /// Offset of the stripe's first byte in the file.
        start: u64,
        /// Offset of the byte after its last one.
        end: u64,
        /// The code.
        profile: Profile,
        /// Number of shards that the code needs.
        needed: usize,
        /// Number of good shards.
        good: usize,
        /// The flaws of the other shards.
        flaws: String,
    },
    /// The recomputed bytes of a damaged unit do not match the checksums in its record.
    #[error(
        "stripe {stripe} contradicts itself: what the other shards give for shard {shard} is not \
         what its checksums say; a faulty memory or program wrote it, run `verify`"
    )]
    Contradiction {
        /// The stripe.
        stripe: u64,
        /// The shard that was recomputed.
        shard: usize,
    },
    /// All blocks had the right checksums, but the whole file has not.
    #[error(
        "the decoded file has the checksum {found:08x} and was encoded from one with \
         {expected:08x}: some memory or program failed in between; do not use it, and run \
         `verify`"
    )]
    WrongFile {
        /// The checksum of the original file.
        expected: u32,
        /// The checksum of the decoded file.
        found: u32,
    },
}

impl Error {
    /// For `map_err`: the system refuses `doing` to `path`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.to_path_buf();
            match source.kind() {
                io::ErrorKind::StorageFull => Self::NoSpace { path, source },
                _ => Self::Io { doing, path, source },
            }
        }
    }
}
