//! The result of a call: a status for programs, and a message for people.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a message, including the zero at its end.
pub const MESSAGE_BYTES: usize = 508;

/// Why a call of a library failed: a status of the library, and a message.
pub trait Failure: Sized {
    /// A failure that a defect of the library causes.
    fn internal(message: String) -> Self;
    /// The status that C gets. Zero means success, so no failure has the status zero.
    fn status(&self) -> c_int;
    /// The message for people.
    fn message(&self) -> &str;
}

/// The result of a call, in the caller's memory: the struct `…_error` of each header.
#[repr(C)]
pub struct Error {
    status: c_int,
    message: [c_char; MESSAGE_BYTES],
}

fn panicked<F: Failure>(panic: &(dyn Any + Send)) -> F {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    F::internal(format!("a defect of the library: {}", text.unwrap_or("no message")))
}

/// Runs the body of a call, and returns the status. If `error` is not null, it also writes the
/// status and the message there. A panic of the body becomes a [`Failure::internal`].
///
/// Whether the body returns or panics, it must leave the library in a state that later calls can
/// use.
///
/// # Safety
/// `error` is null or points to writable memory for an [`Error`].
pub unsafe fn guarded<F: Failure>(
    error: *mut Error,
    body: impl FnOnce() -> Result<(), F>,
) -> c_int {
    let result =
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
    let (status, message) = match &result {
        Ok(()) => (0, ""),
        Err(failure) => (failure.status(), failure.message()),
    };
    if !error.is_null() {
        // SAFETY: the caller guarantees the memory. The memory may be uninitialised, because the
        // fields are written through raw pointers.
        unsafe {
            (&raw mut (*error).status).write(status);
            let text = shortened(message);
            let to = (&raw mut (*error).message).cast::<u8>();
            to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            to.add(text.len()).write(0);
        }
    }
    status
}

/// The longest prefix of the message that has room, cut between characters.
fn shortened(message: &str) -> &str {
    // C takes a zero byte for the end of a text.
    let message = message.split('\0').next().unwrap_or("");
    let fits = |&end: &usize| message.is_char_boundary(end);
    let end = (0..message.len().min(MESSAGE_BYTES - 1) + 1).rev().find(fits);
    &message[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    struct Fault(c_int, String);

    impl Failure for Fault {
        fn internal(message: String) -> Self {
            Self(8, message)
        }
        fn status(&self) -> c_int {
            self.0
        }
        fn message(&self) -> &str {
            &self.1
        }
    }

    fn run(body: impl FnOnce() -> Result<(), Fault>) -> (c_int, c_int, String) {
        let mut error = Error { status: -1, message: [0x55; MESSAGE_BYTES] };
        // SAFETY: `error` is a local variable.
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
        let body = || -> Result<(), Fault> { panic!("again") };
        // SAFETY: a null pointer is allowed.
        assert_eq!(unsafe { guarded(std::ptr::null_mut(), body) }, 8);
    }

    #[test]
    fn messages_are_cut_where_a_character_ends() {
        assert_eq!(run(|| Ok(())), (0, 0, String::new()));
        let long = format!("a{}", "é".repeat(400));
        let (_, _, message) = run(|| Err(Fault(3, long.clone())));
        assert_eq!(message.len(), MESSAGE_BYTES - 1);
        assert!(long.starts_with(&message));
        let (_, _, message) = run(|| Err(Fault(3, "one\0two".to_owned())));
        assert_eq!(message, "one");
    }
}
