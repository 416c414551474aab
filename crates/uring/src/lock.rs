//! One process per folder: a lock file that knows its holder.
//!
//! The lock is the kernel's (`flock`), so it ends with the process, however the process dies. The
//! file stays. The holder writes its process number and its kind into the file. A process that is
//! refused reads them, to name the holder and to decide whether to wait. Only a refusal reads the
//! file, so the entries of a dead process do no harm.
//!
//! ```text
//! 4711           \n     the process number, filled up with blanks to 15 bytes, and a line feed
//! server\n              the kind of the holder: "server", "node" or "command"
//! \n\n\n...             line feeds up to 64 bytes
//! ```
//!
//! The holder overwrites the file in place, so that a process can take the lock on a full disk.
//! Only its owner may open the file: a process can lock any file that it can open for reading, so
//! otherwise any user could keep a node from starting.
//!
//! If a disk hangs, the kernel may keep a killed process until the disk answers, and keep its locks
//! too. Then stopping the process does not help, and the refusal says so ([`Life`]).
//!
//! Older releases write no kind. They read only the first 16 bytes, and find the number there. A
//! file with a number and without a kind is from such a release.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::file::open_own;

/// Width of the process number. The number and its line feed fill the 16 bytes that older releases
/// read.
const PID_BYTES: usize = 15;
/// Length of the content.
const CONTENT_BYTES: usize = 64;

/// The kind of process that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A server: it holds the lock until a user stops it.
    Server,
    /// A node process: the same.
    Node,
    /// A command that does its work and ends.
    Command,
}

impl Holder {
    const ALL: [Self; 3] = [Self::Server, Self::Node, Self::Command];

    /// The kind's name in the lock file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Node => "node",
            Self::Command => "command",
        }
    }
}

/// Whether the holder of a lock runs, as far as the system shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process runs.
    Runs,
    /// The process was killed or has ended, and the kernel does not release it yet.
    Killed,
    /// No process has this number: the process has ended, or runs in another container.
    Unseen,
}

impl Life {
    /// The state of the process with this number. A process without a known number counts as
    /// running.
    #[must_use]
    pub fn of(pid: Option<u32>) -> Self {
        let Some(pid) = pid else { return Self::Runs };
        match fs::read(format!("/proc/{pid}/status")) {
            Ok(status) => Self::told_by(&String::from_utf8_lossy(&status)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Unseen,
            Err(_) => Self::Runs,
        }
    }

    fn told_by(status: &str) -> Self {
        /// Signal n has bit n - 1.
        const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.map_or("", str::trim)
        };
        let is_killed =
            |name| u64::from_str_radix(field(name), 16).is_ok_and(|pending| pending & SIGKILL != 0);
        // The first thread of a process with other threads stays as a zombie.
        let has_ended = field("State:").starts_with(['Z', 'X']);
        let killed = has_ended || is_killed("SigPnd:") || is_killed("ShdPnd:");
        if killed { Self::Killed } else { Self::Runs }
    }

    /// A note for the number of a process that does not run and holds `thing`.
    #[must_use]
    pub fn note(self, thing: &str) -> Option<String> {
        match self {
            Self::Runs => None,
            Self::Killed => Some(format!(
                ", which was killed and still waits for a disk: {thing} is free when that disk \
                 answers"
            )),
            Self::Unseen => Some(format!(
                ", which is not seen here: it was killed and still waits for a disk, and {thing} \
                 is free when that disk answers, or it runs in another container"
            )),
        }
    }
}

/// Why a process did not get a lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error(
        "{} is in use by {}{}",
        path.display(),
        holder_text(*.pid),
        life.note("the lock").unwrap_or_default()
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The holder's process number, if it could be read.
        pid: Option<u32>,
        /// The kind of process, if it could be read.
        holder: Option<Holder>,
        /// Whether the holder runs.
        life: Life,
    },
    /// The file could not be opened or locked.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

fn holder_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// A lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockFile {
    file: fs::File,
}

impl LockFile {
    /// Takes the lock without waiting. Creates the file if it does not exist.
    ///
    /// # Errors
    /// [`LockError::Held`] names the holder; [`LockError::Io`] the reason.
    pub fn acquire(path: &Path, holder: Holder) -> Result<Self, LockError> {
        let fail = |source| LockError::Io { path: path.to_owned(), source };
        let mut open = fs::OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = open_own(path, &mut open).map_err(fail)?;
        // SAFETY: flock() on an open descriptor takes no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::WouldBlock {
                let (pid, holder) = read_holder(&mut file);
                let life = Life::of(pid);
                return Err(LockError::Held { path: path.to_owned(), pid, holder, life });
            }
            return Err(fail(error));
        }
        let pid = std::process::id();
        let mut content = format!("{pid:<PID_BYTES$}\n{}\n", holder.word()).into_bytes();
        content.resize(CONTENT_BYTES, b'\n');
        file.write_all_at(&content, 0).map_err(fail)?;
        if file.metadata().map_err(fail)?.len() > CONTENT_BYTES as u64 {
            file.set_len(CONTENT_BYTES as u64).map_err(fail)?;
        }
        // Older releases made the file readable for all users. A process with write access may
        // still lack the right to change the permissions.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
        Ok(Self { file })
    }

    /// Gives the file to a user and a group, so that their processes can take the lock later. Does
    /// nothing if the file has another name elsewhere, which may be another user's file.
    ///
    /// # Errors
    /// The system's reason.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        let meta = self.file.metadata()?;
        match (meta.uid(), meta.gid()) == (uid, gid) || meta.nlink() != 1 {
            true => Ok(()),
            false => fchown(&self.file, Some(uid), Some(gid)),
        }
    }
}

/// The number and the kind of the lock's holder, as far as the file has them.
fn read_holder(file: &mut fs::File) -> (Option<u32>, Option<Holder>) {
    let mut text = String::new();
    if file.take(CONTENT_BYTES as u64).read_to_string(&mut text).is_err() {
        return (None, None);
    }
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.trim().parse().ok());
    let word = lines.next().unwrap_or_default();
    let holder = Holder::ALL.into_iter().find(|holder| holder.word() == word);
    (pid, pid.and(holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_is_refused_and_told_who_is_first() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        fs::write(&path, "left by somebody long gone, 12345").expect("writable");
        let first = LockFile::acquire(&path, Holder::Server).expect("free, whatever its content");
        let error = LockFile::acquire(&path, Holder::Server).expect_err("held");
        let text = error.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert!(text.contains(path.to_str().expect("utf-8")), "{text}");
        drop(first);
        LockFile::acquire(&path, Holder::Server).expect("free again");
    }

    /// On a full disk, a file that was cut short may not grow again.
    #[test]
    fn the_file_is_overwritten_in_place_and_is_its_owners() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        fs::write(&path, "x".repeat(CONTENT_BYTES)).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        for holder in Holder::ALL {
            let _held = LockFile::acquire(&path, holder).expect("free");
            let found = fs::metadata(&path).expect("there");
            assert_eq!((found.len(), found.permissions().mode() & 0o777), (64, 0o600));
        }
        fs::write(&path, "x".repeat(1000)).expect("writable");
        let _held = LockFile::acquire(&path, Holder::Node).expect("free");
        assert_eq!(fs::metadata(&path).expect("there").len(), 64);
    }

    #[test]
    fn the_kind_of_the_holder_is_told_and_older_files_are_read() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        for holder in Holder::ALL {
            let _held = LockFile::acquire(&path, holder).expect("free");
            let refused = LockFile::acquire(&path, Holder::Command).expect_err("held");
            let LockError::Held { pid, holder: told, .. } = refused else { panic!("{refused}") };
            assert_eq!((pid, told), (Some(std::process::id()), Some(holder)));
            // The part that older releases read: 16 bytes that are a number.
            let bytes = fs::read(&path).expect("readable");
            let number = std::str::from_utf8(&bytes[..16]).expect("text").trim().parse::<u32>();
            assert_eq!(number, Ok(std::process::id()));
        }
        let _held = LockFile::acquire(&path, Holder::Server).expect("free");
        fs::write(&path, "4711\n").expect("writable");
        let refused = LockFile::acquire(&path, Holder::Server).expect_err("held");
        assert!(matches!(refused, LockError::Held { pid: Some(4711), holder: None, .. }));
    }

    #[test]
    fn a_holder_that_was_killed_is_told_from_one_that_runs() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        let _held = LockFile::acquire(&path, Holder::Server).expect("free");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let refused = |pid: u32| {
            fs::write(&path, format!("{pid}\nserver\n")).expect("writable");
            let refused = LockFile::acquire(&path, Holder::Server).expect_err("held");
            let LockError::Held { life, .. } = &refused else { panic!("{refused}") };
            (*life, refused.to_string())
        };
        let (life, text) = refused(child.id());
        assert!(life == Life::Runs && text.ends_with(&child.id().to_string()), "{text}");
        // The child stays until its parent waits for it, like a process that hangs in the kernel.
        child.kill().expect("ours");
        while refused(child.id()).0 == Life::Runs {
            std::thread::yield_now();
        }
        let (life, text) = refused(child.id());
        assert_eq!(life, Life::Killed);
        assert!(text.contains("was killed and still waits for a disk"), "{text}");
        child.wait().expect("ours");
        // This is beyond the largest process number.
        let (life, text) = refused(1 << 30);
        assert!(life == Life::Unseen && text.contains("not seen here"), "{text}");
        // The first thread itself hangs.
        let hung = "Name:\tx\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\n";
        assert_eq!(Life::told_by(hung), Life::Killed);
        let busy = "Name:\tx\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\n";
        assert_eq!(Life::told_by(busy), Life::Runs);
    }

    #[test]
    fn garbage_in_a_held_file_is_not_believed() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("lock");
        let _first = LockFile::acquire(&path, Holder::Server).expect("free");
        fs::write(&path, [0xff; 100]).expect("writable");
        let text = LockFile::acquire(&path, Holder::Server).expect_err("held").to_string();
        assert!(text.contains("another process"), "{text}");
        assert!(matches!(
            LockFile::acquire(folder.path(), Holder::Server),
            Err(LockError::Io { .. })
        ));
    }
}
