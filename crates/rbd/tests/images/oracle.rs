//! What the bytes of an image may be.
//!
//! Each byte has a set of values that it may have. A write adds its value when it begins, and is
//! the only value when it has succeeded. A write that failed, or whose client died, leaves both.
//! Writes in flight never overlap. A read may give each value that the byte may have had at any
//! time between its beginning and its end.

/// The values that a byte may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values(Vec<u8>);

impl Values {
    pub fn only(value: u8) -> Self {
        Self(vec![value])
    }

    pub fn add(&mut self, value: u8) {
        if !self.0.contains(&value) {
            self.0.push(value);
        }
    }

    pub fn contains(&self, value: u8) -> bool {
        self.0.contains(&value)
    }
}

/// The bytes of an image.
#[derive(Clone, Debug)]
pub struct Bytes(pub Vec<Values>);

impl Bytes {
    pub fn zeroes(len: u64) -> Self {
        Self(vec![Values::only(0); len as usize])
    }

    pub fn resize(&mut self, len: u64) {
        self.0.resize(len as usize, Values::only(0));
    }

    pub fn begin(&mut self, offset: u64, len: u64, value: u8) {
        for byte in self.range_mut(offset, len) {
            byte.add(value);
        }
    }

    pub fn succeed(&mut self, offset: u64, len: u64, value: u8) {
        for byte in self.range_mut(offset, len) {
            *byte = Values::only(value);
        }
    }

    pub fn range(&self, offset: u64, len: u64) -> &[Values] {
        &self.0[offset as usize..(offset + len) as usize]
    }

    fn range_mut(&mut self, offset: u64, len: u64) -> &mut [Values] {
        &mut self.0[offset as usize..(offset + len) as usize]
    }
}

/// Checks the bytes of a read.
pub fn check(what: &str, offset: u64, found: &[u8], allowed: &[Values]) {
    assert_eq!(found.len(), allowed.len(), "{what}: the length");
    for (index, (byte, values)) in found.iter().zip(allowed).enumerate() {
        let at = offset + index as u64;
        assert!(values.contains(*byte), "{what}: byte {at} is {byte}, and may be {values:?}");
    }
}
