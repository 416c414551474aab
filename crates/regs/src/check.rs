//! The rules that a description must keep so that the writers for three languages can use it.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::description::PARAMETERS;
use crate::{Access, Array, BitField, Description, Enumeration, Layout, Register};

/// Words that no field, layout or enumeration may be called, in lower case. SystemVerilog, Rust and
/// C++ (which Verilator writes) use them for other purposes.
const KEYWORDS: &[&str] = &[
    "abstract",
    "alias",
    "always",
    "and",
    "as",
    "asm",
    "assert",
    "assign",
    "async",
    "auto",
    "automatic",
    "await",
    "begin",
    "bit",
    "box",
    "break",
    "buf",
    "byte",
    "case",
    "catch",
    "cell",
    "char",
    "checker",
    "class",
    "clocking",
    "config",
    "const",
    "constraint",
    "context",
    "continue",
    "cover",
    "crate",
    "cross",
    "deassign",
    "default",
    "defparam",
    "delete",
    "design",
    "disable",
    "do",
    "double",
    "dyn",
    "edge",
    "else",
    "end",
    "endmodule",
    "enum",
    "event",
    "expect",
    "explicit",
    "export",
    "extends",
    "extern",
    "final",
    "float",
    "fn",
    "for",
    "force",
    "forever",
    "fork",
    "friend",
    "function",
    "gen",
    "generate",
    "global",
    "goto",
    "if",
    "impl",
    "implies",
    "import",
    "in",
    "include",
    "initial",
    "inline",
    "inout",
    "input",
    "inside",
    "instance",
    "int",
    "integer",
    "interface",
    "join",
    "large",
    "let",
    "library",
    "local",
    "logic",
    "long",
    "longint",
    "loop",
    "macro",
    "match",
    "matches",
    "medium",
    "mod",
    "module",
    "move",
    "mut",
    "mutable",
    "namespace",
    "new",
    "not",
    "null",
    "operator",
    "or",
    "output",
    "override",
    "package",
    "packed",
    "parameter",
    "primitive",
    "priority",
    "private",
    "program",
    "property",
    "protected",
    "pub",
    "public",
    "pure",
    "rand",
    "real",
    "ref",
    "reg",
    "register",
    "release",
    "repeat",
    "restrict",
    "return",
    "self",
    "sequence",
    "short",
    "signed",
    "sizeof",
    "small",
    "solve",
    "specify",
    "static",
    "string",
    "strong",
    "struct",
    "super",
    "switch",
    "table",
    "tagged",
    "task",
    "template",
    "this",
    "throw",
    "time",
    "trait",
    "true",
    "try",
    "type",
    "typedef",
    "typename",
    "union",
    "unique",
    "unsafe",
    "unsigned",
    "unsized",
    "use",
    "var",
    "virtual",
    "void",
    "volatile",
    "wait",
    "weak",
    "where",
    "while",
    "wildcard",
    "wire",
    "with",
    "within",
    "xor",
    "yield",
];

/// An error in a description.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CheckError {
    /// A word that cannot be a name.
    #[error("{place}: {name:?} is no name, or a keyword somewhere")]
    Name {
        /// The place in the description.
        place: String,
        /// The name.
        name: String,
    },
    /// Two entries have the same name.
    #[error("{place}: there are two of the name {name}")]
    Twice {
        /// The place in the description.
        place: String,
        /// The name.
        name: String,
    },
    /// An entry begins at a wrong offset.
    #[error("{place}: offset {offset:#x} is not a multiple of {alignment}")]
    Alignment {
        /// The place in the description.
        place: String,
        /// The offset.
        offset: u64,
        /// The number of which the offset should be a multiple.
        alignment: u64,
    },
    /// Two entries overlap.
    #[error("{place}: {second} overlaps {first}")]
    Overlap {
        /// The place in the description.
        place: String,
        /// The earlier entry.
        first: String,
        /// The later entry.
        second: String,
    },
    /// An entry ends after the end of its container.
    #[error("{place}: ends at {end}, behind {limit}")]
    TooLarge {
        /// The place in the description.
        place: String,
        /// Its end, in the unit of its offset.
        end: u64,
        /// The end of the container.
        limit: u64,
    },
    /// The bits are in the wrong order.
    #[error("{place}: bits are [high, low]")]
    BitOrder {
        /// The place in the description.
        place: String,
    },
    /// A reference to an entry that does not exist.
    #[error("{place}: there is no {name}")]
    Unknown {
        /// The place in the description.
        place: String,
        /// The missing name.
        name: String,
    },
    /// A value that does not fit, or that is not a single bit in an enumeration of flags.
    #[error("{place}: the value {value} does not fit")]
    Value {
        /// The place in the description.
        place: String,
        /// The value.
        value: u64,
    },
    /// A field needs an access that its register does not allow.
    #[error("{place}: its register is {register} only")]
    Access {
        /// The place in the description.
        place: String,
        /// The register's access.
        register: &'static str,
    },
}

/// The range of an entry.
struct EntryRange {
    name: String,
    begin: u64,
    end: u64,
}

/// Finds the first error.
///
/// # Errors
/// The error.
pub fn check(description: &Description) -> Result<(), CheckError> {
    for name in description.constants.iter().map(|constant| &constant.name) {
        upper_name("constants", name)?;
    }
    distinct("constants", description.constants.iter().map(|constant| constant.name.as_str()))?;
    page(description)?;
    distinct("layouts", description.layouts.iter().map(|layout| layout.name.as_str()))?;
    description.layouts.iter().try_for_each(|layout| one_layout(description, layout))?;
    let all = || description.enums.iter().chain(&description.flags);
    distinct("enumerations", all().map(|found| found.name.as_str()))?;
    description.enums.iter().try_for_each(|found| enumeration(found, false))?;
    description.flags.iter().try_for_each(|found| enumeration(found, true))
}

/// Registers and arrays: they are aligned, do not overlap, and lie inside the page.
fn page(description: &Description) -> Result<(), CheckError> {
    const REGISTER_BYTES: u64 = 8;
    let unknown = |place: &str, name: &str| CheckError::Unknown {
        place: place.to_owned(),
        name: name.to_owned(),
    };
    let page_bytes =
        description.constant("PAGE_BYTES").ok_or_else(|| unknown("constants", "PAGE_BYTES"))?;
    let mut ranges = Vec::new();
    for register in &description.registers {
        one_register(description, "page", register)?;
        ranges.push(EntryRange {
            name: register.name.clone(),
            begin: register.offset,
            end: register.offset + REGISTER_BYTES,
        });
    }
    for array in &description.arrays {
        let count =
            description.constant(&array.count).ok_or_else(|| unknown(&array.name, &array.count))?;
        one_array(description, array)?;
        ranges.push(EntryRange {
            name: array.name.clone(),
            begin: array.offset,
            end: array.offset.saturating_add(array.stride.saturating_mul(count)),
        });
    }
    apart("page", ranges, page_bytes)
}

fn one_array(description: &Description, array: &Array) -> Result<(), CheckError> {
    upper_name("page", &array.name)?;
    aligned(&array.name, array.offset, array.stride.max(1))?;
    let mut ranges = Vec::new();
    for register in &array.registers {
        one_register(description, &array.name, register)?;
        ranges.push(EntryRange {
            name: register.name.clone(),
            begin: register.offset,
            end: register.offset + 8,
        });
    }
    apart(&array.name, ranges, array.stride)
}

fn one_register(
    description: &Description,
    place: &str,
    register: &Register,
) -> Result<(), CheckError> {
    // Registers keep their capitals in all outputs, and no keyword has capitals.
    named(place, &register.name, |byte| byte.is_ascii_uppercase(), &[])?;
    let place = format!("{place}.{}", register.name);
    aligned(&place, register.offset, 8)?;
    // The view for reads and the view for writes may differ.
    for view in [Access::reads as fn(Access) -> bool, Access::writes] {
        let fields = register.fields.iter().filter(|field| view(field_access(register, field)));
        let mut ranges = Vec::new();
        for field in fields {
            one_bit_field(description, &place, register, field)?;
            ranges.push(EntryRange {
                name: field.name.clone(),
                begin: u64::from(field.bits.1),
                end: u64::from(field.bits.0) + 1,
            });
        }
        apart(&place, ranges, 64)?;
    }
    Ok(())
}

/// The access of the host to a field.
pub fn field_access(register: &Register, field: &BitField) -> Access {
    field.access.unwrap_or(register.access)
}

fn one_bit_field(
    description: &Description,
    place: &str,
    register: &Register,
    field: &BitField,
) -> Result<(), CheckError> {
    upper_name(place, &field.name)?;
    let place = format!("{place}.{}", field.name);
    let access = field_access(register, field);
    if access.reads() && !register.access.reads() || access.writes() && !register.access.writes() {
        return Err(CheckError::Access { place, register: register.access.word() });
    }
    let (high, low) = field.bits;
    if high < low {
        return Err(CheckError::BitOrder { place });
    }
    holds(description, &place, field.kind.as_deref(), u64::from(high - low + 1))
}

fn one_layout(description: &Description, layout: &Layout) -> Result<(), CheckError> {
    upper_name("layouts", &layout.name)?;
    if let Some(parent) = &layout.extends {
        let unknown = || CheckError::Unknown { place: layout.name.clone(), name: parent.clone() };
        let parent = description.layout(parent).ok_or_else(unknown)?;
        let parameters = parent.fields.iter().find(|field| field.name == PARAMETERS);
        let parameters = parameters.ok_or_else(unknown)?;
        let end = parameters.offset + parameters.bytes;
        for field in &layout.fields {
            let place = format!("{}.{}", layout.name, field.name);
            if field.offset < parameters.offset {
                let (first, second) = (parent.name.clone(), field.name.clone());
                return Err(CheckError::Overlap { place, first, second });
            }
            if field.offset + field.bytes > end {
                let end_of_field = field.offset + field.bytes;
                return Err(CheckError::TooLarge { place, end: end_of_field, limit: end });
            }
        }
    }
    let mut ranges = Vec::new();
    for field in description.layout_fields(layout) {
        upper_name(&layout.name, &field.name)?;
        let place = format!("{}.{}", layout.name, field.name);
        // Fields of one number have the alignment that a processor uses.
        let alignment = if field.bytes.is_power_of_two() { field.bytes.min(8) } else { 8 };
        aligned(&place, field.offset, alignment)?;
        holds(description, &place, field.kind.as_deref(), 8 * field.bytes)?;
        ranges.push(EntryRange {
            name: field.name.clone(),
            begin: field.offset,
            end: field.offset + field.bytes,
        });
    }
    apart(&layout.name, ranges, description.layout_bytes(layout))
}

/// Checks that an enumeration's values fit into the field that holds it.
fn holds(
    description: &Description,
    place: &str,
    kind: Option<&str>,
    bits: u64,
) -> Result<(), CheckError> {
    let Some(name) = kind else { return Ok(()) };
    match description.enumeration(name) {
        None => Err(CheckError::Unknown { place: place.to_owned(), name: name.to_owned() }),
        Some(found) if u64::from(found.bits) > bits => Err(CheckError::TooLarge {
            place: place.to_owned(),
            end: found.bits.into(),
            limit: bits,
        }),
        Some(_) => Ok(()),
    }
}

fn enumeration(found: &Enumeration, flags: bool) -> Result<(), CheckError> {
    lower_name("enumerations", &found.name)?;
    distinct(&found.name, found.values.iter().map(|value| value.name.as_str()))?;
    let mut seen = BTreeSet::new();
    for value in &found.values {
        upper_name(&found.name, &value.name)?;
        let fits = found.bits < 64 && value.value >> found.bits == 0;
        let is_bit = !flags || value.value.is_power_of_two();
        if !fits || !is_bit || !seen.insert(value.value) {
            let place = format!("{}.{}", found.name, value.name);
            return Err(CheckError::Value { place, value: value.value });
        }
    }
    Ok(())
}

fn apart(place: &str, mut ranges: Vec<EntryRange>, limit: u64) -> Result<(), CheckError> {
    distinct(place, ranges.iter().map(|range| range.name.as_str()))?;
    ranges.sort_by_key(|range| range.begin);
    for pair in ranges.windows(2) {
        if pair[0].end > pair[1].begin {
            return Err(CheckError::Overlap {
                place: place.to_owned(),
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    match ranges.last() {
        Some(last) if last.end > limit => Err(CheckError::TooLarge {
            place: format!("{place}.{}", last.name),
            end: last.end,
            limit,
        }),
        _ => Ok(()),
    }
}

fn aligned(place: &str, offset: u64, alignment: u64) -> Result<(), CheckError> {
    if offset.is_multiple_of(alignment) {
        return Ok(());
    }
    Err(CheckError::Alignment { place: place.to_owned(), offset, alignment })
}

fn distinct<'a>(place: &str, names: impl Iterator<Item = &'a str>) -> Result<(), CheckError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(CheckError::Twice { place: place.to_owned(), name: name.to_owned() });
        }
    }
    Ok(())
}

fn upper_name(place: &str, name: &str) -> Result<(), CheckError> {
    named(place, name, |byte| byte.is_ascii_uppercase(), KEYWORDS)
}

fn lower_name(place: &str, name: &str) -> Result<(), CheckError> {
    named(place, name, |byte| byte.is_ascii_lowercase(), KEYWORDS)
}

fn named(
    place: &str,
    name: &str,
    letter: impl Fn(u8) -> bool,
    taken: &[&str],
) -> Result<(), CheckError> {
    let mut bytes = name.bytes();
    let begins = bytes.next().is_some_and(&letter);
    let goes_on = bytes.all(|byte| letter(byte) || byte.is_ascii_digit() || byte == b'_');
    let keyword = taken.contains(&name.to_ascii_lowercase().as_str());
    if begins && goes_on && !keyword {
        return Ok(());
    }
    Err(CheckError::Name { place: place.to_owned(), name: name.to_owned() })
}
