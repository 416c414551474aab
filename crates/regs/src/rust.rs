//! The driver's module, in the format of rustfmt.
//!
//! Each layout and each array of registers becomes a separate module with the names of its parts.
//! The driver defines the types of the parts (`Bits`, `Field`).

use std::fmt::Write as _;

use crate::text::{camel, wrap};
use crate::{Array, BitField, Description, Enumeration, Layout, Register};

const WIDTH: usize = 100;

/// The module's text.
#[must_use]
pub fn module(description: &Description) -> String {
    let mut out = String::from(
        "//! Registers, descriptors, completions and status codes of the device.
//!
//! Written by `cargo run -p fieldstone-regs` from rtl/regs/device.toml; change that instead.

use crate::field::{Bits, Field};

",
    );
    for constant in &description.constants {
        documented(&mut out, "", &constant.doc);
        let kind = if constant.name.starts_with("MAX_") || constant.name.ends_with("_BYTES") {
            "usize"
        } else {
            "u64"
        };
        let value = match constant.value {
            value if value > 0xffff => format!("{value:#x}"),
            value => value.to_string(),
        };
        let _ = writeln!(out, "pub const {}: {kind} = {value};", constant.name);
    }
    registers(&mut out, description);
    description.arrays.iter().for_each(|array| array_module(&mut out, array));
    description.layouts.iter().for_each(|layout| layout_module(&mut out, description, layout));
    description.enums.iter().for_each(|found| enumeration(&mut out, found));
    description.flags.iter().for_each(|found| flags(&mut out, found));
    out
}

fn documented(out: &mut String, indent: &str, doc: &str) {
    let escaped = doc.replace('[', "\\[").replace(']', "\\]");
    out.push_str(&wrap(&escaped, &format!("{indent}///"), WIDTH));
}

fn registers(out: &mut String, description: &Description) {
    out.push_str("\n/// Registers: byte offsets in a function's page.\npub mod register {\n");
    out.push_str("    use super::Bits;\n\n");
    for register in &description.registers {
        register_constants(out, register);
    }
    out.push_str("}\n");
}

fn register_constants(out: &mut String, register: &Register) {
    let whose = if register.function0 { " Function 0 only." } else { "" };
    documented(out, "    ", &format!("{}{whose}", register.doc));
    let _ = writeln!(out, "    pub const {}: u64 = {:#x};", register.name, register.offset);
    for field in &register.fields {
        bit_field(out, &register.name, field);
    }
}

fn bit_field(out: &mut String, register: &str, field: &BitField) {
    let kind = field.kind.as_ref().map(|kind| format!(" One of {kind}.")).unwrap_or_default();
    documented(out, "    ", &format!("{}{kind}", field.doc));
    let (high, low) = field.bits;
    let _ = writeln!(
        out,
        "    pub const {register}_{}: Bits = Bits {{ high: {high}, low: {low} }};",
        field.name
    );
}

fn array_module(out: &mut String, array: &Array) {
    let whose = if array.function0 { " Function 0 only." } else { "" };
    out.push('\n');
    documented(out, "", &format!("{}{whose}", array.doc));
    let _ = writeln!(out, "pub mod {} {{", array.name.to_lowercase());
    if array.registers.iter().any(|register| !register.fields.is_empty()) {
        out.push_str("    use super::Bits;\n\n");
    }
    let _ = write!(
        out,
        "    /// Where the first entry begins in a function's page.
    pub const BASE: u64 = {:#x};
    /// Bytes from one entry to the next.
    pub const STRIDE: u64 = {};
    /// Entries.
    pub const COUNT: usize = super::{};
",
        array.offset, array.stride, array.count
    );
    for register in &array.registers {
        register_constants(out, register);
    }
    out.push_str("}\n");
}

fn layout_module(out: &mut String, description: &Description, layout: &Layout) {
    out.push('\n');
    documented(out, "", &layout.doc);
    let _ = writeln!(out, "pub mod {} {{", layout.name.to_lowercase());
    if !layout.fields.is_empty() {
        out.push_str("    use super::Field;\n\n");
    }
    let bytes = description.layout_bytes(layout);
    let _ = write!(out, "    /// Its size.\n    pub const BYTES: usize = {bytes};\n");
    for field in &layout.fields {
        let kind = field.kind.as_ref().map(|kind| format!(" One of {kind}.")).unwrap_or_default();
        documented(out, "    ", &format!("{}{kind}", field.doc));
        let _ = writeln!(
            out,
            "    pub const {}: Field = Field {{ offset: {}, bytes: {} }};",
            field.name, field.offset, field.bytes
        );
    }
    out.push_str("}\n");
}

fn enumeration(out: &mut String, found: &Enumeration) {
    let name = camel(&found.name);
    out.push('\n');
    documented(out, "", &found.doc);
    let _ = writeln!(out, "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub enum {name} {{");
    for value in &found.values {
        documented(out, "    ", &value.doc);
        let _ = writeln!(out, "    {} = {},", camel(&value.name), value.value);
    }
    let _ = write!(
        out,
        "}}

impl {name} {{
    /// The one of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {{
        match number {{
"
    );
    for value in &found.values {
        let _ = writeln!(out, "            {} => Some(Self::{}),", value.value, camel(&value.name));
    }
    out.push_str(
        "            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
",
    );
    for value in &found.values {
        let _ = writeln!(out, "            Self::{} => \"{}\",", camel(&value.name), value.name);
    }
    out.push_str("        }\n    }\n}\n");
}

fn flags(out: &mut String, found: &Enumeration) {
    out.push('\n');
    documented(out, "", &found.doc);
    let _ = writeln!(out, "pub mod {} {{", found.name);
    for value in &found.values {
        documented(out, "    ", &value.doc);
        let _ = writeln!(out, "    pub const {}: u64 = {};", value.name, value.value);
    }
    out.push_str("}\n");
}
