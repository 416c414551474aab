//! Listens at an address that a killed server may still hold for a moment.
//!
//! The process of a killed server may have ended while the kernel still closes its ring and the
//! pending accept. Until then its address is in use. A restart must not fail for this reason.
//!
//! The process also needs descriptors for its connections: [`raise_open_files`].

use std::time::{Duration, Instant};

use fieldstone_host::OPEN_FILES;
use fieldstone_uring::{Address, ListenError, Listener};

/// Lets this process have as many descriptors as a server needs, or as many as the system allows.
pub fn raise_open_files() {
    if let Err(error) = fieldstone_uring::raise_open_files(OPEN_FILES) {
        tracing::debug!("the limit on open files is not raised: {error}");
    }
}

/// Listens on `address`.
///
/// # Errors
/// The address is still in use after one second, or the system refuses to listen there.
pub fn bind(address: &Address) -> Result<Listener, ListenError> {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(10);
    let start = Instant::now();
    loop {
        match Listener::bind(address) {
            Err(ListenError::InUse(_)) if start.elapsed() < TIMEOUT => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}
