//! Reads encoded values, and never past their end.

use bytes::{Buf, Bytes};

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}: {fault}")]
pub struct DecodeError {
    /// The value that was to be read.
    pub what: &'static str,
    /// Where it begins, from the start of the message or structure.
    pub offset: usize,
    /// The fault.
    pub fault: Fault,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end inside the value.
    #[error("{needed} bytes are needed and {left} are left")]
    Short {
        /// Bytes that the value needs.
        needed: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// The writer says that a reader must know at least this version.
    #[error("it has to be read as version {compat}, and version {known} is the newest known")]
    TooNew {
        /// The version that a reader must know.
        compat: u8,
        /// The newest version that this crate knows.
        known: u8,
    },
    /// The version is older than the oldest that this crate reads.
    #[error("it has version {version}, and version {oldest} is the oldest that is read")]
    TooOld {
        /// The version of the section.
        version: u8,
        /// The oldest version that is read.
        oldest: u8,
    },
    /// The value is none of the values that are allowed.
    #[error("the value {0} is not allowed")]
    Value(u64),
    /// A text is not UTF-8.
    #[error("it is not text")]
    Text,
}

/// A position in encoded bytes. Byte strings that it gives share the memory of the input.
#[derive(Clone, Debug)]
pub struct Decoder {
    rest: Bytes,
    offset: usize,
}

/// The fields of a section.
#[derive(Clone, Debug)]
pub struct Section {
    /// The version that the writer used.
    pub version: u8,
    /// The fields.
    pub fields: Decoder,
}

macro_rules! integers {
    ($($name:ident: $type:ty, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            ///
            /// # Errors
            /// The bytes end before.
            pub fn $name(&mut self, what: &'static str) -> Result<$type, DecodeError> {
                const LEN: usize = size_of::<$type>();
                if self.rest.len() < LEN {
                    return Err(self.short(what, LEN as u64));
                }
                let mut value = [0; LEN];
                value.copy_from_slice(&self.rest[..LEN]);
                self.skip_unchecked(LEN);
                Ok(<$type>::from_le_bytes(value))
            }
        )*
    };
}

impl Decoder {
    /// A decoder at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    /// Bytes that are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// True if no byte is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Where the decoder stands, from the start of the outermost bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    integers! {
        u8: u8, "One byte.";
        u16: u16, "A 16-bit number.";
        u32: u32, "A 32-bit number.";
        u64: u64, "A 64-bit number.";
        i32: i32, "A signed 32-bit number.";
        i64: i64, "A signed 64-bit number.";
    }

    /// A byte that is 0 or 1. Any other value counts as true, as in Ceph.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        Ok(self.u8(what)? != 0)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn bytes(&mut self, len: usize, what: &'static str) -> Result<Bytes, DecodeError> {
        if self.rest.len() < len {
            return Err(self.short(what, len as u64));
        }
        let taken = self.rest.split_to(len);
        self.offset += len;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let Some(array) = self.rest.first_chunk().copied() else {
            return Err(self.short(what, N as u64));
        };
        self.skip_unchecked(N);
        Ok(array)
    }

    /// Passes over the next `len` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn skip(&mut self, len: usize, what: &'static str) -> Result<(), DecodeError> {
        if self.rest.len() < len {
            return Err(self.short(what, len as u64));
        }
        self.skip_unchecked(len);
        Ok(())
    }

    /// All bytes that are left.
    #[must_use]
    pub fn take_rest(&mut self) -> Bytes {
        self.offset += self.rest.len();
        std::mem::take(&mut self.rest)
    }

    /// A 32-bit length and as many bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn blob(&mut self, what: &'static str) -> Result<Bytes, DecodeError> {
        let len = self.u32(what)?;
        self.bytes(len as usize, what)
    }

    /// A 32-bit length and a text of as many bytes.
    ///
    /// # Errors
    /// Fewer bytes are left, or they are not UTF-8.
    pub fn string(&mut self, what: &'static str) -> Result<String, DecodeError> {
        let offset = self.offset;
        let bytes = self.blob(what)?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| DecodeError {
            what,
            offset,
            fault: Fault::Text,
        })
    }

    /// A 32-bit count of elements that each take `least` bytes at least.
    ///
    /// # Errors
    /// The bytes that are left cannot hold as many elements.
    pub fn count(&mut self, least: usize, what: &'static str) -> Result<usize, DecodeError> {
        let offset = self.offset;
        let count = self.u32(what)?;
        let needed = u64::from(count) * least as u64;
        if needed > self.rest.len() as u64 {
            let fault = Fault::Short { needed, left: self.rest.len() };
            return Err(DecodeError { what, offset, fault });
        }
        Ok(count as usize)
    }

    /// A count and as many elements, each of `least` bytes at least.
    ///
    /// # Errors
    /// The bytes cannot hold as many elements, or an element is wrong.
    pub fn list<T>(
        &mut self,
        least: usize,
        what: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count(least.max(1), what)?;
        (0..count).map(|_| element(self)).collect()
    }

    /// A section, of which versions up to `known` can be read. The decoder goes on behind it.
    ///
    /// # Errors
    /// The section demands a newer reader, or is longer than the bytes that are left.
    pub fn section(&mut self, known: u8, what: &'static str) -> Result<Section, DecodeError> {
        let offset = self.offset;
        let version = self.u8(what)?;
        let compat = self.u8(what)?;
        if compat > known {
            return Err(DecodeError { what, offset, fault: Fault::TooNew { compat, known } });
        }
        let len = self.u32(what)? as usize;
        let start = self.offset;
        let rest = self.bytes(len, what)?;
        Ok(Section { version, fields: Decoder { rest, offset: start } })
    }

    /// The error of a value that is not allowed and that begins at `offset`.
    #[must_use]
    pub fn refused(offset: usize, value: u64, what: &'static str) -> DecodeError {
        DecodeError { what, offset, fault: Fault::Value(value) }
    }

    fn short(&self, what: &'static str, needed: u64) -> DecodeError {
        let fault = Fault::Short { needed, left: self.rest.len() };
        DecodeError { what, offset: self.offset, fault }
    }

    /// Moves on. It does not split the bytes: each part would count as a user of the memory, by an
    /// atomic operation, and a message has dozens of numbers.
    fn skip_unchecked(&mut self, len: usize) {
        self.rest.advance(len);
        self.offset += len;
    }
}

impl Section {
    /// Refuses a section older than `oldest`.
    ///
    /// # Errors
    /// The section is older.
    pub fn at_least(self, oldest: u8, what: &'static str) -> Result<Self, DecodeError> {
        if self.version < oldest {
            let fault = Fault::TooOld { version: self.version, oldest };
            return Err(DecodeError { what, offset: self.fields.offset, fault });
        }
        Ok(self)
    }
}
