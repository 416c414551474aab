//! Calls that may block for any time, with a deadline: reading a folder, resolving a name.
//!
//! A call into the kernel or the resolver cannot be cancelled. So a thread makes the call, and the
//! caller waits for the thread until its deadline. A thread whose call hangs remains. Callers try
//! again, so the number of threads that ask about one thing is limited to [`AT_A_TIME`]. Beyond
//! that, a caller waits for one of the threads to end, or gets an error.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fieldstone_uring::start_thread;

/// The most threads that ask about one thing at a time.
const AT_A_TIME: usize = 4;

/// Number of threads for each thing.
static ASKING: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn asking() -> MutexGuard<'static, BTreeMap<String, usize>> {
    // No code that can panic runs while the lock is held.
    ASKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The permission of one thread to ask about a thing.
struct Permit(String);

impl Permit {
    fn take(thing: &str) -> Option<Self> {
        let mut asking = asking();
        let count = asking.entry(thing.to_owned()).or_default();
        if *count == AT_A_TIME {
            return None;
        }
        *count += 1;
        Some(Self(thing.to_owned()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut asking = asking();
        if let Some(count) = asking.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                asking.remove(&self.0);
            }
        }
    }
}

/// The error after the deadline.
pub(crate) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")
}

/// The time until `deadline`. It is never zero, because a socket would take zero as "no limit".
///
/// # Errors
/// The deadline has passed.
pub(crate) fn rest(deadline: Instant) -> io::Result<Duration> {
    let rest = deadline.saturating_duration_since(Instant::now());
    if rest.is_zero() { Err(late()) } else { Ok(rest) }
}

/// Makes a call that asks about `thing` in its own thread, and waits for the call until `deadline`.
///
/// # Errors
/// The deadline has passed, or the system cannot start a thread.
pub fn within<T: Send + 'static>(
    deadline: Instant,
    thing: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    const PAUSE: Duration = Duration::from_millis(5);
    let permit = loop {
        match Permit::take(thing) {
            Some(permit) => break permit,
            None => std::thread::sleep(PAUSE.min(rest(deadline)?)),
        }
    };
    let (done, outcome) = mpsc::channel();
    // The caller may have given up.
    start(permit, call, move |answer| drop(done.send(answer)))?;
    outcome.recv_timeout(rest(deadline)?).map_err(|_| late())
}

/// Makes a call that asks about `thing` in its own thread, which gives the answer to `answered`.
///
/// # Errors
/// The most threads already ask about this thing, or the system cannot start a thread.
pub fn begin<T: 'static>(
    thing: &str,
    call: impl FnOnce() -> T + Send + 'static,
    answered: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    start(Permit::take(thing).ok_or_else(late)?, call, answered)
}

fn start<T: 'static>(
    permit: Permit,
    call: impl FnOnce() -> T + Send + 'static,
    answered: impl FnOnce(T) + Send + 'static,
) -> io::Result<()> {
    start_thread("look-up", move || {
        let answer = call();
        drop(permit);
        answered(answer);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_hang_keep_no_caller_and_are_bounded() {
        let soon = || Instant::now() + Duration::from_millis(20);
        let later = || Instant::now() + Duration::from_secs(20);
        let (release, hang) = mpsc::channel::<()>();
        let hang = std::sync::Arc::new(Mutex::new(hang));
        for _ in 0..AT_A_TIME {
            let hang = std::sync::Arc::clone(&hang);
            let hung =
                within(soon(), "a disk", move || hang.lock().map(|hang| hang.recv()).is_ok());
            assert_eq!(hung.expect_err("it hangs").kind(), io::ErrorKind::TimedOut);
        }
        let asked = within(soon(), "a disk", || -> () { unreachable!("too many ask") });
        assert_eq!(asked.expect_err("no permit").kind(), io::ErrorKind::TimedOut);
        assert_eq!(within(later(), "another disk", || 7).expect("it answers"), 7);
        drop(release);
        assert_eq!(within(later(), "a disk", || 8).expect("it answers again"), 8);
    }
}
