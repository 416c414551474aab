//! The processes of the quickstart. None outlives it: each is killed when its handle is dropped,
//! and by the kernel should this process die without dropping anything.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a process may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of ours.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `fieldstone ARGS` and waits for its first line on stdout, which says that it is
    /// ready.
    pub fn start(name: &str, folder: &Path, args: &[String]) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).with_context(|| format!("{}", log.display()))?);
        // SAFETY: between fork and exec only this system call is made, which allocates nothing and
        // takes no lock. The kernel then kills the child when this thread, the main one, ends.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut process = Self { name: name.to_owned(), child, log };
        process.wait_ready()?;
        Ok(process)
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("stdout is a pipe")?;
        let mut line = String::new();
        // The end of the stream means that the process ended, so this cannot wait for ever on one
        // that fails; one that hangs is stopped by the user.
        BufReader::new(stdout).read_line(&mut line).context("cannot read from a process")?;
        if line.is_empty() {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{} did not start: {}", self.name, said.trim());
        }
        Ok(())
    }

    /// Ends it with SIGKILL, as a crash would.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits until it has ended by itself.
    pub fn wait(mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{} ended with {status}: {}", self.name, said.trim());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("{} has not ended within {PATIENCE:?}", self.name);
    }

    fn end(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The quickstart's folder; it goes when this is dropped, unless it is to be kept.
pub struct Workplace {
    /// Where.
    pub folder: PathBuf,
    keep: bool,
    /// The folder was there before: only what the quickstart put into it goes.
    existed: bool,
}

impl Workplace {
    /// Makes the folder, or takes an empty one.
    pub fn make(folder: Option<&Path>, keep: bool) -> anyhow::Result<Self> {
        let folder = match folder {
            Some(folder) => folder.to_path_buf(),
            None => std::env::temp_dir().join(format!("fieldstone-{}", std::process::id())),
        };
        let existed = folder.exists();
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        if fs::read_dir(&folder)?.next().is_some() {
            bail!("{} is not empty; name an empty or a new folder", folder.display());
        }
        let folder = folder.canonicalize()?;
        Ok(Self { folder, keep, existed })
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let removed = if self.existed {
            let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).try_for_each(|path| {
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            })
        } else {
            fs::remove_dir_all(&self.folder)
        };
        if let Err(error) = removed {
            tell!("fieldstone: cannot remove {}: {error}", self.folder.display());
        }
    }
}
