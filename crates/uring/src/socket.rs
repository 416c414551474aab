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
use std::sync::atomic::{AtomicU32, Ordering};

/// After this silence the kernel checks whether the peer's machine is still there, at this interval
/// and with this many probes: a peer whose machine lost its power counts as gone after 90 s.
const KEEPALIVE_IDLE_SECONDS: libc::c_int = 60;
const KEEPALIVE_EVERY_SECONDS: libc::c_int = 10;
const KEEPALIVE_PROBES: libc::c_int = 3;

/// Bytes of the send buffer that the kernel needs for a message in addition to its content.
const MESSAGE_OVERHEAD_BYTES: u32 = 1024;
/// Content takes at most this share of the send buffer: pages that are partly filled take the rest.
const CONTENT_SHARE: u32 = 4;

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
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    descriptor: OwnedFd,
    /// Bytes that the send buffer surely takes at once. It may take more: the peer's reads are
    /// counted when this is too little.
    room_bytes: AtomicU32,
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
        Ok(Self::share(descriptor))
    }

    fn share(descriptor: OwnedFd) -> Self {
        Self { shared: Arc::new(Shared { descriptor, room_bytes: AtomicU32::new(0) }) }
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
        Self::share(unsafe { OwnedFd::from_raw_fd(raw) })
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

    /// True if the send buffer surely takes `len_bytes` at once. The caller sends them next. Asks
    /// the kernel only when the room of the last answer is used up.
    pub(crate) fn has_room(&self, len_bytes: u32) -> bool {
        let needed_bytes = len_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES);
        let mut room_bytes = self.shared.room_bytes.load(Ordering::Relaxed);
        if room_bytes < needed_bytes {
            room_bytes = self.ask_room().unwrap_or(0);
        }
        let left_bytes = room_bytes.checked_sub(needed_bytes);
        self.shared.room_bytes.store(left_bytes.unwrap_or(0), Ordering::Relaxed);
        left_bytes.is_some()
    }

    /// Bytes that were sent without a look at the room.
    pub(crate) fn take_room(&self, len_bytes: u32) {
        let room_bytes = self.shared.room_bytes.load(Ordering::Relaxed);
        let left_bytes =
            room_bytes.saturating_sub(len_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES));
        self.shared.room_bytes.store(left_bytes, Ordering::Relaxed);
    }

    fn ask_room(&self) -> io::Result<u32> {
        let (mut buffer_bytes, mut queued_bytes): (libc::c_int, libc::c_int) = (0, 0);
        let mut len_bytes = mem::size_of_val(&buffer_bytes) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDBUF);
        let place = (&raw mut buffer_bytes).cast();
        // SAFETY: `place` points to an integer of `len_bytes` bytes.
        let failed =
            unsafe { libc::getsockopt(self.raw(), level, name, place, &raw mut len_bytes) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: this command writes one integer.
        if unsafe { libc::ioctl(self.raw(), libc::TIOCOUTQ, &raw mut queued_bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let share_bytes = u32::try_from(buffer_bytes).unwrap_or(0) / CONTENT_SHARE;
        Ok(share_bytes.saturating_sub(u32::try_from(queued_bytes).unwrap_or(u32::MAX)))
    }

    /// The descriptor's number, valid while this handle lives.
    pub(crate) fn raw(&self) -> RawFd {
        self.shared.descriptor.as_raw_fd()
    }
}

fn clamp(bytes: u32) -> libc::c_int {
    libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

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

    fn send_now(socket: &Socket, message: &[u8]) -> usize {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message is as long as it says.
        let sent =
            unsafe { libc::send(socket.raw(), message.as_ptr().cast(), message.len(), flags) };
        usize::try_from(sent).unwrap_or(0)
    }

    /// Messages of one length until there is no room. Each one goes out whole.
    fn fill(socket: &Socket, len_bytes: u32) -> usize {
        let message = vec![7; len_bytes as usize];
        let mut count = 0;
        while socket.has_room(len_bytes) {
            assert_eq!(send_now(socket, &message), message.len(), "message {count}");
            count += 1;
        }
        count
    }

    #[test]
    fn a_message_goes_out_whole_where_there_is_room() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let tcp = || {
            let near = std::net::TcpStream::connect(listener.local_addr().expect("bound"));
            let (far, _) = listener.accept().expect("a connection");
            let sockets = [near.expect("a listener").into(), far.into()];
            sockets.map(|socket: OwnedFd| Socket::new(socket).expect("a socket")).into()
        };
        for len_bytes in [1, 28, 4096, 4112, 9000, 32 << 10, 100_000] {
            for send_buffer_bytes in [None, Some(4096), Some(64 << 10), Some(1 << 20)] {
                for (near, far) in [Socket::pair().expect("descriptors"), tcp()] {
                    if let Some(bytes) = send_buffer_bytes {
                        near.set_send_buffer(bytes).expect("a socket");
                    }
                    let count = fill(&near, len_bytes);
                    let case = format!("{len_bytes} {send_buffer_bytes:?} {count}");
                    assert!(count > 0 || len_bytes > 4112 || send_buffer_bytes.is_some(), "{case}");
                    if count == 0 {
                        continue;
                    }
                    // What the peer has read makes room again.
                    let mut read = vec![0; count * len_bytes as usize];
                    std::fs::File::from(far.as_fd().try_clone_to_owned().expect("descriptors"))
                        .read_exact(&mut read)
                        .expect("sent");
                    let again = (0..1000).any(|_| {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        fill(&near, len_bytes) > 0
                    });
                    assert!(again, "{case}");
                }
            }
        }
    }

    #[test]
    fn what_was_sent_without_a_look_takes_room() {
        let (near, _far) = Socket::pair().expect("descriptors");
        assert!(near.has_room(4096));
        near.take_room(u32::MAX);
        assert_eq!(near.shared.room_bytes.load(Ordering::Relaxed), 0);
    }
}
