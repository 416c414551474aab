//! Arrays and buffers that C passes.

use fieldstone_c_abi::PointerError;
use fieldstone_codes::foreign_buffers::{BufferError, ForeignBuffers};

/// An array. One of no entries may be null. No list here is longer than a stripe is wide.
///
/// # Safety
/// As [`fieldstone_c_abi::array`].
pub(crate) unsafe fn array<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], PointerError> {
    // SAFETY: the caller guarantees the entries.
    unsafe { fieldstone_c_abi::array(name, pointer, count, fieldstone_codes::MAX_SHARDS) }
}

/// Adds buffers of one length for reading: `argument[first]` and on.
pub(crate) fn read_all(
    buffers: &mut ForeignBuffers,
    argument: &'static str,
    pointers: &[*const u8],
    len_bytes: usize,
) -> Result<(), BufferError> {
    let mut all = pointers.iter().enumerate();
    all.try_for_each(|(at, &pointer)| buffers.read(argument, Some(at), pointer, len_bytes))
}

/// Adds buffers of one length for writing.
pub(crate) fn write_all(
    buffers: &mut ForeignBuffers,
    argument: &'static str,
    pointers: &[*mut u8],
    len_bytes: usize,
) -> Result<(), BufferError> {
    let mut all = pointers.iter().enumerate();
    all.try_for_each(|(at, &pointer)| buffers.write(argument, Some(at), pointer, len_bytes))
}
