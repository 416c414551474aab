//! What can go wrong, with the name of the thing and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use fieldstone_codes::Profile;
use thiserror::Error;

use crate::opening::FileKind;

/// Why a job on an encoded file was not done, or not finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses: no permission, no space, an error of a disk.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what; the names of standard input and output are `stdin` and `stdout`.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The disk is full.
    #[error("there is no room for {}; free some space, or name another place", path.display())]
    NoSpace {
        /// What was written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The folder to encode into has something in it.
    #[error(
        "{} is not empty ({found} is in it); name another folder, or empty it",
        folder.display()
    )]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// One of the things in it.
        found: String,
    },
    /// The file to write is there already.
    #[error("{} exists; name another file, or remove it", .0.display())]
    OutputExists(PathBuf),
    /// Another process changes the folder, or reads what this one would change.
    #[error("another process is at work in {}; wait for its end", .0.display())]
    InUse(PathBuf),
    /// A length of units that the code cannot have.
    #[error("units of {given_bytes} bytes do not fit {profile}: {reason}")]
    Unit {
        /// The code.
        profile: Profile,
        /// The length asked for.
        given_bytes: u64,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// More than a file may have.
    #[error(
        "the input has more than {} bytes, the most that one encoding holds",
        crate::MAX_FILE_BYTES
    )]
    TooLong,
    /// Neither a manifest nor a shard.
    #[error("{} holds no encoded file: {reason}", folder.display())]
    NothingHere {
        /// The folder.
        folder: PathBuf,
        /// What there is instead.
        reason: String,
    },
    /// Written by a newer release.
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
        /// The newest format known here.
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
        /// The ids found.
        ids: String,
    },
    /// A file that a repair would overwrite is something else than what is lost.
    #[error("{} {what}; {cure}", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What to do.
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
        /// What it is.
        found: FileKind,
    },
    /// The header of a shard is whole, and describes what cannot be decoded by this release.
    #[error(
        "the header of {} describes an encoding that cannot be: {reason}; bring {} or another \
         shard back from a copy",
        path.display(),
        crate::MANIFEST_FILE
    )]
    Impossible {
        /// The shard.
        path: PathBuf,
        /// What is wrong with the code or the length of units, and the bound.
        reason: String,
    },
    /// Too little is left of one stripe.
    #[error(
        "stripe {stripe} (bytes {start} to {end} of the file) cannot be read: {profile} needs \
         {needed} good shards there, and {good} are: {flaws}; bring shards back from a copy"
    )]
    TooFewShards {
        /// The stripe.
        stripe: u64,
        /// First byte of the file in it.
        start: u64,
        /// Byte after the last one in it.
        end: u64,
        /// The code.
        profile: Profile,
        /// Shards needed.
        needed: usize,
        /// Shards that are good.
        good: usize,
        /// What is wrong with the others.
        flaws: String,
    },
    /// Other shards give other bytes than those that the checksums of a damaged unit know.
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
    /// All blocks had the right checksums, and yet the whole has not.
    #[error(
        "the decoded file has the checksum {found:08x} and was encoded from one with \
         {expected:08x}: some memory or program failed in between; do not use it, and run \
         `verify`"
    )]
    WrongFile {
        /// The checksum of the file that was encoded.
        expected: u32,
        /// The checksum of what was decoded.
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
