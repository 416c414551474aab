//! The processes and the folder of the quickstart. No process outlives the quickstart: dropping its
//! handle kills it, and the kernel kills it if the quickstart dies without dropping the handle.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a process may take to end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A process of the quickstart. Dropping it kills the process.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `fieldstone ARGS` and waits for its first line on stdout, which says that the process
    /// is ready.
    pub fn start(name: &str, folder: &Path, args: &[String]) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).with_context(|| format!("{}", log.display()))?);
        // SAFETY: between fork and exec, the child makes only this system call, which allocates
        // nothing and takes no lock. The call tells the kernel to kill the child when this thread,
        // the main one, ends.
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
        // The stream ends with the process, so this wait ends if the process fails. If the process
        // hangs, the user has to interrupt the quickstart twice.
        BufReader::new(stdout).read_line(&mut line).context("cannot read from a process")?;
        if line.is_empty() {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{} did not start: {}", self.name, said.trim());
        }
        Ok(())
    }

    /// Ends the process with SIGKILL, like a crash.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits until the process has ended by itself with success.
    pub fn wait(mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{} ended with {status}: {}", self.name, said.trim());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("{} has not ended within {TIMEOUT:?}", self.name);
    }

    fn end(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The quickstart's folder. Dropping this removes it, unless the user keeps it.
pub struct DemoFolder {
    /// The path of the folder.
    pub folder: PathBuf,
    keep: bool,
    /// The folder existed before. Then only its contents are removed.
    existed: bool,
}

impl DemoFolder {
    /// Makes the folder, or uses an existing one that is empty.
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

impl Drop for DemoFolder {
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
            eprint_line!("fieldstone: cannot remove {}: {error}", self.folder.display());
        }
    }
}
