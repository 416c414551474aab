//! Reads numbers, strings and counts from untrusted bytes.

use super::error::{DecodeError, Problem};

/// A place in the bytes of a map.
#[derive(Clone, Debug)]
pub(crate) struct MapCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> MapCursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.left() == 0
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let left = self.left();
        if len > left {
            return Err(self.error(Problem::Truncated { what, needs: len as u64, left }));
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        self.array(what).map(i64::from_le_bytes)
    }

    /// A count of elements of at least `each` bytes: the bytes left bound it.
    pub(crate) fn count(&mut self, each: usize, what: &'static str) -> Result<usize, DecodeError> {
        let start = self.at;
        let count = self.u32(what)?;
        self.believe(start, u64::from(count), each, what)
    }

    /// As [`MapCursor::count`], for a count that was read at `start`.
    pub(crate) fn believe(
        &self,
        start: usize,
        count: u64,
        each: usize,
        what: &'static str,
    ) -> Result<usize, DecodeError> {
        let needs = count.saturating_mul(each as u64);
        let left = self.left();
        if needs > left as u64 {
            let problem = Problem::Truncated { what, needs, left };
            return Err(DecodeError { at_byte: start, problem });
        }
        Ok(count as usize)
    }

    pub(crate) fn u32s(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<Vec<u32>, DecodeError> {
        self.believe(self.at, count as u64, 4, what)?;
        (0..count).map(|_| self.u32(what)).collect()
    }

    /// A string of that many bytes.
    pub(crate) fn text(
        &mut self,
        len_bytes: usize,
        what: &'static str,
    ) -> Result<String, DecodeError> {
        let start = self.at;
        let bytes = self.take(len_bytes, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(DecodeError {
                at_byte: start + e.valid_up_to(),
                problem: Problem::NotUtf8 { what },
            }),
        }
    }

    /// An error at the present place.
    pub(crate) fn error(&self, problem: Problem) -> DecodeError {
        DecodeError { at_byte: self.at, problem }
    }

    /// A value read at `start` that has no meaning.
    pub(crate) fn value(
        start: usize,
        what: &'static str,
        value: impl Into<i64>,
        expected: &'static str,
    ) -> DecodeError {
        let problem = Problem::Value { what, value: value.into(), expected };
        DecodeError { at_byte: start, problem }
    }
}
