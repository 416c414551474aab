//! The codes engine and its encoder against [`fieldstone_gf::LinearMap`].
#![cfg(feature = "verilator")]

mod bandwidth;
mod bench;
mod campaign;
mod encoder;
mod engine;
mod errors;
