//! Why a node's folder cannot be used: the cause, and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use fieldstone_proto::disk::DiskFormatError;

use fieldstone_units::shell_word;
use fieldstone_uring::{Address, Holder, Life};

/// Why a node's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Nothing exists at the path.
    #[error(
        "nothing lies at {}: mount its disk if that is away, name the node's address (--node \
         I=ADDR) if it runs elsewhere, or make an empty node with `{}`",
        .0.display(), replace_command(.0)
    )]
    Missing(PathBuf),
    /// Nothing exists at the path, and a condition for making a node automatically is not met.
    #[error(
        "nothing lies at {}, and --replace-missing does not make a node there: {reason}; if the \
         node is lost, `{}` makes an empty one",
        path.display(), replace_command(path)
    )]
    NotReplaced {
        /// The folder.
        path: PathBuf,
        /// The condition that is not met.
        reason: String,
    },
    /// There is a folder without files.
    #[error(
        "the folder {} is empty: is its disk mounted? If the node is lost, `{}` makes an empty one",
        .0.display(), replace_command(.0)
    )]
    Empty(PathBuf),
    /// A link whose target does not exist.
    #[error(
        "{} is a link to {}, which is not there: is its disk mounted?",
        path.display(), target.display()
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// The path is not a folder.
    #[error("{} is not a folder: move it away first", .0.display())]
    NotFolder(PathBuf),
    /// A folder with other files, and without a node.
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
    /// A node exists there already.
    #[error("{} holds {who} already", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
        /// What the folder holds, as text for people.
        who: String,
    },
    /// A node process runs the node.
    #[error(
        "{} is run by the node process {}, which listens on {address}",
        path.display(), pid_text(*.pid)
    )]
    Node {
        /// The folder.
        path: PathBuf,
        /// The number of the process, if it is known.
        pid: Option<u32>,
        /// The address at which the process listens.
        address: Address,
    },
    /// Another process, or this one, holds the lock and has announced no address.
    #[error(
        "{} is in use by process {}{}",
        path.display(),
        pid_text(*.pid),
        in_use_advice(*.holder, *.life)
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The number of the process, if it is known.
        pid: Option<u32>,
        /// The kind of the process, if it is known.
        holder: Option<Holder>,
        /// Whether the process runs.
        life: Life,
    },
    /// The superblock is unusable.
    #[error(
        "{}: {source}; if the node cannot be restored, move its folder away, then make an empty \
         node with `{}`",
        path.display(), replace_command(path.parent().unwrap_or(path))
    )]
    Superblock {
        /// The superblock's path.
        path: PathBuf,
        /// The reason.
        source: DiskFormatError,
    },
    /// Data without a superblock.
    #[error(
        "{} has data but no superblock; if the node cannot be restored, move its folder away, then \
         make an empty node with `{}`",
        .0.display(), replace_command(.0)
    )]
    NoSuperblock(PathBuf),
    /// The folder holds a different node.
    #[error("{} belongs elsewhere: it is {found}, expected was {expected}", path.display())]
    WrongNode {
        /// The folder.
        path: PathBuf,
        /// The identity of the node that is there.
        found: String,
        /// The expected identity.
        expected: String,
    },
    /// The node has the pool's id and its own number, but another first secret than `pool.key`.
    #[error(
        "{} was made with another secret than the pool.key of its pool has: if all nodes say so, \
         put the newest copy of the pool's own pool.key back; if only this one does, it is another \
         pool's",
        .0.display()
    )]
    OtherSecret(PathBuf),
    /// A process that has ended left operations in the kernel that are still under way.
    #[error(
        "{}: operations of a process that has ended are still under way: its disk is slow or hangs",
        .0.display()
    )]
    Stragglers(PathBuf),
    /// The folder has not answered yet.
    #[error("the folder {} does not answer: its disk is slow or hangs", .0.display())]
    Silent(PathBuf),
    /// The system reports an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string())
}

fn in_use_advice(holder: Option<Holder>, life: Life) -> String {
    life.note("the node").unwrap_or_else(|| match holder {
        Some(Holder::Command) => ", a command that has not ended yet: try again when it has".into(),
        _ => ": stop that one first, or serve all volumes of the pool with it".into(),
    })
}

/// The command that makes an empty node at `path`.
fn replace_command(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pool = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (pool, name) = (shell_word(pool.display()), shell_word(name));
    format!("fieldstone pool replace {pool} {name}")
}
