//! The common parts of the C libraries. They turn the pointers of C into references and slices.
//! They write errors as a status and a message into the caller's memory. They stop panics before C.
//!
//! Each library has its own statuses and its own header. Its error type implements [`Failure`].

mod guard;
mod pointers;

pub use guard::{Error, Failure, MESSAGE_BYTES, guarded};
pub use pointers::{PointerError, array, reference, write};
