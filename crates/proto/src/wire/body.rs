//! Writing and reading the fields of a body.

use bytes::Bytes;

use super::{WIRE_HEADER_BYTES, WireError, WireErrorKind};

/// Writes fields behind a space for the header.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.resize(WIRE_HEADER_BYTES, 0);
        Self(bytes)
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The number of items of a list. A number that does not fit makes the body too long anyway.
    pub(super) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// A text, cut to the length that an error reply may have.
    pub(super) fn text(&mut self, text: &str) {
        let mut end = text.len().min(super::TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }
}

/// Reads fields, and knows its position in the message.
pub(super) struct Reader<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { body, at: 0 }
    }

    pub(super) fn error(&self, kind: WireErrorKind) -> WireError {
        kind.at(WIRE_HEADER_BYTES + self.at)
    }

    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let rest = &self.body[self.at..];
        let Some(field) = rest.get(..len) else {
            return Err(self.error(WireErrorKind::Truncated(what)));
        };
        self.at += len;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], WireError> {
        let field = self.take(N, what)?;
        Ok(field.try_into().expect("N bytes were taken"))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self, what: &'static str) -> Result<u128, WireError> {
        self.array(what).map(u128::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        let at = self.at;
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(bad_value(what, u64::from(value), at)),
        }
    }

    /// A byte of 0 to `last`.
    pub(super) fn choice(&mut self, last: u8, what: &'static str) -> Result<u8, WireError> {
        let at = self.at;
        match self.u8(what)? {
            value if value <= last => Ok(value),
            value => Err(bad_value(what, u64::from(value), at)),
        }
    }

    /// The number of items of a list. All of them must fit into the rest of the body.
    pub(super) fn count(
        &mut self,
        item_bytes: usize,
        what: &'static str,
    ) -> Result<usize, WireError> {
        let count = self.u32(what)? as usize;
        let max = (self.body.len() - self.at) / item_bytes;
        if count > max {
            return Err(self.error(WireErrorKind::TooLong { what, len: count, max }));
        }
        Ok(count)
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<Bytes, WireError> {
        let len = self.count(1, what)?;
        self.take(len, what).map(Bytes::copy_from_slice)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<String, WireError> {
        let len = self.count(1, what)?;
        if len > super::TEXT_BYTES_MAX {
            let max = super::TEXT_BYTES_MAX;
            return Err(self.error(WireErrorKind::TooLong { what, len, max }));
        }
        let field = self.take(len, what)?;
        Ok(String::from_utf8_lossy(field).into_owned())
    }

    /// An error about the last field read, which starts `back` bytes before here.
    pub(super) fn value_error(&self, what: &'static str, value: u64, back: usize) -> WireError {
        bad_value(what, value, self.at - back)
    }

    /// Checks that the body ends here.
    pub(super) fn finish(self) -> Result<(), WireError> {
        match self.body.len() - self.at {
            0 => Ok(()),
            left => Err(self.error(WireErrorKind::Trailing(left))),
        }
    }
}

fn bad_value(what: &'static str, value: u64, at: usize) -> WireError {
    WireErrorKind::Value { what, value }.at(WIRE_HEADER_BYTES + at)
}
