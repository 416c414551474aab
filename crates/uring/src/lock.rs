//! One process per folder: a lock file that knows its holder.
//!
//! The lock is the kernel's (`flock`), so it goes when the process goes, however it dies; the file
//! stays. The holder writes its process number into it, only so that whoever is refused can say
//! who is in the way. A number left by a dead process is never believed: only a refusal reads it.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("{} is in use by {}", path.display(), holder_text(*.pid))]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The holder's process number, if it could be read.
        pid: Option<u32>,
    },
    /// The file could not be opened or locked.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn holder_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// A lock held until this is dropped.
#[derive(Debug)]
pub struct LockFile {
    _file: fs::File,
}

impl LockFile {
    /// Takes the lock without waiting; creates the file if it does not exist.
    ///
    /// # Errors
    /// [`LockError::Held`] names the holder; [`LockError::Io`] the reason.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let fail = |source| LockError::Io { path: path.to_owned(), source };
        let mut open = fs::OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(path).map_err(fail)?;
        // SAFETY: flock() on an open descriptor takes no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::WouldBlock {
                return Err(LockError::Held { path: path.to_owned(), pid: read_pid(&mut file) });
            }
            return Err(fail(error));
        }
        file.set_len(0).map_err(fail)?;
        file.rewind().map_err(fail)?;
        writeln!(file, "{}", std::process::id()).map_err(fail)?;
        Ok(Self { _file: file })
    }
}

fn read_pid(file: &mut fs::File) -> Option<u32> {
    const LONGEST_PID_BYTES: u64 = 16;
    let mut text = String::new();
    file.take(LONGEST_PID_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_is_refused_and_told_who_is_first() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        fs::write(&path, "left by somebody long gone, 12345").expect("writable");
        let first = LockFile::acquire(&path).expect("free, whatever its content");
        let error = LockFile::acquire(&path).expect_err("held");
        let text = error.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert!(text.contains(path.to_str().expect("utf-8")), "{text}");
        drop(first);
        LockFile::acquire(&path).expect("free again");
    }

    #[test]
    fn garbage_in_a_held_file_is_not_believed() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        let _first = LockFile::acquire(&path).expect("free");
        fs::write(&path, [0xff; 100]).expect("writable");
        let text = LockFile::acquire(&path).expect_err("held").to_string();
        assert!(text.contains("another process"), "{text}");
        assert!(matches!(LockFile::acquire(folder.path()), Err(LockError::Io { .. })));
    }
}
