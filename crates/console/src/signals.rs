//! SIGTERM and SIGINT: the first one asks for a clean end, the second one ends at once.
//!
//! A server also takes SIGHUP, which many service managers send to mean "read your settings again".
//! There is nothing to read again, so the server says that and goes on. Any other command is ended
//! by SIGHUP, as usual: its terminal is gone.
//!
//! The signals are blocked in every thread, and one thread waits for them. Nothing ever runs in a
//! signal handler. Install this before any other thread exists, so that all inherit the mask.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::bail;

use crate::stderr;

/// Exit code after a second signal, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// Tells what a process leaves undone that ends at once.
type LastWords = Box<dyn Fn() -> Vec<String> + Send + Sync>;

static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

/// Sets what is said when a second signal ends the process: one line for each thing that is left
/// undone. The first call counts.
pub fn at_second(words: impl Fn() -> Vec<String> + Send + Sync + 'static) {
    let _ = LAST_WORDS.set(Box::new(words));
}

/// Says what is left undone, and does not wait long for that to be found out.
fn say_last_words() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let (sender, words) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = LAST_WORDS.get().map(|words| words()).unwrap_or_default();
        // The patience may have ended by now.
        let _ = sender.send(lines);
    });
    for line in words.recv_timeout(PATIENCE).unwrap_or_default() {
        tell!("fieldstone: {line}");
    }
    tell!("fieldstone: ending at once; what was acknowledged is safe");
}

/// The signals that end a process in good order.
#[derive(Debug)]
pub struct Signals {
    arrived: Receiver<()>,
    sender: Sender<()>,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The system refuses; it never does.
    pub fn install() -> anyhow::Result<Self> {
        Self::take_over(&[libc::SIGTERM, libc::SIGINT])
    }

    /// Takes the signals over in a server, which SIGHUP does not end.
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
                // SAFETY: the set is initialised, and `signal` a valid place for the result.
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
                // The command may have finished by now.
                let _ = sender.send(());
            }
        })?;
        Ok(Self { arrived, sender: keep })
    }

    /// To ask for a clean end from within, as a signal does from outside.
    pub fn sender(&self) -> Sender<()> {
        self.sender.clone()
    }

    /// Waits for a signal, at most this long. True if one came.
    pub fn wait(&self, timeout: Duration) -> bool {
        !matches!(self.arrived.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }

    /// True if a signal has come since the last look.
    pub fn arrived(&self) -> bool {
        self.arrived.try_recv().is_ok()
    }
}

/// Keeps signals away from the threads that are started while this lives.
pub struct Blocked(libc::sigset_t);

/// Blocks every signal in this thread. For threads that are started before
/// [`Signals::install`] has blocked those that it takes over.
pub fn block_all() -> Blocked {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sigfillset initialises the one set, and pthread_sigmask, which cannot fail with these
    // arguments, the other one.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Blocked(before.assume_init())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let before = &raw const self.0;
        // SAFETY: the set is initialised; a null pointer says that the mask of now is not asked
        // for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
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
    // SAFETY: the set is initialised; a null pointer says that the old mask is not asked for.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, old_mask) };
    if failed != 0 {
        bail!("cannot take over signals: error {failed}");
    }
    Ok(set)
}
