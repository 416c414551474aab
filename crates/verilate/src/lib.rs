//! SystemVerilog modules as Rust values.
//!
//! **At build time** ([`build`], for build scripts) a list of designs goes through Verilator and
//! the C++ compiler. A design is a top module with parameters. The build script also writes a small
//! C shim from the ports in Verilator's header, so no design needs glue code.
//!
//! **At run time** a [`Design`] (included from the build script's output) makes [`Model`]s. A
//! [`Port`] is found by name once, and then read and written in place. [`bench`] has the parts that
//! test benches share: streams with random stalls, and a clock.
//!
//! ```text
//!   designs.toml --build--> verilator --cc --> C++ + shim --> static library
//!                      \--> designs.rs: pub static CRUSH_LN: Design
//!   Model::new(&CRUSH_LN); let u = model.port("u_i"); model.set(u, 7); model.eval();
//! ```

pub mod bench;
#[cfg(feature = "build")]
pub mod build;
pub mod coverage;
mod model;
#[cfg(feature = "build")]
mod verilator;

pub use model::{Design, Direction, Model, Port, RawPort, ffi};

/// The designs that the calling crate's build script made, as statics.
///
/// This is a macro because each crate has its own output folder of the build script.
#[macro_export]
macro_rules! designs {
    () => {
        include!(concat!(env!("OUT_DIR"), "/designs.rs"));
    };
}
