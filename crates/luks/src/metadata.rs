//! Fields of fixed length.

use crate::error::{LuksError, damaged};

/// The magic of a first header.
pub(crate) const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// The magic of a second header of LUKS2.
pub(crate) const SECOND_MAGIC: [u8; 6] = *b"SKUL\xba\xbe";
/// The magic of the header of a clone, which only librbd knows.
pub(crate) const CLONE_MAGIC: [u8; 6] = *b"RBDL\xba\xbe";

/// Takes fields off bytes whose length was checked.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (field, rest) = self.0.split_at(len);
        self.0 = rest;
        field
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }
}

/// The text of a field that zeroes fill up.
pub(crate) fn text(field: &[u8]) -> Result<String, LuksError> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = std::str::from_utf8(&field[..end]).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or_else(|| damaged("a name that is not ASCII"))
}

/// A field with a text.
pub(crate) fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}
