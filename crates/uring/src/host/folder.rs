//! A node's folder: who the node is, who runs it, and which files it has.
//!
//! ```text
//! superblock                  which node of which pool (proto::disk::Superblock); mode 0600, it
//!                             holds the pool's secret; written last, so a node is whole or absent
//! lock                        locked by the process that runs the node
//! listen                      where that process listens, if it is `fieldstone node`
//! slots, data                 the chunk store
//! doubt                       empty; there while a failed sync leaves contents in doubt
//! volume.<id>                 a volume's epoch and root
//! journal.<id>.<generation>   a journal ring
//! ```
//!
//! Rules:
//! - A folder without `superblock`, `data` and `slots` holds no node: an empty one may be made there.
//!   A folder with data and without a superblock is damaged, and is left alone.
//! - A folder that is locked while `listen` exists is run by a node process: connect to it.
//!   Locked without `listen`, it is run by a server: keep out.
//! - A process that was killed may leave operations in the kernel that are still under way, and that
//!   would write into slots that a successor gives away anew. Every file that a node uses therefore
//!   carries a shared `flock` on the very descriptor that operations use: the kernel keeps it until
//!   the last of them is done. A successor waits for all of them before it looks at anything.
//! - What was opened is remembered by the superblock's device and inode, so that a folder that
//!   vanishes or is replaced under a running server is noticed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fieldstone_node::{FileId, NodeConfig};
use fieldstone_proto::disk::{DiskFormatError, Superblock};
use fieldstone_proto::{JournalGen, VolumeId};

use crate::{Address, LockError, LockFile, sync_directory};

const SUPERBLOCK: &str = "superblock";
const LOCK: &str = "lock";
const LISTEN: &str = "listen";
/// Longer than any superblock: enough to read.
const SUPERBLOCK_BYTES_MAX: u64 = 64 << 10;

/// Why a node's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no node in it.
    #[error("{} holds no storage node", .0.display())]
    Missing(PathBuf),
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
        "{} is in use by process {}: stop that one first, or serve all volumes of the pool with it",
        path.display(),
        pid_text(*.pid)
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process.
        pid: Option<u32>,
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
    /// Make an empty node if there is none.
    pub create: bool,
}

impl Opening {
    /// Opens and locks the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn run(&self) -> Result<NodeFolder, FolderError> {
        let path = &self.path;
        let mut created = false;
        if !holds_node(path)? {
            if !self.create {
                return Err(FolderError::Missing(path.clone()));
            }
            create(path, &self.expected)?;
            created = true;
        }
        let lock = self.lock()?;
        wait_for_stragglers(path)?;
        let identity = Identity::of(path).map_err(at(&path.join(SUPERBLOCK)))?;
        let superblock = read_superblock(path)?;
        check(path, &superblock, &self.expected)?;
        let _ = fs::remove_file(path.join(LISTEN));
        Ok(NodeFolder { path: path.clone(), superblock, identity, created, _lock: lock })
    }

    /// Takes the lock. A holder that has announced no address yet gets a moment to do so.
    fn lock(&self) -> Result<LockFile, FolderError> {
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(25);
        let lock = self.path.join(LOCK);
        let mut tries = 0;
        loop {
            let pid = match LockFile::acquire(&lock) {
                Ok(lock) => return Ok(lock),
                Err(LockError::Io { path, source }) => {
                    return Err(FolderError::Io { path, source });
                }
                Err(LockError::Held { pid, .. }) => pid,
            };
            if let Some(address) = announced(&self.path) {
                return Err(FolderError::Node { path: self.path.clone(), pid, address });
            }
            tries += 1;
            if tries == TRIES || pid == Some(std::process::id()) {
                return Err(FolderError::InUse { path: self.path.clone(), pid });
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

/// Whether a node lies in `folder`.
fn holds_node(folder: &Path) -> Result<bool, FolderError> {
    let exists = |name: &str| {
        let path = folder.join(name);
        path.try_exists().map_err(at(&path))
    };
    if exists(SUPERBLOCK)? {
        return Ok(true);
    }
    if exists("data")? || exists("slots")? {
        return Err(FolderError::NoSuperblock(folder.to_path_buf()));
    }
    Ok(false)
}

/// Makes an empty node. The folder may exist, but no node in it.
///
/// # Errors
/// See [`FolderError`].
pub fn create(folder: &Path, superblock: &Superblock) -> Result<(), FolderError> {
    let path = folder.join(SUPERBLOCK);
    fs::create_dir_all(folder).map_err(at(folder))?;
    if holds_node(folder)? {
        return Err(FolderError::Io { path, source: io::ErrorKind::AlreadyExists.into() });
    }
    let bytes = superblock
        .encode()
        .map_err(|source| FolderError::Superblock { path: path.clone(), source })?;
    let partial = folder.join("superblock.partial");
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

    fn opening(path: &Path, node: u16, create: bool) -> Opening {
        Opening { path: path.to_path_buf(), expected: superblock(node), create }
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
