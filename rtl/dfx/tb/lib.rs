//! The verilated designs of this unit, for its benches.

#[cfg(feature = "verilator")]
fieldstone_verilate::designs!();
