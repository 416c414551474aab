//! The model of the handlers' core against RTL: CV32E40P, RI5CY's descendant with the same
//! pipeline, verilated. The same programs give the same registers, the same memory, as many
//! instructions, and as many cycles. The firmware's handlers give the same commands and leave the
//! same entries.
//!
//! | module | idea |
//! |---|---|
//! | `core` | the RTL as a [`Processor`](fieldstone_nic::riscv::processor::Processor) |
//! | `corev` | Xpulp instructions in the encodings of CV32E40P |
//! | `random` | random programs |
//! | `handlers` | the firmware |
#![cfg(feature = "verilator")]
#![allow(clippy::unwrap_used)]

mod core;
mod corev;
mod handlers;
mod random;
#[path = "../conformance/writes.rs"]
#[allow(dead_code)]
mod writes;

mod designs {
    fieldstone_verilate::designs!();
}
