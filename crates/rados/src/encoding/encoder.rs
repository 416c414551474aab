//! Writes encoded values.

use bytes::Bytes;

/// Bytes under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoder(Vec<u8>);

macro_rules! integers {
    ($($name:ident: $type:ty, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub fn $name(&mut self, value: $type) -> &mut Self {
                self.0.extend_from_slice(&value.to_le_bytes());
                self
            }
        )*
    };
}

impl Encoder {
    /// No bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No bytes yet, with room for some.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    integers! {
        u8: u8, "One byte.";
        u16: u16, "A 16-bit number.";
        u32: u32, "A 32-bit number.";
        u64: u64, "A 64-bit number.";
        i32: i32, "A signed 32-bit number.";
        i64: i64, "A signed 64-bit number.";
    }

    /// A byte that is 0 or 1.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    /// The bytes alone, without their length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A 32-bit length and the bytes.
    pub fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len());
        self.bytes(bytes)
    }

    /// A 32-bit length and the text.
    pub fn string(&mut self, text: &str) -> &mut Self {
        self.blob(text.as_bytes())
    }

    /// A length or count, as 32 bits.
    ///
    /// # Panics
    /// It does not fit.
    pub fn len(&mut self, len: usize) -> &mut Self {
        self.u32(u32::try_from(len).expect("messages are shorter than 4 GiB"))
    }

    /// A count and the elements.
    pub fn list<T>(
        &mut self,
        elements: impl ExactSizeIterator<Item = T>,
        mut element: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.len(elements.len());
        for value in elements {
            element(self, value);
        }
        self
    }

    /// A section with the fields that `fields` writes.
    pub fn section(
        &mut self,
        version: u8,
        compat: u8,
        fields: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.u8(version).u8(compat);
        let at = self.0.len();
        self.u32(0);
        fields(self);
        let len = self.0.len() - at - 4;
        let len = u32::try_from(len).expect("messages are shorter than 4 GiB");
        self.0[at..at + 4].copy_from_slice(&len.to_le_bytes());
        self
    }

    /// The number of bytes so far.
    #[must_use]
    pub fn written(&self) -> usize {
        self.0.len()
    }

    /// The bytes.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.0.into()
    }

    /// The bytes as a vector.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}
