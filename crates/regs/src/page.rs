//! The page for people. Its lines have at most 100 columns, but for rows of tables.

use std::fmt::Write as _;

use crate::check::field_access;
use crate::{Description, Enumeration, Register};

/// The columns of a line.
const COLUMNS: usize = 100;

const INTRODUCTION: [&str; 4] = [
    "Written by `cargo run -p fieldstone-regs` from \
     [`rtl/regs/device.toml`](../rtl/regs/device.toml); change that instead. The same file makes \
     the RTL's package (`rtl/regs/fs_regs_pkg.sv`) and the driver's constants \
     (`crates/fpga/src/regs.rs`).",
    "All numbers are little-endian. Offsets are in bytes. Access: `ro` reads only, `wo` writes \
     only (reads as zero), `rw` both, `w1c` writing ones clears. Anything that is not listed reads \
     as zero, and sets `FUNCTION_ERRORS.REGISTER_ACCESS`. A write has all 8 bytes of a register; a \
     doorbell may also have the low 4 alone, and the high ones are zero then.",
    "Register writes are posted, and no register read waits for the host's memory: what takes \
     longer is a state that software polls. The answer to a read reaches the host after all writes \
     that the device sent before it.",
    "Bring-up, as in `crates/fpga/src/card.rs` and `queue_set.rs`: check `ID` and `VERSION`; \
     function 0 fills `FUNCTION_TABLE`, which gives functions their queue sets and windows. Then \
     for a queue set: write its `QUEUE_CONTEXT` to host memory, order `ENABLE` with its address by \
     `CONTROL`, and poll `CONTROL` until the state is `ENABLED`; write descriptors, then a \
     doorbell. `rtl/crush/crush_pkg.sv` tells what images of maps look like, \
     `rtl/codes/codes_pkg.sv` programs of codes.",
];

/// A paragraph in lines of at most [`COLUMNS`] characters. Only a longer word makes a longer line.
fn filled(paragraph: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    out
}

/// The page's text.
#[must_use]
pub fn page(description: &Description) -> String {
    let mut out = String::from("# The device's registers and descriptors\n\n");
    for paragraph in INTRODUCTION {
        out.push_str(&filled(paragraph));
        out.push('\n');
    }
    out.push_str(
        "\
## Constants

| name | value | meaning |
|------|------:|---------|
",
    );
    for constant in &description.constants {
        let value = match constant.value {
            value if value > 0xffff => format!("{value:#x}"),
            value => value.to_string(),
        };
        let _ = writeln!(out, "| `{}` | {value} | {} |", constant.name, constant.doc);
    }
    out.push_str(
        "
## Registers of a function's page

| offset | register | bits | access | meaning |
|-------:|----------|------|--------|---------|
",
    );
    for register in &description.registers {
        rows(&mut out, register);
    }
    for array in &description.arrays {
        let whose = if array.function0 { " Function 0 only." } else { "" };
        let _ = write!(
            out,
            "
### `{}[i]`, i below `{}`, at {:#x} + {} i

{}
| offset | register | bits | access | meaning |
|-------:|----------|------|--------|---------|
",
            array.name,
            array.count,
            array.offset,
            array.stride,
            filled(&format!("{}{whose}", array.doc))
        );
        for register in &array.registers {
            rows(&mut out, register);
        }
    }
    out.push_str("\n## Layouts in host memory\n");
    for layout in &description.layouts {
        let _ = write!(out, "\n### `{}`", layout.name);
        match &layout.extends {
            Some(parent) => {
                let _ = write!(out, ", a `{parent}`");
            }
            None => {
                let _ = write!(out, ", {} bytes", description.layout_bytes(layout));
            }
        }
        let _ = write!(out, "\n\n{}", filled(&layout.doc));
        if !layout.fields.is_empty() {
            out.push_str(
                "\n| offset | bytes | field | meaning |\n|-------:|------:|-------|---------|\n",
            );
        }
        for field in &layout.fields {
            let (name, doc) = (&field.name, with_kind(&field.doc, field.kind.as_deref()));
            let _ = writeln!(out, "| {} | {} | `{name}` | {doc} |", field.offset, field.bytes);
        }
    }
    out.push_str("\n## Enumerations\n");
    for found in &description.enums {
        values(&mut out, found, "number");
    }
    for found in &description.flags {
        values(&mut out, found, "bit's worth");
    }
    out
}

fn rows(out: &mut String, register: &Register) {
    let (name, access) = (&register.name, register.access.word());
    let whose = if register.function0 { " Function 0 only." } else { "" };
    let _ = writeln!(
        out,
        "| {:#06x} | `{name}` | 63:0 | {access} | {}{whose} |",
        register.offset, register.doc
    );
    for field in &register.fields {
        let (high, low) = field.bits;
        let bits = if high == low { high.to_string() } else { format!("{high}:{low}") };
        let access = field_access(register, field).word();
        let doc = with_kind(&field.doc, field.kind.as_deref());
        let _ = writeln!(out, "| | `.{}` | {bits} | {access} | {doc} |", field.name);
    }
}

fn with_kind(doc: &str, kind: Option<&str>) -> String {
    let Some(kind) = kind else { return doc.to_owned() };
    format!("{doc} [`{kind}`](#{kind})")
}

fn values(out: &mut String, found: &Enumeration, number: &str) {
    let _ = write!(
        out,
        "\n### `{}`\n\n{}\n| {number} | name | meaning |\n|-------:|------|---------|\n",
        found.name,
        filled(&found.doc)
    );
    for value in &found.values {
        let _ = writeln!(out, "| {} | `{}` | {} |", value.value, value.name, value.doc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_up_to_the_last_column() {
        let (long, short) = ("w".repeat(COLUMNS - 2), "w".repeat(COLUMNS + 1));
        assert_eq!(filled(&format!("{long} a b")), format!("{long} a\nb\n"));
        assert_eq!(filled(&format!("a {short} b")), format!("a\n{short}\nb\n"));
        assert_eq!(filled(""), "\n");
    }
}
