//! The same packets into the firmware on the host and on the NIC's core: the same packets out, the
//! same bytes into storage, the same memory afterwards. And both are right: parities as crates/gf
//! computes them, capabilities as proto signs them, bytes on every replica. The product's node
//! (crates/node) gets the same writes as messages, and does the same.
//!
//! The firmware needs `riscv64-unknown-elf-gcc` (Debian's `gcc-riscv64-unknown-elf`) and `cc`.
//! Without them a test prints `skipped:` and the reason, and passes. So a machine that has only
//! Rust can run all tests.
#![allow(clippy::unwrap_used)]

mod bad_handlers;
mod classes;
mod coding;
mod costs;
mod cpu;
mod faults;
mod hostile;
mod node;
mod once;
mod refusals;
mod replication;
mod rust_node;
mod shared_object;
mod silent;
mod staged;
mod writes;
