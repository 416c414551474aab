//! The SystemVerilog package.
//!
//! Registers with fields, and all layouts, become packed structures: their bytes or bits read as
//! one number, so the first member is in the highest bits. Bits without a field are called
//! `unused_N`; N counts from the low end.

use std::fmt::Write as _;

use crate::check::field_access;
use crate::text::wrap;
use crate::{Access, Array, ByteField, Description, Enumeration, Layout, Register};

const WIDTH: usize = 110;

/// A member of a packed structure.
struct Member {
    name: String,
    low: u64,
    bits: u64,
    note: String,
}

/// The package's text.
#[must_use]
pub fn package(description: &Description) -> String {
    let mut out = String::new();
    out.push_str(
        "// Written by `cargo run -p fieldstone-regs` from rtl/regs/device.toml; change that \
instead.
//
// Registers, descriptors, completions and status codes of the device.

/* verilator lint_off UNUSEDPARAM */  // a package is used in parts

package fs_regs_pkg;
",
    );
    for constant in &description.constants {
        let value = match constant.value {
            value if value > 0xffff => format!("32'h{value:08x}"),
            value => value.to_string(),
        };
        let line = format!("  localparam int unsigned {} = {value};", constant.name);
        commented(&mut out, &line, &constant.doc);
    }
    for found in &description.enums {
        enumeration(&mut out, found);
    }
    for found in &description.flags {
        flags(&mut out, found);
    }
    registers(&mut out, description);
    for array in &description.arrays {
        array_of_registers(&mut out, description, array);
    }
    for layout in &description.layouts {
        structure_of_layout(&mut out, description, layout);
    }
    out.push_str("endpackage\n");
    out
}

fn enumeration(out: &mut String, found: &Enumeration) {
    let (name, bits) = (&found.name, found.bits);
    let prefix = name.to_uppercase();
    let _ = write!(out, "\n{}  typedef enum logic [{}:0] {{\n", comment(&found.doc), bits - 1);
    for (index, value) in found.values.iter().enumerate() {
        let comma = if index + 1 < found.values.len() { "," } else { "" };
        let line = format!("    {prefix}_{} = {bits}'d{}{comma}", value.name, value.value);
        commented(out, &line, &value.doc);
    }
    let _ = writeln!(out, "  }} {name}_e;");
}

fn flags(out: &mut String, found: &Enumeration) {
    let prefix = found.name.to_uppercase();
    let _ = write!(out, "\n{}", comment(&found.doc));
    for value in &found.values {
        let bit = value.value.trailing_zeros();
        let line = format!("  localparam int unsigned {prefix}_{}_BIT = {bit};", value.name);
        commented(out, &line, &value.doc);
    }
}

fn registers(out: &mut String, description: &Description) {
    out.push_str("\n  // Registers: byte offsets in a function's page.\n");
    let bits = page_bits(description);
    for register in &description.registers {
        let (name, digits) = (&register.name, bits.div_ceil(4) as usize);
        let line = format!(
            "  localparam logic [{}:0] REG_{name} = {bits}'h{:0digits$x};",
            bits - 1,
            register.offset
        );
        let whose = if register.function0 { " Function 0 only." } else { "" };
        let doc = format!("{}: {}{whose}", register.access.word(), register.doc);
        commented(out, &line, &doc);
    }
    for register in &description.registers {
        views(out, &format!("reg_{}", register.name.to_lowercase()), register);
    }
}

fn array_of_registers(out: &mut String, description: &Description, array: &Array) {
    let (name, bits) = (&array.name, page_bits(description));
    let digits = bits.div_ceil(4) as usize;
    let whose = if array.function0 { " Function 0 only." } else { "" };
    let _ = write!(out, "\n{}", comment(&format!("{name}: {}{whose}", array.doc)));
    let _ = writeln!(
        out,
        "  localparam logic [{}:0] {name}_BASE = {bits}'h{:0digits$x};",
        bits - 1,
        array.offset
    );
    let _ = writeln!(out, "  localparam int unsigned {name}_STRIDE = {};", array.stride);
    let _ = writeln!(out, "  localparam int unsigned {name}_COUNT = {};", array.count);
    // Offsets in an entry have just enough bits to address its bytes.
    let entry_bits = u64::BITS - (array.stride.max(2) - 1).leading_zeros();
    for register in &array.registers {
        let line = format!(
            "  localparam logic [{}:0] {name}_REG_{} = {entry_bits}'d{};",
            entry_bits - 1,
            register.name,
            register.offset
        );
        commented(out, &line, &format!("{}: {}", register.access.word(), register.doc));
    }
    for register in &array.registers {
        let name = format!("{}_{}", name.to_lowercase(), register.name.to_lowercase());
        views(out, &name, register);
    }
}

/// The structures of a register: one, or two if its view for reads differs from its view for
/// writes.
fn views(out: &mut String, name: &str, register: &Register) {
    if register.fields.is_empty() {
        return;
    }
    let seen = |view: fn(Access) -> bool| -> Vec<Member> {
        let fields = register.fields.iter().filter(|field| view(field_access(register, field)));
        fields
            .map(|field| Member {
                name: field.name.to_lowercase(),
                low: field.bits.1.into(),
                bits: u64::from(field.bits.0 - field.bits.1 + 1),
                note: note(&field.doc, field.kind.as_deref()),
            })
            .collect()
    };
    if register.fields.iter().all(|field| field.access.is_none()) {
        structure(out, &format!("{name}_t"), "", 64, seen(|_| true));
    } else {
        structure(out, &format!("{name}_read_t"), "", 64, seen(Access::reads));
        structure(out, &format!("{name}_write_t"), "", 64, seen(Access::writes));
    }
}

fn structure_of_layout(out: &mut String, description: &Description, layout: &Layout) {
    // The comments of the other fields are in the layout that defines them.
    let is_own = |field: &ByteField| layout.fields.iter().any(|own| own.name == field.name);
    let members = description.layout_fields(layout).into_iter().map(|field| Member {
        name: field.name.to_lowercase(),
        low: 8 * field.offset,
        bits: 8 * field.bytes,
        note: if is_own(field) { note(&field.doc, field.kind.as_deref()) } else { String::new() },
    });
    let suffix = if layout.extends.is_some() { "_descriptor_t" } else { "_t" };
    let name = format!("{}{suffix}", layout.name.to_lowercase());
    structure(out, &name, &layout.doc, 8 * description.layout_bytes(layout), members.collect());
}

/// A packed structure of `bits`, from members in any order.
fn structure(out: &mut String, name: &str, doc: &str, bits: u64, mut members: Vec<Member>) {
    members.sort_by_key(|member| member.low);
    let mut lines = Vec::new();
    let (mut at, mut gaps) = (0, 0);
    let mut gap = |lines: &mut Vec<(u64, String, String)>, bits: u64| {
        if bits > 0 {
            lines.push((bits, format!("unused_{gaps}"), String::new()));
            gaps += 1;
        }
    };
    for member in members {
        gap(&mut lines, member.low - at);
        at = member.low + member.bits;
        lines.push((member.bits, member.name, member.note));
    }
    gap(&mut lines, bits - at);
    let _ = write!(out, "\n{}  typedef struct packed {{\n", comment(doc));
    for (bits, name, note) in lines.into_iter().rev() {
        let range = if bits == 1 { String::new() } else { format!("[{}:0] ", bits - 1) };
        commented(out, &format!("    logic {range:<9}{name};"), &note);
    }
    let _ = writeln!(out, "  }} {name};");
}

fn note(doc: &str, kind: Option<&str>) -> String {
    kind.map_or_else(|| doc.to_owned(), |kind| format!("{kind}: {doc}"))
}

/// A line with its comment at its end, or above it if both do not fit.
fn commented(out: &mut String, line: &str, doc: &str) {
    if doc.is_empty() {
        let _ = writeln!(out, "{line}");
    } else if line.len() + doc.len() + 5 <= WIDTH {
        let _ = writeln!(out, "{line}  // {doc}");
    } else {
        let indent = line.len() - line.trim_start().len();
        let prefix = format!("{:indent$}//", "");
        let _ = writeln!(out, "{}{line}", wrap(doc, &prefix, WIDTH));
    }
}

fn comment(doc: &str) -> String {
    if doc.is_empty() { String::new() } else { wrap(doc, "  //", WIDTH) }
}

/// Bits of an offset in a page.
fn page_bits(description: &Description) -> u32 {
    let bytes = description.constant("PAGE_BYTES").unwrap_or(2).max(2);
    u64::BITS - (bytes - 1).leading_zeros()
}
