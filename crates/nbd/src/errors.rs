//! Error numbers of the protocol, the one table that maps block errors to them, and the reasons
//! for which a session ends.

use fieldstone_block::BlockError;

use crate::slots::Kind;

/// An error number as it travels on the wire; the specification allows these eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// `NBD_EPERM`: not permitted.
    Perm = 1,
    /// `NBD_EIO`: input/output error.
    Io = 5,
    /// `NBD_ENOMEM`: out of memory: the request is longer than all the memory that the server
    /// has for payloads.
    NoMem = 12,
    /// `NBD_EINVAL`: invalid argument.
    Inval = 22,
    /// `NBD_ENOSPC`: no space left.
    NoSpc = 28,
    /// `NBD_EOVERFLOW`: the length is too large.
    Overflow = 75,
    /// `NBD_ENOTSUP`: not supported, or not fast.
    NotSup = 95,
    /// `NBD_ESHUTDOWN`: the server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// All error numbers.
    pub const ALL: [Errno; 8] = [
        Errno::Perm,
        Errno::Io,
        Errno::NoMem,
        Errno::Inval,
        Errno::NoSpc,
        Errno::Overflow,
        Errno::NotSup,
        Errno::Shutdown,
    ];

    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The error with this number. An unexpected number counts as `EINVAL`, as the specification
    /// advises clients.
    #[must_use]
    pub fn from_code(code: u32) -> Errno {
        Self::ALL.into_iter().find(|errno| errno.code() == code).unwrap_or(Errno::Inval)
    }

    /// The table: which number tells the client about `error`, given what it asked for.
    ///
    /// Two entries depend on the command because the specification says so: a range past the end
    /// is `ENOSPC` for commands that write and `EINVAL` for others, and `ENOTSUP` is reserved for
    /// fast zeroing.
    pub(crate) fn for_block_error(error: &BlockError, kind: Kind) -> Errno {
        match (error, kind) {
            (BlockError::OutOfRange { .. }, Kind::Write | Kind::WriteZeroes { .. }) => Errno::NoSpc,
            (BlockError::OutOfRange { .. }, _) => Errno::Inval,
            (BlockError::NoSpace, _) => Errno::NoSpc,
            (BlockError::NotSupported(_), Kind::WriteZeroes { fast: true }) => Errno::NotSup,
            (BlockError::NotSupported(_), _) => Errno::Inval,
            (BlockError::Io(_), _) => Errno::Io,
            (BlockError::Fenced(_) | BlockError::ReadOnly, _) => Errno::Perm,
            (BlockError::ShuttingDown, _) => Errno::Shutdown,
        }
    }
}

/// Why a session was ended by the server: the client broke the protocol where no reply can tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The client flags hold a bit that was not offered.
    #[error("client flags {flags:#010x} hold bits that were not offered")]
    ClientFlags {
        /// What the client sent.
        flags: u32,
    },
    /// An option did not start with `IHAVEOPT`.
    #[error("option magic {magic:#018x}, expected IHAVEOPT")]
    OptionMagic {
        /// What the client sent.
        magic: u64,
    },
    /// A client without fixed newstyle sent an option other than `EXPORT_NAME`.
    #[error("option {option} needs the fixed newstyle handshake")]
    NotFixedNewstyle {
        /// The option.
        option: u32,
    },
    /// The client negotiates without end.
    #[error("more than {limit} options in one negotiation")]
    OptionFlood {
        /// The bound it passed.
        limit: u32,
    },
    /// An option is so long that even skipping it is too much.
    #[error("option {option} with {len_bytes} bytes of data, at most {limit_bytes} are read")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Its length.
        len_bytes: u32,
        /// The bound it passed.
        limit_bytes: u32,
    },
    /// `EXPORT_NAME` asked for an export that does not exist; it has no error reply.
    #[error("unknown export {name:?}")]
    UnknownExport {
        /// The name, made printable.
        name: String,
    },
    /// `EXPORT_NAME` came while the server shuts down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A request did not start with the request magic.
    #[error("request magic {magic:#010x}, expected 0x25609513")]
    RequestMagic {
        /// What the client sent.
        magic: u32,
    },
    /// A write announces a payload so long that even skipping it is too much.
    #[error("write payload of {len_bytes} bytes, at most {limit_bytes} are read")]
    PayloadTooLong {
        /// Its length.
        len_bytes: u32,
        /// The bound it passed.
        limit_bytes: u32,
    },
}

/// Why a list of exports cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// There is none, so nothing could be the default.
    #[error("no export is given")]
    None,
    /// Two exports have one name.
    #[error("two exports are named {name:?}")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A name or description is longer than the protocol allows.
    #[error("the {what} of export {name:?} is longer than 4096 bytes")]
    StringTooLong {
        /// "name" or "description".
        what: &'static str,
        /// The export.
        name: String,
    },
    /// The preferred block size is not a power of two between 512 bytes and 32 MiB.
    #[error(
        "export {name:?} prefers blocks of {bytes} bytes, not a power of two from 512 to 32 MiB"
    )]
    PreferredBlock {
        /// The export.
        name: String,
        /// What it prefers.
        bytes: u32,
    },
    /// The size does not fit the signed 64-bit offsets that clients use.
    #[error("export {name:?} has {size_bytes} bytes, more than 2^63-1")]
    TooLarge {
        /// The export.
        name: String,
        /// Its size.
        size_bytes: u64,
    },
}
