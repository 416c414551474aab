//! What a turn of the reactor brings: completions, timers, mail.

use std::io;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;

use crate::socket::Socket;

/// Chosen by the caller for an operation, a timer or a mailbox, and returned in its [`Event`].
///
/// The reactor gives it no meaning and does not require it to be unique, except that
/// [`Reactor::cancel`](crate::Reactor::cancel) stops every operation of a token and that a token
/// has at most one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What comes back to the caller besides the result.
#[derive(Debug)]
pub enum Payload {
    /// Nothing: `fsync`, `fallocate`, raw receives, failed connects and accepts.
    None,
    /// The buffer of a read or receive; its length is what was asked for, and the result says
    /// how many of its first bytes were filled. After an error its content is unspecified.
    Buffer(AlignedBuf),
    /// The parts of a write or send, as they were handed in.
    Parts(Vec<Bytes>),
    /// A socket that was connected or accepted.
    Socket(Socket),
    /// The token's timer is due.
    Timer,
    /// The token's mailbox has messages: call [`Mailbox::drain`](crate::Mailbox::drain).
    Mail,
}

/// One thing that happened.
#[derive(Debug)]
pub struct Event {
    /// The token given with the operation, timer or mailbox.
    pub token: Token,
    /// Bytes transferred (zero for what transfers none), or why the operation failed. A cancelled
    /// operation fails with `ECANCELED`.
    pub result: io::Result<u32>,
    /// What comes back.
    pub payload: Payload,
}
