//! What the C libraries share: what C passes becomes references and slices, errors become a number
//! and a message in the caller's memory, and no panic unwinds into C.
//!
//! Each library has its own numbers and names of statuses, and its own header. Its type of failure
//! implements [`Failure`].

mod guard;
mod pointers;

pub use guard::{Error, Failure, MESSAGE_BYTES, guarded};
pub use pointers::{PointerError, array, reference, write};
