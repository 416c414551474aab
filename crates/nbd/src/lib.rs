//! The NBD server protocol as a state machine without sockets.
//!
//! NBD carries block requests over one byte stream. The specification is the document
//! `doc/proto.md` of the NetworkBlockDevice project. DeLiBA-1 (papers/002) chose NBD to lift block
//! I/O to user space. So do we, because every Linux machine, qemu and libnbd speak it.
//!
//! # Layout of a connection
//!
//! ```text
//!  server: NBDMAGIC IHAVEOPT flags ->                  18 bytes, sent at once
//!  client: flags ->                                    4 bytes
//!  client: IHAVEOPT option length data ->              any number of options, each answered by
//!  server: reply-magic option type length data ->      replies, the last is ACK or an error
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
//! 1. While [`Session::wants_input`], receive into [`Session::receive_space`]. Then pass the number
//!    of received bytes to [`Session::received`].
//! 2. Call [`Session::next_request`] until it gives `None`. Submit each request.
//! 3. Hand every completion to [`Session::complete`], then do 2 again.
//! 4. When the previous send is done, call [`Session::sent`]. Take [`Session::output`], send it,
//!    and do 2 again.
//! 5. Close the socket when [`Session::phase`] is [`SessionPhase::Closed`].
//!
//! # Invariants
//!
//! - **No byte from the wire causes a panic.** Where the specification lets a server answer, the
//!   session answers with an error. Any other fault ends the session with a typed [`Violation`].
//! - **Memory is bounded** by [`Limits`]: options, requests in flight, their payloads and queued
//!   replies. At a bound the session stops decoding and [`Session::wants_input`] turns false, so
//!   that back-pressure reaches the client through TCP. A [`Budget`](fieldstone_buf::Budget) bounds
//!   the sum over all sessions that share it.
//! - **Every accepted request gets exactly one reply**, unless the connection dies first. Then the
//!   session drops its completion. Request ids carry a generation, so a late completion cannot
//!   answer a newer request.
//! - **Payloads are copied at most once.** The session receives writes of 32 KiB and more into
//!   their own aligned buffer. It sends read data from the backend's own memory.
//!
//! The [`client`] module is the other end: small, for tests, the quickstart and benchmarks.

pub mod client;
mod errors;
mod export;
pub mod fuzz;
mod inbox;
mod limits;
mod memory_lease;
mod negotiation;
mod outbox;
mod reply;
mod session;
mod slots;
mod transmission;
pub mod wire;

pub use errors::{Errno, ExportError, Violation};
pub use export::{Export, ExportIndex, ExportList};
pub use limits::{LARGE_WRITE_BYTES, Limits, MAX_PAYLOAD_BYTES, OWN_BYTES};
pub use session::{Session, SessionPhase};
