//! The NBD server protocol as a state machine without sockets.
//!
//! NBD carries block requests over one byte stream. The specification is the document
//! `doc/proto.md` of the NetworkBlockDevice project; DeLiBA-1 (papers/002) chose NBD to lift block
//! I/O to user space, and so do we, because every Linux machine, qemu and libnbd speak it.
//!
//! # Layout of a connection
//!
//! ```text
//!  server: NBDMAGIC IHAVEOPT flags ->                  18 bytes, sent at once
//!  client: flags ->                                    4 bytes
//!  client: IHAVEOPT option length data ->              any number of options, each answered by
//!  server: reply-magic option type length data ->      one or more replies, the last is ACK or an error
//!          ... GO or EXPORT_NAME ends the negotiation ...
//!  client: 25609513 flags command cookie offset length [data] ->      28 bytes and payload
//!  server: 67446698 error cookie [data]                simple reply, or
//!          668e33ef flags type cookie length payload   one chunk of a structured reply
//! ```
//!
//! All integers are big-endian. Replies may come in any order; the cookie tells them apart.
//!
//! # How a host drives a [`Session`]
//!
//! 1. While [`Session::wants_input`], receive into [`Session::receive_space`], then say how many
//!    bytes came with [`Session::received`].
//! 2. Call [`Session::next_request`] until it gives `None`; submit what it gives.
//! 3. Hand every completion to [`Session::complete`], then do 2 again.
//! 4. When the previous send is done, say so with [`Session::sent`], take [`Session::output`] and
//!    send it, then do 2 again.
//! 5. Close the socket when [`Session::phase`] is [`Phase::Closed`].
//!
//! # Invariants
//!
//! - **Nothing from the wire panics.** What the specification lets a server answer is answered
//!   with an error; the rest ends the session with a typed [`Violation`].
//! - **Memory is bounded** by [`Limits`]: options, requests in flight, their payloads and queued
//!   replies. At a bound the session stops decoding and [`Session::wants_input`] turns false, so
//!   that back-pressure reaches the client through TCP. A [`Budget`](fieldstone_buf::Budget) bounds
//!   the sum over all sessions that share it.
//! - **Every accepted request gets exactly one reply**, unless the connection dies first; then its
//!   completion is dropped. Request ids carry a generation, so a late completion cannot answer a
//!   newer request.
//! - **Payloads are copied at most once.** Writes of 32 KiB and more are received into their own
//!   aligned buffer; read data is sent from where the backend left it.
//!
//! The [`client`] module is the other end: small, for tests, the quickstart and benchmarks.

pub mod client;
mod errors;
mod export;
pub mod fuzz;
mod inbox;
mod limits;
mod negotiation;
mod outbox;
mod reply;
mod room;
mod session;
mod slots;
mod transmission;
pub mod wire;

pub use errors::{Errno, ExportError, Violation};
pub use export::{Export, ExportIndex, ExportList};
pub use limits::{LARGE_WRITE_BYTES, Limits, MAX_PAYLOAD_BYTES, OWN_BYTES};
pub use session::{Phase, Session};
