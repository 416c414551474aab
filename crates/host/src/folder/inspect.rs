//! Looking at the path of a node's folder without changing it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fieldstone_proto::disk::Superblock;

use super::{FolderError, LOST_AND_FOUND, PARTIAL, SUPERBLOCK, at, check, read_superblock};

/// The kind of thing at the path of a node's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing at all.
    Nothing,
    /// A link to this path, where nothing exists.
    Dangling(PathBuf),
    /// Not a folder.
    NotFolder,
    /// A folder with no files, except those of a new file system or an interrupted creation.
    Empty,
    /// A folder with data and without a superblock.
    NoSuperblock,
    /// A folder with other files; this is one of them.
    Occupied(String),
    /// A folder with a superblock, readable or not.
    Node,
}

impl Found {
    /// The reason why no node can be opened at `path`.
    pub(super) fn into_error(self, path: &Path) -> FolderError {
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
/// The system reports an error.
pub fn inspect(path: &Path) -> Result<Found, FolderError> {
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
/// The reason why that node is not at `path`.
pub fn find_node(path: &Path, expected: &Superblock) -> Result<Superblock, FolderError> {
    match inspect(path)? {
        Found::Node => {}
        found => return Err(found.into_error(path)),
    }
    let superblock = read_superblock(path)?;
    check(path, &superblock, expected)?;
    Ok(superblock)
}
