//! Opening a folder in a thread of its own, so that a folder that hangs stops no other.
//!
//! Every access to a folder may wait in the kernel for as long as its disk likes. A process that
//! opens many folders gives each one a thread, and waits for all of them until one deadline. A
//! folder that has not answered by then counts as down. Its thread goes on, and its result goes to
//! the node ([`LocalNodeConfig::late`](crate::host::LocalNodeConfig::late)): a second opening
//! beside the first one would find the lock taken by its own process.
//!
//! ```text
//!  thread:  look ──> (waits) ──> make if missing, lock ──> stragglers, superblock ──> result
//!                       ^                    │
//!  process:         Attempt::lock ───────────┘ next folder               Attempt::finish
//! ```
//!
//! The looks of all folders run at the same time, and so does all that follows the lock. Locks are
//! taken one after another, in the order in which the process asks: of two processes that open the
//! same folders at the same time, the one that has the first folder gets all of them, and none
//! waits for the other while it has what the other wants.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use super::{FolderError, NodeFolder, Opening};

type Opened = Result<NodeFolder, FolderError>;

/// How far the thread has come.
#[derive(Debug)]
enum Progress {
    /// The folder has answered a look.
    Looked,
    /// The folder is locked.
    Locked,
    /// The opening has ended.
    Ended(Box<Opened>),
}

/// How an opening stands when its folder should be locked.
#[derive(Debug)]
pub enum Standing {
    /// The folder is locked; the rest goes on.
    Locked,
    /// The opening has ended.
    Ended(Box<Opened>),
    /// The folder has not answered.
    Silent,
}

/// An opening that runs in a thread of its own.
#[derive(Debug)]
pub struct Attempt {
    progress: Receiver<Progress>,
    /// Lets the thread go on to the lock.
    go_on: Option<Sender<()>>,
    path: PathBuf,
}

impl Attempt {
    /// Begins to look at the folder.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(opening: Opening) -> io::Result<Self> {
        let (progress_out, progress) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let name = format!("open {}", opening.expected.node);
        let path = opening.path.clone();
        std::thread::Builder::new().name(name).spawn(move || {
            // The opening looks again and tells what is wrong; this look only wakes the disk.
            let _ = super::look(&opening.path);
            let tell = |progress| drop(progress_out.send(progress));
            tell(Progress::Looked);
            // A process that has given up drops the sender without a word.
            if may_go_on.recv().is_ok() {
                let ended = opening.run_telling(|| tell(Progress::Locked));
                // If the process does not wait any more, the folder is let go, and its lock with
                // it.
                tell(Progress::Ended(Box::new(ended)));
            }
        })?;
        Ok(Self { progress, go_on: Some(go_on), path })
    }

    /// Waits until the folder is locked, the opening has failed, or `deadline`. A folder that is
    /// silent then goes on by itself as soon as it answers.
    pub fn lock(&mut self, deadline: Instant) -> Standing {
        let answered = matches!(self.next(deadline), Some(Progress::Looked));
        if let Some(go_on) = self.go_on.take() {
            // The receiver is gone only after a panic of the thread, which shows below.
            let _ = go_on.send(());
        }
        if !answered {
            return Standing::Silent;
        }
        match self.next(deadline) {
            Some(Progress::Ended(opened)) => Standing::Ended(opened),
            Some(Progress::Locked) => Standing::Locked,
            Some(Progress::Looked) | None => Standing::Silent,
        }
    }

    /// Waits until the opening has ended, or until `deadline`.
    pub fn finish(&mut self, deadline: Instant) -> Option<Opened> {
        while let Some(progress) = self.next(deadline) {
            if let Progress::Ended(opened) = progress {
                return Some(*opened);
            }
        }
        None
    }

    fn next(&mut self, deadline: Instant) -> Option<Progress> {
        let rest = deadline.saturating_duration_since(Instant::now());
        match self.progress.recv_timeout(rest) {
            Ok(progress) => Some(progress),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Progress::Ended(Box::new(self.failed()))),
        }
    }

    /// Waits for the end of the opening, however long that takes.
    ///
    /// # Errors
    /// As [`Opening::run`].
    pub fn wait(mut self) -> Opened {
        if let Some(go_on) = self.go_on.take() {
            // See `lock`.
            let _ = go_on.send(());
        }
        while let Ok(progress) = self.progress.recv() {
            if let Progress::Ended(opened) = progress {
                return *opened;
            }
        }
        self.failed()
    }

    /// What to say when the thread has ended by a panic.
    fn failed(&self) -> Opened {
        let source = io::Error::other("the thread that opens the folder has failed");
        Err(FolderError::Io { path: self.path.clone(), source })
    }
}
