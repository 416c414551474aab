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
//!
//! # Kernel threads
//!
//! The kernel makes calls that block (a sync, a buffered write) in threads of its own. By default a
//! ring has as many of them for files as it has submission entries, and at most four for each CPU.
//! All disks of a core share that ring: a disk that hangs with so many syncs under way would keep
//! every other disk of the core from syncing. So the ring asks for [`FILE_THREADS`], which is more
//! than the disks that may hang have operations under way.

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

/// Kernel threads that a ring may have at a time for calls on files that block (Linux 5.15). They
/// exist only while they are needed. The kernel takes less if the user may have fewer processes.
const FILE_THREADS: u32 = 512;

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
                allow_file_threads(&ring);
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

/// Without it the ring works, but one disk that hangs may stop the others of its core.
fn allow_file_threads(ring: &IoUring) {
    // Zero leaves the number of threads for sockets as it is.
    if let Err(error) = ring.submitter().register_iowq_max_workers(&mut [FILE_THREADS, 0]) {
        tracing::debug!("the ring has the kernel's default number of threads: {error}");
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

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::time::Duration;

    use io_uring::types::{Fd, SubmitArgs, Timespec};
    use io_uring::{opcode, squeue};

    use super::*;

    const SYNC: u64 = 1;
    const HUNG: u64 = 2;

    fn push(ring: &mut IoUring, entry: &squeue::Entry) {
        // SAFETY: the test keeps the path and the file until every operation has come back.
        unsafe { ring.submission().push(entry) }.expect("a free entry");
        ring.submit().expect("submitted");
    }

    /// The opening of a FIFO hangs in the same threads as a sync, until a writer opens it.
    #[test]
    fn calls_that_hang_do_not_stop_a_sync_of_another_file() {
        const HANGING: usize = 100;
        let folder = tempfile::tempdir().expect("temp");
        let fifo = folder.path().join("fifo");
        let path = CString::new(fifo.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: the path ends with NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let file = std::fs::File::create(folder.path().join("file")).expect("writable");
        let (mut ring, _) = set_up(8, 2 * HANGING as u32, TaskRun::Deferred).expect("io_uring");
        for _ in 0..HANGING {
            let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr());
            let open = open.flags(libc::O_RDONLY).build().flags(squeue::Flags::ASYNC);
            push(&mut ring, &open.user_data(HUNG));
        }
        push(&mut ring, &opcode::Fsync::new(Fd(file.as_raw_fd())).build().user_data(SYNC));
        let patience = Timespec::from(Duration::from_secs(10));
        let waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&patience));
        let first = ring.completion().next().map(|done| (done.user_data(), done.result()));
        // They come back one after the other: each writer lets in those that wait at that time.
        let mut back = usize::from(first.is_some());
        while back <= HANGING {
            let _writer = std::fs::OpenOptions::new().read(true).write(true).open(&fifo);
            let pause = Timespec::from(Duration::from_millis(10));
            let _ = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&pause));
            back += ring.completion().count();
        }
        assert_eq!(first, Some((SYNC, 0)), "the sync waits for the calls that hang: {waited:?}");
    }
}
