//! A node's folder: the identity of the node, the process that runs it, and its files.
//!
//! ```text
//! superblock                  the node's identity (proto::disk::Superblock); mode 0600, because it
//!                             has the pool's first secret; written last, so a node is whole or
//!                             absent
//! lock                        locked by the process that runs the node; has its number and kind
//! listen                      the address of that process, if it is `fieldstone node`
//! slots, data                 the chunk store
//! doubt                       empty; exists while data may be unsynced after a failed sync
//! volume.<id>                 a volume's epoch and root
//! journal.<id>.<generation>   a journal ring
//! ```
//!
//! Rules:
//! - Only two functions make a node: [`create`], which commands call, and an [`Opening`] that was
//!   told to replace a missing node. The opening makes a node only where nothing exists: an
//!   unmounted mount point is an empty folder, and if a disk is away, the link to it still exists.
//! - A folder without `superblock` holds no node. If it has data, it is damaged. An opening changes
//!   neither.
//! - A locked folder with an address in `listen` belongs to a node process: connect to it. A locked
//!   folder without an address belongs to another process, most likely a server: do not use it.
//! - A killed process may leave operations in the kernel. They would write into slots that a
//!   successor gives to other shards. So every file that a node uses has a shared `flock` on the
//!   descriptor that the operations use: the kernel keeps the lock until the last operation is
//!   done. A successor waits for all of these locks before it reads the node's files. Meanwhile the
//!   node is down.
//! - An opening refuses a FIFO, or anything else that is not a regular file, in place of a node's
//!   file: opening a FIFO would hang.
//! - A running node reaches its files through the open folder, not by the folder's path. The only
//!   exception is `listen`. So after the folder was moved away or deleted, no shard or record lands
//!   in the folder that now has its name.
//! - The process remembers the device and inode of the superblock that it opened. So it notices
//!   when the folder of a running node vanishes or is replaced.

mod attempt;
mod error;
mod inspect;
mod room;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fieldstone_node::{FileId, NodeConfig, ParityMemory};
use fieldstone_proto::disk::Superblock;
use fieldstone_proto::{JournalGen, NodeIndex, PoolKeys, VolumeId};

use crate::keys::SharedKeys;
use fieldstone_uring::open_regular;
use fieldstone_uring::{Address, Holder, Life, LockError, LockFile, sync_directory};

pub use attempt::{Attempt, OpeningState};
pub use error::FolderError;
pub use inspect::{Found, find_node, inspect};
pub use room::{free_bytes, room_bytes};

const SUPERBLOCK: &str = "superblock";
const LOCK: &str = "lock";
const LISTEN: &str = "listen";
/// Length of the file `listen`.
const LISTEN_BYTES: usize = 4096;
/// The file that an interrupted [`create`] leaves.
const PARTIAL: &str = "superblock.partial";
/// A folder in every new ext file system.
const LOST_AND_FOUND: &str = "lost+found";
/// How long an opening waits for operations of a predecessor. This is less than
/// [`FOLDERS_TIMEOUT`], so that a starting process can report the reason for the wait.
const STRAGGLERS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a starting process waits for the folders of all its nodes together; see [`Attempt`]. A
/// sound disk that sleeps usually answers sooner.
pub const FOLDERS_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes to read. Every superblock is shorter.
const SUPERBLOCK_BYTES_MAX: u64 = 64 << 10;

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError::Io { path, source }
}

/// The identity of the superblock that was opened, to notice a replacement.
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

    /// True if the same superblock is in `folder`.
    #[must_use]
    pub fn is_at(self, folder: &Path) -> bool {
        Self::of(folder).is_ok_and(|found| found == self)
    }
}

/// An open folder. It stays the same folder when its name changes or goes.
#[derive(Clone, Debug)]
pub struct Dir(Arc<fs::File>);

impl Dir {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(fs::File::open(path)?)))
    }

    /// A path to the folder, valid while this value lives. Files in the folder can be reached
    /// through it.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The pool's record of its nodes and their folders.
pub trait NodeRegistry: std::fmt::Debug + Send + Sync {
    /// Notes that a node was found in its folder, and opened.
    fn seen(&self, node: NodeIndex, path: &Path, incarnation: u64);

    /// Whether an empty node may be made at `path`, where nothing exists.
    ///
    /// # Errors
    /// The reason against it, as text for people.
    fn may_replace(&self, node: NodeIndex, path: &Path) -> Result<(), String>;

    /// Notes that an empty node with this incarnation was made.
    fn made(&self, node: NodeIndex, path: &Path, incarnation: u64);
}

/// A node's folder, opened and locked.
#[derive(Debug)]
pub struct NodeFolder {
    /// The path.
    pub path: PathBuf,
    /// The node's identity.
    pub superblock: Superblock,
    /// Shows later whether the folder has vanished or was replaced.
    pub identity: Identity,
    /// The opening has made the node, which is empty.
    pub created: bool,
    /// The open folder, to reach the node's files.
    pub(crate) dir: Dir,
    _lock: LockFile,
}

impl NodeFolder {
    /// The node's configuration, with the pool's present secrets, and the memory that it shares
    /// with the process's other nodes. A node whose clients are all in this process need not check
    /// payloads on arrival.
    #[must_use]
    pub fn config(
        &self,
        keys: PoolKeys,
        verify_payload: bool,
        parity_memory: ParityMemory,
    ) -> NodeConfig {
        NodeConfig {
            pool: self.superblock.pool,
            node: self.superblock.node,
            incarnation: self.superblock.incarnation,
            keys,
            slot_bytes: self.superblock.slot_bytes,
            slots: self.superblock.slots,
            verify_payload,
            piece_bytes: fieldstone_node::limits::PIECE_BYTES,
            parity_memory,
        }
    }

    /// An announcer for the address of this node's process.
    #[must_use]
    pub fn announcer(&self) -> Announcer {
        Announcer { folder: self.path.clone() }
    }
}

/// Writes the address of a node's process for servers.
#[derive(Clone, Debug)]
pub struct Announcer {
    folder: PathBuf,
}

impl Announcer {
    /// Writes the address into the folder, unless it is already there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn announce(&self, address: &Address) -> Result<(), FolderError> {
        if announced(&self.folder).as_ref() == Some(address) {
            return Ok(());
        }
        write_listen(&self.folder, &address.to_string()).map_err(at(&self.folder.join(LISTEN)))
    }

    /// Removes the address.
    pub fn withdraw(&self) {
        // A remaining address does no harm: readers do not believe it without the lock.
        let _ = write_listen(&self.folder, "");
    }
}

/// How to open a node's folder.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The folder.
    pub path: PathBuf,
    /// The expected identity. Its incarnation is for an empty node that the opening makes.
    pub expected: Superblock,
    /// The secrets of the pool. The node accepts capabilities that they sign.
    pub keys: SharedKeys,
    /// The kind of this process.
    pub holder: Holder,
    /// Gets notes of nodes that were found or made.
    pub registry: Option<Arc<dyn NodeRegistry>>,
    /// Make an empty node where nothing exists, if the registry allows it.
    pub replace_missing: bool,
}

impl Opening {
    /// Opens and locks the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn run(&self) -> Result<NodeFolder, FolderError> {
        self.run_with(|| ())
    }

    /// Like [`Opening::run`], and calls `locked` when the folder is locked.
    fn run_with(&self, locked: impl FnOnce()) -> Result<NodeFolder, FolderError> {
        let path = &self.path;
        let created = match inspect(path)? {
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
        if let Some(registry) = &self.registry {
            registry.seen(superblock.node, path, superblock.incarnation);
        }
        let path = path.clone();
        Ok(NodeFolder { path, superblock, identity, created, dir, _lock: lock })
    }

    /// Makes an empty node where nothing exists.
    fn replace(&self) -> Result<(), FolderError> {
        let path = &self.path;
        let Some(registry) = &self.registry else { return Err(FolderError::Missing(path.clone())) };
        let not_replaced = |reason| FolderError::NotReplaced { path: path.clone(), reason };
        registry.may_replace(self.expected.node, path).map_err(not_replaced)?;
        create(path, &self.expected)?;
        registry.made(self.expected.node, path, self.expected.incarnation);
        Ok(())
    }

    /// Takes the lock. Waits up to half a second if a node process, or a process of unknown kind,
    /// holds it and has announced no address. It waits as long if the process that the lock names
    /// does not run: that process has ended just now, or its successor has the lock already and has
    /// not written its own number and kind yet.
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
            let may_change = announces || life != Life::Runs;
            if tries == TRIES || !may_change || pid == Some(std::process::id()) {
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
/// If `/dev/urandom` cannot be read. Without it a node could get its predecessor's incarnation.
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
/// A working disk ends these operations within milliseconds. So this wait saves a restarted server
/// from running for a moment without the node. If they take longer, the node is down with this
/// reason, and the next look at the folder waits again. That wait takes place in the node's own
/// thread, and delays no other node.
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
            if start.elapsed() > STRAGGLERS_TIMEOUT {
                return Err(FolderError::Stragglers(path));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Marks a file as in use through this descriptor; see the module's rules.
///
/// # Errors
/// Another process has locked the file exclusively.
pub(crate) fn mark_used(file: &impl AsRawFd) -> io::Result<()> {
    flock(file, libc::LOCK_SH)
}

fn flock(file: &impl AsRawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: flock() on an open descriptor takes no pointers.
    let failed = unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The address that the node process of a folder has announced.
#[must_use]
pub fn announced(folder: &Path) -> Option<Address> {
    let file = open_regular(&folder.join(LISTEN), fs::OpenOptions::new().read(true)).ok()?;
    let mut text = String::new();
    file.take(LISTEN_BYTES as u64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Writes the address of the node's process into the file `listen`. `text` is empty if the process
/// does not listen. The file is overwritten in place and keeps its length. So after the node's
/// first start, a full disk does not prevent later starts.
fn write_listen(folder: &Path, text: &str) -> io::Result<()> {
    let mut page = format!("{text}\n").into_bytes();
    page.resize(LISTEN_BYTES, b'\n');
    let path = folder.join(LISTEN);
    let mut options = fs::OpenOptions::new();
    let file = open_regular(&path, options.write(true).create(true).truncate(false))?;
    file.write_all_at(&page, 0)
}

/// Makes an empty node at `folder`. Either nothing exists there, and the folder around it exists,
/// or it is an empty folder ([`Found::Empty`]).
///
/// # Errors
/// See [`FolderError`].
pub fn create(folder: &Path, superblock: &Superblock) -> Result<(), FolderError> {
    let path = folder.join(SUPERBLOCK);
    match inspect(folder)? {
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

/// Reads the identity of the node in `folder`.
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
    if found.pool == expected.pool && found.node == expected.node {
        return Err(FolderError::OtherSecret(path.to_path_buf()));
    }
    Err(FolderError::WrongNode {
        path: path.to_path_buf(),
        found: who(found),
        expected: who(expected),
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

/// The reverse of [`file_name`]; `None` for other files.
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
    // Only the exact name counts, so that no two names mean the same file.
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

/// Creates a file of `len_bytes`, and makes it and its name stable. An existing file is extended.
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
    // A file system without reservation still works: a write then finds that the disk is full.
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(error) }
}

/// Removes a file, and makes that stable.
///
/// # Errors
/// The file cannot be removed, or the folder cannot be synced. A file that is not there is no
/// error: an earlier call may have removed it without making that stable.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    path.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;
