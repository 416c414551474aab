//! Methods of object classes: what an OSD computes itself, next to an object.
//!
//! A method reads the object as it was before the request, and adds changes to the request's
//! transaction. So it does not see what an earlier operation of the same request wrote, except for
//! the object's existence and size. Inputs and outputs are written from Ceph's classes, apart from
//! the client's code, so that a fault of the client shows.

mod checksum;
mod lock;
pub mod rbd;

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};
use fieldstone_rados::errno::Errno;

use crate::objects::Execution;

/// A method: input to output.
pub(crate) type Method = fn(&mut Execution<'_>, Bytes) -> Result<Bytes, Errno>;

/// A method, and whether it may write.
pub(crate) fn find(class: &[u8], method: &[u8]) -> Option<(bool, Method)> {
    let method = std::str::from_utf8(method).ok()?;
    match class {
        b"lock" => lock::find(method),
        b"rbd" => rbd::find(method),
        _ => None,
    }
}

/// Whether a method may write; `None` if there is no such method.
pub(crate) fn writes(class: &[u8], method: &[u8]) -> Option<bool> {
    find(class, method).map(|(writes, _)| writes)
}

/// All methods, as class and name.
#[cfg(test)]
pub(crate) fn all_methods() -> impl Iterator<Item = (&'static str, &'static str)> {
    let locks = ["lock", "unlock", "break_lock", "get_info", "list_locks", "set_cookie"];
    let locks = locks.into_iter().chain(["assert_locked"]).map(|method| ("lock", method));
    locks.chain(rbd::names().map(|method| ("rbd", method)))
}

/// The error of a wrong input.
fn wrong_input(_: DecodeError) -> Errno {
    Errno::EINVAL
}

/// The error of a stored value that cannot be read.
fn damaged(_: DecodeError) -> Errno {
    Errno::EIO
}

/// Reads a method's input.
fn input<T>(
    bytes: Bytes,
    read: impl FnOnce(&mut Decoder) -> Result<T, DecodeError>,
) -> Result<T, Errno> {
    read(&mut Decoder::new(bytes)).map_err(wrong_input)
}

/// Writes a method's output, or a value to store.
fn encoded(fill: impl FnOnce(&mut Encoder)) -> Bytes {
    let mut into = Encoder::new();
    fill(&mut into);
    into.finish()
}

/// An output without a byte.
fn nothing() -> Result<Bytes, Errno> {
    Ok(Bytes::new())
}
