//! The description as it is written, one structure per kind of table.

use serde::Deserialize;

/// Everything that host and device share.
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
    /// Numbers with names, of which a field holds one.
    #[serde(rename = "enum")]
    pub enums: Vec<Enumeration>,
    /// Bits with names, of which a field holds any.
    pub flags: Vec<Enumeration>,
}

/// A number with a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Its name, `LIKE_THIS` as all names here but those of enumerations.
    pub name: String,
    /// The number.
    pub value: u64,
    /// What it means.
    pub doc: String,
}

/// Who may do what with a register or a field of it.
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
    /// Writing ones clears.
    #[serde(rename = "w1c")]
    WriteOneToClear,
}

impl Access {
    /// Reads give something.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::WriteOnly
    }

    /// Writes do something.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::ReadOnly
    }

    /// As the description has it.
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
    /// Bytes from the begin of the page, or of the array's entry.
    pub offset: u64,
    /// What the host may do with it.
    pub access: Access,
    /// In function 0's page only.
    #[serde(default)]
    pub function0: bool,
    /// What it means.
    pub doc: String,
    /// Its parts; none when the register is one number.
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
    /// What the host may do with it, if that is less than with the register.
    pub access: Option<Access>,
    /// The enumeration or the flags that it holds.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// What it means.
    pub doc: String,
}

/// Registers that every one of some things has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Where the first entry begins, in bytes from the begin of the page.
    pub offset: u64,
    /// Bytes from one entry to the next.
    pub stride: u64,
    /// Name of the constant that says how many there are.
    pub count: String,
    /// In function 0's page only.
    #[serde(default)]
    pub function0: bool,
    /// What it means.
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
    /// Its size; that of the layout which it extends, if it does.
    pub bytes: Option<u64>,
    /// The layout whose `PARAMETERS` its fields lie in.
    pub extends: Option<String>,
    /// What it means.
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
    /// Bytes from the begin of the layout.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// The enumeration or the flags that it holds.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// What it means.
    pub doc: String,
}

/// Numbers, or single bits, with names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enumeration {
    /// Its name, `like_this`.
    pub name: String,
    /// Bits of the fields that hold it, at least.
    pub bits: u32,
    /// What it means.
    pub doc: String,
    /// What there is.
    pub values: Vec<Value>,
}

/// One of an enumeration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Its number, or its bit's worth.
    pub value: u64,
    /// What it means.
    pub doc: String,
}

/// Reads a description.
///
/// # Errors
/// It is no TOML, or a key is missing or unknown; the text says where.
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

    /// Bytes of a layout, its own or those of what it extends; 0 if neither is known.
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

    /// All fields of a layout in order, with those of the layout which it extends.
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

/// The field that layouts which extend another divide among themselves.
pub const PARAMETERS: &str = "PARAMETERS";
