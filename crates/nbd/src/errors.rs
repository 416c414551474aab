//! Error numbers of the protocol, the one table that maps block errors to them, and the reasons why
//! a session ends.

use fieldstone_block::BlockError;

use crate::slots::Kind;

/// An error number on the wire. The specification allows these eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// `NBD_EPERM`: not permitted.
    Perm = 1,
    /// `NBD_EIO`: input/output error.
    Io = 5,
    /// `NBD_ENOMEM`: out of memory: the request is longer than the server's whole memory for
    /// payloads.
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
    /// tells clients.
    #[must_use]
    pub fn from_code(code: u32) -> Errno {
        Self::ALL.into_iter().find(|errno| errno.code() == code).unwrap_or(Errno::Inval)
    }

    /// The table: the error number for `error`, given the client's command.
    ///
    /// Two entries depend on the command, because the specification says so. A range past the end
    /// is `ENOSPC` for commands that write and `EINVAL` for others. Only fast zeroing may get
    /// `ENOTSUP`.
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

/// Why the server ended a session: the client broke the protocol in a place that has no error
/// reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The client flags have a bit that the server did not offer.
    #[error("client flags {flags:#010x} hold bits that were not offered")]
    ClientFlags {
        /// The client's flags.
        flags: u32,
    },
    /// An option did not start with `IHAVEOPT`.
    #[error("option magic {magic:#018x}, expected IHAVEOPT")]
    OptionMagic {
        /// The client's magic number.
        magic: u64,
    },
    /// A client without fixed newstyle sent an option other than `EXPORT_NAME`.
    #[error("option {option} needs the fixed newstyle handshake")]
    NotFixedNewstyle {
        /// The option.
        option: u32,
    },
    /// The client sends options without end.
    #[error("more than {limit} options in one negotiation")]
    OptionFlood {
        /// The bound.
        limit: u32,
    },
    /// An option is too long even to skip.
    #[error("option {option} with {len_bytes} bytes of data, at most {limit_bytes} are read")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Its length.
        len_bytes: u32,
        /// The bound.
        limit_bytes: u32,
    },
    /// `EXPORT_NAME` asked for an export that does not exist. This option has no error reply.
    #[error("unknown export {name:?}")]
    UnknownExport {
        /// The name, in printable form.
        name: String,
    },
    /// `EXPORT_NAME` arrived while the server shuts down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A request did not start with the request magic.
    #[error("request magic {magic:#010x}, expected 0x25609513")]
    RequestMagic {
        /// The client's magic number.
        magic: u32,
    },
    /// A write has a payload that is too long even to skip.
    #[error("write payload of {len_bytes} bytes, at most {limit_bytes} are read")]
    PayloadTooLong {
        /// Its length.
        len_bytes: u32,
        /// The bound.
        limit_bytes: u32,
    },
}

/// Why a server cannot serve a list of exports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The list is empty, so it has no default export.
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
        /// The preferred block size.
        bytes: u32,
    },
    /// The minimum block size is outside of what the protocol and the export allow.
    #[error(
        "export {name:?} has a minimum block of {bytes} bytes; it must be a power of two, and at \
         most {bytes_max}"
    )]
    MinimumBlock {
        /// The export.
        name: String,
        /// The minimum block size.
        bytes: u32,
        /// The most that it may be.
        bytes_max: u32,
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
