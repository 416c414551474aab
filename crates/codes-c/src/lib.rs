//! The erasure codes behind a C ABI: `libfieldstone_codes` and `include/fieldstone_codes.h`.
//!
//! The header is the documentation for users; this crate implements it. Every function
//!
//! - checks its pointers, and all properties of buffers that an address shows: null, too long,
//!   overlapping ([`fieldstone_codes::foreign_buffers`]), and every number and length
//!   ([`fieldstone_codes::stripe`]);
//! - returns a [status](status::Status), and on request writes a message into the caller's memory,
//!   so no thread gets another thread's error;
//! - never unwinds into C: a panic, which is a defect of the library, becomes a status.
//!
//! | module   | idea |
//! |----------|------|
//! | `status` | numbers of errors |
//! | `pointers` | arrays and buffers that C passes |
//! | `code`   | a code: encode, decode, update, verify, locate |
//! | `repair` | a plan: the ranges to read, and the computation of the lost shards |
//!
//! [`fieldstone_c_abi`] makes references of pointers and keeps panics from C.
//!
//! The paragraph MEMORY of the header says once, for all functions, who owns the memory of a
//! pointer and how long it must live. `# Safety` sections here add only the particular requirements
//! of a function.

mod code;
mod pointers;
mod repair;
mod status;

use std::ffi::c_char;

/// The version of the library, as a static text.
#[unsafe(no_mangle)]
pub extern "C" fn fieldstone_codes_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
