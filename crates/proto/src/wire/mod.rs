//! Requests and replies as bytes on a connection.
//!
//! A message is a header of 40 bytes, a body, and a payload. All numbers are little endian.
//!
//! | offset | bytes | field                                                   |
//! |-------:|------:|---------------------------------------------------------|
//! |      0 |     4 | magic `FSTW`                                            |
//! |      4 |     2 | version of the protocol: 2, or that which added this    |
//! |      6 |     1 | 0 for a request, 1 for a reply                          |
//! |      7 |     1 | operation, or the kind of the reply's content           |
//! |      8 |     8 | tag                                                     |
//! |     16 |     4 | free slots of the node in a reply; zero in a request    |
//! |     20 |     4 | length of the body                                      |
//! |     24 |     4 | length of the payload                                   |
//! |     28 |     4 | CRC-32C of the body                                     |
//! |     32 |     4 | CRC-32C of the payload                                  |
//! |     36 |     4 | CRC-32C of the 36 bytes above                           |
//!
//! The body holds the fields of the operation, in the order of [`crate::message`]. A request's body
//! starts with its capability (52 signed bytes and the signature). The length of a list or byte
//! string precedes it, in 4 bytes. The payload holds the bytes that a request stores or a read
//! returns. `docs/formats.md` has all bodies as tables.
//!
//! # Rules for a reader
//! - A reader trusts no field of a header before its checksum matches, and no length before it has
//!   compared the length with its bound. It allocates a list once it knows that the count fits the
//!   body that is already there, and a payload once the payload's first byte arrives. So a peer can
//!   make a reader allocate at most one body and one payload, and with a budget no more than that
//!   for all payloads of all peers.
//! - Left-over bytes in a body, unknown operations and values out of range are errors. A newer
//!   version is an error that names both versions. A reader never accepts a part of a message.
//!   Version 3 added routes, [`crate::RequestBody::AdmitRelays`], [`crate::ReplyBody::Outcomes`]
//!   and [`crate::NodeError::NotPassedOn`]. Version 4 added columns to routes, version 5 payloads
//!   in parts, version 6 columns with a table of elements, version 7 payloads in fragments
//!   ([`crate::fragments`]). All other messages are still those of
//!   version 2, so programs of all versions understand each other as long as no write is passed on.
//!   [`crate::NodeError::Denied`] has no number: it is a *not passed on* from a node to itself,
//!   which releases without it understand as well.
//! - After an error the connection is useless: the reader does not know where the next message
//!   starts.
//!
//! # Why every payload has a checksum
//! Shard payloads also carry one checksum per block, end to end from the writer that made the data.
//! The checksum here covers all payloads, including journal appends and replies. The reader checks
//! it as soon as the whole payload is there: TCP's own 16 bits let about one damaged packet in ten
//! thousand pass. The checksum costs about a tenth of a nanosecond per byte.

mod body;
mod decoder;
mod header;
mod reply;
mod request;

use bytes::Bytes;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

pub use decoder::{Decoder, Message};
pub use reply::encode_reply;
pub use request::encode_request;

pub(crate) use header::Header;
use header::{COVERED_BYTES, MAGIC};

use crate::{FRAGMENT_BYTES_MAX, PAYLOAD_BYTES_MAX, Tag, crc32c, crc32c_of_parts};

/// Length of a header.
pub const WIRE_HEADER_BYTES: usize = size_of::<Header>();

/// The newest version of the protocol that this release speaks.
pub const WIRE_VERSION: u16 = WIRE_VERSION_FRAGMENTS;

/// The version that added payloads in fragments. A request whose payload follows in fragments has
/// this version, whatever else it has.
const WIRE_VERSION_FRAGMENTS: u16 = 7;

/// The version that added columns with a table of elements.
const WIRE_VERSION_TABLES: u16 = 6;

/// The version that added payloads in parts.
const WIRE_VERSION_PARTS: u16 = 5;

/// The version that added columns to routes.
const WIRE_VERSION_COLUMNS: u16 = 4;

/// The version that added routes.
const WIRE_VERSION_ROUTES: u16 = 3;

/// The version of messages without any addition of a later version.
pub const WIRE_VERSION_BASIC: u16 = 2;

/// Longest body of a request.
pub const REQUEST_BODY_BYTES_MAX: usize = 64 << 10;

/// Longest body of a reply.
pub const REPLY_BODY_BYTES_MAX: usize = 4 << 20;

/// Payloads up to this length do not count against a budget. Longer ones do, if there is a budget.
pub const UNLEASED_PAYLOAD_BYTES: usize = FRAGMENT_BYTES_MAX;

/// The longest text in an error reply. The writer cuts longer ones.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Why bytes are not a message, or a message cannot be made into bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at_byte} of the message: {kind}")]
pub struct WireError {
    /// Offset within the message.
    pub at_byte: usize,
    /// The error.
    pub kind: WireErrorKind,
}

/// An error of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireErrorKind {
    /// The peer speaks another protocol.
    #[error("this is not a Fieldstone message: it starts with {0:02x?}")]
    Magic([u8; 4]),
    /// The peer is a newer release.
    #[error("the message has protocol version {found}, this program speaks version {known}")]
    Version {
        /// The message's version.
        found: u16,
        /// The version of this release.
        known: u16,
    },
    /// The bytes changed on the way.
    #[error("the {what}'s checksum is {computed:#010x} instead of {found:#010x}")]
    Checksum {
        /// Header, body or payload.
        what: &'static str,
        /// The checksum in the message.
        found: u32,
        /// The checksum of the bytes that arrived.
        computed: u32,
    },
    /// A length is above its bound.
    #[error("the {what} is {len} long, more than {max}")]
    TooLong {
        /// The part.
        what: &'static str,
        /// Its length.
        len: usize,
        /// Its bound.
        max: usize,
    },
    /// The body ends within a field.
    #[error("the body ends within {0}")]
    Truncated(&'static str),
    /// Bytes follow the last field of the body.
    #[error("{0} bytes follow the last field of the body")]
    Trailing(usize),
    /// A field has an invalid value.
    #[error("{what} cannot be {value}")]
    Value {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

impl WireErrorKind {
    fn at(self, at_byte: usize) -> WireError {
        WireError { at_byte, kind: self }
    }
}

fn check_len(what: &'static str, len: usize, max: usize) -> Result<(), WireErrorKind> {
    if len > max { Err(WireErrorKind::TooLong { what, len, max }) } else { Ok(()) }
}

/// The fields of a header, except lengths and checksums.
struct Envelope {
    direction: u8,
    version: u16,
    op: u8,
    tag: Tag,
    slots_free: u32,
    body_max: usize,
}

/// Assembles a message: header and body in one piece, then the payload's own pieces. `message` is
/// the body behind a space for the header.
fn assemble(
    envelope: &Envelope,
    message: Vec<u8>,
    payload: &[Bytes],
) -> Result<Vec<Bytes>, WireError> {
    assemble_with(envelope, message, payload, crc32c_of_parts(payload))
}

/// The same with the known checksum of the payload.
fn assemble_with(
    envelope: &Envelope,
    mut message: Vec<u8>,
    payload: &[Bytes],
    payload_crc: u32,
) -> Result<Vec<Bytes>, WireError> {
    let body_len = message.len() - WIRE_HEADER_BYTES;
    let payload_len = payload.iter().map(Bytes::len).sum();
    check_len("body", body_len, envelope.body_max).map_err(|kind| kind.at(20))?;
    check_len("payload", payload_len, PAYLOAD_BYTES_MAX).map_err(|kind| kind.at(24))?;
    let bounded = |len: usize| U32::new(u32::try_from(len).expect("checked to be a few MiB"));
    let mut header = Header {
        magic: MAGIC,
        version: envelope.version.into(),
        direction: envelope.direction,
        op: envelope.op,
        tag: envelope.tag.0.into(),
        slots_free: envelope.slots_free.into(),
        body_len: bounded(body_len),
        payload_len: bounded(payload_len),
        body_crc: crc32c(&message[WIRE_HEADER_BYTES..]).into(),
        payload_crc: payload_crc.into(),
        header_crc: U32::ZERO,
    };
    header.header_crc = crc32c(&header.as_bytes()[..COVERED_BYTES]).into();
    message[..WIRE_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let mut parts = Vec::with_capacity(1 + payload.len());
    parts.push(Bytes::from(message));
    parts.extend(payload.iter().filter(|part| !part.is_empty()).cloned());
    Ok(parts)
}

/// For fuzzing: makes a header that passes every check together with the bytes behind it. The
/// lengths stay unchanged, as far as there are bytes for them. Returns the lengths of body and
/// payload.
pub(crate) fn mend_header<M: Message>(header: &mut Header, behind: &[u8]) -> (usize, usize) {
    let bounded = |len: u32, max: usize| (len as usize).min(max);
    let body = bounded(header.body_len.get(), M::BODY_BYTES_MAX.min(behind.len()));
    let version = match M::has_version(header.op, header.version.get()) {
        true => header.version.get(),
        false => M::version_of(header.op),
    };
    let payload_max = M::payload_bytes_max(header.op, version).min(behind.len() - body);
    let payload = bounded(header.payload_len.get(), payload_max);
    let (body_bytes, rest) = behind.split_at(body);
    *header = Header {
        magic: MAGIC,
        version: version.into(),
        direction: M::DIRECTION,
        body_len: U32::new(u32::try_from(body).expect("a few MiB at most")),
        payload_len: U32::new(u32::try_from(payload).expect("a few MiB at most")),
        body_crc: crc32c(body_bytes).into(),
        payload_crc: crc32c(&rest[..payload]).into(),
        ..*header
    };
    header.header_crc = crc32c(&header.as_bytes()[..COVERED_BYTES]).into();
    (body, payload)
}

#[cfg(test)]
mod tests;
