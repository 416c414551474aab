//! A core of RISC-V as PsPIN has them (RI5CY): instructions, cycles, memory and programs. Nothing
//! here knows of packets or of a NIC.
//!
//! | module | idea |
//! |---|---|
//! | [`isa`] | instructions: RV32IMAC and a part of Xpulp |
//! | [`core`] | a core: steps, cycles, traps |
//! | [`processor`] | what executes a function: the core, or another one that is compared with it |
//! | [`memory`] | regions with latencies; what a handler may touch |
//! | [`elf`] | programs for the cores |

pub mod core;
pub mod elf;
pub mod isa;
pub mod memory;
pub mod processor;
