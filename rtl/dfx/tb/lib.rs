//! The verilated designs of this unit, for its benches.

#[cfg(feature = "verilator")]
mod designs {
    #![allow(clippy::undocumented_unsafe_blocks, reason = "declarations of the shims' functions")]
    include!(concat!(env!("OUT_DIR"), "/designs.rs"));
}

#[cfg(feature = "verilator")]
pub use designs::*;
