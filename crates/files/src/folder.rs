//! The folder of an encoding: its files, and their state.
//!
//! This module reads only headers. The header decides which shard a file is, and not the name; the
//! name decides only if the header is damaged. Units are checked when they are read.
//!
//! The module does not trust lengths in a header or manifest beyond the lengths of the files. It
//! neither reads nor allocates memory for stripes that no shard file holds
//! ([`Folder::present_stripes`]).
//!
//! Shards get their names one after the other, when all of them are finished and stable. So if one
//! shard has its name, another may still have its temporary name. A finished file under the
//! temporary name is that shard, unless another file is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::header::{self, HEADER_BYTES, HeaderFlaw};
use crate::manifest::{self, ManifestFlaw};
use crate::opening::{self, FileKind, OpenFlaw, OpenPurpose};
use crate::output::{PART_SUFFIX, part_path};
use crate::striping::{Encoding, EncodingId, EncodingParams};

/// Name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Longest manifest that is read. The encoder writes about 300 bytes.
pub const MAX_MANIFEST_BYTES: u64 = 64 << 10;

/// Name of a shard's file.
#[must_use]
pub fn shard_name(shard: usize) -> String {
    format!("shard.{shard}")
}

/// The shard that a file of this name should be.
fn shard_of_name(name: &OsStr) -> Option<usize> {
    let shard = name.to_str()?.strip_prefix("shard.")?.parse().ok()?;
    (*name == *shard_name(shard)).then_some(shard)
}

/// Prevents changes of the folder by other processes while it lives.
pub(crate) struct Lock {
    _file: Option<File>,
}

/// The access of a process to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads the folder; other processes may read it, too.
    Read,
    /// Changes the folder, without other processes.
    Change,
}

impl Lock {
    /// Locks a folder.
    pub(crate) fn take(folder: &Path, access: Access) -> Result<Self, Error> {
        let file = opening::open_folder(folder).map_err(Error::io("open", folder))?;
        let locked = match access {
            Access::Read => file.try_lock_shared(),
            Access::Change => file.try_lock(),
        };
        match locked {
            Ok(()) => Ok(Self { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse(folder.to_path_buf())),
            // Some network file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                Ok(Self { _file: None })
            }
            Err(TryLockError::Error(error)) => Err(Error::io("lock", folder)(error)),
        }
    }
}

/// The state of a shard before its units are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// Header, name and length are right.
    Good,
    /// There is no such file.
    Missing,
    /// The file has the name of another shard.
    Misnamed,
    /// The file is finished, but still has its temporary name. An encode or repair was interrupted
    /// while it gave its shards their names.
    Unnamed,
    /// The file has a wrong length.
    WrongLength {
        /// Its length.
        found_bytes: u64,
        /// The right length.
        expected_bytes: u64,
    },
    /// The header is damaged, or missing because the shard was never finished.
    BadHeader,
    /// The file of its name is a shard of another encoding.
    Foreign(EncodingId),
    /// The file of its name is a different shard of this encoding.
    NameTaken(usize),
    /// The header of the file of its name is intact, but describes an encoding that is not
    /// possible.
    Impossible {
        /// The error of the code or the length of units, and the bound.
        reason: String,
    },
    /// A special file has its name, and was not opened.
    NotRegular(FileKind),
    /// The system refuses to read it.
    Unreadable {
        /// The system's error.
        reason: String,
        /// True if a permission is missing; false for a broken disk and the like.
        denied: bool,
    },
}

impl fmt::Display for ShardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => write!(f, "good"),
            Self::Missing => write!(f, "missing"),
            Self::Misnamed => write!(f, "has the name of another shard"),
            Self::Unnamed => write!(f, "still has its temporary name"),
            Self::WrongLength { found_bytes, expected_bytes } => {
                let how = if found_bytes < expected_bytes { "truncated" } else { "too long" };
                write!(f, "{how}: {found_bytes} bytes instead of {expected_bytes}")
            }
            Self::BadHeader => write!(f, "has a damaged header"),
            Self::Foreign(id) => write!(f, "belongs to another encoding, {id}"),
            Self::Impossible { reason } => {
                write!(f, "describes an encoding that cannot be: {reason}")
            }
            Self::NotRegular(found) => write!(f, "is {found} and no regular file"),
            Self::NameTaken(shard) => write!(f, "missing; the file of its name is shard {shard}"),
            Self::Unreadable { reason, .. } => write!(f, "cannot be read: {reason}"),
        }
    }
}

/// One shard of the encoding.
#[derive(Debug)]
pub struct Shard {
    /// Its state.
    pub state: ShardState,
    /// The file that holds it, or should hold it.
    pub path: PathBuf,
    /// The file from which units can be read. Even a bad shard may have good units.
    pub(crate) file: Option<File>,
    /// Bytes of that file; 0 without a file.
    len_bytes: u64,
}

impl Shard {
    /// True if no error of the shard or of its name is known.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.state == ShardState::Good
    }

    /// True if the shard is whole, as far as is known.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.state, ShardState::Good | ShardState::Misnamed | ShardState::Unnamed)
    }
}

/// The state of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestState {
    /// The manifest is valid.
    Good,
    /// There is no manifest.
    Missing,
    /// The manifest cannot be used, for this reason.
    Damaged(String),
    /// A special file has its name, and was not opened.
    NotRegular(FileKind),
}

/// An encoding in a folder.
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// The encoding.
    pub encoding: Encoding,
    /// The state of the manifest. Without a manifest, the shards' headers describe the encoding.
    pub manifest: ManifestState,
    /// All shards, in order.
    pub shards: Vec<Shard>,
    pub(crate) access: Access,
    _lock: Lock,
}

/// A file with the name of a shard, and the content of its header.
struct Candidate {
    path: PathBuf,
    opened: Result<Opened, OpenFlaw>,
}

/// The file, its length, and the content of its header.
type Opened = (File, u64, Result<(EncodingParams, usize), HeaderFlaw>);

impl Folder {
    /// Opens a folder to read it.
    ///
    /// # Errors
    /// The folder cannot be read, holds no encoding or several, or holds one of a newer format.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_for(path, Access::Read)
    }

    /// Opens a folder to repair it. No other process can open the folder in the meantime.
    ///
    /// # Errors
    /// As [`Folder::open`], or another process uses the folder.
    pub fn open_to_change(path: &Path) -> Result<Self, Error> {
        Self::open_for(path, Access::Change)
    }

    fn open_for(path: &Path, access: Access) -> Result<Self, Error> {
        let lock = Lock::take(path, access)?;
        let candidates = candidates(path)?;
        let (manifest, described) = read_manifest(path)?;
        for candidate in candidates.values() {
            if let Ok((_, _, Err(HeaderFlaw::Newer(found)))) = candidate.opened {
                let (path, known) = (candidate.path.clone(), header::VERSION.into());
                return Err(Error::NewerFormat { path, found: found.into(), known });
            }
        }
        let encoding = match described {
            Some(encoding) => encoding,
            None => agree(path, &manifest, &candidates)?,
        };
        let mut shards = assign(path, &encoding, candidates);
        for (number, shard) in shards.iter_mut().enumerate() {
            if shard.state == ShardState::Missing
                && let Some(unnamed) = unnamed(path, &encoding, number)
            {
                *shard = unnamed;
            }
        }
        Ok(Self { path: path.to_path_buf(), encoding, manifest, shards, access, _lock: lock })
    }

    /// The number of stripes of which some shard file holds a whole unit. Later stripes cannot be
    /// decoded: all of their data units are lost, and a code makes several units only from other
    /// whole units.
    pub(crate) fn present_stripes(&self) -> u64 {
        let longest = self.shards.iter().map(|shard| shard.len_bytes).max().unwrap_or(0);
        self.encoding.stripes_within(longest)
    }

    /// Bytes of the longest unit that some shard file holds.
    pub(crate) fn present_unit_bytes(&self) -> usize {
        // The first stripe has the longest units.
        if self.present_stripes() > 0 { self.encoding.unit_len(0) } else { 0 }
    }

    /// Fails if no shard file holds a unit of some stripe.
    pub(crate) fn check_all_present(&self) -> Result<(), Error> {
        let (stripe, encoding) = (self.present_stripes(), &self.encoding);
        if stripe == encoding.stripes() {
            return Ok(());
        }
        let flaw = |(shard, found): (usize, &Shard)| match found.file {
            Some(_) => format!("shard {shard} cut off"),
            None => format!("shard {shard} {}", found.state),
        };
        let flaws: Vec<String> = self.shards.iter().enumerate().map(flaw).collect();
        let start = encoding.stripe_start(stripe);
        Err(Error::TooFewShards {
            stripe,
            start,
            end: start + encoding.data_len(stripe) as u64,
            profile: encoding.striping.profile(),
            needed: encoding.striping.k(),
            good: 0,
            flaws: flaws.join(", "),
        })
    }
}

/// The files whose names are names of shards.
fn candidates(folder: &Path) -> Result<BTreeMap<usize, Candidate>, Error> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let entry = entry.map_err(Error::io("read", folder))?;
        let Some(shard) = shard_of_name(&entry.file_name()) else { continue };
        if shard >= fieldstone_codes::MAX_SHARDS {
            continue;
        }
        let path = entry.path();
        let opened = open_shard(&path);
        found.insert(shard, Candidate { path, opened });
    }
    Ok(found)
}

fn open_shard(path: &Path) -> Result<Opened, OpenFlaw> {
    let file = opening::open(path, OpenPurpose::Read)?;
    let len_bytes = file.metadata().map_err(OpenFlaw::System)?.len();
    let mut bytes = [0; HEADER_BYTES];
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => header::from_bytes(&bytes),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(HeaderFlaw::Damaged),
        Err(error) => return Err(OpenFlaw::System(error)),
    };
    Ok((file, len_bytes, header))
}

/// The bytes of the manifest, up to one byte more than its bound.
fn read_bounded(path: &Path) -> Result<Vec<u8>, OpenFlaw> {
    let mut bytes = Vec::new();
    let file = opening::open(path, OpenPurpose::Read)?;
    file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes).map_err(OpenFlaw::System)?;
    Ok(bytes)
}

fn read_manifest(folder: &Path) -> Result<(ManifestState, Option<Encoding>), Error> {
    let path = folder.join(MANIFEST_FILE);
    let bytes = match read_bounded(&path) {
        Ok(bytes) if bytes.len() as u64 <= MAX_MANIFEST_BYTES => bytes,
        Ok(_) => {
            let why = format!("it has more than {MAX_MANIFEST_BYTES} bytes");
            return Ok((ManifestState::Damaged(why), None));
        }
        Err(OpenFlaw::NotRegular(found)) => return Ok((ManifestState::NotRegular(found), None)),
        Err(OpenFlaw::System(error)) if error.kind() == ErrorKind::NotFound => {
            return Ok((ManifestState::Missing, None));
        }
        Err(OpenFlaw::System(error)) => {
            return Ok((ManifestState::Damaged(error.to_string()), None));
        }
    };
    match manifest::from_text(&String::from_utf8_lossy(&bytes)) {
        Ok(params) => match params.encoding() {
            Ok(encoding) => Ok((ManifestState::Good, Some(encoding))),
            Err(error) => Ok((ManifestState::Damaged(error.to_string()), None)),
        },
        Err(ManifestFlaw::Newer(found)) => {
            Err(Error::NewerFormat { path, found, known: manifest::FORMAT })
        }
        Err(ManifestFlaw::Damaged(why)) => Ok((ManifestState::Damaged(why), None)),
    }
}

/// The encoding by the headers, if there is no good manifest.
fn agree(
    folder: &Path,
    manifest: &ManifestState,
    candidates: &BTreeMap<usize, Candidate>,
) -> Result<Encoding, Error> {
    // The parameters in headers, each with the number of headers that have them.
    let mut said: Vec<(EncodingParams, usize)> = Vec::new();
    for candidate in candidates.values() {
        let Ok((_, _, Ok((params, _)))) = &candidate.opened else { continue };
        match said.iter_mut().find(|(other, _)| other == params) {
            Some((_, count)) => *count += 1,
            None => said.push((*params, 1)),
        }
    }
    let ids: BTreeSet<EncodingId> = said.iter().map(|(params, _)| params.id).collect();
    if ids.len() > 1 {
        let ids: Vec<String> = ids.iter().map(EncodingId::to_string).collect();
        return Err(Error::Mixed { folder: folder.to_path_buf(), ids: ids.join(", ") });
    }
    // All headers of one encoding have the same parameters, unless some are forged.
    if let Some((params, _)) = said.iter().max_by_key(|(_, count)| *count) {
        return params.encoding();
    }
    for candidate in candidates.values() {
        if let Ok((_, _, Err(HeaderFlaw::Impossible(reason)))) = &candidate.opened {
            let (path, reason) = (candidate.path.clone(), reason.clone());
            return Err(Error::Impossible { path, reason });
        }
    }
    let unfinished = candidates.is_empty() && has_parts(folder);
    let reason = match manifest {
        _ if unfinished => {
            "an encode was interrupted here; run it again with this folder".to_owned()
        }
        ManifestState::Damaged(why) => {
            format!("its {MANIFEST_FILE} is damaged ({why}), and no shard has a valid header")
        }
        ManifestState::NotRegular(found) => {
            format!(
                "its {MANIFEST_FILE} is {found} and no regular file, and no shard has a valid \
                 header"
            )
        }
        _ => format!("there is neither a {MANIFEST_FILE} nor a shard with a valid header"),
    };
    Err(Error::NothingHere { folder: folder.to_path_buf(), reason })
}

/// True if an interrupted encode left files.
fn has_parts(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| is_part(&entry.file_name()))
}

/// True for the name of an unfinished file of an encode.
pub(crate) fn is_part(name: &OsStr) -> bool {
    let stem = name.to_str().and_then(|name| name.strip_suffix(PART_SUFFIX));
    stem.is_some_and(|stem| stem == MANIFEST_FILE || shard_of_name(stem.as_ref()).is_some())
}

/// A finished shard that still has its temporary name.
fn unnamed(folder: &Path, encoding: &Encoding, shard: usize) -> Option<Shard> {
    let path = part_path(&folder.join(shard_name(shard)));
    // A file that cannot be opened is made anew, like a missing file.
    let (file, found_bytes, header) = open_shard(&path).ok()?;
    let finished = header.is_ok_and(|says| says == (encoding.params(), shard))
        && found_bytes == encoding.shard_file_bytes();
    let len_bytes = found_bytes;
    finished.then_some(Shard { state: ShardState::Unnamed, path, file: Some(file), len_bytes })
}

/// Finds each shard's file: the one with the shard's header, or else the one with the shard's name.
fn assign(
    folder: &Path,
    encoding: &Encoding,
    mut candidates: BTreeMap<usize, Candidate>,
) -> Vec<Shard> {
    let params = encoding.params();
    let says = |candidate: &Candidate| match &candidate.opened {
        // A header with this id but other parameters is no header of this encoding.
        Ok((_, _, Ok((other, shard)))) if *other == params => Some(*shard),
        _ => None,
    };
    // For each shard, the name of the file whose header says so. A file with the right name has
    // priority.
    let mut holders: BTreeMap<usize, usize> = BTreeMap::new();
    for (&name, candidate) in &candidates {
        if let Some(shard) = says(candidate)
            && (name == shard || !holders.contains_key(&shard))
        {
            holders.insert(shard, name);
        }
    }
    // The state of the files with the right names, before any of them is moved.
    let by_name = |shard: usize| match candidates.get(&shard).map(|found| &found.opened) {
        None => ShardState::Missing,
        Some(Err(OpenFlaw::NotRegular(found))) => ShardState::NotRegular(*found),
        Some(Err(OpenFlaw::System(error))) => ShardState::Unreadable {
            reason: error.to_string(),
            denied: error.kind() == ErrorKind::PermissionDenied,
        },
        Some(Ok((_, _, Err(HeaderFlaw::Impossible(reason))))) => {
            ShardState::Impossible { reason: reason.clone() }
        }
        Some(Ok((_, _, Ok((other, _))))) if other.id != encoding.id => {
            ShardState::Foreign(other.id)
        }
        Some(Ok((_, _, Ok((other, is))))) if *other == params => ShardState::NameTaken(*is),
        Some(Ok(_)) => ShardState::BadHeader,
    };
    let expected_bytes = encoding.shard_file_bytes();
    let states: Vec<ShardState> = (0..encoding.striping.shards()).map(by_name).collect();
    let find = |(shard, by_name): (usize, ShardState)| {
        let holder = holders.get(&shard).copied();
        let name = holder.unwrap_or(shard);
        let path = folder.join(shard_name(name));
        let usable = holder.is_some() || by_name == ShardState::BadHeader;
        // Each file holds at most one shard, so it can be removed from the candidates.
        let taken = usable.then(|| candidates.remove(&name)).flatten();
        let opened = taken.map(|found| found.opened);
        let Some(Ok((file, found_bytes, _))) = opened else {
            return Shard { state: by_name, path, file: None, len_bytes: 0 };
        };
        let state = match holder {
            None => by_name,
            Some(_) if found_bytes != expected_bytes => {
                ShardState::WrongLength { found_bytes, expected_bytes }
            }
            Some(name) if name != shard => ShardState::Misnamed,
            Some(_) => ShardState::Good,
        };
        Shard { state, path, file: Some(file), len_bytes: found_bytes }
    };
    states.into_iter().enumerate().map(find).collect()
}
