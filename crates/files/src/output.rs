//! Files that get their name only when they are complete.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::opening;

/// The suffix of a file's name while the file is written.
pub(crate) const PART_SUFFIX: &str = ".part";

/// The temporary name of the file that will be `path`.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(PART_SUFFIX);
    PathBuf::from(part)
}

/// An unfinished file. It is removed again unless it is [published](NewFile::publish).
pub(crate) struct NewFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
    published: bool,
}

impl NewFile {
    /// Starts `path` under its temporary name. If `reuse` says that no other process can be writing
    /// it, a file that an interrupted process left there is removed.
    pub(crate) fn create(path: &Path, reuse: bool) -> Result<Self, Error> {
        let part = part_path(path);
        if reuse {
            opening::remove_leftover(&part)?;
        }
        let file = match opening::create(&part) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Error::OutputExists(part));
            }
            other => other.map_err(Error::io("create", &part))?,
        };
        Ok(Self { path: path.to_path_buf(), part, file, published: false })
    }

    /// Its final name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.file.write_all_at(bytes, offset).map_err(Error::io("write to", &self.part))
    }

    /// Waits until all written bytes are on stable storage.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(Error::io("write to", &self.part))
    }

    /// Gives the file its name, and replaces the old file of that name. The caller
    /// [syncs](NewFile::sync) it first.
    pub(crate) fn publish(mut self) -> Result<(), Error> {
        fs::rename(&self.part, &self.path).map_err(Error::io("create", &self.path))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // If the file cannot be removed, its name and its unfinished header still show what it
            // is.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Writes a small file as a whole.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let new = NewFile::create(path, true)?;
    new.write(bytes, 0)?;
    new.sync()?;
    new.publish()
}

/// Makes the names in a folder stable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let sync = opening::open_folder(folder).and_then(|folder| folder.sync_all());
    match sync {
        // Some file systems cannot sync folders, and do not need it.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(Error::io("write to", folder)),
    }
}
