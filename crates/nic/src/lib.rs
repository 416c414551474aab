//! The timed world, from its two lowest layers up: handler cores and the firmware that they run.
//!
//! A SmartNIC as in the network-accelerated DFS paper (PsPIN) runs small programs, *handlers*, on
//! each packet: a header handler on the first packet of a message, a payload handler on each, a
//! completion handler after all, and a cleanup handler for messages that stay incomplete. The
//! handlers are C (`firmware/`), and this crate executes them instruction by instruction, as the
//! NIC's RISC-V cores would, and counts the cycles.
//!
//! | module | idea |
//! |---|---|
//! | [`isa`] | instructions: RV32IMAC and a part of Xpulp |
//! | [`core`] | a core: steps, cycles, traps |
//! | [`memory`] | regions with latencies; what a handler may touch |
//! | [`elf`] | programs for the cores |
//! | [`command`] | what handlers ask of the NIC |
//! | [`engine`] | what executes handlers: a core, or the host's build of the firmware |
//! | [`hpu`] | a core with its memories, protection and command unit |
//! | [`device`] | a NIC that handles packets one after the other |
//! | [`packet`], [`state`] | the layouts of `firmware/layout.h` |
//! | [`firmware`] | compiles the firmware |
//!
//! Not here yet: clusters, the packet scheduler, copies between memories, and the network.

pub mod command;
pub mod core;
pub mod device;
pub mod elf;
pub mod engine;
pub mod firmware;
pub mod hpu;
pub mod isa;
pub mod memory;
pub mod network;
pub mod packet;
pub mod state;
