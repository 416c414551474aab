//! A block device over NBD, for clients that block. The quickstart and the tests use it.
//!
//! The sans-I/O client of the `nbd` crate queues requests. [`NbdDisk::next_reply`] sends the queued
//! requests and waits for one reply, so several requests may be in flight.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_nbd::client::{Client, Config, Outcome, Reply};
use fieldstone_uring::Address;

/// The longest wait for a server that sends or takes no byte. Then the call fails.
const TIMEOUT: Duration = Duration::from_secs(60);

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A block device over NBD.
pub struct NbdDisk {
    stream: Box<dyn Stream>,
    client: Client,
    input: Vec<u8>,
}

impl NbdDisk {
    /// Connects to the export `name`. The empty name means the default export.
    pub fn connect(address: &Address, name: &str) -> anyhow::Result<Self> {
        let stream = dial(address).with_context(|| format!("cannot connect to {address}"))?;
        let client = Client::new(Config::full(name));
        let mut disk = Self { stream, client, input: vec![0; 1 << 20] };
        while disk.client.about().is_none() {
            disk.send()?;
            disk.receive()?;
        }
        Ok(disk)
    }

    /// The size of the device in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.client.about().map_or(0, |about| about.size_bytes)
    }

    /// The client, to queue requests with.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Sends the queued requests and waits for the next reply.
    pub fn next_reply(&mut self) -> anyhow::Result<Reply> {
        self.send()?;
        loop {
            if let Some(reply) = self.client.next_reply()? {
                return Ok(reply);
            }
            self.receive()?;
        }
    }

    /// Sends a flush and waits for its reply.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.client.flush();
        done(self.next_reply()?, "flush", 0).map(drop)
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let mut parts = Vec::new();
        self.client.output(&mut parts);
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match self.stream.write_vectored(rest) {
                Ok(0) => bail!("the NBD server closed the connection"),
                Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send to the NBD server"),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        match self.stream.read(&mut self.input) {
            Ok(0) => bail!("the NBD server closed the connection"),
            Ok(received) => Ok(self.client.receive(&self.input[..received])?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error).context("no answer from the NBD server"),
        }
    }
}

/// The data of a reply (empty for requests that return none), or its error as text that names the
/// operation `what` and the offset.
pub fn done(reply: Reply, what: &str, offset_bytes: u64) -> anyhow::Result<Bytes> {
    match reply.outcome {
        Outcome::Data(data) => Ok(data),
        Outcome::Done | Outcome::Extents(_) => Ok(Bytes::new()),
        Outcome::Failed { errno, message } => {
            bail!("{what} at byte {offset_bytes} failed: {errno:?} {message}")
        }
    }
}

fn dial(address: &Address) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
    }
}
