//! Turns pointers from C into references and slices.

use std::slice;

use fieldstone_codes::lent::{Lent, LentError};

use crate::status::{Failure, Status};

fn null(name: &str) -> Failure {
    Failure::new(Status::Null, format!("{name} is NULL"))
}

/// The target of a pointer.
///
/// # Safety
/// The pointer is null, or that of a live `T` that no thread writes during `'a`.
pub(crate) unsafe fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: by the caller's contract, a pointer that is not null is valid.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// The entries of an array. An array without entries may be null.
///
/// # Safety
/// The pointer is null, or that of `count` initialised entries that no thread writes during `'a`.
pub(crate) unsafe fn array<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    // No list here is longer than a stripe is wide. A wrong length is likely to be huge.
    if count > fieldstone_codes::MAX_SHARDS {
        let message = format!("{name} cannot have {count} entries");
        return Err(Failure::new(Status::OutOfRange, message));
    }
    // SAFETY: the entries are valid by the caller's contract; their size does not exceed an isize.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// The pointer is null, or that of writable memory for a `T`.
pub(crate) unsafe fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the memory is valid by the caller's contract.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Adds buffers of one length for reading: `argument[first]` and on.
pub(crate) fn read_all(
    lent: &mut Lent,
    argument: &'static str,
    pointers: &[*const u8],
    len_bytes: usize,
) -> Result<(), LentError> {
    let mut all = pointers.iter().enumerate();
    all.try_for_each(|(at, &pointer)| lent.read(argument, Some(at), pointer, len_bytes))
}

/// Adds buffers of one length for writing.
pub(crate) fn write_all(
    lent: &mut Lent,
    argument: &'static str,
    pointers: &[*mut u8],
    len_bytes: usize,
) -> Result<(), LentError> {
    let mut all = pointers.iter().enumerate();
    all.try_for_each(|(at, &pointer)| lent.write(argument, Some(at), pointer, len_bytes))
}
