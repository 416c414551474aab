//! The verilated designs of this unit, and code that the benches of other units share.

#[cfg(feature = "verilator")]
fieldstone_verilate::designs!();

#[cfg(feature = "verilator")]
pub mod card;
