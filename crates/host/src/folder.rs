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
//! - A node comes into being only by [`create`], which commands call, and by an [`Opening`] that
//!   was told to replace what is missing. That one makes a node only where nothing at all lies: an
//!   unmounted mount point leaves a folder behind, and a disk that is away leaves the link to it.
//! - A folder without `superblock` holds no node. With data in it, it is damaged. Both are left
//!   alone.
//! - A folder that is locked while `listen` exists is run by a node process: connect to it.
//!   Locked without `listen`, it is run by a server: keep out.
//! - A process that was killed may leave operations in the kernel that are still under way, and
//!   that would write into slots that a successor gives away anew. Every file that a node uses
//!   therefore carries a shared `flock` on the very descriptor that operations use: the kernel
//!   keeps it until the last of them is done. A successor waits for all of them before it looks at
//!   anything; while they last, the node is down.
//! - Only regular files are opened: a FIFO in place of one would stop the opening.
//! - Files are reached through the folder that was opened, not by its path: what a node does after
//!   its folder was moved away or deleted never lands in the folder that has its name now.
//! - What was opened is remembered by the superblock's device and inode, so that a folder that
//!   vanishes or is replaced under a running server is noticed.

mod attempt;
mod error;
mod look;
mod room;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fieldstone_node::{FileId, NodeConfig};
use fieldstone_proto::disk::Superblock;
use fieldstone_proto::{JournalGen, NodeIndex, VolumeId};

use fieldstone_uring::open_regular;
use fieldstone_uring::{Address, Holder, LockError, LockFile, sync_directory};

pub use attempt::{Attempt, Standing};
pub use error::FolderError;
pub use look::{Found, look, look_for};
pub use room::{free_bytes, room_bytes};

const SUPERBLOCK: &str = "superblock";
const LOCK: &str = "lock";
const LISTEN: &str = "listen";
/// Its length.
const LISTEN_BYTES: usize = 4096;
/// Left by a [`create`] that was interrupted.
const PARTIAL: &str = "superblock.partial";
/// Every fresh ext file system has it.
const LOST_AND_FOUND: &str = "lost+found";
/// How long an opening waits for operations of a predecessor. Less than [`FOLDERS_PATIENCE`], so
/// that a start says what the node waits for.
const STRAGGLERS_PATIENCE: Duration = Duration::from_secs(3);
/// How long a process that starts waits for the folders of its nodes, all together; see
/// [`Attempt`]. Longer than a sleeping disk takes to answer when nothing is wrong with it.
pub const FOLDERS_PATIENCE: Duration = Duration::from_secs(5);
/// Longer than any superblock: enough to read.
const SUPERBLOCK_BYTES_MAX: u64 = 64 << 10;

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
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(fs::File::open(path)?)))
    }

    /// A path to the folder, or to what is in it, that is good while this lives.
    pub(crate) fn path(&self) -> PathBuf {
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
    /// The node was made just now, empty.
    pub created: bool,
    /// To reach its files.
    pub(crate) dir: Dir,
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
        write_listen(&self.folder, &address.to_string()).map_err(at(&self.folder.join(LISTEN)))
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // Nothing is lost if the file stays: without the lock no reader believes it.
        let _ = write_listen(&self.folder, "");
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
        self.run_telling(|| ())
    }

    /// As [`Opening::run`], and calls `locked` when the folder is locked.
    fn run_telling(&self, locked: impl FnOnce()) -> Result<NodeFolder, FolderError> {
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
        locked();
        wait_for_stragglers(path)?;
        let dir = Dir::open(path).map_err(at(path))?;
        let identity = Identity::of(&dir.path()).map_err(at(&path.join(SUPERBLOCK)))?;
        let superblock = read_superblock(path)?;
        check(path, &superblock, &self.expected)?;
        let _ = write_listen(path, "");
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
            let (pid, holder, life) = match LockFile::acquire(&lock, self.holder) {
                Ok(lock) => return Ok(lock),
                Err(LockError::Io { path, source }) => {
                    return Err(FolderError::Io { path, source });
                }
                Err(LockError::Held { pid, holder, life, .. }) => (pid, holder, life),
            };
            if let Some(address) = announced(&self.path) {
                return Err(FolderError::Node { path: self.path.clone(), pid, address });
            }
            tries += 1;
            let announces = matches!(holder, None | Some(Holder::Node));
            if tries == TRIES || !announces || pid == Some(std::process::id()) {
                let path = self.path.clone();
                return Err(FolderError::InUse { path, pid, holder, life });
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
///
/// A working disk ends them within milliseconds, and the wait spares a restarted server a moment
/// with a node less. When they take longer, the node is down with a reason that says so, and the
/// next look at the folder waits again. The wait is the same then: it takes place in the node's own
/// thread, where it delays no other node.
fn wait_for_stragglers(folder: &Path) -> Result<(), FolderError> {
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    for id in list(folder).map_err(at(folder))? {
        let path = folder.join(file_name(id));
        let file = open_regular(&path, fs::OpenOptions::new().read(true)).map_err(at(&path))?;
        while let Err(error) = flock(&file, libc::LOCK_EX) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(FolderError::Io { path, source: error });
            }
            if start.elapsed() > STRAGGLERS_PATIENCE {
                return Err(FolderError::Stragglers(path));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Marks a file as being used through this descriptor; see the module's rules.
///
/// # Errors
/// Another process holds the file for itself alone.
pub(crate) fn mark_used(file: &impl AsRawFd) -> io::Result<()> {
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
    let file = open_regular(&folder.join(LISTEN), fs::OpenOptions::new().read(true)).ok()?;
    let mut text = String::new();
    file.take(LISTEN_BYTES as u64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Writes the address where the node's process listens into the file `listen`; an empty `text` if
/// the process does not listen. The file is overwritten in place and keeps its length, so that a
/// disk that has become full since the node's first start does not keep the node from starting.
fn write_listen(folder: &Path, text: &str) -> io::Result<()> {
    let mut page = format!("{text}\n").into_bytes();
    page.resize(LISTEN_BYTES, b'\n');
    let path = folder.join(LISTEN);
    let mut options = fs::OpenOptions::new();
    let file = open_regular(&path, options.write(true).create(true).truncate(false))?;
    file.write_all_at(&page, 0)
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
    open_regular(&path, fs::OpenOptions::new().read(true))
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

pub(crate) fn list(folder: &Path) -> io::Result<Vec<FileId>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Some(file) = entry?.file_name().to_str().and_then(file_id) {
            files.push(file);
        }
    }
    Ok(files)
}

/// Creates a file of `len_bytes`, stable with its name. An existing one is fine.
pub(crate) fn create_file(path: &Path, len_bytes: u64, allocate: bool) -> io::Result<()> {
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

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
