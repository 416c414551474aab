//! Sets a ring up with the best flags the kernel takes, and knows what it got.
//!
//! Completions of sockets and disks are posted by "task work" that the kernel runs in the context
//! of the thread that submitted. When it runs is the difference between the rungs of this ladder:
//!
//! 1. `DEFER_TASKRUN | SINGLE_ISSUER` (6.1): only inside `io_uring_enter`. A whole turn's
//!    completions are posted together and nothing interrupts the state machines.
//! 2. `COOP_TASKRUN` (5.19): at the next system call, without an inter-processor interrupt.
//! 3. Nothing (5.15): whenever the kernel likes, by interrupting the thread.
//!
//! `TASKRUN_FLAG` makes the kernel raise a bit in shared memory while work waits, so that
//! [`Reactor::turn_nowait`](crate::Reactor::turn_nowait) knows without a system call whether one
//! is worth it. `SUBMIT_ALL` (5.18) keeps one bad entry from holding up those behind it.

use std::io;

use io_uring::IoUring;

/// When the kernel posts completions to the ring, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRun {
    /// Only inside `io_uring_enter` (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// At the thread's next system call (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

/// The ladder, best first.
const RUNGS: [TaskRun; 3] = [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting];

/// Makes a ring with `entries` submission entries and `completions` completion entries, with the
/// first rung at or below `best` that the kernel accepts.
pub(crate) fn set_up(
    entries: u32,
    completions: u32,
    best: TaskRun,
) -> io::Result<(IoUring, TaskRun)> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for rung in RUNGS.into_iter().skip_while(|rung| *rung != best) {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(completions).dontfork();
        match rung {
            TaskRun::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag().setup_submit_all();
            }
            TaskRun::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            TaskRun::Interrupting => {}
        }
        match builder.build(entries) {
            Ok(ring) => {
                require_features(&ring)?;
                return Ok((ring, rung));
            }
            // Flags that the kernel does not know; anything else is a real refusal.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(explain(&refusal))
}

/// What the reactor cannot do without; all of it is in Linux 5.15.
fn require_features(ring: &IoUring) -> io::Result<()> {
    let have = ring.params();
    if have.is_feature_ext_arg() && have.is_feature_nodrop() && have.is_feature_submit_stable() {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring of this kernel is too old: Linux 5.15 or newer is needed",
        ))
    }
}

fn explain(error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "the kernel has no io_uring, or a container's seccomp profile hides it"
        }
        Some(libc::EPERM) => {
            "io_uring is switched off: see /proc/sys/kernel/io_uring_disabled, or the container's seccomp profile"
        }
        Some(libc::ENOMEM) => "locked memory is exhausted: see ulimit -l",
        _ => "io_uring_setup failed",
    };
    io::Error::new(error.kind(), format!("{hint} ({error})"))
}
