//! The errors of binary maps.

use thiserror::Error;

use crate::check::BuildError;

/// Why bytes are no binary map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("not a usable binary map: at byte {at_byte}: {problem}")]
pub struct DecodeError {
    /// Offset of the first wrong byte.
    pub at_byte: usize,
    /// The error.
    pub problem: Problem,
}

/// An error at a place of a binary map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The bytes end too early.
    #[error("the data end within {what}, which needs {needs} bytes where {left} are left")]
    Truncated {
        /// The field that is read.
        what: &'static str,
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// Another magic number.
    #[error(
        "a map begins with {:#x}, and this with {found:#x}; is it a text map, or another file?",
        super::MAGIC
    )]
    Magic {
        /// The number in the bytes.
        found: u32,
    },
    /// A value that has no meaning.
    #[error("{what} is {value}; it should be {expected}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: i64,
        /// The possible values.
        expected: &'static str,
    },
    /// A bucket in the slot of another.
    #[error("bucket {found} is in the slot of bucket {slot_of}")]
    Slot {
        /// The bucket's own number.
        found: i32,
        /// The number that belongs to the slot.
        slot_of: i64,
    },
    /// A name that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
    },
    /// Bytes follow the map.
    #[error("{count} bytes follow the end of the map")]
    Trailing {
        /// Number of bytes.
        count: usize,
    },
    /// Well-formed, but not a map that can be used.
    #[error(transparent)]
    Map(#[from] BuildError),
}
