//! The result of a call: a number for programs, a message for people.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fieldstone_codes::lent::LentError;
use fieldstone_codes::{CodeError, ProfileError, StripeError};

/// Bytes of a message, with its final zero.
const MESSAGE_BYTES: usize = 508;

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

/// `fieldstone_error` of the header: the result of a call, in the caller's memory.
#[repr(C)]
pub struct Error {
    status: c_int,
    message: [c_char; MESSAGE_BYTES],
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

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("a defect of the library: {}", text.unwrap_or("no message"));
        Self::new(Status::Internal, message)
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

impl From<LentError> for Failure {
    fn from(error: LentError) -> Self {
        let status = match error {
            LentError::Null(_) => Status::Null,
            LentError::TooLong(_) => Status::BadLength,
            LentError::Overlap { .. } => Status::Overlap,
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
    let result = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Failure::panicked(panic.as_ref())));
    let (status, message) = match &result {
        Ok(()) => (Status::Ok, ""),
        Err(failure) => (failure.status, &failure.message[..]),
    };
    if !error.is_null() {
        // SAFETY: the memory is valid by the caller's contract. It may be uninitialised: raw
        // pointers write the fields.
        unsafe {
            (&raw mut (*error).status).write(status as c_int);
            let text = shortened(message);
            let to = (&raw mut (*error).message).cast::<u8>();
            to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            to.add(text.len()).write(0);
        }
    }
    status as c_int
}

/// As many whole characters of a message as there is room for.
fn shortened(message: &str) -> &str {
    // In C, a zero ends the text.
    let message = message.split('\0').next().unwrap_or("");
    let fits = |&end: &usize| message.is_char_boundary(end);
    let end = (0..message.len().min(MESSAGE_BYTES - 1) + 1).rev().find(fits);
    &message[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: impl FnOnce() -> Result<(), Failure>) -> (c_int, c_int, String) {
        let mut error = Error { status: -1, message: [0x55; MESSAGE_BYTES] };
        // SAFETY: the memory is the local variable above.
        let status = unsafe { guarded(&raw mut error, body) };
        let bytes: Vec<u8> = error.message.iter().map(|&byte| byte as u8).collect();
        let message = CStr::from_bytes_until_nul(&bytes).expect("messages end with a zero");
        (status, error.status, message.to_str().expect("whole characters").to_owned())
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let (status, written, message) = run(|| panic!("plan {} is odd", 7));
        assert_eq!((status, written), (8, 8));
        assert_eq!(message, "a defect of the library: plan 7 is odd");
        // SAFETY: the pointer is null, so no memory is written.
        assert_eq!(unsafe { guarded(std::ptr::null_mut(), || panic!("again")) }, 8);
    }

    #[test]
    fn messages_are_cut_where_a_character_ends() {
        assert_eq!(run(|| Ok(())), (0, 0, String::new()));
        let long = format!("a{}", "é".repeat(400));
        let (_, _, message) = run(|| Err(Failure::new(Status::BadShard, long.clone())));
        assert_eq!(message.len(), MESSAGE_BYTES - 1);
        assert!(long.starts_with(&message));
        let (_, _, message) = run(|| Err(Failure::new(Status::BadShard, "one\0two")));
        assert_eq!(message, "one");
    }
}
