//! Listens at an address that a killed server may still hold for a moment.
//!
//! The process of a killed server may have ended while the kernel still closes its ring and the
//! pending accept. Until then its address is in use. A restart must not fail for this reason.
//!
//! The process also needs descriptors for its connections: [`raise_open_files`].

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use fieldstone_host::{FrontendKind, OPEN_FILES, frontends};
use fieldstone_uring::{Address, AddressError, ListenError, Listener};

/// Where to listen, and for the clients of which front-end: `ADDR` or `KIND:ADDR`.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    /// The kind of front-end.
    pub frontend: &'static FrontendKind,
    /// The address.
    pub address: Address,
}

/// Why a text is not a [`ClientAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientAddressError {
    /// The text before an address is no kind of front-end.
    #[error("{kind}: no such kind of clients; there is {}", kinds())]
    Kind {
        /// The text before the address.
        kind: String,
    },
    /// The address.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// The kinds of front-ends whose clients connect.
pub fn listening() -> impl Iterator<Item = &'static FrontendKind> {
    frontends::KINDS.iter().copied().filter(|kind| kind.offer.is_some())
}

fn kinds() -> String {
    listening().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for ClientAddress {
    type Err = ClientAddressError;

    fn from_str(text: &str) -> Result<Self, ClientAddressError> {
        let (kind, address) = text.split_once(':').unwrap_or(("", text));
        if let Some(frontend) = listening().find(|found| found.name == kind) {
            return Ok(Self { frontend, address: address.parse()? });
        }
        match text.parse() {
            Err(AddressError::Scheme(_)) if address.parse::<Address>().is_ok() => {
                Err(ClientAddressError::Kind { kind: kind.to_owned() })
            }
            address => Ok(Self { frontend: frontends::DEFAULT, address: address? }),
        }
    }
}

/// The kind is omitted if it is the default one.
impl fmt::Display for ClientAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(formatter, self.frontend, &self.address)
    }
}

/// A listener for the clients of a front-end.
#[derive(Debug)]
pub struct ClientListener {
    /// The kind of front-end.
    pub frontend: &'static FrontendKind,
    /// The listener.
    pub listener: Listener,
}

/// As [`ClientAddress`] is written, with the port that the system chose.
impl fmt::Display for ClientListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(formatter, self.frontend, &self.listener.address())
    }
}

fn write_address(
    formatter: &mut fmt::Formatter<'_>,
    frontend: &FrontendKind,
    address: &dyn fmt::Display,
) -> fmt::Result {
    if frontend.name != frontends::DEFAULT.name {
        write!(formatter, "{}:", frontend.name)?;
    }
    address.fmt(formatter)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_front_end_or_gets_the_default_one() {
        for text in ["nbd:unix:/run/v.sock", "unix:/run/v.sock"] {
            let found: ClientAddress = text.parse().expect("an address");
            assert_eq!(
                (found.frontend.name, found.to_string()),
                ("nbd", "unix:/run/v.sock".into())
            );
        }
        let error = |text: &str| text.parse::<ClientAddress>().expect_err("refused").to_string();
        assert_eq!(error("ublk:unix:/x"), "ublk: no such kind of clients; there is nbd");
        assert!(error("ublk:3").contains("expected unix:/path or tcp:host:port"));
        assert!(error("nbd:unix:").contains("missing"));
    }
}
