//! A small NBD client without sockets: for tests, the quickstart and benchmarks.
//!
//! Bytes from the server go into [`Client::receive`]. Bytes for the server come out of
//! [`Client::output`]. The handshake runs by itself. Once [`Client::about`] gives the export, the
//! caller may send commands, and [`Client::next_reply`] gives their replies in the order in which
//! they end.
//!
//! The client is strict: a reply that the specification forbids (overlapping chunks, a gap, a chunk
//! outside the requested range) is a [`ClientError`]. So every test with this client also checks
//! the server's output.

mod handshake;
mod replies;

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use crate::errors::Errno;
use crate::outbox::Outbox;
use crate::wire::{REQUEST_MAGIC, RequestHeader, cmd};
use handshake::HandshakeState;
use replies::Pending;

/// The client's options in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The export's name; empty for the default one.
    pub export: String,
    /// Ask for structured replies.
    pub structured: bool,
    /// Ask for `base:allocation`; needs `structured`.
    pub allocation: bool,
    /// Start with `GO`; otherwise with the older `EXPORT_NAME`.
    pub go: bool,
}

impl Config {
    /// Every feature of this client, on the export `name`.
    pub fn full(name: impl Into<String>) -> Self {
        Self { export: name.into(), structured: true, allocation: true, go: true }
    }

    /// Simple replies only, as the Linux kernel's client uses them.
    pub fn simple(name: impl Into<String>) -> Self {
        Self { export: name.into(), structured: false, allocation: false, go: true }
    }
}

/// The server's description of the export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Size of the device.
    pub size_bytes: u64,
    /// Bits of [`crate::wire::flag`].
    pub flags: u16,
    /// Minimum block, preferred block and maximum payload, if the server sent them.
    pub block_sizes: Option<[u32; 3]>,
    /// The canonical name, if the server sent it.
    pub name: Option<String>,
    /// The description, if there is one.
    pub description: Option<String>,
    /// Structured replies are in use.
    pub structured: bool,
    /// The id of `base:allocation`, if it is selected.
    pub allocation_id: Option<u32>,
}

/// A description of an extent, in the form of `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationExtent {
    /// Length in bytes.
    pub len_bytes: u32,
    /// Bits of [`crate::wire::state`].
    pub flags: u32,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded and has no data.
    Done,
    /// The bytes read.
    Data(Bytes),
    /// The extents of the range, from its start.
    Extents(Vec<AllocationExtent>),
    /// The command failed.
    Failed {
        /// The error number.
        errno: Errno,
        /// The server's explanation; empty without structured replies.
        message: String,
    },
}

/// The reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The cookie that [`Client::send`] returned for the command.
    pub cookie: u64,
    /// The result.
    pub outcome: Outcome,
    /// Number of content chunks in the reply: 0 or 1 without structured replies.
    pub chunks: u32,
}

/// The server's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A message starts with the wrong magic number.
    #[error("{what} starts with magic {magic:#x}")]
    Magic {
        /// The kind of message.
        what: &'static str,
        /// Its magic number.
        magic: u64,
    },
    /// The server refused an option that the client needs.
    #[error("option {option} refused with {reply_type:#x}: {message}")]
    Refused {
        /// The option.
        option: u32,
        /// The type of the reply.
        reply_type: u32,
        /// The server's explanation.
        message: String,
    },
    /// A reply breaks the specification.
    #[error("malformed reply: {0}")]
    Malformed(&'static str),
    /// A reply to a command that is not in flight.
    #[error("reply to unknown cookie {0:#x}")]
    UnknownCookie(u64),
}

/// The client's side of one connection.
#[derive(Debug)]
pub struct Client {
    config: Config,
    state: HandshakeState,
    about: About,
    input: BytesMut,
    outbox: Outbox,
    pending: HashMap<u64, Pending>,
    next_cookie: u64,
}

impl Client {
    /// A client that waits for the server's greeting.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: HandshakeState::Greeting,
            about: About::default(),
            input: BytesMut::new(),
            outbox: Outbox::default(),
            pending: HashMap::new(),
            next_cookie: 1,
        }
    }

    /// Takes bytes from the server.
    ///
    /// # Errors
    /// If the handshake fails.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.input.extend_from_slice(bytes);
        while self.state != HandshakeState::Ready && self.handshake_step()? {}
        Ok(())
    }

    /// Appends the bytes to send to `out`, in order, as a gather list.
    pub fn output(&mut self, out: &mut Vec<Bytes>) {
        self.outbox.take_into(out);
    }

    /// The export, once the handshake is over.
    #[must_use]
    pub fn about(&self) -> Option<&About> {
        (self.state == HandshakeState::Ready).then_some(&self.about)
    }

    /// Commands without a reply so far.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Sends any command: a code of [`cmd`], bits of [`crate::wire::cmd_flag`], a range, and the
    /// payload of a write. Returns the cookie of its reply. The client checks nothing, so that
    /// tests can send commands that a server must refuse.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset_bytes: u64,
        len_bytes: u32,
        data: Bytes,
    ) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.outbox.push(&RequestHeader {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(flags),
            command: U16::new(command),
            cookie: U64::new(cookie),
            offset: U64::new(offset_bytes),
            length: U32::new(len_bytes),
        });
        self.outbox.data(data);
        if command != cmd::DISC {
            self.pending.insert(cookie, Pending::new(command, flags, offset_bytes, len_bytes));
        }
        cookie
    }

    /// Reads a range. Flag: `DF`.
    pub fn read(&mut self, offset_bytes: u64, len_bytes: u32, flags: u16) -> u64 {
        self.send(cmd::READ, flags, offset_bytes, len_bytes, Bytes::new())
    }

    /// Writes `data`, at most 4 GiB of it. Flag: `FUA`.
    pub fn write(&mut self, offset_bytes: u64, data: Bytes, flags: u16) -> u64 {
        let len_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.send(cmd::WRITE, flags, offset_bytes, len_bytes, data)
    }

    /// Makes completed writes stable.
    pub fn flush(&mut self) -> u64 {
        self.send(cmd::FLUSH, 0, 0, 0, Bytes::new())
    }

    /// Forgets a range. Flag: `FUA`.
    pub fn trim(&mut self, offset_bytes: u64, len_bytes: u32, flags: u16) -> u64 {
        self.send(cmd::TRIM, flags, offset_bytes, len_bytes, Bytes::new())
    }

    /// Zeroes a range. Flags: `FUA`, `NO_HOLE`, `FAST_ZERO`.
    pub fn write_zeroes(&mut self, offset_bytes: u64, len_bytes: u32, flags: u16) -> u64 {
        self.send(cmd::WRITE_ZEROES, flags, offset_bytes, len_bytes, Bytes::new())
    }

    /// Asks for the extents of a range. Flag: `REQ_ONE`.
    pub fn block_status(&mut self, offset_bytes: u64, len_bytes: u32, flags: u16) -> u64 {
        self.send(cmd::BLOCK_STATUS, flags, offset_bytes, len_bytes, Bytes::new())
    }

    /// Asks the server to read a range ahead.
    pub fn cache(&mut self, offset_bytes: u64, len_bytes: u32) -> u64 {
        self.send(cmd::CACHE, 0, offset_bytes, len_bytes, Bytes::new())
    }

    /// Ends the session. The server answers the requests in flight and closes.
    pub fn disconnect(&mut self) {
        self.send(cmd::DISC, 0, 0, 0, Bytes::new());
    }
}
