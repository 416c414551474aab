//! The bytes of the protocol: magic numbers, option, reply and command codes, flags, headers.
//!
//! Names follow the specification (`NBD_OPT_GO` is [`opt::GO`]), so that a reader can compare the
//! two. Headers are big-endian and unpadded, and may lie at any address.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of the server's greeting, ASCII `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting and first of every option, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins every chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The longest string the specification allows.
pub const MAX_STRING_BYTES: usize = 4096;
/// Zero bytes after the answer to `EXPORT_NAME`, unless the client declined them.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// The only metadata context that the server supports.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags; server and client use the same two bits.
pub mod handshake {
    /// The client may use options other than `EXPORT_NAME`.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The server leaves out the 124 zero bytes after `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Option codes (`NBD_OPT_*`).
pub mod opt {
    /// Choose an export and start; cannot report an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Allow structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types (`NBD_REP_*`).
pub mod rep {
    /// Done, successfully.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error type.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is known and forbidden.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is malformed or out of order.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Information types (`NBD_INFO_*`) of `INFO` and `GO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for humans.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum and preferred block, maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags (`NBD_FLAG_*`).
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// The server refuses writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The don't-fragment flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one device; a flush on one covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The fast-zero flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands (`NBD_CMD_*`).
pub mod cmd {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make completed writes stable.
    pub const FLUSH: u16 = 3;
    /// Forget bytes.
    pub const TRIM: u16 = 4;
    /// Read ahead.
    pub const CACHE: u16 = 5;
    /// Write zero bytes.
    pub const WRITE_ZEROES: u16 = 6;
    /// List extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags (`NBD_CMD_FLAG_*`).
pub mod cmd_flag {
    /// Reply only when the effect is stable.
    pub const FUA: u16 = 1;
    /// `WRITE_ZEROES`: stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `READ`: one content chunk.
    pub const DF: u16 = 1 << 2;
    /// `BLOCK_STATUS`: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES`: fail rather than be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunk types and flags (`NBD_REPLY_TYPE_*`, `NBD_REPLY_FLAG_*`).
pub mod chunk {
    /// Flag: the last chunk of the reply.
    pub const DONE: u16 = 1;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and bytes.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and a count of zero bytes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Context id and descriptors.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error and message.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// Error, message and offset. The client parses it; the server never sends it.
    pub const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// Extent flags of `base:allocation` (`NBD_STATE_*`).
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// The server's first bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`INIT_MAGIC`].
    pub init_magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// Bits of [`handshake`].
    pub flags: U16,
}

/// The header of an option; `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// A code of [`opt`].
    pub option: U32,
    /// Bytes of data.
    pub length: U32,
}

/// The header of a reply to an option; `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that the reply answers.
    pub option: U32,
    /// A type of [`rep`].
    pub reply_type: U32,
    /// Bytes of data.
    pub length: U32,
}

/// A request; a write's payload follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Bits of [`cmd_flag`].
    pub flags: U16,
    /// A code of [`cmd`].
    pub command: U16,
    /// Chosen by the client, returned in the reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Length of the range.
    pub length: U32,
}

/// A simple reply; a successful read's data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// Zero or an error number.
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// One chunk of a structured reply; `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// [`chunk::DONE`] or zero.
    pub flags: U16,
    /// A type of [`chunk`].
    pub chunk_type: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Bytes of payload.
    pub length: U32,
}

/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER_BYTES: usize = size_of::<OptionHeader>();
/// Bytes of a [`RequestHeader`].
pub const REQUEST_HEADER_BYTES: usize = size_of::<RequestHeader>();

const _: () = assert!(size_of::<Greeting>() == 18);
const _: () = assert!(OPTION_HEADER_BYTES == 16);
const _: () = assert!(size_of::<OptionReplyHeader>() == 20);
const _: () = assert!(REQUEST_HEADER_BYTES == 28);
const _: () = assert!(size_of::<SimpleReply>() == 16);
const _: () = assert!(size_of::<ChunkHeader>() == 20);

/// A cursor over the data of an option. Every read is checked against the rest of the data.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next two bytes as an integer, if there are two.
    pub fn u16(&mut self) -> Option<u16> {
        self.fixed().map(u16::from_be_bytes)
    }

    /// The next four bytes as an integer, if there are four.
    pub fn u32(&mut self) -> Option<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// The next eight bytes as an integer, if there are eight.
    pub fn u64(&mut self) -> Option<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    /// The next `len_bytes` bytes, if there are as many.
    pub fn bytes(&mut self, len_bytes: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len_bytes)?;
        self.0 = tail;
        Some(head)
    }

    /// A 32-bit length and that many bytes.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len_bytes = usize::try_from(self.u32()?).ok()?;
        self.bytes(len_bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
}
