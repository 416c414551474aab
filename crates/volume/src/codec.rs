//! Reads and writes little-endian fields for the formats that a volume stores: root, journal
//! records, footers, checkpoints. Reading never panics: a short input gives an error with its
//! position.

/// The reason why stored bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The input ends before the field.
    #[error("truncated at byte {at}")]
    Truncated {
        /// Where the field begins.
        at: usize,
    },
    /// A different kind of record.
    #[error("not a {0}")]
    Magic(&'static str),
    /// A newer release made the record.
    #[error("{what} has format version {found}, this release knows up to {known}")]
    Version {
        /// The record's kind.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The newest version that this release knows.
        known: u32,
    },
    /// The checksum does not match.
    #[error("the checksum of the {0} does not match")]
    Checksum(&'static str),
    /// A field has a value that makes no sense.
    #[error("{0}")]
    Value(String),
}

/// Appends fields to a byte vector.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Appends a 16-bit number.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends a 32-bit number.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends a 64-bit number.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends a 128-bit number.
    pub fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends a number in 7-bit groups, least significant first: small numbers stay short.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
    /// Appends a length (16 bits) and the bytes.
    pub fn bytes16(&mut self, value: &[u8]) {
        self.u16(u16::try_from(value.len()).expect("short strings only"));
        self.0.extend_from_slice(value);
    }
}

/// Takes fields from a byte slice.
pub struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0 }
    }

    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.input.len());
        let Some(end) = end else { return Err(FormatError::Truncated { at: self.at }) };
        let bytes = &self.input[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        Ok(self.bytes(N)?.try_into().expect("bytes(N) gives N bytes"))
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }
    /// Takes a 16-bit number.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Takes a 32-bit number.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Takes a 64-bit number.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Takes a 128-bit number.
    pub fn u128(&mut self) -> Result<u128, FormatError> {
        Ok(u128::from_le_bytes(self.array()?))
    }
    /// Takes a number in 7-bit groups.
    pub fn varint(&mut self) -> Result<u64, FormatError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FormatError::Value(format!("a number at byte {start} is too long")))
    }
    /// Takes a length (16 bits) and the bytes.
    pub fn bytes16(&mut self) -> Result<&'a [u8], FormatError> {
        let len = usize::from(self.u16()?);
        self.bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive(a in any::<u64>(), b in any::<u32>(), c in any::<u128>()) {
            let mut w = Writer::default();
            w.varint(a);
            w.u32(b);
            w.u128(c);
            w.bytes16(b"name");
            let mut r = Reader::new(&w.0);
            prop_assert_eq!(r.varint()?, a);
            prop_assert_eq!(r.u32()?, b);
            prop_assert_eq!(r.u128()?, c);
            prop_assert_eq!(r.bytes16()?, b"name");
            prop_assert!(r.u8().is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut r = Reader::new(&bytes);
            while r.varint().is_ok() && r.bytes16().is_ok() {}
        }
    }
}
