//! Listening, with patience for a predecessor.
//!
//! A server that was killed may be gone as a process while the kernel still takes its ring apart,
//! and with it the accept that was under way. For that moment its address is in use. A restart must
//! not fail because it came too quickly.

use std::time::{Duration, Instant};

use fieldstone_uring::{Address, ListenError, Listener};

/// Listens on `address`.
///
/// # Errors
/// When it is still in use after a second, or cannot be listened on.
pub fn bind(address: &Address) -> Result<Listener, ListenError> {
    const PATIENCE: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(10);
    let start = Instant::now();
    loop {
        match Listener::bind(address) {
            Err(ListenError::InUse(_)) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}
