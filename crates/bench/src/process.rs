//! The servers under test: starts them, measures them through /proc, and ends them.
//!
//! The kernel, not the server, gives the cost of a server:
//!
//! - CPU time from `/proc/PID/stat`. This includes threads that have ended. The unit is the clock
//!   tick, 10 ms, which is 0.3 % of a run of three seconds.
//! - CPU time at rest from `/proc/PID/task/*/schedstat`, in nanoseconds. No thread ends then.
//! - Context switches from `/proc/PID/task/*/status`. A thread's count is lost when the thread
//!   ends, and some servers end threads together with a connection. So a [`SwitchCounter`] reads
//!   the counts ten times a second and keeps them.
//!
//! The work of kernel threads for a server (write-back of the page cache) is not counted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The longest wait for a server to accept connections on its socket.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two reads of the counts of context switches.
const SWITCH_STEP: Duration = Duration::from_millis(100);

/// A server process. Dropping this kills the process. The kernel kills it if this process dies
/// without dropping this.
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program and waits until it accepts connections on `socket`.
    pub fn start(words: &[String], socket: &Path, log: &Path) -> anyhow::Result<Self> {
        let (program, arguments) = words.split_first().context("a command has a program")?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command, log, |_| UnixStream::connect(socket).is_ok())
    }

    /// Starts a program and waits until it is ready, which `is_ready` sees, perhaps in what the
    /// program has printed.
    pub fn spawn(
        mut command: Command,
        log: &Path,
        is_ready: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Self> {
        let output = fs::File::create(log).with_context(|| format!("{}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        end_with_parent(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        let mut server = Self { child, log: log.to_path_buf() };
        server.wait_ready(is_ready)?;
        Ok(server)
    }

    fn wait_ready(&mut self, is_ready: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !is_ready(&self.said()) {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}: {}", self.last_line());
            }
            if start.elapsed() > PATIENCE {
                bail!("it does not answer after {} s: {}", PATIENCE.as_secs(), self.last_line());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What the process has printed so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_line(&self) -> String {
        let said = self.said();
        said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(nothing)").to_owned()
    }

    /// Asks the process to end, and waits until it has.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let pid = libc::pid_t::try_from(self.pid())?;
        // SAFETY: the call touches no memory. The process is a child that was not waited for, so
        // the number is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                bail!("it does not end within {} s: {}", PATIENCE.as_secs(), self.last_line());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended with {status}: {}", self.last_line()),
        }
    }

    /// CPU time so far, including threads that have ended.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        cpu_of(self.pid())
    }

    /// CPU time so far of the threads that run now.
    pub fn cpu_of_threads(&self) -> anyhow::Result<Duration> {
        cpu_of_threads(self.pid())
    }

    /// Waits until the server is idle: it has done the work that it deferred during a run. Waits at
    /// most `limit`.
    pub fn settle(&self, limit: Duration) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_millis(100);
        /// A server that uses less than this part of a core counts as idle.
        const QUIET: f64 = 0.02;
        let start = Instant::now();
        let mut before = self.cpu_of_threads()?;
        while start.elapsed() < limit {
            std::thread::sleep(STEP);
            let now = self.cpu_of_threads()?;
            if now.saturating_sub(before) < STEP.mul_f64(QUIET) {
                return Ok(());
            }
            before = now;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time so far of the threads of a process that run now.
pub fn cpu_of_threads(pid: u32) -> anyhow::Result<Duration> {
    let mut sum_ns = 0;
    for thread in threads(pid)? {
        // A thread may end between the two calls.
        let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
        sum_ns += first_number(&text).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum_ns))
}

/// CPU time of a process so far in user mode and in the kernel, in seconds, including threads that
/// have ended.
pub fn cpu_by_mode(pid: u32) -> anyhow::Result<(f64, f64)> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let (user, system) =
        ticks_by_mode(&text).with_context(|| format!("{path} is not as expected"))?;
    Ok((ticks(user).as_secs_f64(), ticks(system).as_secs_f64()))
}

/// CPU time of a process so far, including threads that have ended.
pub fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    cpu_ticks(&text).map(ticks).with_context(|| format!("{path} is not as expected"))
}

/// Lets a child, and all its threads, run only on these CPUs.
pub fn pin(command: &mut Command, cpus: &[usize]) {
    // SAFETY: all zeroes are an empty set of CPUs.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: between fork and exec, the child makes only this system call, which allocates nothing
    // and takes no lock.
    unsafe {
        command.pre_exec(move || {
            match libc::sched_setaffinity(0, std::mem::size_of_val(&set), &raw const set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// The CPUs on which this process may run.
pub fn own_cpus() -> Vec<usize> {
    // SAFETY: all zeroes are an empty set of CPUs, and the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, std::mem::size_of_val(&set), &raw mut set);
        set
    };
    // SAFETY: the number is below the size of the set.
    let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(has).collect()
}

/// Makes a child end with this process. Keeps the terminal's signals from the child, because this
/// process decides when the child ends.
pub fn end_with_parent(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec, the child makes only this system call, which allocates nothing
    // and takes no lock. The call tells the kernel to kill the child when this thread, the main
    // one, ends.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Counts the context switches of a process until [`Self::finish`].
pub struct SwitchCounter {
    stop: Sender<()>,
    thread: JoinHandle<u64>,
}

impl SwitchCounter {
    /// Starts to count.
    pub fn start(pid: u32) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let mut seen = Seen::default();
        seen.sample(pid);
        let thread = std::thread::Builder::new().name("switches".to_owned()).spawn(move || {
            while stopped.recv_timeout(SWITCH_STEP) == Err(RecvTimeoutError::Timeout) {
                seen.sample(pid);
            }
            seen.sample(pid);
            seen.total()
        })?;
        Ok(Self { stop, thread })
    }

    /// The number of switches since the start.
    pub fn finish(self) -> u64 {
        // This fails only if the thread has ended, and then the result is there.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or(0)
    }
}

/// Context switches of each thread, at the first and at the last read.
#[derive(Default)]
struct Seen {
    threads: BTreeMap<PathBuf, (u64, u64)>,
    looked: bool,
}

impl Seen {
    fn sample(&mut self, pid: u32) {
        for thread in threads(pid).unwrap_or_default() {
            let text = fs::read_to_string(thread.join("status")).unwrap_or_default();
            if let Some(count) = switches(&text) {
                self.note(thread, count);
            }
        }
        self.looked = true;
    }

    fn note(&mut self, thread: PathBuf, count: u64) {
        // The count of a thread that was not there at the first read began at zero.
        let first = if self.looked { 0 } else { count };
        self.threads.entry(thread).or_insert((first, count)).1 = count;
    }

    fn total(&self) -> u64 {
        self.threads.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }
}

/// The folders of a process's threads.
fn threads(pid: u32) -> anyhow::Result<Vec<PathBuf>> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).with_context(|| path.clone())?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// utime + stime of a `/proc/PID/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    ticks_by_mode(stat).map(|(user, system)| user + system)
}

/// utime and stime of a `/proc/PID/stat`. The second field is the name in brackets, which may
/// contain any character. So fields are counted from the last bracket.
fn ticks_by_mode(stat: &str) -> Option<(u64, u64)> {
    let after = &stat[stat.rfind(')')? + 1..];
    let mut fields = after.split_ascii_whitespace().skip(11);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    Some((utime, stime))
}

fn ticks(count: u64) -> Duration {
    // SAFETY: the call returns a number and touches no memory of this program.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let per_second = u64::try_from(per_second).ok().filter(|rate| *rate > 0).unwrap_or(100);
    Duration::from_nanos(count * (1_000_000_000 / per_second))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Voluntary and involuntary switches of a `/proc/PID/task/TID/status`.
fn switches(status: &str) -> Option<u64> {
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some(field("voluntary_ctxt_switches:")? + field("nonvoluntary_ctxt_switches:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 5 0 0 0 1200 34 7 8 20 0 1 0 99 1 1";
        assert_eq!(cpu_ticks(stat), Some(1234));
        assert_eq!(cpu_ticks("77 (a) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn switches_are_summed() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), Some(42));
        assert_eq!(switches("Name:\tx\n"), None);
    }

    #[test]
    fn threads_that_come_and_go_are_counted() {
        let mut seen = Seen::default();
        seen.note(PathBuf::from("old"), 100);
        seen.looked = true;
        seen.note(PathBuf::from("new"), 5);
        seen.note(PathBuf::from("old"), 130);
        // The thread "new" has ended. Its last count stays.
        seen.note(PathBuf::from("old"), 150);
        assert_eq!(seen.total(), 50 + 5);
    }

    #[test]
    fn our_own_numbers_are_plausible() {
        let pid = std::process::id();
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("procfs");
        let before = cpu_ticks(&text).map(ticks).expect("it parses");
        let counter = SwitchCounter::start(pid).expect("a thread starts");
        std::thread::sleep(Duration::from_millis(1));
        assert!(counter.finish() >= 1, "sleeping is a switch");
        // On a busy machine, it takes long until this process has had a tick of CPU time.
        let start = Instant::now();
        let mut after = before;
        while after == before && start.elapsed() < Duration::from_secs(60) {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("procfs");
            after = cpu_ticks(&text).map(ticks).expect("it parses");
        }
        assert!(after > before, "{before:?} {after:?}");
    }

    #[test]
    fn a_server_that_ends_tells_why() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let words = ["sh", "-c", "echo the disk is on fire >&2; exit 3"].map(str::to_owned);
        let socket = folder.path().join("no.sock");
        let started = Server::start(&words, &socket, &folder.path().join("log"));
        let error = format!("{:#}", started.err().expect("it ended"));
        assert!(error.contains("on fire") && error.contains('3'), "{error}");
        let missing = ["no-such-program-anywhere".to_owned()];
        assert!(Server::start(&missing, &socket, &folder.path().join("log")).is_err());
    }
}
