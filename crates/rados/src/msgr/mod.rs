//! Messenger 2.1: a connection between two parties that exchange messages, as a state machine.
//!
//! # Steps
//!
//! ```text
//!        client                               server
//!          |------------- banner -------------->|   both at once, without waiting
//!          |<------------ banner ---------------|
//!          |------------- HELLO --------------->|   both at once: kind of party, and the address
//!          |<------------ HELLO ----------------|   at which the other one is seen
//!          |------------- AUTH_REQUEST -------->|
//!          |<------------ AUTH_REPLY_MORE ------|   as often as the method wants;
//!          |------------- AUTH_REQUEST_MORE --->|   or AUTH_BAD_METHOD
//!          |<------------ AUTH_DONE ------------|   here the mode begins: crc or secure
//!          |------------- AUTH_SIGNATURE ------>|   HMAC-SHA256 of all bytes that the sender
//!          |<------------ AUTH_SIGNATURE -------|   *received* up to AUTH_DONE
//!          |------------- CLIENT_IDENT -------->|   names, addresses, features
//!          |<------------ SERVER_IDENT ---------|   or IDENT_MISSING_FEATURES
//!          |<------------ MESSAGE ------------->|   ready
//! ```
//!
//! Revision 1 of the frames' format is required, and compression is not offered.
//!
//! # Frames
//!
//! A frame has a tag and up to four segments: the payload of a control frame, or header, front,
//! middle and data of a message. Empty segments at the end are left away.
//!
//! ```text
//! crc:    preamble 32 | first segment | its crc 4 | segments 2.. | status 1, crcs 3 x 4
//! secure: [preamble 32 | first 48 bytes] seal 16 | [rest of the first segment] seal 16
//!         | [segments 2.., status 1, zeros 15] seal 16
//! ```
//!
//! The crc of the first segment is left away if it is empty, and the last part if there is one
//! segment only. What stands in brackets is one block of AES-128-GCM; each segment is filled up
//! with zeros to a multiple of 16 bytes there, and the first 48 bytes in any case.
//!
//! # Failures
//!
//! Each connection has a session of its own (*lossy*, as Ceph's clients have towards monitors and
//! OSDs). So no message is kept to be sent again, and no `ACK` is needed. Each fault closes the
//! connection, with [`ConnectionEvent::Closed`] as the last event: a wrong checksum, seal or
//! signature, a frame at the wrong step, a length above its bound, silence. The owner then makes a
//! new connection and sends its requests again. Messages that came before the fault are good.
//!
//! # Copies
//!
//! In mode crc no byte of an object is copied on its way out, nor on its way in if it lies within
//! one chunk of the transport. Its checksum is computed once. In secure mode bytes are copied once
//! and then encrypted or decrypted in place.

mod banner;
mod checksum;
mod cipher;
mod connection;
pub(crate) mod fuzz;
mod handshake;
mod header;
mod input;
mod layout;
mod life;
mod payload;
mod preamble;
mod reader;
mod tag;
#[cfg(test)]
mod tests;
mod writer;

pub use connection::Connection;

use crate::Nanos;
use crate::auth::{AuthError, ClientAuth, ServerAuth};
use crate::encoding::{Addresses, EntityAddress, EntityName};
use crate::message::Message;

/// The most that the segments of a frame may have together, in bytes.
pub const MAX_FRAME_BYTES: u64 = (64 << 20) + (64 << 10);
/// The same during the handshake.
pub const MAX_HANDSHAKE_FRAME_BYTES: u64 = 64 << 10;
/// The most that a peer may send up to the end of authentication, in bytes.
pub const MAX_HANDSHAKE_BYTES: usize = 256 << 10;
/// The most messages of authentication that one side may send.
pub const MAX_AUTH_ROUNDS: usize = 16;
/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Nanos = Nanos::from_ms(15_000);
/// The time between a client's keepalive frames.
pub const KEEPALIVE_PERIOD: Nanos = Nanos::from_ms(10_000);
/// Keepalive frames of all connections leave at multiples of this time.
pub const KEEPALIVE_GRAIN: Nanos = Nanos::from_ms(250);
/// How long a client's peer may be silent.
pub const SILENCE_LIMIT: Nanos = Nanos::from_ms(30_000);
/// The feature that messenger 2 demands: addresses in their form with a section. It has to be among
/// the features of the options.
pub const FEATURE_MSG_ADDR2: u64 = 1 << 59;

const MAX_SEGMENTS: usize = 4;

/// What a client's connection is for.
pub struct ClientOptions {
    /// The party that has to answer. Of an OSD also the number has to be right, unless it is -1.
    pub peer: EntityName,
    /// Its addresses, as the client knows them. The one for messenger 2 has to be among those that
    /// the peer names itself.
    pub peer_addresses: Addresses,
    /// The address of this client: port 0, and a nonce of its own. If there is no IP address, or
    /// an unspecified one, the one that the peer sees is used.
    pub own_address: EntityAddress,
    /// The client's name: kind client, and its global id, or -1.
    pub own_name: EntityName,
    /// A number that grows with each connection of this client, across all peers.
    pub global_seq: u64,
    /// A random number of the session.
    pub cookie: u64,
    /// The client's features, with [`FEATURE_MSG_ADDR2`]; the connection uses those of both sides.
    pub features: u64,
    /// Authentication.
    pub auth: Box<dyn ClientAuth>,
}

/// What a server's connection needs (for models of clusters).
pub struct ServerOptions {
    /// The server's name.
    pub own_name: EntityName,
    /// Its addresses.
    pub own_addresses: Addresses,
    /// Its features.
    pub features: u64,
    /// A random number of the session.
    pub cookie: u64,
    /// Authentication.
    pub auth: Box<dyn ServerAuth>,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The handshake is over: messages can flow.
    Ready {
        /// The name that the peer has; for a server, the client's name with its global id.
        peer: EntityName,
        /// The features of both sides.
        features: u64,
        /// This party's address as the peer sees it.
        seen_as: Option<EntityAddress>,
    },
    /// A message arrived.
    Message(Message),
    /// The connection is over, for this reason. The transport has to be closed.
    Closed(ConnectionError),
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// Bytes are not as the protocol wants them.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),
    /// Authentication failed. The error's kind says whether the client itself is refused.
    #[error("authentication failed: {0}")]
    Auth(AuthError),
    /// The peer is another one than was expected, or lacks a feature.
    #[error("{0}")]
    Peer(String),
    /// The peer reset the session.
    #[error("the peer reset the session")]
    Reset,
    /// The transport broke.
    #[error("the connection broke: {0}")]
    Transport(String),
    /// No sign of life for too long.
    #[error("no answer for {0} ms")]
    Silent(u64),
}
