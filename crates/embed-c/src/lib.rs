//! A store inside the caller's process, behind a C ABI: `libfieldstone_block` and
//! `include/fieldstone_block.h`.
//!
//! The header is the documentation for users; this crate is its other side. It translates arguments
//! and answers, and leaves all else to [`fieldstone_embed`]. [`fieldstone_c_abi`] makes references
//! of pointers and keeps panics from C.
//!
//! | module    | idea |
//! |-----------|------|
//! | `status`  | numbers of errors |
//! | `memory`  | arrays of `struct iovec`: what is read into them, and written from them |
//! | `aio`     | requests under way, and who is told |
//! | `device`  | a device: open, close, size, completion queue |
//! | `request` | the calls that read, write and so on, each with its `aio` |
//!
//! What a pointer must point to, who owns it and how long it must live is said once, in the header,
//! and holds for all functions: `# Safety` sections here say only what is particular.

mod aio;
mod device;
mod memory;
mod request;
mod status;

use std::ffi::c_char;

/// The version of the library, as a static text.
#[unsafe(no_mangle)]
pub extern "C" fn fieldstone_block_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
