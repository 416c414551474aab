//! The statuses, and the status of each error.

use std::ffi::{CStr, c_char, c_int};

use fieldstone_c_abi::{Error, PointerError};
use fieldstone_embed::{BlockError, CloseError, Error as EmbedError, OpenError};

/// The results of calls and requests: `enum fieldstone_block_status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// A pointer is null, but must not be.
    Null = 1,
    /// The target names no store.
    BadTarget = 2,
    /// A layer or its option is invalid.
    BadLayer = 3,
    /// The store cannot be opened.
    CannotOpen = 4,
    /// The range passes the end of the device, a number is too large, or a flag is unknown.
    OutOfRange = 5,
    /// The request is longer than the limit.
    TooLong = 6,
    /// The device is at its bound of requests or bytes, or the completion queue has no place.
    Full = 7,
    /// The device has ended.
    Closed = 8,
    /// The device is read-only.
    ReadOnly = 9,
    /// No space is left.
    NoSpace = 10,
    /// The store does not do this.
    NotSupported = 11,
    /// Another writer has taken over the store.
    Fenced = 12,
    /// The store failed.
    Io = 13,
    /// A callback called a function that waits.
    InCallback = 14,
    /// A defect of the library.
    Internal = 15,
}

impl Status {
    const ALL: [(Self, &CStr); 16] = [
        (Self::Ok, c"FIELDSTONE_BLOCK_OK"),
        (Self::Null, c"FIELDSTONE_BLOCK_NULL"),
        (Self::BadTarget, c"FIELDSTONE_BLOCK_BAD_TARGET"),
        (Self::BadLayer, c"FIELDSTONE_BLOCK_BAD_LAYER"),
        (Self::CannotOpen, c"FIELDSTONE_BLOCK_CANNOT_OPEN"),
        (Self::OutOfRange, c"FIELDSTONE_BLOCK_OUT_OF_RANGE"),
        (Self::TooLong, c"FIELDSTONE_BLOCK_TOO_LONG"),
        (Self::Full, c"FIELDSTONE_BLOCK_FULL"),
        (Self::Closed, c"FIELDSTONE_BLOCK_CLOSED"),
        (Self::ReadOnly, c"FIELDSTONE_BLOCK_READ_ONLY"),
        (Self::NoSpace, c"FIELDSTONE_BLOCK_NO_SPACE"),
        (Self::NotSupported, c"FIELDSTONE_BLOCK_NOT_SUPPORTED"),
        (Self::Fenced, c"FIELDSTONE_BLOCK_FENCED"),
        (Self::Io, c"FIELDSTONE_BLOCK_IO"),
        (Self::InCallback, c"FIELDSTONE_BLOCK_IN_CALLBACK"),
        (Self::Internal, c"FIELDSTONE_BLOCK_INTERNAL"),
    ];

    /// The status of an answer.
    pub(crate) fn of(error: &EmbedError) -> Self {
        match error {
            EmbedError::Full | EmbedError::NoPlace => Self::Full,
            EmbedError::Closed => Self::Closed,
            EmbedError::TooLong { .. } => Self::TooLong,
            EmbedError::OnCore => Self::InCallback,
            EmbedError::Device(error) => match error {
                BlockError::OutOfRange { .. } => Self::OutOfRange,
                BlockError::NoSpace => Self::NoSpace,
                BlockError::NotSupported(_) => Self::NotSupported,
                BlockError::Io(_) => Self::Io,
                BlockError::Fenced(_) => Self::Fenced,
                BlockError::ReadOnly => Self::ReadOnly,
                BlockError::ShuttingDown => Self::Closed,
            },
        }
    }
}

/// The name of a status in the header, or `unknown status`. A static text.
#[unsafe(no_mangle)]
pub extern "C" fn fieldstone_block_status_name(status: c_int) -> *const c_char {
    let known = Status::ALL.iter().find(|(known, _)| *known as c_int == status);
    known.map_or(c"unknown status", |(_, name)| *name).as_ptr()
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl fieldstone_c_abi::Failure for Failure {
    fn internal(message: String) -> Self {
        Self::new(Status::Internal, message)
    }
    fn status(&self) -> c_int {
        self.status as c_int
    }
    fn message(&self) -> &str {
        &self.message
    }
}

impl From<PointerError> for Failure {
    fn from(error: PointerError) -> Self {
        let status = match error {
            PointerError::Null(_) => Status::Null,
            PointerError::TooMany { .. } => Status::OutOfRange,
        };
        Self::new(status, error.to_string())
    }
}

impl From<EmbedError> for Failure {
    fn from(error: EmbedError) -> Self {
        Self::new(Status::of(&error), error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let status = match error {
            OpenError::Target { .. } => Status::BadTarget,
            OpenError::Layer(_) => Status::BadLayer,
            OpenError::Start(_) | OpenError::Store { .. } | OpenError::Attach(_) => {
                Status::CannotOpen
            }
        };
        Self::new(status, error.to_string())
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        match error {
            CloseError::Queue(error) => error.into(),
            CloseError::Store(message) => Self::new(Status::Io, message),
        }
    }
}

/// Runs the body of a call, and returns the status. If `error` is not null, it also writes the
/// status and the message there. A panic of the body becomes [`Status::Internal`].
///
/// A panic leaves no state of the library half changed: no code under a lock of `aio` or of
/// `fieldstone_embed` can panic with the state half changed.
///
/// # Safety
/// `error` is null or points to writable memory for an [`Error`].
pub(crate) unsafe fn guarded(
    error: *mut Error,
    body: impl FnOnce() -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller guarantees the memory.
    unsafe { fieldstone_c_abi::guarded(error, body) }
}
