//! The erasure codes inside Ceph's daemons: the Rust half of `libec_fieldstone.so`.
//!
//! A Ceph OSD encodes and repairs the objects of an erasure-coded pool with a plug-in, a C++ class
//! in a shared library. The monitors load the same library to check the profile of a pool. This
//! crate has all decisions and all arithmetic of our plug-in. `cxx/plugin.cc` has the class: it
//! turns maps, sets and buffer lists of C++ into arrays, and calls [`abi`]. Decision 0032 says why
//! it is split so. `make ceph-plugin` builds both into one library; `cargo` alone builds this half,
//! without a C++ compiler.
//!
//! | module | idea |
//! |--------|------|
//! | [`request`] | the keys and values of a profile, as users write them in Ceph |
//! | [`coder`]   | what the class can be asked: chunk lengths, chunks to read, encode, decode |
//! | [`abi`]     | the coder for C++: pointers and lengths checked, panics stopped |
//!
//! # What must hold inside a daemon
//!
//! - **No thread.** Every call computes on the thread that calls. The same coder is used by several
//!   threads at once; it does not change.
//! - **No abort of our own.** A panic becomes the error EIO, with a message on stderr. Errors are
//!   returned. (The OSD itself stops when it gets an error for a stripe that it expects to decode;
//!   it does so with every plug-in.)
//! - **Nothing is believed.** Lengths that come from disks and from other OSDs are compared with
//!   each other and with the code before any byte is touched.
//! - **What the monitor accepts, every OSD accepts.** A profile is checked by the same code there.

pub mod abi;
pub mod coder;
pub mod request;

use std::ffi::c_int;
use std::fmt;

/// "Input/output error": too few chunks are left, or a defect of the plug-in.
pub const EIO: c_int = 5;
/// "Invalid argument": the profile, a chunk number or a length is wrong.
pub const EINVAL: c_int = 22;
/// "Numerical result out of range": the caller's array is too short.
pub const ERANGE: c_int = 34;

/// Why a call failed: what the daemon gets, and what people read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the error, positive, as in `errno.h`.
    pub errno: c_int,
    /// What happened, to what, and what to do.
    pub message: String,
}

impl Refusal {
    /// An argument, or a value in a profile, is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { errno: EINVAL, message: message.into() }
    }

    /// The data cannot be had.
    pub fn lost(message: impl Into<String>) -> Self {
        Self { errno: EIO, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
