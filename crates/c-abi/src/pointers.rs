//! Turns pointers of C into references and slices.

use std::slice;

/// An error of a pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// The pointer is null, but must not be.
    #[error("{0} is NULL")]
    Null(String),
    /// The array has more entries than the call accepts.
    #[error("{name} cannot have {count} entries")]
    TooMany {
        /// The name of the argument.
        name: String,
        /// The number of entries.
        count: usize,
    },
}

fn null(name: &str) -> PointerError {
    PointerError::Null(name.to_owned())
}

/// Makes a reference of a pointer.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or points to a live `T` that no thread writes during `'a`.
pub unsafe fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, PointerError> {
    // SAFETY: the caller guarantees a pointer that is not null.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Makes a slice of an array of at most `max` entries. The pointer to an empty array may be null.
///
/// # Errors
/// The pointer is null and `count` is not 0. Or `count` is larger than `max`: a wrong length is
/// usually huge.
///
/// # Safety
/// The pointer is null, or points to `count` initialised entries that no thread writes during `'a`.
/// `max` entries have at most `isize::MAX` bytes.
pub unsafe fn array<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
    max: usize,
) -> Result<&'a [T], PointerError> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    if count > max {
        return Err(PointerError::TooMany { name: name.to_owned(), count });
    }
    // SAFETY: the caller guarantees the entries, and at most `isize::MAX` bytes of `max` entries.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Writes a result through the caller's pointer.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or points to writable memory for a `T`.
pub unsafe fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), PointerError> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller guarantees the memory.
    unsafe { pointer.write(value) };
    Ok(())
}
