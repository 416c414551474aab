//! Reads little-endian structures, and never past their end.
//!
//! Ceph's structures are *versioned*: one byte of version, one byte with the lowest version that a
//! reader must know, four bytes of length, then the fields. New fields come at the end, so a reader
//! takes the fields that it knows and continues after the length.

use super::DecodeError;

/// A position in the bytes of a map. Copies are cheap and independent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OsdMapCursor<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes[0]` in the file, for errors.
    base: usize,
    at: usize,
}

/// A versioned structure: its version, and its fields.
pub(super) struct Versioned<'a> {
    pub(super) version: u8,
    pub(super) fields: OsdMapCursor<'a>,
}

impl<'a> OsdMapCursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, base: 0, at: 0 }
    }

    /// Offset in the file.
    pub(super) fn offset(&self) -> usize {
        self.base + self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if len > self.left() {
            let (offset, left) = (self.offset(), self.left());
            return Err(DecodeError::Truncated { what, offset, needed: len, left });
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn uuid(&mut self, what: &'static str) -> Result<[u8; 16], DecodeError> {
        self.array(what)
    }

    /// Seven bits per byte, the lowest first; a set top bit means that more bytes follow.
    pub(super) fn varint(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::BadVarint { what, offset: self.offset() })
    }

    /// A count of elements of at least `min_len` bytes each. A count of more elements than the
    /// bytes can hold is an error, so memory is only allocated for elements that are there.
    pub(super) fn count(
        &mut self,
        min_len: usize,
        what: &'static str,
    ) -> Result<usize, DecodeError> {
        let offset = self.offset();
        let count = self.u32(what)? as usize;
        let (needed, left) = (count.saturating_mul(min_len), self.left());
        if needed > left {
            return Err(DecodeError::Truncated { what, offset, needed, left });
        }
        Ok(count)
    }

    /// A length and as many bytes.
    pub(super) fn blob(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.count(1, what)?;
        self.take(len, what)
    }

    /// A string. Names are bytes to Ceph; bytes that are not UTF-8 are replaced.
    pub(super) fn string(&mut self, what: &'static str) -> Result<String, DecodeError> {
        Ok(String::from_utf8_lossy(self.blob(what)?).into_owned())
    }

    /// A length and as many bytes, as a separate cursor.
    pub(super) fn sub_blob(&mut self, what: &'static str) -> Result<Self, DecodeError> {
        let len = self.count(1, what)?;
        self.sub(len, what)
    }

    /// `len` bytes as a separate cursor.
    fn sub(&mut self, len: usize, what: &'static str) -> Result<Self, DecodeError> {
        let base = self.offset();
        Ok(Self { bytes: self.take(len, what)?, base, at: 0 })
    }

    /// A versioned structure; `known` is the newest version whose fields this crate knows.
    pub(super) fn versioned(
        &mut self,
        known: u8,
        what: &'static str,
    ) -> Result<Versioned<'a>, DecodeError> {
        let offset = self.offset();
        let version = self.u8(what)?;
        let min_version = self.u8(what)?;
        let len = self.count(1, what)?;
        if min_version > known {
            return Err(DecodeError::TooNew { what, offset, min_version, known });
        }
        Ok(Versioned { version, fields: self.sub(len, what)? })
    }

    /// Skips a versioned structure.
    pub(super) fn skip_versioned(&mut self, what: &'static str) -> Result<(), DecodeError> {
        self.versioned(u8::MAX, what).map(drop)
    }
}

impl Versioned<'_> {
    /// Refuses versions older than `oldest`.
    pub(super) fn since(&self, oldest: u8, what: &'static str) -> Result<(), DecodeError> {
        let (version, offset) = (self.version, self.fields.base);
        if version < oldest {
            return Err(DecodeError::TooOld { what, offset, version, oldest });
        }
        Ok(())
    }
}
