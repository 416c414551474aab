//! A connected stream socket.
//!
//! A [`Socket`] is a handle: clones share one descriptor, which closes when the last handle and
//! the last operation in flight on it are gone. Dropping the handles therefore never pulls a
//! descriptor (whose number could be reused) from under an operation; to end operations that wait
//! for the peer, use [`Reactor::close`](crate::Reactor::close) or [`Socket::shutdown`].

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// After such a silence the kernel asks whether the peer's machine is still there, so often and so
/// many times: a peer whose machine lost its power is gone after 90 s.
const KEEPALIVE_IDLE_SECONDS: libc::c_int = 60;
const KEEPALIVE_EVERY_SECONDS: libc::c_int = 10;
const KEEPALIVE_PROBES: libc::c_int = 3;

/// Which direction of a connection to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Receives end with zero bytes.
    Read,
    /// The peer sees the end of the stream after what was sent.
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
    /// Takes over a stream socket. It is switched to blocking mode, which the reactor expects: this
    /// mode makes the kernel wait for readiness instead of failing with `EAGAIN`, and blocks no
    /// thread.
    ///
    /// # Errors
    /// The descriptor is not one that has file flags.
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

    /// A fresh, unconnected socket of an address family.
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
    /// when the peer's machine is gone (`SO_KEEPALIVE`). While the program sends nothing, no other
    /// sign of that comes.
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

    /// Asks for kernel buffers of these sizes; the kernel doubles them and has bounds of its own.
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

    /// Ends a direction of the connection, for every handle. Operations waiting on it complete.
    ///
    /// # Errors
    /// `ENOTCONN` if the peer is gone already, which callers usually ignore.
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
