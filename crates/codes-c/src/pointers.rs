//! Arrays and buffers that C passes.

use fieldstone_c_abi::PointerError;
use fieldstone_codes::lent::{Lent, LentError};

/// An array. One of no entries may be null. No list here is longer than a stripe is wide.
///
/// # Safety
/// As [`fieldstone_c_abi::array`].
pub(crate) unsafe fn array<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], PointerError> {
    // SAFETY: the caller vouches for the entries.
    unsafe { fieldstone_c_abi::array(name, pointer, count, fieldstone_codes::MAX_SHARDS) }
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
