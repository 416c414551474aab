//! Sets a ring up with the best flags that the kernel supports, and notes which ones they are.
//!
//! The kernel posts completions of sockets and disks in "task work", which it runs in the context
//! of the submitting thread. The three modes below differ in when it runs:
//!
//! 1. `DEFER_TASKRUN | SINGLE_ISSUER` (6.1): only inside `io_uring_enter`. The kernel posts a whole
//!    turn's completions together, and does not interrupt the state machines.
//! 2. `COOP_TASKRUN` (5.19): at the next system call, without an inter-processor interrupt.
//! 3. Neither flag (5.15): at any time, by interrupting the thread.
//!
//! With `TASKRUN_FLAG` the kernel sets a bit in shared memory while work waits, so that
//! [`Reactor::turn_nowait`](crate::Reactor::turn_nowait) knows without a system call whether a
//! system call is useful. With `SUBMIT_ALL` (5.18) one bad entry does not hold up those behind it.
//!
//! # Kernel threads
//!
//! The kernel makes blocking calls (a sync, a buffered write) in its own threads. By default a ring
//! has as many of these threads for files as it has submission entries, and at most four for each
//! CPU. All disks of a core share that ring: with so many syncs under way on one hanging disk, no
//! other disk of the core could sync. So the ring asks for [`FILE_THREADS`], which is more than the
//! number of operations under way on the disks that may hang.

use std::io;

use io_uring::IoUring;

/// When the kernel posts completions to the ring, best mode first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRun {
    /// Only inside `io_uring_enter` (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// At the thread's next system call (`COOP_TASKRUN`, Linux 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

/// The modes, best first.
const RUNGS: [TaskRun; 3] = [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting];

/// Kernel threads that a ring may have at a time for blocking calls on files (Linux 5.15). They
/// exist only while the kernel needs them. If the user's limit of processes is lower, the kernel
/// uses fewer.
const FILE_THREADS: u32 = 512;

/// Makes a ring with `entries` submission entries and `completions` completion entries, in the
/// first mode at or below `best` that the kernel accepts.
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
            // The kernel does not know these flags. Any other error is a real refusal.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = error,
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(explain(&refusal))
}

/// Checks the features that the reactor needs. Linux 5.15 has all of them.
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

/// Raises the number of threads. Without this the ring works, but one hanging disk may stop the
/// others of its core.
fn allow_file_threads(ring: &IoUring) {
    // Zero leaves the number of threads for sockets unchanged.
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
            "io_uring is switched off: see /proc/sys/kernel/io_uring_disabled, or the container's \
             seccomp profile"
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

    /// Opening a FIFO hangs in the same threads as a sync, until a writer opens the FIFO.
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
        // They come back one after another: each writer lets in the openings that wait at that
        // time.
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
