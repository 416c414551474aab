//! Opens the folders of a pool's nodes. Waits a bounded time for commands that use the nodes, and a
//! bounded time for disks that do not answer.
//!
//! The two waits have separate bounds. A *command* may use a node for a moment. This process locks
//! the nodes in order. While this process waits for the command, it keeps the locks of the nodes
//! before that node, and locks no node after it. For *disks* that are slow or hang, this process
//! waits `FOLDERS_TIMEOUT` in total. Then the nodes of these disks are down. These nodes come up
//! when their disks answer ([`Attempt`]).

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fieldstone_host::{
    Attempt, FOLDERS_TIMEOUT, FolderError, LocalNodeConfig, NodeFolder, Opening, OpeningState,
};
use fieldstone_uring::Holder;

/// How long servers and commands wait for a command that uses nodes for a moment.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a folder may take after the folders before it have used up the timeout: enough for a
/// healthy disk.
const LATE_TIMEOUT: Duration = Duration::from_millis(200);

/// The time at which this process stops waiting for commands that use nodes for a moment.
pub fn command_deadline() -> Instant {
    Instant::now() + COMMAND_TIMEOUT
}

/// Opens a node's folder. Waits until `deadline` for a command that uses the folder for a moment,
/// and names the command on stderr. Waits without a bound for a disk that does not answer, and
/// reports that on stderr. Returns none when `is_interrupted` becomes true: the opening goes on in
/// its thread.
///
/// # Errors
/// As [`Opening::run`].
pub fn open_patiently(
    opening: &Opening,
    deadline: Instant,
    is_interrupted: impl Fn() -> bool,
) -> Result<Option<NodeFolder>, FolderError> {
    patiently(deadline, || open_unless(opening, &is_interrupted))
}

/// Opens a folder. Returns none when `is_interrupted` becomes true.
fn open_unless(
    opening: &Opening,
    is_interrupted: impl Fn() -> bool,
) -> Result<Option<NodeFolder>, FolderError> {
    const STEP: Duration = Duration::from_millis(50);
    let path = || opening.path.clone();
    let begin = || {
        Attempt::start(opening.clone()).map_err(|source| FolderError::Io { path: path(), source })
    };
    let mut attempt = begin()?;
    let start = Instant::now();
    let mut told = false;
    let mut state = attempt.lock(start + STEP);
    loop {
        match state {
            // Operations of the previous process have not ended in the time that an attempt waits.
            OpeningState::Ended(ended) if matches!(*ended, Err(FolderError::Stragglers { .. })) => {
                if let Err(error) = *ended
                    && !std::mem::replace(&mut told, true)
                {
                    eprint_line!("fieldstone: {error}; it is waited for");
                }
                attempt = begin()?;
                state = attempt.lock(Instant::now() + STEP);
            }
            OpeningState::Ended(opened) => return opened.map(Some),
            other => state = other,
        }
        if is_interrupted() {
            return Ok(None);
        }
        if !told && start.elapsed() > FOLDERS_TIMEOUT {
            told = true;
            eprint_line!("fieldstone: {}; it is waited for", FolderError::Silent(path()));
        }
        if let Some(opened) = attempt.finish(Instant::now() + STEP) {
            state = OpeningState::Ended(Box::new(opened));
        }
    }
}

/// Repeats `attempt` while a command has the folder, until `deadline`.
fn patiently<T>(
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<T, FolderError>,
) -> Result<T, FolderError> {
    const PAUSE: Duration = Duration::from_millis(20);
    /// The wait for a command that ends soon is not reported.
    const TELL_AFTER: Duration = Duration::from_secs(1);
    let start = Instant::now();
    let mut told = false;
    loop {
        let (path, pid) = match attempt() {
            Err(FolderError::InUse { path, pid, holder: Some(Holder::Command), .. })
                if Instant::now() < deadline && pid != Some(std::process::id()) =>
            {
                (path, pid)
            }
            other => return other,
        };
        if !told && start.elapsed() > TELL_AFTER {
            told = true;
            eprint_line!(
                "fieldstone: waiting for process {}, a command that uses {}",
                pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()),
                path.display()
            );
        }
        std::thread::sleep(PAUSE);
    }
}

/// The folder of a node, while it is being opened.
pub struct PendingFolder {
    opening: Opening,
    /// The thread that opens the folder.
    attempt: Option<Attempt>,
    /// The opened folder, or the error. None while the opening goes on.
    ended: Option<Result<NodeFolder, FolderError>>,
}

impl PendingFolder {
    /// Starts a thread that opens the folder.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(opening: Opening) -> io::Result<Self> {
        let attempt = Some(Attempt::start(opening.clone())?);
        Ok(Self { opening, attempt, ended: None })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.opening.path
    }

    /// Waits until the folder is locked or an error is known. The disk may take `timeout`, or
    /// `LATE_TIMEOUT` if that is longer. Subtracts the time of this wait from `timeout`. False if
    /// a process other than a node process has the folder.
    fn lock(&mut self, timeout: &mut Duration, command_deadline: Instant) -> bool {
        let Self { opening, attempt, ended } = self;
        let locked = patiently(command_deadline, || {
            let current = match attempt {
                Some(attempt) => attempt,
                None => attempt.insert(
                    Attempt::start(opening.clone())
                        .map_err(|source| FolderError::Io { path: opening.path.clone(), source })?,
                ),
            };
            let began = Instant::now();
            let state = current.lock(began + (*timeout).max(LATE_TIMEOUT));
            *timeout = timeout.saturating_sub(began.elapsed());
            match state {
                OpeningState::Ended(opened) => {
                    *attempt = None;
                    opened.map(Some)
                }
                OpeningState::Locked | OpeningState::Silent => Ok(None),
            }
        });
        *ended = locked.transpose();
        match ended {
            Some(Err(FolderError::InUse { holder, .. })) => *holder == Some(Holder::Node),
            _ => true,
        }
    }

    /// Waits until the opening has ended, or until `deadline`. The node is down if its folder
    /// cannot be used or has not answered.
    ///
    /// # Errors
    /// Another process has the folder or runs the node.
    pub fn finish(self, deadline: Instant) -> Result<LocalNodeConfig, FolderError> {
        let Self { opening, mut attempt, ended } = self;
        let opened =
            ended.or_else(|| attempt.as_mut().and_then(|under_way| under_way.finish(deadline)));
        let late = if opened.is_none() { attempt } else { None };
        let opened = opened.unwrap_or_else(|| Err(FolderError::Silent(opening.path.clone())));
        let folder = match opened {
            Err(error @ (FolderError::Node { .. } | FolderError::InUse { .. })) => {
                return Err(error);
            }
            opened => opened.map_err(|error| error.to_string()),
        };
        Ok(LocalNodeConfig { opening, folder, late })
    }
}

/// Locks the folders in order, and stops at a folder that a server or a command has. The disks have
/// `timeout` in total. Returns the deadline for the rest of the openings.
pub fn lock_in_order<'a>(
    folders: impl Iterator<Item = &'a mut PendingFolder>,
    mut timeout: Duration,
) -> Instant {
    let command_deadline = command_deadline();
    for folder in folders {
        if !folder.lock(&mut timeout, command_deadline) {
            break;
        }
    }
    Instant::now() + timeout.max(LATE_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    use fieldstone_host::{NodeRegistry, folder};
    use fieldstone_proto::disk::Superblock;
    use fieldstone_proto::{MasterKey, NodeIndex, PoolId};

    use super::*;

    /// Blocks the opening of one node until the test lets it continue.
    #[derive(Debug)]
    struct Hang(u16, Mutex<Receiver<()>>);

    impl Hang {
        fn of(node: u16) -> (Arc<dyn NodeRegistry>, Sender<()>) {
            let (go_on, wait) = channel();
            (Arc::new(Self(node, Mutex::new(wait))), go_on)
        }
    }

    impl NodeRegistry for Hang {
        fn seen(&self, _: NodeIndex, _: &Path, _: u64) {}
        fn may_replace(&self, node: NodeIndex, _: &Path) -> Result<(), String> {
            if node.0 == self.0 {
                let _ = self.1.lock().expect("no panic").recv();
            }
            Ok(())
        }
        fn made(&self, _: NodeIndex, _: &Path, _: u64) {}
    }

    fn opening(path: PathBuf, node: u16, registry: &Arc<dyn NodeRegistry>) -> Opening {
        let expected = Superblock {
            pool: PoolId(5),
            node: NodeIndex(node),
            nodes: 6,
            incarnation: 9,
            key: MasterKey([3; 16]),
            slot_bytes: 1 << 20,
            slots: 64,
            code: "rs:4+2".to_owned(),
        };
        let (holder, registry) = (Holder::Server, Some(Arc::clone(registry)));
        let keys = expected.key.into();
        Opening { path, expected, keys, holder, registry, replace_missing: true }
    }

    /// The folder of the first of three nodes hangs. The other nodes are opened. The first node is
    /// down until its folder answers.
    #[test]
    fn a_folder_that_hangs_stops_no_other() {
        const TIMEOUT: Duration = Duration::from_millis(100);
        let temp = tempfile::tempdir().expect("temp");
        let (registry, go_on) = Hang::of(0);
        let start = |node: u16| {
            let path = temp.path().join(format!("node.{node}"));
            PendingFolder::start(opening(path, node, &registry)).expect("threads")
        };
        let mut folders: Vec<PendingFolder> = (0..3).map(start).collect();
        let began = Instant::now();
        let deadline = lock_in_order(folders.iter_mut(), TIMEOUT);
        let finish = |folder: PendingFolder| folder.finish(deadline).expect("no other process");
        let mut configs: Vec<LocalNodeConfig> = folders.into_iter().map(finish).collect();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(configs[1].folder.is_ok() && configs[2].folder.is_ok());
        let first = configs.swap_remove(0);
        let reason = first.folder.expect_err("it hangs");
        assert!(reason.contains("node.0 does not answer"), "{reason}");
        go_on.send(()).expect("it waits");
        let late = first.late.expect("under way").wait().expect("it answers after all");
        assert!(late.created && folder::inspect(&late.path).is_ok());
    }

    #[test]
    fn an_opening_that_hangs_is_interrupted() {
        let temp = tempfile::tempdir().expect("temp");
        let (registry, go_on) = Hang::of(0);
        let opening = opening(temp.path().join("node.0"), 0, &registry);
        let (done, outcome) = channel();
        let start = Instant::now();
        let is_interrupted = move || start.elapsed() > Duration::from_millis(100);
        let open = move || {
            drop(done.send(open_patiently(&opening, command_deadline(), is_interrupted)));
        };
        let opening = std::thread::spawn(open);
        let opened = outcome.recv_timeout(Duration::from_secs(20)).expect("it does not end");
        assert!(opened.expect("no failure").is_none());
        drop(go_on);
        opening.join().expect("no panic");
    }

    /// A node process has the folder, waits for its disk and does not listen yet. The node is down,
    /// and the folders after it are locked.
    #[test]
    fn a_node_process_that_does_not_listen_yet_stops_no_start() {
        let temp = tempfile::tempdir().expect("temp");
        let (registry, _) = Hang::of(9);
        let at = |node: u16| opening(temp.path().join(format!("node.{node}")), node, &registry);
        let _taken = Opening { holder: Holder::Node, ..at(1) }.run().expect("free");
        let start = |node: u16| PendingFolder::start(at(node)).expect("threads");
        let mut folders: Vec<PendingFolder> = (0..3).map(start).collect();
        let deadline = lock_in_order(folders.iter_mut(), Duration::from_secs(5));
        let mut folders = folders.into_iter();
        let mut finish = || folders.next().expect("three").finish(deadline);
        assert!(finish().is_ok());
        let waits = finish().expect_err("a node process has it");
        assert!(matches!(waits, FolderError::InUse { holder: Some(Holder::Node), .. }), "{waits}");
        assert!(finish().is_ok_and(|last| last.folder.is_ok()));
    }

    /// Another server has a node, so the start fails: the folders after it are not locked.
    #[test]
    fn nothing_is_locked_behind_a_folder_that_another_process_has() {
        let temp = tempfile::tempdir().expect("temp");
        let (registry, _) = Hang::of(9);
        let at = |node: u16| opening(temp.path().join(format!("node.{node}")), node, &registry);
        let _taken = at(1).run().expect("free");
        let start = |node: u16| PendingFolder::start(at(node)).expect("threads");
        let mut folders: Vec<PendingFolder> = (0..3).map(start).collect();
        let deadline = lock_in_order(folders.iter_mut(), Duration::from_secs(5));
        let mut folders = folders.into_iter();
        let mut finish = || folders.next().expect("three").finish(deadline);
        assert!(finish().is_ok_and(|first| first.folder.is_ok()));
        assert!(matches!(finish(), Err(FolderError::InUse { .. })));
        assert_eq!(folder::inspect(&at(2).path).expect("readable"), folder::Found::Nothing);
    }
}
