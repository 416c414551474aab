//! A pool on disk: a folder that names its nodes.
//!
//! ```text
//! DIR/
//!   pool.json      the description (see `format`); written last: a pool is complete or absent
//!   nodes.json     the record of the nodes' folders (see `record`); no data depends on it
//!   pool.key       the secrets that sign capabilities (see `key_file`); mode 0600
//!   clients.json   the clients that the pool admits (see `admission`); mode 0600
//!   rotation.lock  held while `pool rotate-key` runs
//!   control.sock   the socket of the running server
//!   node.0/ …      a folder for each node; each may be the mount point of its own disk
//!     superblock   the identity of the node and its pool
//!     lock         held by the process that runs the node; names that process and its kind
//!     listen       the address of that process if it is `fieldstone node`
//!     slots data   the chunk store
//!     volume.* journal.*
//! ```
//!
//! `pool.json` never changes after creation, and `pool.key` only by `pool rotate-key`. The nodes
//! know the volumes of the pool.

mod capacity_check;
mod create;
mod fault_tolerance;
mod format;
pub mod key_file;
mod layout;
mod provision;
pub mod record;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_host::SharedKeys;
use fieldstone_proto::{NodeIndex, PoolId};
use fieldstone_units as units;

pub use capacity_check::check_capacity;
pub use create::{Sizes, check_fits, create};
pub use fault_tolerance::{Losses, PoolRegistry, inspect};
pub use fieldstone_proto::{Encode, Strategy};
pub use format::PoolFile;
pub use layout::{Layout, default_node_bytes, free_bytes, geometry};
pub use provision::{Provision, needed_slots};

/// The name of the pool's description. A folder with this file is a pool.
pub const POOL_FILE: &str = "pool.json";

/// An opened pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The folder of the pool.
    pub folder: PathBuf,
    /// The id of the pool.
    pub id: PoolId,
    /// Number of nodes.
    pub nodes: u16,
    /// The code of volumes that are made without another code.
    pub profile: Profile,
    /// The slots of each node.
    pub layout: Layout,
    /// How the records of journals reach their nodes.
    pub replicate: Strategy,
    /// Who makes the parity of new segments.
    pub encode: Encode,
    /// The secrets, from which the keys that sign capabilities are derived. All copies of this
    /// value share them.
    pub keys: SharedKeys,
}

/// True if `folder` has a pool description, even an unreadable one.
pub fn is_pool(folder: &Path) -> bool {
    folder.join(POOL_FILE).exists()
}

/// True if `folder` is a pool, or the user may not read it: then opening it gives the error.
pub fn may_be_pool(folder: &Path) -> bool {
    let denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    folder.join(POOL_FILE).try_exists().unwrap_or_else(denied)
}

/// Checks that a folder without a pool description has no folders of nodes.
///
/// # Errors
/// The folder has folders of nodes: the description is lost. The error says what to do.
pub fn check_not_lost(folder: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    let node = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_prefix("node.")?.parse().ok().map(NodeIndex)
    };
    let is_node = |node: &NodeIndex| folder.join(node.to_string()).is_dir();
    match entries.filter_map(node).filter(is_node).min() {
        None => Ok(()),
        Some(node) => bail!(
            "{} is missing, and the folder of {node} is there; restore the file from a copy, the \
             nodes do not hold it. Only if `fieldstone pool create` was interrupted, remove the \
             folder",
            folder.join(POOL_FILE).display()
        ),
    }
}

impl Pool {
    /// Reads the description and the key of the pool at `folder`.
    ///
    /// # Errors
    /// `folder` is no pool, or its files cannot be read, are damaged or are of a newer version.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(POOL_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                check_not_lost(folder)?;
                bail!(
                    "{} is not a pool (it has no {POOL_FILE}); make one with `fieldstone pool \
                     create {}`",
                    folder.display(),
                    units::shell_word(folder.display())
                )
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let file = PoolFile::parse(&bytes).with_context(|| format!("{}", path.display()))?;
        let profile = file.profile().with_context(|| format!("{}", path.display()))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            id: file.pool_id().with_context(|| format!("{}", path.display()))?,
            nodes: file.nodes,
            profile,
            layout: Layout { slot_bytes: file.slot_bytes, slots: file.slots_per_node },
            replicate: file.replicate().with_context(|| format!("{}", path.display()))?,
            encode: file.encode().with_context(|| format!("{}", path.display()))?,
            keys: key_file::read(folder)?.into(),
        })
    }

    /// The folder of a node.
    pub fn node_folder(&self, node: NodeIndex) -> PathBuf {
        self.folder.join(node.to_string())
    }

    /// The nodes, in order.
    pub fn node_indices(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.nodes).map(NodeIndex)
    }

    /// Writes the secret and the description. Writes the description last, and atomically: a pool
    /// is complete or absent.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self) -> anyhow::Result<()> {
        key_file::write(&self.folder, &self.keys.get())?;
        let Self { id, nodes, profile, layout, replicate, encode, .. } = *self;
        let file = PoolFile::new(id, nodes, profile, layout, (replicate, encode));
        let partial = self.folder.join(format!("{POOL_FILE}.partial"));
        let path = self.folder.join(POOL_FILE);
        write_new(&partial, file.to_text().as_bytes(), 0o644)?;
        fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))?;
        fs::File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("cannot sync {}", self.folder.display()))
    }
}

/// Writes a file and makes it stable. A symbolic link in its place is an error: the folder's owner
/// may not be the caller.
pub(crate) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        let mut file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Sixteen random bytes from the kernel.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn random() -> anyhow::Result<u128> {
    let mut bytes = [0u8; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read random bytes from /dev/urandom")?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::MasterKey;

    use super::key_file::KEY_FILE;
    use super::*;

    fn sample(folder: &Path) -> Pool {
        Pool {
            folder: folder.to_path_buf(),
            id: PoolId(77),
            nodes: 6,
            profile: "rs:4+2".parse().expect("a profile"),
            layout: Layout { slot_bytes: 1 << 20, slots: 100 },
            replicate: Strategy::Flat,
            encode: Encode::Client,
            keys: MasterKey(*b"0123456789abcdef").into(),
        }
    }

    #[test]
    fn a_pool_reads_back_as_written_and_its_key_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pool = sample(folder.path());
        pool.write().expect("writable");
        let back = Pool::open(folder.path()).expect("readable");
        assert_eq!(format!("{pool:?}"), format!("{back:?}"));
        assert!(pool.keys.get() == back.keys.get());
        let mode = fs::metadata(folder.path().join(KEY_FILE)).expect("it exists").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }

    /// A release that does not know how to pass records on refuses the pool: its nodes would not
    /// understand the requests.
    #[test]
    fn a_way_to_replicate_has_a_format_of_its_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(POOL_FILE);
        for strategy in Strategy::ALL {
            let pool = Pool { replicate: strategy, ..sample(folder.path()) };
            pool.write().expect("writable");
            assert_eq!(Pool::open(folder.path()).expect("readable").replicate, strategy);
            let text = fs::read_to_string(&path).expect("readable");
            let flat = strategy == Strategy::Flat;
            assert_eq!(text.contains("\"format\": 1"), flat, "{text}");
            assert_eq!(text.contains("replicate"), !flat, "{text}");
        }
        let text = fs::read_to_string(&path).expect("readable");
        for (from, to) in [("\"format\": 2", "\"format\": 1"), ("primary", "chain")] {
            fs::write(&path, text.replace(from, to)).expect("writable");
            let error = format!("{:#}", Pool::open(folder.path()).expect_err("refused"));
            assert!(error.contains("replicate"), "{error}");
        }
    }

    /// So does one that does not know how nodes make parity.
    #[test]
    fn parity_made_by_nodes_has_a_format_of_its_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(POOL_FILE);
        for replicate in [Strategy::Flat, Strategy::Ring] {
            let pool = Pool { replicate, encode: Encode::Stream, ..sample(folder.path()) };
            pool.write().expect("writable");
            let back = Pool::open(folder.path()).expect("readable");
            assert_eq!((back.replicate, back.encode), (replicate, Encode::Stream));
        }
        let text = fs::read_to_string(&path).expect("readable");
        for (from, to) in [("\"format\": 3", "\"format\": 2"), ("stream", "server")] {
            assert!(text.contains(from), "{text}");
            fs::write(&path, text.replace(from, to)).expect("writable");
            let error = format!("{:#}", Pool::open(folder.path()).expect_err("refused"));
            assert!(error.contains("encode"), "{error}");
        }
    }

    #[test]
    fn damaged_newer_and_missing_files_are_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pool = sample(folder.path());
        let error = |what: &str| {
            let error = format!("{:#}", Pool::open(folder.path()).expect_err("refused"));
            assert!(error.contains(what), "{error}");
        };
        error("not a pool");
        pool.write().expect("writable");
        let path = folder.path().join(POOL_FILE);
        let text = fs::read_to_string(&path).expect("readable");
        for (from, to, what) in [
            ("\"format\": 1", "\"format\": 4", "newer version"),
            ("rs:4+2", "rs:4", "rs:K+M"),
            ("\"nodes\": 6", "\"nodes\": 0", "nodes"),
            ("\"nodes\": 6", "\"nodes\": \"six\"", "pool.json"),
        ] {
            assert!(text.contains(from), "{from} is in {text}");
            fs::write(&path, text.replace(from, to)).expect("writable");
            error(what);
        }
        for damaged in [&text.as_bytes()[..text.len() / 2], b"\xff\xfe\x00garbage", b""] {
            fs::write(&path, damaged).expect("writable");
            error("it is damaged; restore it from a copy");
        }
        fs::create_dir(folder.path().join("node.3")).expect("made");
        fs::remove_file(&path).expect("removed");
        error("pool.json is missing, and the folder of node.3 is there; restore");
        fs::write(&path, &text).expect("writable");
        fs::write(folder.path().join(KEY_FILE), "abc").expect("writable");
        error("pool.key");
    }
}
