//! The device's registers, descriptors and completions, written once.
//!
//! `rtl/regs/device.toml` describes the registers and structures that host and device share.
//! [`parse`] reads it, and [`check()`] finds errors (overlaps, fields that do not fit, names that
//! are keywords of a language). Then three writers make the file of each side:
//!
//! | writer   | file                        | for                                               |
//! |----------|-----------------------------|---------------------------------------------------|
//! | [`sv`]   | `rtl/regs/fs_regs_pkg.sv`   | the RTL: packed structures and constants          |
//! | [`rust`] | `crates/fpga/src/regs.rs`   | the driver: offsets, fields and enumerations      |
//! | [`page`] | `docs/fpga-registers.md`    | people                                            |
//!
//! `cargo run -p fieldstone-regs` writes the files; a test compares them with the description.

mod check;
mod description;
pub mod page;
pub mod rust;
pub mod sv;
mod text;

pub use check::{CheckError, check};
pub use description::{
    Access, Array, BitField, ByteField, Constant, Description, Enumeration, Layout, Register,
    Value, parse,
};

/// Path of the description in the repository.
pub const DESCRIPTION: &str = "rtl/regs/device.toml";

/// A generated file: its path in the repository, and its content.
pub type Output = (&'static str, String);

/// All files that are generated from a description.
#[must_use]
pub fn outputs(description: &Description) -> [Output; 3] {
    [
        ("rtl/regs/fs_regs_pkg.sv", sv::package(description)),
        ("crates/fpga/src/regs.rs", rust::module(description)),
        ("docs/fpga-registers.md", page::page(description)),
    ]
}
