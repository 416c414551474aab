//! Benches of the reconfigurable partition.
#![cfg(feature = "verilator")]

mod config;
mod partition;
