//! A blocking connection to a node in another process, for calls that are not a volume's.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fieldstone_proto::wire::{Decoder, encode_request};
use fieldstone_proto::{Reply, Request};

use crate::Address;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a node.
pub(super) struct RemoteSession {
    stream: Box<dyn Stream>,
    decoder: Decoder<Reply>,
    input: Vec<u8>,
    /// Where the bytes begin that were received and not decoded yet.
    from: usize,
    to: usize,
}

impl RemoteSession {
    /// Connects; every step may take `patience`.
    pub(super) fn connect(address: &Address, patience: Duration) -> io::Result<Self> {
        const RECEIVE_BYTES: usize = 64 << 10;
        let stream: Box<dyn Stream> = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
            Address::Tcp { host, port } => {
                let mut found = (host.as_str(), *port).to_socket_addrs()?;
                let first = found.next().ok_or(io::ErrorKind::NotFound)?;
                let stream = TcpStream::connect_timeout(&first, patience)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
        };
        let input = vec![0; RECEIVE_BYTES];
        Ok(Self { stream, decoder: Decoder::new(), input, from: 0, to: 0 })
    }

    /// Asks and waits for the answer.
    pub(super) fn exchange(&mut self, request: &Request) -> io::Result<Reply> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        for part in encode_request(request).map_err(invalid)? {
            self.stream.write_all(&part)?;
        }
        loop {
            let mut bytes = &self.input[self.from..self.to];
            let reply = self.decoder.feed(&mut bytes).map_err(invalid)?;
            self.from = self.to - bytes.len();
            match reply {
                Some(reply) if reply.tag == request.tag => return Ok(reply),
                Some(_) => {}
                None => {
                    self.from = 0;
                    self.to = self.stream.read(&mut self.input)?;
                    if self.to == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }
}
