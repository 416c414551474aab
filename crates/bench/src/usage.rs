//! CPU time and context switches of a whole process, from the kernel's accounting.
//!
//! The kernel adds what a thread used to the sums of its process when the thread ends, and reports
//! the sums to the process itself (`getrusage`) and, when the process has ended, to its parent
//! (`wait4`). So threads that came and went are in them, which `/proc` does not show.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::process::{cpu_by_mode, cpu_of_threads, end_with_parent};
use crate::stats::median;

/// What a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user mode.
    pub user_s: f64,
    /// CPU time in the kernel.
    pub system_s: f64,
    /// Context switches, voluntary and involuntary.
    pub switches: f64,
}

impl Usage {
    /// What all threads of this process have used so far.
    pub fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` has room for the result, and all zeroes are a valid value of it.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        Self::of(&usage)
    }

    fn of(usage: &libc::rusage) -> Self {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
            switches: usage.ru_nvcsw.saturating_add(usage.ru_nivcsw) as f64,
        }
    }

    /// The CPU time that another process has used so far, without its context switches. Precise to
    /// the nanosecond for threads that run now, and that is all of them in a server whose threads
    /// stay; user mode and kernel are told apart by the clock's ticks.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of_process(pid: u32) -> anyhow::Result<Self> {
        let (user_s, system_s) = cpu_by_mode(pid)?;
        let (ticks, total) = (user_s + system_s, cpu_of_threads(pid)?.as_secs_f64());
        // Less than a tick has no known mode.
        let user_part = if ticks > 0.0 { user_s / ticks } else { 1.0 };
        let (user_s, system_s) = (total * user_part, total * (1.0 - user_part));
        Ok(Self { user_s, system_s, switches: 0.0 })
    }

    /// CPU time in both modes.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// The rest after a part that was measured apart. Nothing is below zero: two measurements of
    /// the same work differ a little.
    pub fn without(&self, part: &Self) -> Self {
        let rest = |all: f64, part: f64| (all - part).max(0.0);
        Self {
            user_s: rest(self.user_s, part.user_s),
            system_s: rest(self.system_s, part.system_s),
            switches: rest(self.switches, part.switches),
        }
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            user_s: self.user_s + other.user_s,
            system_s: self.system_s + other.system_s,
            switches: self.switches + other.switches,
        }
    }

    /// The median of each number. `None` without values.
    pub fn median(all: &[Self]) -> Option<Self> {
        let middle = |value: fn(&Self) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
        Some(Self {
            user_s: middle(|usage| usage.user_s)?,
            system_s: middle(|usage| usage.system_s)?,
            switches: middle(|usage| usage.switches)?,
        })
    }
}

/// The end of a child process.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// What it has used from its start to its end.
    pub usage: Usage,
}

/// Runs a command to its end, and measures it. The child ends with this process, and it is killed
/// when it has not ended after `limit`.
///
/// # Errors
/// The program cannot be started, or it was killed.
pub fn run_counted(mut command: Command, limit: Duration) -> anyhow::Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_parent(&mut command);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    let pid = libc::pid_t::try_from(child.id())?;
    let (finished, wait_for_end) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let is_late = wait_for_end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if is_late {
            // SAFETY: the call touches no memory. The process is not reaped before this thread has
            // ended, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        is_late
    });
    let errors = child.stderr.take();
    let reader = std::thread::spawn(move || errors.map_or_else(String::new, read));
    let stdout = child.stdout.take().map_or_else(String::new, read);
    let ended = wait_until_ended(pid);
    // This fails only if the watchdog has ended, and then it needs no word.
    let _ = finished.send(());
    let was_late = watchdog.join().unwrap_or(false);
    ended?;
    let (status, usage) = reap(pid)?;
    let stderr = reader.join().unwrap_or_default();
    ensure!(!was_late, "{name} has not ended within {} s: {}", limit.as_secs(), stderr.trim());
    Ok(Ended { status, stdout, stderr, usage })
}

/// What a child says until it closes the pipe.
fn read(mut source: impl Read) -> String {
    let mut bytes = Vec::new();
    // If the pipe breaks, what came before it is the output.
    let _ = source.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the end of a child, and leaves it for [`reap`].
fn wait_until_ended(pid: libc::pid_t) -> anyhow::Result<()> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOWAIT;
    loop {
        // SAFETY: the result has room.
        let result = unsafe {
            libc::waitid(libc::P_PID, pid as libc::id_t, information.as_mut_ptr(), options)
        };
        match result {
            0 => return Ok(()),
            _ => retry_if_interrupted()?,
        }
    }
}

/// Waits for a child that no other code waits for, and takes its accounting.
fn reap(pid: libc::pid_t) -> anyhow::Result<(ExitStatus, Usage)> {
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both results have room, and all zeroes are a valid value of the second one.
    while unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) } != pid {
        retry_if_interrupted()?;
    }
    // SAFETY: the call above has filled it.
    let usage = unsafe { usage.assume_init() };
    Ok((ExitStatus::from_raw(status), Usage::of(&usage)))
}

fn retry_if_interrupted() -> anyhow::Result<()> {
    let error = std::io::Error::last_os_error();
    match error.kind() {
        std::io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error).context("cannot wait for a child process"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_child_that_hangs_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo it waits >&2; exec sleep 60"]);
        let error = run_counted(command, Duration::from_millis(300)).expect_err("it is late");
        assert!(error.to_string().contains("it waits"), "{error}");
    }

    #[test]
    fn a_child_is_measured_to_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo $i; exit 3"]);
        let ended = run_counted(command, LIMIT).expect("there is a shell");
        assert_eq!((ended.stdout.trim(), ended.status.code()), ("60000", Some(3)));
        assert!((0.001..10.0).contains(&ended.usage.cpu_s()), "{:?}", ended.usage);
        let mut command = Command::new("sh");
        command.args(["-c", "echo why >&2; sleep 0.05"]);
        let ended = run_counted(command, LIMIT).expect("there is a shell");
        assert_eq!(ended.stderr.trim(), "why");
        assert!(ended.usage.switches >= 1.0 && ended.usage.cpu_s() < 0.05, "{:?}", ended.usage);
        assert!(run_counted(Command::new("no-such-program-anywhere"), LIMIT).is_err());
    }

    #[test]
    fn numbers_are_added_and_taken_apart() {
        let usage = |user_s, switches| Usage { user_s, system_s: 1.0, switches };
        let rest = usage(3.0, 10.0).without(&usage(1.0, 12.0));
        assert_eq!(rest, Usage { user_s: 2.0, system_s: 0.0, switches: 0.0 });
        assert_eq!(
            rest.plus(&usage(1.0, 5.0)),
            Usage { user_s: 3.0, system_s: 1.0, switches: 5.0 }
        );
        let all = [usage(5.0, 1.0), usage(1.0, 3.0), usage(2.0, 2.0)];
        assert_eq!(Usage::median(&all), Some(usage(2.0, 2.0)));
        assert_eq!(Usage::median(&[]), None);
        assert!(Usage::now().cpu_s() > 0.0);
        let own = Usage::of_process(std::process::id()).expect("it runs");
        assert!(own.cpu_s() > 0.0 && own.cpu_s() < 3600.0, "{own:?}");
        assert!(Usage::of_process(999_999_999).is_err());
    }
}
