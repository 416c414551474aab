//! Opening a folder in its own thread, so that a folder that hangs stops no other.
//!
//! Every access to a folder may wait in the kernel for as long as its disk takes. A process that
//! opens many folders gives each one a thread, and waits for all of them until one deadline. A
//! folder that has not answered by then counts as down. Its thread continues, and gives its result
//! to the node ([`LocalNodeConfig::late`](crate::LocalNodeConfig::late)). A second opening next to
//! the first one would find that its own process has the lock.
//!
//! ```text
//!  thread:  look ──> (waits) ──> make if missing, lock ──> stragglers, superblock ──> result
//!                       ^                    │
//!  process:         Attempt::lock ───────────┘ next folder               Attempt::finish
//! ```
//!
//! The looks of all folders run at the same time, and so do the steps after the lock. The process
//! asks for the locks one after another, in its order. Two processes may open the same folders at
//! the same time. The one that gets the first folder then gets all of them. Neither process waits
//! for the other while it has a folder that the other needs.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use fieldstone_uring::start_thread;

use super::{FolderError, NodeFolder, Opening};

type Opened = Result<NodeFolder, FolderError>;

/// The progress of the thread.
#[derive(Debug)]
enum Progress {
    /// The folder has answered a look.
    Inspected,
    /// The folder is locked.
    Locked,
    /// The opening has ended.
    Ended(Box<Opened>),
}

/// The state of an opening whose folder should be locked.
#[derive(Debug)]
pub enum OpeningState {
    /// The folder is locked, and the opening continues.
    Locked,
    /// The opening has ended.
    Ended(Box<Opened>),
    /// The folder has not answered.
    Silent,
}

/// An opening in its own thread.
#[derive(Debug)]
pub struct Attempt {
    progress: Receiver<Progress>,
    /// Lets the thread continue to the lock.
    go_on: Option<Sender<()>>,
    path: PathBuf,
}

impl Attempt {
    /// Begins to look at the folder.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(opening: Opening) -> io::Result<Self> {
        let (progress_out, progress) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let name = format!("open {}", opening.expected.node);
        let path = opening.path.clone();
        start_thread(name, move || {
            // This look only wakes the disk. The opening looks again, and reports errors.
            let _ = super::inspect(&opening.path);
            let report = |progress| drop(progress_out.send(progress));
            // A process that has given up drops both ends. Its thread must not lock the folder when
            // the disk answers at last.
            if progress_out.send(Progress::Inspected).is_ok() && may_go_on.recv().is_ok() {
                let ended = opening.run_with(|| report(Progress::Locked));
                // If the process no longer waits, this drops the folder and its lock.
                report(Progress::Ended(Box::new(ended)));
            }
        })?;
        Ok(Self { progress, go_on: Some(go_on), path })
    }

    /// Waits until the folder is locked, the opening has failed, or `deadline`. A folder that is
    /// silent then is opened without another call, as soon as it answers.
    pub fn lock(&mut self, deadline: Instant) -> OpeningState {
        let answered = matches!(self.next(deadline), Some(Progress::Inspected));
        if let Some(go_on) = self.go_on.take() {
            // The receiver is gone only after a panic of the thread, which the next calls report.
            let _ = go_on.send(());
        }
        if !answered {
            return OpeningState::Silent;
        }
        match self.next(deadline) {
            Some(Progress::Ended(opened)) => OpeningState::Ended(opened),
            Some(Progress::Locked) => OpeningState::Locked,
            Some(Progress::Inspected) | None => OpeningState::Silent,
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

    /// Waits for the end of the opening without a limit.
    ///
    /// # Errors
    /// The same as for [`Opening::run`].
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

    /// The error when the thread has panicked.
    fn failed(&self) -> Opened {
        let source = io::Error::other("the thread that opens the folder has failed");
        Err(FolderError::Io { path: self.path.clone(), source })
    }
}
