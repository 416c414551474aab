//! The address at which a server listens and to which a client connects: `unix:/path` or
//! `tcp:host:port`.
//!
//! An [`Address`] has the user's form; an [`Endpoint`] has the kernel's form. Name resolution lies
//! between the two. It may block on DNS for host names (not for literal addresses), so it is a
//! separate step before the data path runs.

use std::fmt;
use std::io;
use std::mem;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path of a unix socket, in bytes. The kernel's field has one more byte, for the NUL.
const UNIX_PATH_MAX_BYTES: usize = 107;

/// An address to listen on or connect to, in the user's form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `unix:/path`: a stream socket in the file system.
    Unix(PathBuf),
    /// `tcp:host:port`; IPv6 literals in brackets, port 0 for any free one.
    Tcp {
        /// Host name or literal address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Why a text is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text does not begin with a known scheme.
    #[error("address \"{0}\": expected unix:/path or tcp:host:port")]
    Scheme(String),
    /// The path is empty.
    #[error("address \"{0}\": the path after unix: is missing")]
    EmptyPath(String),
    /// The path does not fit into a socket address.
    #[error(
        "address \"{0}\": the path of a unix socket may have at most 107 bytes, none of them NUL"
    )]
    BadPath(String),
    /// The host is missing, or an IPv6 literal lacks its brackets.
    #[error(
        "address \"{0}\": expected a host name, an IPv4 address or an [IPv6 address] before the \
         port"
    )]
    Host(String),
    /// The port is missing or not a number up to 65535.
    #[error("address \"{0}\": expected a port (0 to 65535) after the last colon")]
    Port(String),
}

impl Address {
    /// The same address for processes in other folders: the path of a unix socket is absolute.
    /// `None` if the absolute path is too long for a socket or is not UTF-8, or if the current
    /// folder is gone.
    #[must_use]
    pub fn absolute(&self) -> Option<Self> {
        let Self::Unix(path) = self else { return Some(self.clone()) };
        let path = std::path::absolute(path).ok()?;
        let fits = path.to_str()?.len() <= UNIX_PATH_MAX_BYTES;
        fits.then_some(Self::Unix(path))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(AddressError::EmptyPath(text.to_owned()));
            }
            if path.len() > UNIX_PATH_MAX_BYTES || path.contains('\0') {
                return Err(AddressError::BadPath(text.to_owned()));
            }
            return Ok(Address::Unix(PathBuf::from(path)));
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(AddressError::Scheme(text.to_owned()));
        };
        let port_error = || AddressError::Port(text.to_owned());
        let (host, port) = rest.rsplit_once(':').ok_or_else(port_error)?;
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(port_error());
        }
        let port = port.parse().map_err(|_| port_error())?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let valid = match bracketed {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && !host.contains([':', '[', ']', '/', '\0', ' ']),
        };
        if !valid {
            return Err(AddressError::Host(text.to_owned()));
        }
        Ok(Address::Tcp { host: bracketed.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address::Tcp { host: address.ip().to_string(), port: address.port() }
    }
}

/// A resolved address in the kernel's form.
#[derive(Clone)]
pub struct Endpoint {
    storage: libc::sockaddr_storage,
    len_bytes: libc::socklen_t,
    name: Address,
    literal: Address,
}

impl Endpoint {
    /// Resolves an address. A host name may block on DNS; the endpoint is its first address.
    ///
    /// # Errors
    /// The name does not resolve, or the path is too long. The text names the address.
    pub fn resolve(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Self::unix(path, address),
            Address::Tcp { host, port } => {
                let name = |error: &dyn fmt::Display, kind| {
                    io::Error::new(kind, format!("{address}: {error}"))
                };
                let found = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(|error| name(&error, error.kind()))?
                    .next()
                    .ok_or_else(|| name(&"no address found", io::ErrorKind::NotFound))?;
                Ok(Self::tcp(found, address))
            }
        }
    }

    /// The address that this endpoint was resolved from.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.name
    }

    /// The same address without a name: another program reaches the same place with it, without
    /// asking DNS.
    #[must_use]
    pub fn literal(&self) -> &Address {
        &self.literal
    }

    pub(crate) fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }

    /// The form of system calls: a pointer that is valid as long as the endpoint, and a length.
    #[must_use]
    pub fn as_raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len_bytes)
    }

    fn unix(path: &Path, name: &Address) -> io::Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.len() > UNIX_PATH_MAX_BYTES || bytes.contains(&0) {
            let error = AddressError::BadPath(name.to_string());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        // SAFETY: all zeroes is a valid sockaddr_un.
        let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
            *to = from.cast_signed();
        }
        let len_bytes = mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
        Ok(Self::from_raw(raw, len_bytes, (name, name.clone())))
    }

    fn tcp(address: SocketAddr, name: &Address) -> Self {
        let names = (name, Address::from(address));
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all zeroes is a valid sockaddr_in.
                let mut raw: libc::sockaddr_in = unsafe { mem::zeroed() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                Self::from_raw(raw, mem::size_of::<libc::sockaddr_in>(), names)
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all zeroes is a valid sockaddr_in6.
                let mut raw: libc::sockaddr_in6 = unsafe { mem::zeroed() };
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_scope_id = v6.scope_id();
                Self::from_raw(raw, mem::size_of::<libc::sockaddr_in6>(), names)
            }
        }
    }

    fn from_raw<T: Copy>(raw: T, len_bytes: usize, (name, literal): (&Address, Address)) -> Self {
        const { assert!(mem::size_of::<T>() <= mem::size_of::<libc::sockaddr_storage>()) };
        // SAFETY: all zeroes is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: T is one of the sockaddr structs, which sockaddr_storage is made to hold in
        // size (asserted above) and alignment.
        unsafe { std::ptr::write((&raw mut storage).cast::<T>(), raw) };
        let len_bytes = libc::socklen_t::try_from(len_bytes).expect("at most 128 bytes");
        Self { storage, len_bytes, name: name.clone(), literal }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_absolute_address_means_the_same_socket_from_every_folder() {
        let relative: Address = "unix:v.sock".parse().expect("valid");
        let here = std::env::current_dir().expect("known");
        assert_eq!(relative.absolute(), Some(Address::Unix(here.join("v.sock"))));
        for text in ["unix:/run/v.sock", "tcp:127.0.0.1:10809"] {
            let address: Address = text.parse().expect("valid");
            assert_eq!(address.absolute().as_ref(), Some(&address));
        }
        let long: Address = format!("unix:{}", "v".repeat(107)).parse().expect("fits");
        assert_eq!(long.absolute(), None, "the current folder makes it longer");
    }

    #[test]
    fn texts_of_both_schemes_round_trip() {
        for text in ["unix:/run/v.sock", "unix:relative", "tcp:127.0.0.1:10809", "tcp:[::1]:0"] {
            let address: Address = text.parse().expect("valid");
            assert_eq!(address.to_string(), text);
            assert_eq!(Endpoint::resolve(&address).expect("literal").address(), &address);
        }
    }

    #[test]
    fn bad_texts_are_refused_and_named() {
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_MAX_BYTES));
        for (text, part) in [
            ("", "expected unix:/path or tcp:host:port"),
            ("/run/v.sock", "expected unix:/path or tcp:host:port"),
            ("unix:", "missing"),
            (long.as_str(), "at most 107 bytes"),
            ("tcp:localhost", "expected a port"),
            ("tcp:localhost:", "expected a port"),
            ("tcp:localhost:65536", "expected a port"),
            ("tcp:localhost:+80", "expected a port"),
            ("tcp::80", "expected a host name"),
            ("tcp:::1:80", "expected a host name"),
            ("tcp:[::g]:80", "expected a host name"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_that_does_not_resolve_is_named_in_the_error() {
        let address: Address = "tcp:does-not-exist.invalid:1".parse().expect("well formed");
        let error = Endpoint::resolve(&address).expect_err("reserved top-level domain");
        assert!(error.to_string().contains("tcp:does-not-exist.invalid:1"), "{error}");
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_display_parses_back(text in "(unix:|tcp:)?[\\PC]{0,120}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
