//! The results of a turn of the reactor: completions, timers, mail.

use std::io;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;

use crate::socket::Socket;

/// A number that the caller chooses for an operation, a timer or a mailbox. Its [`Event`] returns
/// it.
///
/// The reactor gives a token no meaning, and does not require it to be unique. But
/// [`Reactor::cancel`](crate::Reactor::cancel) stops every operation of a token, and a token has at
/// most one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The data of an event besides the result.
#[derive(Debug)]
pub enum Payload {
    /// Nothing: `fsync`, `fallocate`, raw receives, failed connects and accepts.
    None,
    /// The buffer of a read or receive. Its length is the requested length; the result says how
    /// many of its first bytes were filled. After an error its content is unspecified.
    Buffer(AlignedBuf),
    /// The parts of a write or send, unchanged.
    Parts(Vec<Bytes>),
    /// A socket that was connected or accepted.
    Socket(Socket),
    /// The token's timer is due.
    Timer,
    /// The token's mailbox has messages: call [`Mailbox::drain`](crate::Mailbox::drain).
    Mail,
}

/// A result of an operation, a timer or a mailbox.
#[derive(Debug)]
pub struct Event {
    /// The token given with the operation, timer or mailbox.
    pub token: Token,
    /// Bytes transferred (zero for operations that transfer none), or why the operation failed. A
    /// cancelled operation fails with `ECANCELED`.
    pub result: io::Result<u32>,
    /// The data that comes back.
    pub payload: Payload,
}
