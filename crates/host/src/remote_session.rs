//! A blocking connection to a node in another process, for calls that do not belong to a volume.
//!
//! A node may be slow, hang, or send its answer byte by byte. Its name may have many addresses. So
//! one deadline limits all steps of connecting, and one limits all steps of an exchange. With a
//! deadline for each step, a node could keep a caller for any number of steps.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use fieldstone_proto::wire::{Decoder, encode_request};
use fieldstone_proto::{Reply, Request};

use crate::timed_call::{late, rest, within};
use fieldstone_uring::{Address, Endpoint};

/// A stream with time limits for its calls. Both types of streams have these functions, but share
/// no trait.
trait Stream: Read + Write + Send {
    fn limit_read(&self, rest: Duration) -> io::Result<()>;
    fn limit_write(&self, rest: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit_read(&self, rest: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(rest))
    }
    fn limit_write(&self, rest: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(rest))
    }
}

impl Stream for TcpStream {
    fn limit_read(&self, rest: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(rest))
    }
    fn limit_write(&self, rest: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(rest))
    }
}

/// A connection to a node.
pub(crate) struct RemoteSession {
    stream: Box<dyn Stream>,
    decoder: Decoder<Reply>,
    input: Vec<u8>,
    /// The received bytes that are not decoded yet are `input[from..to]`.
    from: usize,
    to: usize,
}

impl RemoteSession {
    /// Connects before `deadline`.
    ///
    /// # Errors
    /// The node cannot be reached in time, or refuses.
    pub(crate) fn connect(address: &Address, deadline: Instant) -> io::Result<Self> {
        const RECEIVE_BYTES: usize = 64 << 10;
        let stream: Box<dyn Stream> = match address {
            Address::Unix(path) => Box::new(connect_unix(path, deadline)?),
            Address::Tcp { host, port } => Box::new(connect_tcp(host, *port, deadline)?),
        };
        let input = vec![0; RECEIVE_BYTES];
        Ok(Self { stream, decoder: Decoder::new(), input, from: 0, to: 0 })
    }

    /// Sends a request, and waits for the whole answer until `deadline`. After an error the
    /// connection must not be used again.
    ///
    /// # Errors
    /// The answer does not come in time or is invalid, or the connection is lost.
    pub(crate) fn exchange(&mut self, request: &Request, deadline: Instant) -> io::Result<Reply> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        for part in encode_request(request).map_err(invalid)? {
            self.send(&part, deadline)?;
        }
        loop {
            let mut bytes = &self.input[self.from..self.to];
            let reply = self.decoder.feed(&mut bytes).map_err(invalid)?;
            self.from = self.to - bytes.len();
            match reply {
                Some(reply) if reply.tag == request.tag => return Ok(reply),
                Some(_) => {}
                None => self.receive(deadline)?,
            }
        }
    }

    fn send(&mut self, mut part: &[u8], deadline: Instant) -> io::Result<()> {
        while !part.is_empty() {
            self.stream.limit_write(rest(deadline)?)?;
            match self.stream.write(part) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => part = &part[count..],
                Err(error) => ignore_interruption(error)?,
            }
        }
        Ok(())
    }

    /// Receives at least one byte.
    fn receive(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            self.stream.limit_read(rest(deadline)?)?;
            match self.stream.read(&mut self.input) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    (self.from, self.to) = (0, count);
                    return Ok(());
                }
                Err(error) => ignore_interruption(error)?,
            }
        }
    }
}

/// Returns the error, unless a signal interrupted the call. A socket reports its time limit as
/// `EAGAIN`.
fn ignore_interruption(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => Err(late()),
        _ => Err(error),
    }
}

/// Connects to the unix socket at `path` before `deadline`.
///
/// # Errors
/// No process listens there, or it has not taken the connection in time (`TimedOut`).
pub fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    // A path needs no name resolution.
    let endpoint = Endpoint::resolve(&Address::Unix(path.to_path_buf()))?;
    // SAFETY: socket() takes no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(raw) });
    let (place, len_bytes) = endpoint.as_raw();
    // The call waits while the listener's queue of connections is full. The time limit for sending
    // also limits this wait.
    loop {
        stream.limit_write(rest(deadline)?)?;
        // SAFETY: `endpoint` owns the address of this length and outlives the call.
        if unsafe { libc::connect(stream.as_raw_fd(), place, len_bytes) } == 0 {
            return Ok(stream);
        }
        ignore_interruption(io::Error::last_os_error())?;
    }
}

/// Tries all addresses of a name. Each address gets its share of the remaining time, so a silent
/// address leaves time for the others.
fn connect_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let addresses = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => {
            let name = host.to_owned();
            let look_up = move || Ok((name.as_str(), port).to_socket_addrs()?.collect());
            within(deadline, host, look_up).and_then(|found: io::Result<Vec<SocketAddr>>| found)?
        }
    };
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for (tried, address) in addresses.iter().enumerate() {
        let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, rest(deadline)? / others) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
