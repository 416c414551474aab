//! Notices that the secrets of a pool have changed.
//!
//! Every process that has a pool open checks the pool's `pool.key` once a second: servers, node
//! processes, programs that embed a volume. A process on another machine has its own copy of the
//! pool's folder, and notices when the copy is replaced. So secrets are never sent over a
//! connection, and no peer can give a process a secret.
//!
//! A process only takes later secrets of its own pool. If the file is damaged (or half copied),
//! older, or another pool's, the process keeps the secrets that it has, and the log says so once.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use fieldstone_host::{Handle, SharedKeys};

use crate::pool::key_file::{self, KEY_FILE};

/// How often a process checks the file.
pub const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Stack of the thread that checks.
const STACK_BYTES: usize = 128 << 10;

/// What tells a file from its successor, or from the same file with other rights: device, inode,
/// length, and the times of its content and of its rights.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// Threads that check the secrets of pools, one for each pool: a file system that hangs keeps no
/// other pool's secrets back. They end when this is dropped.
#[derive(Debug)]
pub struct KeyWatch {
    _stop: Vec<mpsc::Sender<()>>,
}

impl KeyWatch {
    /// Starts to check. `pools` has the folders of the pools, and their secrets in this process.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(pools: Vec<(PathBuf, SharedKeys)>, handle: &Handle) -> anyhow::Result<Self> {
        let mut stops = Vec::new();
        for (folder, keys) in pools {
            let (stop, stopped) = mpsc::channel::<()>();
            let handle = handle.clone();
            // The file may have changed since the process read it, so the first check reads it
            // again.
            let mut pool = Watched { seen: None, failed: None, folder, keys };
            let work = move || {
                loop {
                    pool.check(&handle);
                    if stopped.recv_timeout(WATCH_PERIOD) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            };
            std::thread::Builder::new()
                .name("keys".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(work)
                .context("cannot start the thread that checks the pool's secrets")?;
            stops.push(stop);
        }
        Ok(Self { _stop: stops })
    }
}

/// A pool whose secrets a thread checks.
struct Watched {
    folder: PathBuf,
    keys: SharedKeys,
    seen: Option<Stamp>,
    /// The error of the last check. The next check reads the file again.
    failed: Option<String>,
}

impl Watched {
    fn check(&mut self, handle: &Handle) {
        let now = stamp(&self.folder);
        // While the file is away (its disk, say), the present secrets stay.
        if now.is_none() || now == self.seen {
            return;
        }
        let refreshed = advance(&self.folder, &self.keys).and_then(|changed| match changed {
            true => tell(handle),
            false => Ok(()),
        });
        match refreshed {
            Ok(()) => self.failed = None,
            Err(error) => self.report(&format!("{error:#}")),
        }
        // A file that could not be read may be readable at the next check.
        self.seen = now.filter(|_| self.failed.is_none());
    }

    /// Tells the log about an error, but not each second.
    fn report(&mut self, error: &str) {
        if self.failed.as_deref() != Some(error) {
            tracing::warn!("the secrets of {} stay as they are: {error}", self.folder.display());
            self.failed = Some(error.to_owned());
        }
    }
}

fn stamp(folder: &Path) -> Option<Stamp> {
    let meta = fs::metadata(folder.join(KEY_FILE)).ok()?;
    let content = (meta.mtime(), meta.mtime_nsec());
    Some((meta.dev(), meta.ino(), meta.len(), content, (meta.ctime(), meta.ctime_nsec())))
}

/// Reads the secrets of the pool at `folder`, and gives them to all nodes and volumes of this
/// process. At the return they have them.
///
/// # Errors
/// The file cannot be used, or a core hangs.
pub fn refresh(folder: &Path, keys: &SharedKeys, handle: &Handle) -> anyhow::Result<()> {
    advance(folder, keys)?;
    // Also if nothing has changed: the thread that checks the file may have read it a moment ago,
    // and not have told the cores yet.
    tell(handle)
}

/// Reads the file. True if it has later secrets than the process had.
fn advance(folder: &Path, keys: &SharedKeys) -> anyhow::Result<bool> {
    let changed = keys
        .advance(key_file::read(folder)?)
        .with_context(|| format!("{} cannot be used", folder.join(KEY_FILE).display()))?;
    if changed {
        let now = keys.get();
        let ((oldest, _), (issuing, _), (newest, _)) = (now.oldest(), now.issuing(), now.newest());
        tracing::info!(
            "{}: the pool's secret of {issuing} signs; accepted are {} to {}",
            folder.display(),
            oldest.0,
            newest.0
        );
    }
    Ok(changed)
}

fn tell(handle: &Handle) -> anyhow::Result<()> {
    if !handle.keys_changed() {
        bail!("a core of this process hangs, and does not take the new secrets");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::time::Instant;

    use fieldstone_host::{Host, HostConfig, PARITY_MEMORY_BYTES, PAYLOAD_MEMORY_BYTES};
    use fieldstone_proto::{MasterKey, PoolKeys};
    use fieldstone_uring::Caching;

    use super::*;

    /// A process has two pools, and the disk with one pool's file does not answer.
    #[test]
    fn a_pool_whose_file_hangs_keeps_no_other_back() {
        let temp = tempfile::tempdir().expect("temp");
        let folder = |name: &str| temp.path().join(name);
        let first = PoolKeys::from(MasterKey([1; 16]));
        for name in ["hangs", "works"] {
            fs::create_dir(folder(name)).expect("made");
        }
        // Opening a pipe for reading waits for a writer.
        let pipe = folder("hangs").join(KEY_FILE);
        let path = CString::new(pipe.as_os_str().as_bytes()).expect("no zero");
        // SAFETY: `path` is a string that ends with zero, and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        key_file::write(&folder("works"), &first).expect("written");
        let config = HostConfig {
            cores: 1,
            pin: false,
            caching: Caching::Buffered,
            verify_payload: false,
            payload_memory_bytes: PAYLOAD_MEMORY_BYTES,
            parity_memory_bytes: PARITY_MEMORY_BYTES,
            frontends: Vec::new(),
            nodes: Vec::new(),
        };
        let host = Host::start(config).expect("started");
        let keys = [SharedKeys::from(first), SharedKeys::from(first)];
        let pools = ["hangs", "works"].map(folder).into_iter().zip(keys.clone()).collect();
        let watch = KeyWatch::start(pools, host.handle()).expect("started");
        let staged = first.stage(MasterKey([2; 16])).expect("settled");
        key_file::write(&folder("works"), &staged).expect("written");
        let deadline = Instant::now() + Duration::from_secs(20);
        while keys[1].get() != staged {
            assert!(Instant::now() < deadline, "the other pool's file keeps it back");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(keys[0].get(), first);
        drop(watch);
        // Lets the thread go on that waits for a writer.
        drop(fs::OpenOptions::new().write(true).open(&pipe));
        host.stop().expect("stopped");
    }
}
