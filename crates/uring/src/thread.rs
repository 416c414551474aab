//! The thread and process of a reactor: starting, pinning, the limit on open files, CPU usage.

use std::io;
use std::mem::{self, MaybeUninit};
use std::thread::{Builder, JoinHandle};

use fieldstone_block::Nanos;

/// Signals that the kernel sends to the thread that caused them. If a thread blocks them, the
/// kernel ends the process without calling the handler of the program.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// Starts a thread that takes no signals of the process. The program decides which of its own
/// threads take them. Signals for faults of the thread itself are not blocked.
///
/// # Errors
/// The system cannot start a thread.
pub fn start_thread<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // The new thread inherits the mask, so it blocks the signals from its first instruction.
    let _blocked = Blocked::new();
    Builder::new().name(name.into()).spawn(run)
}

/// The signal mask that this thread had before it blocked all signals but the [`FAULTS`]. Dropping
/// the value restores the mask.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset initialises `set`, sigdelset only gets signals that exist, and
        // pthread_sigmask initialises `before`. pthread_sigmask cannot fail with these arguments.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(set.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let before = &raw const self.0;
        // SAFETY: the set is initialised. A null pointer means that the present mask is not
        // returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }
}

/// Runs the calling thread on `cpu` only.
///
/// # Errors
/// `EINVAL` if the machine has no such CPU or the process may not use it.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `cpu` was checked against the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: pid 0 is the calling thread; the set and its size belong together.
    let failed = unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that the calling thread may run on, ascending.
///
/// # Errors
/// Whatever `sched_getaffinity` reports, for example on machines with more than 1024 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: pid 0 is the calling thread; the set and its size belong together.
    let failed = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    let allowed = |cpu: &usize| {
        // SAFETY: every index asked for is below the size of the set.
        unsafe { libc::CPU_ISSET(*cpu, &set) }
    };
    Ok((0..libc::CPU_SETSIZE as usize).filter(allowed).collect())
}

/// The soft limit on open files of this process.
///
/// # Errors
/// Whatever `getrlimit` reports.
pub fn open_files() -> io::Result<u64> {
    raise_open_files(0)
}

/// Raises the soft limit on open files to `wanted`, or to the hard limit if that is lower. Returns
/// the limit now in force. Never lowers it.
///
/// # Errors
/// Whatever `getrlimit` or `setrlimit` reports.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let target = wanted.min(limit.rlim_max);
    if target > limit.rlim_cur {
        limit.rlim_cur = target;
        // SAFETY: `limit` is initialised.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

/// Lets the calling thread's timers fire within a microsecond of their deadline. The default slack
/// of 50 us is longer than the delays of the coalescing scheduler. A failure only costs precision.
pub(crate) fn sharpen_timers() {
    const SLACK_NANOS: libc::c_ulong = 1_000;
    // SAFETY: PR_SET_TIMERSLACK takes one integer and changes nothing but the thread's slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NANOS) };
}

/// The calling thread's usage since its start, for benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// CPU time in user mode.
    pub user: Nanos,
    /// CPU time in the kernel.
    pub system: Nanos,
    /// How often the thread went to sleep by itself.
    pub voluntary_switches: u64,
    /// How often the kernel took the CPU from the thread.
    pub involuntary_switches: u64,
}

/// The calling thread's usage so far.
#[must_use]
pub fn thread_usage() -> ThreadUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for the result, and all zeroes is a valid rusage.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let nanos = |time: libc::timeval| {
        Nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000)
    };
    ThreadUsage {
        user: nanos(usage.ru_utime),
        system: nanos(usage.ru_stime),
        voluntary_switches: usage.ru_nvcsw.unsigned_abs(),
        involuntary_switches: usage.ru_nivcsw.unsigned_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the calling thread blocks the signal.
    fn blocks(signal: libc::c_int) -> bool {
        let (nothing, mut mask) = (std::ptr::null(), MaybeUninit::uninit());
        // SAFETY: pthread_sigmask initialises `mask`. With a null pointer it changes nothing.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, nothing, mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_takes_no_signals_except_for_its_own_faults() {
        let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGPIPE, libc::SIGSEGV];
        let before = signals.map(blocks);
        let thread = start_thread("quiet", move || {
            let name = std::thread::current().name().map(str::to_owned);
            (name, signals.map(blocks))
        });
        let (name, inside) = thread.expect("it starts").join().expect("no panic");
        assert_eq!(name.as_deref(), Some("quiet"));
        assert_eq!(inside, [true, true, true, true, false]);
        assert_eq!(signals.map(blocks), before, "the caller has its mask again");
    }

    #[test]
    fn pins_to_an_allowed_cpu_and_refuses_an_absent_one() {
        std::thread::spawn(|| {
            let allowed = allowed_cpus().expect("readable");
            let last = *allowed.last().expect("we run somewhere");
            pin_to_cpu(last).expect("allowed");
            assert_eq!(allowed_cpus().expect("readable"), vec![last]);
            assert_eq!(pin_to_cpu(1023).expect_err("absent").raw_os_error(), Some(libc::EINVAL));
            assert_eq!(pin_to_cpu(99_999).expect_err("absent").raw_os_error(), Some(libc::EINVAL));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn the_limit_on_open_files_is_never_lowered() {
        let before = open_files().expect("readable");
        assert_eq!(raise_open_files(1).expect("nothing to do"), before);
        assert!(raise_open_files(before + 1).expect("clamped") >= before);
    }

    #[test]
    fn usage_counts_sleeps() {
        let before = thread_usage();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(thread_usage().voluntary_switches >= before.voluntary_switches + 5);
    }
}
