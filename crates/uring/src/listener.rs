//! Listening sockets.
//!
//! A unix listener owns a name in the file system. A server that was killed leaves the name behind,
//! and the next bind fails with "address in use" although no server listens. So on that error the
//! listener tries to connect. If the connection is refused, the name is a leftover, and the
//! listener removes it. If the connection succeeds, or the backlog is full, a server listens there,
//! and the listener leaves the name alone. Two servers that start on the same leftover at the same
//! instant may both remove it; then the later bind wins. The volume's lock guards the data, not
//! this name. On drop, the listener removes the name only if it still is its own.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::address::{Address, Endpoint};

/// Why a listener cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another server listens there.
    #[error("cannot listen on {0}: the address is in use by a running server")]
    InUse(Address),
    /// The path of a unix address names a file that is not a socket. The listener leaves it alone.
    #[error("cannot listen on {0}: the path exists and is not a socket")]
    NotASocket(Address),
    /// Another error, in the system's words.
    #[error("cannot listen on {address}: {reason}")]
    Io {
        /// The address.
        address: Address,
        /// The reason. The text of the error has it, so it is no source of the error.
        reason: io::Error,
    },
}

/// A socket for incoming connections. Clones share it, also between reactors: each connection goes
/// to one of the reactors that accept.
#[derive(Clone, Debug)]
pub struct Listener {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    descriptor: OwnedFd,
    address: Address,
    name: Option<BoundName>,
}

impl Listener {
    /// Listens on an address. For a host name, on the first resolved address that works.
    ///
    /// # Errors
    /// [`ListenError`] names the address and the reason.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        match address {
            Address::Unix(path) => Self::bind_unix(path, address),
            Address::Tcp { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port))
                    .map_err(|error| explain(address, error))?;
                let bound = listener.local_addr().map_err(|error| explain(address, error))?;
                Ok(Self::new(listener.into(), bound.into(), None))
            }
        }
    }

    fn bind_unix(path: &Path, address: &Address) -> Result<Self, ListenError> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_leftover(path, address)?;
                UnixListener::bind(path)
            }
            other => other,
        }
        .map_err(|error| explain(address, error))?;
        let name = BoundName::of(path).map_err(|error| explain(address, error))?;
        Ok(Self::new(listener.into(), address.clone(), Some(name)))
    }

    fn new(descriptor: OwnedFd, address: Address, name: Option<BoundName>) -> Self {
        Self { inner: Arc::new(Inner { descriptor, address, name }) }
    }

    /// The address, with the real port if the caller asked for port 0.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self.inner.address, Address::Tcp { .. })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.inner.descriptor.as_raw_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            name.remove_if_ours();
        }
    }
}

fn explain(address: &Address, reason: io::Error) -> ListenError {
    if reason.kind() == io::ErrorKind::AddrInUse {
        ListenError::InUse(address.clone())
    } else {
        ListenError::Io { address: address.clone(), reason }
    }
}

/// Removes the name of a dead server. An error if the name belongs to anything else.
fn remove_leftover(path: &Path, address: &Address) -> Result<(), ListenError> {
    let found = fs::symlink_metadata(path).map_err(|error| explain(address, error))?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(address.clone()));
    }
    let endpoint = Endpoint::resolve(address).map_err(|error| explain(address, error))?;
    match knock(&endpoint) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| explain(address, error))
        }
        // The connection succeeded, or the server's backlog is full: a server is there.
        Ok(()) => Err(ListenError::InUse(address.clone())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ListenError::InUse(address.clone()))
        }
        Err(error) => Err(explain(address, error)),
    }
}

/// Tries to connect, without waiting.
fn knock(endpoint: &Endpoint) -> io::Result<()> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket() takes no pointers.
    let raw = unsafe { libc::socket(endpoint.family(), kind, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(raw) };
    let (address, len_bytes) = endpoint.as_raw();
    // SAFETY: the endpoint's address is `len_bytes` long and outlives the call.
    let failed = unsafe { libc::connect(socket.as_raw_fd(), address, len_bytes) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A name in the file system, and the inode that it had when this listener bound it.
#[derive(Debug)]
struct BoundName {
    path: PathBuf,
    inode: (u64, u64),
}

impl BoundName {
    fn of(path: &Path) -> io::Result<Self> {
        // The path is absolute, so that a later change of the working directory cannot mislead the
        // removal.
        let path = std::path::absolute(path)?;
        let inode = inode_of(&path)?;
        Ok(Self { path, inode })
    }

    fn remove_if_ours(&self) {
        if inode_of(&self.path).is_ok_and(|inode| inode == self.inode)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(folder: &tempfile::TempDir) -> (PathBuf, Address) {
        let path = folder.path().join("s");
        (path.clone(), Address::Unix(path))
    }

    #[test]
    fn a_running_server_is_named_and_left_alone() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, address) = unix(&folder);
        let _first = Listener::bind(&address).expect("free");
        let error = Listener::bind(&address).expect_err("taken");
        assert!(matches!(error, ListenError::InUse(_)), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(path.exists());

        let first = Listener::bind(&"tcp:127.0.0.1:0".parse().expect("valid")).expect("free");
        let error = Listener::bind(first.address()).expect_err("taken");
        assert!(error.to_string().contains(&first.address().to_string()), "{error}");
    }

    #[test]
    fn a_server_with_a_full_backlog_counts_as_running() {
        let folder = tempfile::tempdir().expect("temp");
        let (_path, address) = unix(&folder);
        let first = Listener::bind(&address).expect("free");
        // SAFETY: listen() on an open socket takes no pointers; it shrinks the backlog.
        assert_eq!(unsafe { libc::listen(first.raw(), 0) }, 0);
        let endpoint = Endpoint::resolve(&address).expect("a path");
        let _ = (knock(&endpoint), knock(&endpoint));
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
    }

    #[test]
    fn the_leftover_of_a_dead_server_is_replaced() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, address) = unix(&folder);
        drop(UnixListener::bind(&path).expect("free")); // std leaves the name behind
        assert!(path.exists());
        let listener = Listener::bind(&address).expect("a leftover is no obstacle");
        drop(listener.clone());
        assert!(path.exists(), "a clone still listens");
        drop(listener);
        assert!(!path.exists(), "the last handle removes the name");
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_never_removed() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, address) = unix(&folder);
        fs::write(&path, "precious").expect("writable");
        assert!(matches!(Listener::bind(&address), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[test]
    fn a_name_taken_over_by_somebody_else_survives_our_drop() {
        let folder = tempfile::tempdir().expect("temp");
        let (path, address) = unix(&folder);
        let ours = Listener::bind(&address).expect("free");
        fs::rename(&path, folder.path().join("aside")).expect("moved");
        let theirs = Listener::bind(&address).expect("free again");
        drop(ours);
        assert!(path.exists());
        drop(theirs);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = Listener::bind(&Address::Unix("/nonexistent/folder/s".into()))
            .expect_err("no such folder");
        assert!(error.to_string().contains("unix:/nonexistent/folder/s"), "{error}");
        let ListenError::Io { reason, .. } = &error else { panic!("{error}") };
        assert!(error.to_string().contains(&reason.to_string()), "{error}");
        let source = std::error::Error::source(&error);
        assert!(source.is_none(), "a chain of errors would have the reason twice");
    }
}
