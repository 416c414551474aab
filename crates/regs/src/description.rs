//! The description as it is written, with one structure per kind of table.

use serde::Deserialize;

/// All entries of the description.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Sizes and magic numbers.
    pub constants: Vec<Constant>,
    /// Registers of 64 bits, by offset in a function's page.
    #[serde(rename = "register")]
    pub registers: Vec<Register>,
    /// Arrays of registers in a function's page.
    #[serde(rename = "array")]
    pub arrays: Vec<Array>,
    /// Structures in host memory.
    #[serde(rename = "layout")]
    pub layouts: Vec<Layout>,
    /// Enumerations: named numbers. A field holds one of them.
    #[serde(rename = "enum")]
    pub enums: Vec<Enumeration>,
    /// Flags: named bits. A field holds any set of them.
    pub flags: Vec<Enumeration>,
}

/// A number with a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Its name, `LIKE_THIS`, as all names here except those of enumerations.
    pub name: String,
    /// The number.
    pub value: u64,
    /// Its meaning.
    pub doc: String,
}

/// The access of the host to a register or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Access {
    /// The host reads it.
    #[serde(rename = "ro")]
    ReadOnly,
    /// The host writes it; reads give zero.
    #[serde(rename = "wo")]
    WriteOnly,
    /// The host reads and writes it.
    #[serde(rename = "rw")]
    ReadWrite,
    /// Writing ones clears the bits.
    #[serde(rename = "w1c")]
    WriteOneToClear,
}

impl Access {
    /// True if a read gives the value.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::WriteOnly
    }

    /// True if a write has an effect.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::ReadOnly
    }

    /// The word in the description.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::WriteOnly => "wo",
            Self::ReadWrite => "rw",
            Self::WriteOneToClear => "w1c",
        }
    }
}

/// A register of 64 bits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Its name.
    pub name: String,
    /// Offset in bytes from the beginning of the page, or of the array's entry.
    pub offset: u64,
    /// The access of the host.
    pub access: Access,
    /// True if only function 0's page has the register.
    #[serde(default)]
    pub function0: bool,
    /// Its meaning.
    pub doc: String,
    /// Its fields; none if the register is one number.
    #[serde(default)]
    pub fields: Vec<BitField>,
}

/// Bits of a register.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitField {
    /// Its name.
    pub name: String,
    /// Highest and lowest bit.
    pub bits: (u32, u32),
    /// The access of the host, if it is less than that to the register.
    pub access: Option<Access>,
    /// The enumeration or the flags that it holds.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its meaning.
    pub doc: String,
}

/// An array of entries with the same registers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Offset of the first entry in bytes from the beginning of the page.
    pub offset: u64,
    /// Distance of two entries in bytes.
    pub stride: u64,
    /// Name of the constant for the number of entries.
    pub count: String,
    /// True if only function 0's page has the array.
    #[serde(default)]
    pub function0: bool,
    /// Its meaning.
    pub doc: String,
    /// The registers of an entry.
    pub registers: Vec<Register>,
}

/// A structure in host memory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Its name.
    pub name: String,
    /// Its size. `None` if it extends another layout and has that layout's size.
    pub bytes: Option<u64>,
    /// The layout in whose `PARAMETERS` its fields lie.
    pub extends: Option<String>,
    /// Its meaning.
    pub doc: String,
    /// Its fields.
    pub fields: Vec<ByteField>,
}

/// Bytes of a layout.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteField {
    /// Its name.
    pub name: String,
    /// Offset in bytes from the beginning of the layout.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The enumeration or the flags that it holds.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its meaning.
    pub doc: String,
}

/// Numbers, or single bits, with names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enumeration {
    /// Its name, `like_this`.
    pub name: String,
    /// Fewest bits of the fields that hold it.
    pub bits: u32,
    /// Its meaning.
    pub doc: String,
    /// Its values.
    pub values: Vec<Value>,
}

/// A value of an enumeration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Its number, or the value of its bit.
    pub value: u64,
    /// Its meaning.
    pub doc: String,
}

/// Reads a description.
///
/// # Errors
/// The text is no TOML, or a key is missing or unknown; the error gives the place.
pub fn parse(text: &str) -> Result<Description, toml::de::Error> {
    toml::from_str(text)
}

impl Description {
    /// The constant of that name.
    #[must_use]
    pub fn constant(&self, name: &str) -> Option<u64> {
        self.constants.iter().find(|constant| constant.name == name).map(|found| found.value)
    }

    /// The layout of that name.
    #[must_use]
    pub fn layout(&self, name: &str) -> Option<&Layout> {
        self.layouts.iter().find(|layout| layout.name == name)
    }

    /// Bytes of a layout: its own, or those of the layout that it extends; 0 if neither is known.
    #[must_use]
    pub fn layout_bytes(&self, layout: &Layout) -> u64 {
        let parent = || self.layout(layout.extends.as_deref()?)?.bytes;
        layout.bytes.or_else(parent).unwrap_or(0)
    }

    /// The enumeration or flags of that name.
    #[must_use]
    pub fn enumeration(&self, name: &str) -> Option<&Enumeration> {
        self.enums.iter().chain(&self.flags).find(|found| found.name == name)
    }

    /// All fields of a layout in order, with those of the layout that it extends.
    #[must_use]
    pub fn layout_fields<'a>(&'a self, layout: &'a Layout) -> Vec<&'a ByteField> {
        let parent = layout.extends.as_deref().and_then(|name| self.layout(name));
        let inherited = parent.into_iter().flat_map(|parent| &parent.fields);
        let inherited = inherited.filter(|field| field.name != PARAMETERS);
        let mut fields: Vec<_> = inherited.chain(&layout.fields).collect();
        fields.sort_by_key(|field| field.offset);
        fields
    }
}

/// The field whose bytes belong to the layouts that extend the layout.
pub const PARAMETERS: &str = "PARAMETERS";
