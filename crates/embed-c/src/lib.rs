//! Opens stores inside the caller's process through a C ABI: `libfieldstone_block` and
//! `include/fieldstone_block.h`.
//!
//! The header is the documentation for users. This crate only translates arguments and answers.
//! [`fieldstone_embed`] does the work. [`fieldstone_c_abi`] turns pointers into references and
//! stops panics before C.
//!
//! | module    | idea |
//! |-----------|------|
//! | `status`  | the statuses |
//! | `memory`  | arrays of `struct iovec` as buffers of reads and writes |
//! | `aio`     | requests under way, and the receivers of their answers |
//! | `device`  | a device: open, close, size, completion queue |
//! | `request` | reads, writes and so on: calls that wait and `aio` calls |
//!
//! The header says for all functions what a pointer must point to, who owns the memory and how long
//! it must live. A `# Safety` section here says only what the header does not.

mod aio;
mod device;
mod memory;
mod request;
mod status;

use std::ffi::c_char;

/// The version of the library: a static text.
#[unsafe(no_mangle)]
pub extern "C" fn fieldstone_block_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
