//! What C passes becomes references and slices.

use std::slice;

/// What is wrong with a pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It must not be null.
    #[error("{0} is NULL")]
    Null(String),
    /// An array has more entries than any call can mean.
    #[error("{name} cannot have {count} entries")]
    TooMany {
        /// The argument.
        name: String,
        /// The entries.
        count: usize,
    },
}

fn null(name: &str) -> PointerError {
    PointerError::Null(name.to_owned())
}

/// What a pointer points to.
///
/// # Errors
/// It is null.
///
/// # Safety
/// The pointer is null or that of a live `T` that no thread writes while `'a` lasts.
pub unsafe fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, PointerError> {
    // SAFETY: the caller vouches for what is not null.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// An array of at most `max` entries. One of no entries may be null.
///
/// # Errors
/// It is null and has entries, or has too many: a length that is wrong is likely to be huge.
///
/// # Safety
/// The pointer is null or that of `count` initialised entries that no thread writes while `'a`
/// lasts. So many as `max` entries do not exceed an isize.
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
    // SAFETY: the caller vouches for the entries; so few do not exceed an isize.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Writes a result to where the caller wants it.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null or that of writable memory for a `T`.
pub unsafe fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), PointerError> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller vouches for the memory.
    unsafe { pointer.write(value) };
    Ok(())
}
