//! A node's folder: who the node is, who runs it, and which files it has.
//!
//! ```text
//! superblock                  which node of which pool (proto::disk::Superblock); mode 0600, it
//!                             holds the pool's secret; written last, so a node is whole or absent
//! lock                        locked by the process that runs the node; says which, and its kind
//! listen                      where that process listens, if it is `fieldstone node`
//! slots, data                 the chunk store
//! doubt                       empty; there while a failed sync leaves contents in doubt
//! volume.<id>                 a volume's epoch and root
//! journal.<id>.<generation>   a journal ring
//! ```
//!
//! Rules:
//! - A node comes into being only by [`create`], which commands call, and by an [`Opening`] that was
//!   told to replace what is missing. That one makes a node only where nothing at all lies: an
//!   unmounted mount point leaves a folder behind, and a disk that is away leaves the link to it.
//! - A folder without `superblock` holds no node. With data in it, it is damaged. Both are left alone.
//! - A folder that is locked while `listen` exists is run by a node process: connect to it.
//!   Locked without `listen`, it is run by a server: keep out.
//! - A process that was killed may leave operations in the kernel that are still under way, and that
//!   would write into slots that a successor gives away anew. Every file that a node uses therefore
//!   carries a shared `flock` on the very descriptor that operations use: the kernel keeps it until
//!   the last of them is done. A successor waits for all of them before it looks at anything.
//! - Files are reached through the folder that was opened, not by its path: what a node does after
//!   its folder was moved away or deleted never lands in the folder that has its name now.
//! - What was opened is remembered by the superblock's device and inode, so that a folder that
//!   vanishes or is replaced under a running server is noticed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fieldstone_node::{FileId, NodeConfig};
use fieldstone_proto::disk::{DiskFormatError, Superblock};
use fieldstone_proto::{JournalGen, NodeIndex, VolumeId};

use crate::{Address, Holder, LockError, LockFile, sync_directory};

const SUPERBLOCK: &str = "superblock";
const LOCK: &str = "lock";
const LISTEN: &str = "listen";
/// Left by a [`create`] that was interrupted.
const PARTIAL: &str = "superblock.partial";
/// Every fresh ext file system has it.
const LOST_AND_FOUND: &str = "lost+found";
/// Longer than any superblock: enough to read.
const SUPERBLOCK_BYTES_MAX: u64 = 64 << 10;

/// Why a node's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Nothing lies at the path.
    #[error(
        "nothing lies at {}: mount its disk if that is away, name the node's address (--node I=ADDR) if \
         it runs elsewhere, or make an empty node with `{}`",
        .0.display(), replace_command(.0)
    )]
    Missing(PathBuf),
    /// Nothing lies at the path, and the conditions for making a node by itself are not met.
    #[error(
        "nothing lies at {}, and --replace-missing does not make a node there: {reason}; if the node is \
         lost, `{}` makes an empty one",
        path.display(), replace_command(path)
    )]
    NotReplaced {
        /// The folder.
        path: PathBuf,
        /// Which condition is not met.
        reason: String,
    },
    /// There is a folder, and nothing in it.
    #[error(
        "the folder {} is empty: is its disk mounted? If the node is lost, `{}` makes an empty one",
        .0.display(), replace_command(.0)
    )]
    Empty(PathBuf),
    /// A link that leads nowhere.
    #[error(
        "{} is a link to {}, which is not there: is its disk mounted?",
        path.display(), target.display()
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// Something else than a folder.
    #[error("{} is not a folder: move it away first", .0.display())]
    NotFolder(PathBuf),
    /// Files of somebody else, and no node.
    #[error(
        "{} holds no storage node, but other files ({name} is one): move them away first",
        path.display()
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// One of the files.
        name: String,
    },
    /// The node is there already.
    #[error("{} holds {who} already", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
        /// Which node.
        who: String,
    },
    /// A node process runs it.
    #[error("{} is run by the node process {}, which listens on {address}", path.display(), pid_text(*.pid))]
    Node {
        /// The folder.
        path: PathBuf,
        /// The process.
        pid: Option<u32>,
        /// Where it listens.
        address: Address,
    },
    /// A server runs it.
    #[error(
        "{} is in use by process {}{}",
        path.display(),
        pid_text(*.pid),
        in_use_advice(*.holder)
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process.
        pid: Option<u32>,
        /// What kind of process it is, if known.
        holder: Option<Holder>,
    },
    /// The superblock is unusable.
    #[error(
        "{}: {source}; if the node cannot be restored, move its folder away and its shards will be rebuilt",
        path.display()
    )]
    Superblock {
        /// The superblock's path.
        path: PathBuf,
        /// Why.
        source: DiskFormatError,
    },
    /// Data without a superblock.
    #[error(
        "{} has data but no superblock; if the node cannot be restored, move its folder away and its shards will be rebuilt",
        .0.display()
    )]
    NoSuperblock(PathBuf),
    /// Another node lies here.
    #[error("{} belongs elsewhere: it is {found}, expected was {expected}", path.display())]
    Stranger {
        /// The folder.
        path: PathBuf,
        /// Who it is.
        found: String,
        /// Who it should be.
        expected: String,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string())
}

fn in_use_advice(holder: Option<Holder>) -> &'static str {
    match holder {
        Some(Holder::Command) => ", a command that has not ended yet: try again when it has",
        _ => ": stop that one first, or serve all volumes of the pool with it",
    }
}

/// The command that makes an empty node at `path`.
fn replace_command(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pool = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    format!("fieldstone pool replace {} {name}", pool.display())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError::Io { path, source }
}

/// Which file it was that was opened, to notice when another lies in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(folder: &Path) -> io::Result<Self> {
        let meta = fs::metadata(folder.join(SUPERBLOCK))?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }

    /// True while the same superblock lies in `folder`.
    #[must_use]
    pub fn is_at(self, folder: &Path) -> bool {
        Self::of(folder).is_ok_and(|found| found == self)
    }
}

/// A folder that stays the one that was opened, whatever happens to its name.
#[derive(Clone, Debug)]
pub struct Dir(Arc<fs::File>);

impl Dir {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(fs::File::open(path)?)))
    }

    /// A path to the folder, or to what is in it, that is good while this lives.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// What a pool knows about the places of its nodes.
pub trait Keeper: std::fmt::Debug + Send + Sync {
    /// A node was found in its folder, and opened.
    fn seen(&self, node: NodeIndex, path: &Path, incarnation: u64);

    /// Whether an empty node may be made at `path`, where nothing lies.
    ///
    /// # Errors
    /// Why not, for people.
    fn may_replace(&self, node: NodeIndex, path: &Path) -> Result<(), String>;

    /// An empty node was made, of this incarnation.
    fn made(&self, node: NodeIndex, path: &Path, incarnation: u64);
}

/// A node's folder, opened and locked.
#[derive(Debug)]
pub struct NodeFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Who the node is.
    pub superblock: Superblock,
    /// To notice when it vanishes.
    pub identity: Identity,
    /// It was made just now, empty.
    pub created: bool,
    /// To reach its files.
    pub(super) dir: Dir,
    _lock: LockFile,
}

impl NodeFolder {
    /// What the node is made with. In-process nodes need not check payloads on arrival.
    #[must_use]
    pub fn config(&self, verify_payload: bool) -> NodeConfig {
        NodeConfig {
            pool: self.superblock.pool,
            node: self.superblock.node,
            incarnation: self.superblock.incarnation,
            key: self.superblock.key,
            slot_bytes: self.superblock.slot_bytes,
            slots: self.superblock.slots,
            verify_payload,
        }
    }

    /// To tell servers where this node's process listens.
    #[must_use]
    pub fn announcer(&self) -> Announcer {
        Announcer { folder: self.path.clone() }
    }
}

/// Tells servers where a node's process listens.
#[derive(Clone, Debug)]
pub struct Announcer {
    folder: PathBuf,
}

impl Announcer {
    /// Writes the address into the folder, unless it stands there already.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn announce(&self, address: &Address) -> Result<(), FolderError> {
        if announced(&self.folder).as_ref() == Some(address) {
            return Ok(());
        }
        let path = self.folder.join(LISTEN);
        let partial = self.folder.join("listen.partial");
        fs::write(&partial, format!("{address}\n"))
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(at(&path))
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // Nothing is lost if it stays: without the lock nobody believes it.
        let _ = fs::remove_file(self.folder.join(LISTEN));
    }
}

/// How to open a node's folder.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The folder.
    pub path: PathBuf,
    /// Who should be there; the incarnation is that of an empty node made in its place.
    pub expected: Superblock,
    /// What kind of process opens it.
    pub holder: Holder,
    /// Who is told about nodes that were found or made.
    pub keeper: Option<Arc<dyn Keeper>>,
    /// Make an empty node where nothing lies, if the keeper allows it.
    pub replace_missing: bool,
}

impl Opening {
    /// Opens and locks the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn run(&self) -> Result<NodeFolder, FolderError> {
        let path = &self.path;
        let created = match look(path)? {
            Found::Node => false,
            Found::Nothing if self.replace_missing => {
                self.replace()?;
                true
            }
            found => return Err(found.into_error(path)),
        };
        let lock = self.lock()?;
        wait_for_stragglers(path)?;
        let dir = Dir::open(path).map_err(at(path))?;
        let identity = Identity::of(&dir.path()).map_err(at(&path.join(SUPERBLOCK)))?;
        let superblock = read_superblock(path)?;
        check(path, &superblock, &self.expected)?;
        let _ = fs::remove_file(path.join(LISTEN));
        if let Some(keeper) = &self.keeper {
            keeper.seen(superblock.node, path, superblock.incarnation);
        }
        Ok(NodeFolder { path: path.clone(), superblock, identity, created, dir, _lock: lock })
    }

    /// Makes an empty node where nothing lies.
    fn replace(&self) -> Result<(), FolderError> {
        let path = &self.path;
        let Some(keeper) = &self.keeper else { return Err(FolderError::Missing(path.clone())) };
        let not_replaced = |reason| FolderError::NotReplaced { path: path.clone(), reason };
        keeper.may_replace(self.expected.node, path).map_err(not_replaced)?;
        create(path, &self.expected)?;
        keeper.made(self.expected.node, path, self.expected.incarnation);
        Ok(())
    }

    /// Takes the lock. A node process that has announced no address yet gets a moment to do so.
    fn lock(&self) -> Result<LockFile, FolderError> {
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(25);
        let lock = self.path.join(LOCK);
        let mut tries = 0;
        loop {
            let (pid, holder) = match LockFile::acquire(&lock, self.holder) {
                Ok(lock) => return Ok(lock),
                Err(LockError::Io { path, source }) => {
                    return Err(FolderError::Io { path, source });
                }
                Err(LockError::Held { pid, holder, .. }) => (pid, holder),
            };
            if let Some(address) = announced(&self.path) {
                return Err(FolderError::Node { path: self.path.clone(), pid, address });
            }
            tries += 1;
            let announces = matches!(holder, None | Some(Holder::Node));
            if tries == TRIES || !announces || pid == Some(std::process::id()) {
                return Err(FolderError::InUse { path: self.path.clone(), pid, holder });
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A random number from the kernel, for the incarnation of a new node.
///
/// # Panics
/// When there is no `/dev/urandom`, without which no node can be told from its predecessor.
#[must_use]
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("every Linux has /dev/urandom");
    u64::from_le_bytes(bytes)
}

/// Waits until no operation of a predecessor is under way on any of the node's files.
fn wait_for_stragglers(folder: &Path) -> Result<(), FolderError> {
    const PATIENCE: Duration = Duration::from_secs(30);
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    for id in list(folder).map_err(at(folder))? {
        let path = folder.join(file_name(id));
        let file = fs::File::open(&path).map_err(at(&path))?;
        while let Err(error) = flock(&file, libc::LOCK_EX) {
            if error.kind() != io::ErrorKind::WouldBlock || start.elapsed() > PATIENCE {
                return Err(FolderError::Io { path, source: error });
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Marks a file as being used through this descriptor; see the module's rules.
///
/// # Errors
/// Somebody holds the file for itself alone.
pub(super) fn mark_used(file: &impl AsRawFd) -> io::Result<()> {
    flock(file, libc::LOCK_SH)
}

fn flock(file: &impl AsRawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: flock() on an open descriptor takes no pointers.
    let failed = unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where the node process of a folder said that it listens.
#[must_use]
pub fn announced(folder: &Path) -> Option<Address> {
    fs::read_to_string(folder.join(LISTEN)).ok()?.trim().parse().ok()
}

/// What lies at the path of a node's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing at all.
    Nothing,
    /// A link to this path, where nothing lies.
    Dangling(PathBuf),
    /// Something else than a folder.
    NotFolder,
    /// A folder with nothing in it, apart from what a fresh file system has.
    Empty,
    /// A folder with data and without a superblock.
    NoSuperblock,
    /// A folder with other files, of which this is one.
    Occupied(String),
    /// A folder with a superblock, readable or not.
    Node,
}

impl Found {
    /// Why no node can be opened at `path`.
    fn into_error(self, path: &Path) -> FolderError {
        let path = path.to_path_buf();
        match self {
            Self::Nothing => FolderError::Missing(path),
            Self::Dangling(target) => FolderError::Dangling { path, target },
            Self::NotFolder => FolderError::NotFolder(path),
            Self::Empty => FolderError::Empty(path),
            Self::NoSuperblock => FolderError::NoSuperblock(path),
            Self::Occupied(name) => FolderError::Occupied { path, name },
            Self::Node => FolderError::Exists { path, who: "a storage node".to_owned() },
        }
    }
}

/// Looks at the path of a node's folder. Changes nothing.
///
/// # Errors
/// The system refuses the look.
pub fn look(path: &Path) -> Result<Found, FolderError> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(match fs::read_link(path) {
                Ok(target) => Found::Dangling(target),
                Err(_) => Found::Nothing,
            });
        }
        Err(error) => return Err(at(path)(error)),
    };
    if !meta.is_dir() {
        return Ok(Found::NotFolder);
    }
    let exists = |name: &str| {
        let path = path.join(name);
        path.try_exists().map_err(at(&path))
    };
    if exists(SUPERBLOCK)? {
        return Ok(Found::Node);
    }
    if exists("data")? || exists("slots")? {
        return Ok(Found::NoSuperblock);
    }
    for entry in fs::read_dir(path).map_err(at(path))? {
        let name = entry.map_err(at(path))?.file_name();
        if name != PARTIAL && name != LOST_AND_FOUND {
            return Ok(Found::Occupied(name.to_string_lossy().into_owned()));
        }
    }
    Ok(Found::Empty)
}

/// Looks for the node that `expected` describes. Changes nothing, and does not wait for a lock.
///
/// # Errors
/// Why that node does not lie at `path`.
pub fn look_for(path: &Path, expected: &Superblock) -> Result<Superblock, FolderError> {
    match look(path)? {
        Found::Node => {}
        found => return Err(found.into_error(path)),
    }
    let superblock = read_superblock(path)?;
    check(path, &superblock, expected)?;
    Ok(superblock)
}

/// Makes an empty node at `folder`, where nothing lies, or a folder with nothing in it. The folder
/// around it must exist.
///
/// # Errors
/// See [`FolderError`].
pub fn create(folder: &Path, superblock: &Superblock) -> Result<(), FolderError> {
    let path = folder.join(SUPERBLOCK);
    match look(folder)? {
        Found::Nothing => fs::create_dir(folder).map_err(at(folder))?,
        Found::Empty => {}
        found => return Err(found.into_error(folder)),
    }
    let bytes = superblock
        .encode()
        .map_err(|source| FolderError::Superblock { path: path.clone(), source })?;
    let partial = folder.join(PARTIAL);
    let write = || -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&partial, &path)?;
        sync_directory(folder)?;
        match folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
            _ => sync_directory(Path::new(".")),
        }
    };
    write().map_err(at(&path))
}

/// Reads who the node in `folder` is.
///
/// # Errors
/// See [`FolderError`].
pub fn read_superblock(folder: &Path) -> Result<Superblock, FolderError> {
    let path = folder.join(SUPERBLOCK);
    let mut bytes = Vec::new();
    fs::File::open(&path)
        .and_then(|file| file.take(SUPERBLOCK_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(at(&path))?;
    Superblock::decode(&bytes).map_err(|source| FolderError::Superblock { path, source })
}

fn check(path: &Path, found: &Superblock, expected: &Superblock) -> Result<(), FolderError> {
    let who = |block: &Superblock| format!("{} of pool {}", block.node, block.pool);
    if found.pool == expected.pool && found.node == expected.node && found.key == expected.key {
        return Ok(());
    }
    Err(FolderError::Stranger {
        path: path.to_path_buf(),
        found: who(found),
        expected: if who(found) == who(expected) {
            format!("{} with another secret", who(expected))
        } else {
            who(expected)
        },
    })
}

/// The name of a node's file.
#[must_use]
pub fn file_name(file: FileId) -> String {
    match file {
        FileId::Superblock => SUPERBLOCK.to_owned(),
        FileId::Slots => "slots".to_owned(),
        FileId::Data => "data".to_owned(),
        FileId::Doubt => "doubt".to_owned(),
        FileId::Volume(volume) => format!("volume.{volume}"),
        FileId::Journal(volume, generation) => format!("journal.{volume}.{generation}"),
    }
}

/// The reverse of [`file_name`]; `None` for files that are not the node's.
#[must_use]
pub fn file_id(name: &str) -> Option<FileId> {
    let id = match name.split('.').collect::<Vec<_>>()[..] {
        [SUPERBLOCK] => FileId::Superblock,
        ["slots"] => FileId::Slots,
        ["data"] => FileId::Data,
        ["doubt"] => FileId::Doubt,
        ["volume", volume] => FileId::Volume(parse_volume(volume)?),
        ["journal", volume, generation] => {
            FileId::Journal(parse_volume(volume)?, JournalGen(generation.parse().ok()?))
        }
        _ => return None,
    };
    // Only the one spelling counts, so that no two names mean one file.
    (file_name(id) == name).then_some(id)
}

fn parse_volume(hex: &str) -> Option<VolumeId> {
    u128::from_str_radix(hex, 16).ok().map(VolumeId)
}

pub(super) fn list(folder: &Path) -> io::Result<Vec<FileId>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Some(file) = entry?.file_name().to_str().and_then(file_id) {
            files.push(file);
        }
    }
    Ok(files)
}

/// Creates a file of `len_bytes`, stable with its name. An existing one is fine.
pub(super) fn create_file(path: &Path, len_bytes: u64, allocate: bool) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.len() < len_bytes {
        file.set_len(len_bytes)?;
    }
    if allocate {
        reserve(&file, len_bytes)?;
    }
    file.sync_all()?;
    path.parent().map_or(Ok(()), sync_directory)
}

fn reserve(file: &fs::File, len_bytes: u64) -> io::Result<()> {
    let len =
        libc::off_t::try_from(len_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: the descriptor is open; the call takes no pointers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // A file system that cannot reserve space still serves: a full disk then shows when writing.
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(error) }
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{MasterKey, NodeIndex, PoolId};

    fn superblock(node: u16) -> Superblock {
        Superblock {
            pool: PoolId(5),
            node: NodeIndex(node),
            nodes: 6,
            incarnation: 9,
            key: MasterKey([3; 16]),
            slot_bytes: 1 << 20,
            slots: 64,
            code: "rs:4+2".to_owned(),
        }
    }

    /// Allows everything but the nodes that it refuses, and remembers what it was told.
    #[derive(Debug, Default)]
    struct Witness {
        refuses: Option<u16>,
        told: std::sync::Mutex<Vec<&'static str>>,
    }

    impl Keeper for Witness {
        fn seen(&self, _: NodeIndex, _: &Path, incarnation: u64) {
            assert_eq!(incarnation, 9);
            self.told.lock().expect("no panic").push("seen");
        }
        fn may_replace(&self, node: NodeIndex, _: &Path) -> Result<(), String> {
            if self.refuses == Some(node.0) { Err("of a test".to_owned()) } else { Ok(()) }
        }
        fn made(&self, _: NodeIndex, _: &Path, _: u64) {
            self.told.lock().expect("no panic").push("made");
        }
    }

    fn opening(path: &Path, node: u16, replace_missing: bool) -> Opening {
        Opening {
            path: path.to_path_buf(),
            expected: superblock(node),
            holder: Holder::Server,
            keeper: Some(Arc::new(Witness::default())),
            replace_missing,
        }
    }

    #[test]
    fn names_and_files_are_one_to_one() {
        let volume = VolumeId(0xabc);
        for file in [
            FileId::Superblock,
            FileId::Slots,
            FileId::Data,
            FileId::Doubt,
            FileId::Volume(volume),
            FileId::Journal(volume, JournalGen(12)),
        ] {
            assert_eq!(file_id(&file_name(file)), Some(file));
        }
        for name in ["", "lock", "listen", "volume.", "volume.xyz", "volume.1", "journal.1.2", "x"]
        {
            assert_eq!(file_id(name), None, "{name}");
        }
    }

    #[test]
    fn a_folder_is_made_opened_locked_and_told_apart() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.3");
        assert!(matches!(opening(&path, 3, false).run(), Err(FolderError::Missing(_))));
        let first = opening(&path, 3, true).run().expect("made");
        assert!(first.created && first.superblock == superblock(3));
        let refused = opening(&path, 3, true).run().expect_err("locked");
        assert!(matches!(refused, FolderError::InUse { .. }));
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        let announcer = first.announcer();
        announcer.announce(&"unix:/x".parse().expect("an address")).expect("writable");
        assert!(matches!(opening(&path, 3, true).run(), Err(FolderError::Node { .. })));
        announcer.withdraw();
        drop(first);
        let again = opening(&path, 3, false).run().expect("there");
        assert!(!again.created && again.identity.is_at(&path));
        drop(again);
        let stranger = opening(&path, 4, false).run().expect_err("another node");
        assert!(stranger.to_string().contains("node.3"), "{stranger}");
    }

    #[test]
    fn a_node_is_made_only_where_nothing_lies_and_the_keeper_allows_it() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        let keeper = Arc::new(Witness { refuses: Some(1), ..Witness::default() });
        let with =
            |node: u16| Opening { keeper: Some(keeper.clone()), ..opening(&path, node, true) };
        let error = |opening: &Opening| opening.run().expect_err("refused").to_string();
        let refused = error(&with(1));
        assert!(refused.contains("of a test") && refused.contains("pool replace"), "{refused}");
        let nobody = Opening { keeper: None, ..opening(&path, 0, true) };
        assert!(error(&nobody).contains("--node I=ADDR"));
        std::os::unix::fs::symlink(temp.path().join("away"), &path).expect("linked");
        assert!(error(&with(0)).contains("is a link to"));
        assert!(create(&path, &superblock(0)).is_err(), "a node behind a dangling link");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "").expect("writable");
        assert!(error(&with(0)).contains("not a folder"));
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert!(error(&with(0)).contains("is its disk mounted?"));
        fs::write(path.join("letter"), "").expect("writable");
        assert!(error(&with(0)).contains("letter"));
        assert!(create(&path, &superblock(0)).is_err(), "a node among other files");
        fs::remove_dir_all(&path).expect("removed");
        assert!(keeper.told.lock().expect("no panic").is_empty());
        assert!(with(0).run().expect("made").created);
        assert!(!with(0).run().expect("there").created);
        assert_eq!(*keeper.told.lock().expect("no panic"), ["made", "seen", "seen"]);
        // What a fresh file system holds, and an interrupted making leaves, is not in the way.
        fs::remove_file(path.join(SUPERBLOCK)).expect("removed");
        fs::remove_file(path.join(LOCK)).expect("removed");
        fs::create_dir(path.join(LOST_AND_FOUND)).expect("made");
        fs::write(path.join(PARTIAL), "half").expect("writable");
        create(&path, &superblock(0)).expect("made");
        assert_eq!(look_for(&path, &superblock(0)).expect("there"), superblock(0));
        assert!(matches!(create(&path, &superblock(0)), Err(FolderError::Exists { .. })));
    }

    #[test]
    fn what_a_node_does_after_its_folder_is_gone_stays_out_of_the_next_one() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        let folder = opening(&path, 0, true).run().expect("made");
        let aside = temp.path().join("aside");
        fs::rename(&path, &aside).expect("moved");
        create(&path, &superblock(0)).expect("made");
        let journal = "journal.00000000000000000000000000000abc.1";
        create_file(&folder.dir.path().join(journal), 4096, false).expect("made");
        assert!(aside.join(journal).exists() && !path.join(journal).exists());
    }

    #[test]
    fn a_predecessors_operations_are_waited_for() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        create(&path, &superblock(0)).expect("made");
        let data = fs::File::create(path.join("data")).expect("writable");
        mark_used(&data).expect("free");
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            drop(data);
        });
        let start = Instant::now();
        opening(&path, 0, false).run().expect("free in the end");
        assert!(start.elapsed() >= Duration::from_millis(50));
        release.join().expect("no panic");
    }

    #[test]
    fn a_replaced_folder_is_noticed() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        let folder = opening(&path, 0, true).run().expect("made");
        assert!(folder.identity.is_at(&path));
        fs::rename(&path, temp.path().join("aside")).expect("moved");
        assert!(!folder.identity.is_at(&path));
        create(&path, &superblock(0)).expect("made");
        assert!(!folder.identity.is_at(&path));
    }

    #[test]
    fn damage_is_named_and_left_alone() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("node.0");
        create(&path, &superblock(0)).expect("made");
        let file = path.join(SUPERBLOCK);
        let mut bytes = fs::read(&file).expect("readable");
        bytes[20] ^= 1;
        fs::write(&file, &bytes).expect("writable");
        let error = opening(&path, 0, true).run().expect_err("damaged");
        assert!(matches!(error, FolderError::Superblock { .. }), "{error}");
        assert!(error.to_string().contains("superblock"), "{error}");
        fs::remove_file(&file).expect("removed");
        fs::write(path.join("data"), "precious").expect("writable");
        assert!(matches!(opening(&path, 0, true).run(), Err(FolderError::NoSuperblock(_))));
    }
}
