//! A connected stream socket.
//!
//! A [`Socket`] is a handle. Clones share one descriptor, which closes when the last handle and the
//! last operation in flight on it are gone. So dropping the handles never takes a descriptor (whose
//! number could be reused) away from an operation. To end operations that wait for the peer, use
//! [`Reactor::close`](crate::Reactor::close) or [`Socket::shutdown`].

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// After this silence the kernel checks whether the peer's machine is still there, at this interval
/// and with this many probes: a peer whose machine lost its power counts as gone after 90 s.
const KEEPALIVE_IDLE_SECONDS: libc::c_int = 60;
const KEEPALIVE_EVERY_SECONDS: libc::c_int = 10;
const KEEPALIVE_PROBES: libc::c_int = 3;

/// The direction of a connection to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Receives end with zero bytes.
    Read,
    /// The peer sees the end of the stream after the sent bytes.
    Write,
    /// Both.
    Both,
}

/// A stream socket, connected over TCP or in the file system.
#[derive(Clone, Debug)]
pub struct Socket {
    descriptor: Arc<OwnedFd>,
}

impl Socket {
    /// Wraps a stream socket and switches it to blocking mode, which the reactor expects. In this
    /// mode the kernel waits for readiness instead of failing with `EAGAIN`, and blocks no thread.
    ///
    /// # Errors
    /// The descriptor has no file flags.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is open, and these commands take no pointer.
        let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        if flags & libc::O_NONBLOCK != 0 {
            let flags = flags & !libc::O_NONBLOCK;
            // SAFETY: as above.
            if unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, flags) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { descriptor: Arc::new(descriptor) })
    }

    /// Two sockets connected to each other.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (left, right) = std::os::unix::net::UnixStream::pair()?;
        Ok((Self::new(left.into())?, Self::new(right.into())?))
    }

    /// A new, unconnected socket of an address family.
    pub(crate) fn unconnected(family: libc::c_int) -> io::Result<Self> {
        // SAFETY: socket() takes no pointers.
        let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(unsafe { Self::from_fresh(raw) })
    }

    /// Wraps a descriptor that the kernel just made, in blocking mode.
    ///
    /// # Safety
    /// `raw` is open and has no other owner.
    pub(crate) unsafe fn from_fresh(raw: RawFd) -> Self {
        // SAFETY: passed on to the caller.
        Self { descriptor: Arc::new(unsafe { OwnedFd::from_raw_fd(raw) }) }
    }

    /// Sets a TCP connection up: it sends small messages at once (`TCP_NODELAY`), and it breaks
    /// when the peer's machine is gone (`SO_KEEPALIVE`). While the program sends nothing, there is
    /// no other sign of that.
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn tune_tcp(&self) -> io::Result<()> {
        self.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        self.set_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_EVERY_SECONDS)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES)
    }

    /// Asks for kernel buffers of these sizes. The kernel doubles them and has its own bounds.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub fn set_buffers(&self, send_bytes: u32, receive_bytes: u32) -> io::Result<()> {
        self.set_send_buffer(send_bytes)?;
        self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, clamp(receive_bytes))
    }

    /// The sending half of [`Socket::set_buffers`]. A Unix socket has no other buffer.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub fn set_send_buffer(&self, send_bytes: u32) -> io::Result<()> {
        self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, clamp(send_bytes))
    }

    fn set_option(&self, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
        let len_bytes = mem::size_of_val(&value) as libc::socklen_t;
        let place = (&raw const value).cast();
        // SAFETY: `place` points to an integer of `len_bytes` bytes.
        let failed = unsafe { libc::setsockopt(self.raw(), level, name, place, len_bytes) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Ends a direction of the connection, for every handle. Operations that wait on it complete.
    ///
    /// # Errors
    /// `ENOTCONN` if the peer is already gone; callers usually ignore this.
    pub fn shutdown(&self, which: Shutdown) -> io::Result<()> {
        let how = match which {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: the descriptor is open as long as `self` lives.
        let failed = unsafe { libc::shutdown(self.raw(), how) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The descriptor's number, valid while this handle lives.
    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

fn clamp(bytes: u32) -> libc::c_int {
    libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_blocking_socket_is_switched_back() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        left.set_nonblocking(true).expect("a socket");
        let socket = Socket::new(left.into()).expect("a socket");
        // SAFETY: the descriptor is open.
        let flags = unsafe { libc::fcntl(socket.raw(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    }

    #[test]
    fn tuning_tcp_is_an_error_off_tcp() {
        let (left, _right) = Socket::pair().expect("descriptors");
        assert!(left.tune_tcp().is_err());
        left.set_buffers(4096, u32::MAX).expect("a socket");
    }
}
