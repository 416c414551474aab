//! The numbers of errors, and which error of the codes has which.

use std::ffi::{CStr, c_char, c_int};

use fieldstone_c_abi::{Error, PointerError};
use fieldstone_codes::foreign_buffers::BufferError;
use fieldstone_codes::{CodeError, ProfileError, StripeError};

/// The results of calls: `enum fieldstone_status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// A required pointer is null.
    Null = 1,
    /// The text is not the name of a code.
    BadProfile = 2,
    /// A shard does not exist, is named twice, or is named as lost and as available.
    BadShard = 3,
    /// Too few shards are left: the data is lost until more shards come back.
    TooFewShards = 4,
    /// Lengths do not fit the code or each other.
    BadLength = 5,
    /// A written buffer overlaps another one.
    Overlap = 6,
    /// A number or range is out of bounds.
    OutOfRange = 7,
    /// A defect of the library.
    Internal = 8,
}

impl Status {
    const ALL: [(Self, &CStr); 9] = [
        (Self::Ok, c"FIELDSTONE_OK"),
        (Self::Null, c"FIELDSTONE_NULL"),
        (Self::BadProfile, c"FIELDSTONE_BAD_PROFILE"),
        (Self::BadShard, c"FIELDSTONE_BAD_SHARD"),
        (Self::TooFewShards, c"FIELDSTONE_TOO_FEW_SHARDS"),
        (Self::BadLength, c"FIELDSTONE_BAD_LENGTH"),
        (Self::Overlap, c"FIELDSTONE_OVERLAP"),
        (Self::OutOfRange, c"FIELDSTONE_OUT_OF_RANGE"),
        (Self::Internal, c"FIELDSTONE_INTERNAL"),
    ];
}

/// The name of a status as in the header, or `unknown status`. A static text.
#[unsafe(no_mangle)]
pub extern "C" fn fieldstone_status_name(status: c_int) -> *const c_char {
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

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        Self::new(Status::BadProfile, error.to_string())
    }
}

impl From<CodeError> for Failure {
    fn from(error: CodeError) -> Self {
        let status = match error {
            CodeError::TooFewShards { .. } => Status::TooFewShards,
            CodeError::NoSuchElements { .. } => Status::OutOfRange,
            CodeError::NothingLost
            | CodeError::NoSuchShard { .. }
            | CodeError::NamedTwice { .. }
            | CodeError::LostAndAvailable { .. }
            | CodeError::NoSuchDataShard { .. } => Status::BadShard,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StripeError> for Failure {
    fn from(error: StripeError) -> Self {
        let status = match error {
            StripeError::Code(error) => return error.into(),
            StripeError::OutOfShard { .. } => Status::OutOfRange,
            StripeError::Count { .. }
            | StripeError::Length { .. }
            | StripeError::Granule { .. }
            | StripeError::PartOfWord { .. } => Status::BadLength,
        };
        Self::new(status, error.to_string())
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        let status = match error {
            BufferError::Null(_) => Status::Null,
            BufferError::TooLong(_) => Status::BadLength,
            BufferError::Overlap { .. } => Status::Overlap,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs the body of a call. In every case, C gets a status, and a message if it asks for one.
///
/// After a panic, later calls can still use codes and plans: they do not change, and their caches
/// are valid after every step.
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
