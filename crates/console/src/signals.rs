//! SIGTERM and SIGINT: the first signal asks for a clean end, the second signal ends the process at
//! once.
//!
//! A server also takes SIGHUP, which many service managers send to mean "read your settings again".
//! The server has no settings to read again, so it logs a warning and goes on. SIGHUP ends any
//! other command, as is usual when a terminal closes.
//!
//! The signals are blocked in every thread, and one thread waits for them. No code runs in a signal
//! handler. Install this before other threads start, so that they inherit the mask. A thread that
//! starts earlier must take no signals ([`fieldstone_uring::start_thread`]).

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::bail;

use crate::stderr;

/// Exit code after a second signal. Shells report this code for SIGINT.
const INTERRUPTED: i32 = 130;

/// A task that the process leaves undone if it ends at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    /// One line for the user.
    pub text: String,
    /// Data that was acknowledged may be lost with the process.
    pub loses_data: bool,
}

/// Returns the tasks that the process leaves undone if it ends at once.
type LastWords = Box<dyn Fn() -> Vec<Undone> + Send + Sync>;

static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

/// Sets the tasks that [`Signals`] prints when a second signal ends the process, one line for each.
/// Only the first call has an effect.
pub fn at_second(words: impl Fn() -> Vec<Undone> + Send + Sync + 'static) {
    let _ = LAST_WORDS.set(Box::new(words));
}

/// Prints the tasks that are left undone. Waits at most `PATIENCE` for the list.
fn say_last_words() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let (sender, words) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = LAST_WORDS.get().map(|words| words()).unwrap_or_default();
        // The other thread may have stopped waiting.
        let _ = sender.send(lines);
    });
    let undone = words.recv_timeout(PATIENCE);
    for task in undone.iter().flatten() {
        eprint_line!("fieldstone: {}", task.text);
    }
    // Without the list, the process does not know whether it loses data.
    if undone.is_ok_and(|tasks| tasks.iter().all(|task| !task.loses_data)) {
        eprint_line!("fieldstone: ending at once; what was acknowledged is safe");
    } else {
        eprint_line!("fieldstone: ending at once");
    }
}

/// The signals that end a process cleanly.
#[derive(Debug)]
pub struct Signals {
    arrived: Receiver<()>,
    sender: Sender<()>,
}

impl Signals {
    /// Blocks SIGTERM and SIGINT, and starts the thread that waits for them.
    ///
    /// # Errors
    /// The system refuses to block the signals or to start the thread.
    pub fn install() -> anyhow::Result<Self> {
        Self::take_over(&[libc::SIGTERM, libc::SIGINT])
    }

    /// As [`Signals::install`], for a server: also takes SIGHUP, which does not end a server.
    ///
    /// # Errors
    /// As [`Signals::install`].
    pub fn install_for_server() -> anyhow::Result<Self> {
        Self::take_over(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
    }

    fn take_over(signals: &[libc::c_int]) -> anyhow::Result<Self> {
        let set = blocked_set(signals)?;
        let (sender, arrived) = mpsc::channel();
        let keep = sender.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut seen = 0;
            loop {
                let mut signal = 0;
                // SAFETY: the set is initialised, and `signal` is a valid place for the result.
                let failed = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
                if failed != 0 {
                    continue;
                }
                if signal == libc::SIGHUP {
                    tracing::warn!("SIGHUP is ignored: there are no settings to read again");
                    continue;
                }
                seen += 1;
                if seen > 1 {
                    say_last_words();
                    stderr::finish();
                    std::process::exit(INTERRUPTED);
                }
                // The receiver may be dropped already.
                let _ = sender.send(());
            }
        })?;
        Ok(Self { arrived, sender: keep })
    }

    /// A sender with which the process itself asks for a clean end, as a signal does.
    pub fn sender(&self) -> Sender<()> {
        self.sender.clone()
    }

    /// Waits at most `timeout` for a request to end. True if there was one.
    pub fn wait(&self, timeout: Duration) -> bool {
        !matches!(self.arrived.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }

    /// True if there was a request to end since the last call. Does not wait.
    pub fn arrived(&self) -> bool {
        self.arrived.try_recv().is_ok()
    }
}

fn blocked_set(signals: &[libc::c_int]) -> anyhow::Result<libc::sigset_t> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: the set is initialised and the signal exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    let old_mask = std::ptr::null_mut();
    // SAFETY: the set is initialised. A null pointer means that the old mask is not returned.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, old_mask) };
    if failed != 0 {
        bail!("cannot take over signals: error {failed}");
    }
    Ok(set)
}
