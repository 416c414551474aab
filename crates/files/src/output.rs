//! Files that appear under their name when they are complete, and not before.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::opening;

/// What a file is called while it is written: its name and this.
pub(crate) const PART_SUFFIX: &str = ".part";

/// The temporary name of the file that is to be `path`.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(PART_SUFFIX);
    PathBuf::from(part)
}

/// A file in the making. It is removed again unless it is [published](NewFile::publish).
pub(crate) struct NewFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
    published: bool,
}

impl NewFile {
    /// Starts `path` under its temporary name. A file that an interrupted process left there is
    /// removed if `reuse` says that no other process can be at work on it.
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

    /// The name that it will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.file.write_all_at(bytes, offset).map_err(Error::io("write to", &self.part))
    }

    /// Waits until what was written is on stable storage.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.file.sync_all().map_err(Error::io("write to", &self.part))
    }

    /// Gives it its name, replacing what had it before. To be [synced](NewFile::sync) first.
    pub(crate) fn publish(mut self) -> Result<(), Error> {
        fs::rename(&self.part, &self.path).map_err(Error::io("create", &self.path))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed is recognised by its name, and by its unfinished header.
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

/// Makes names in a folder stable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let sync = opening::open_folder(folder).and_then(|folder| folder.sync_all());
    match sync {
        // Some file systems cannot sync folders, and then do not need to.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(Error::io("write to", folder)),
    }
}
