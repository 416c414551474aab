//! The firmware of the repository's folder `firmware/`: the storage policies as packet handlers in
//! C, and everything that they run in.
//!
//! The firmware is one set of sources with two builds. One is for the cores of the NIC ([`hpu`]):
//! this crate executes it instruction by instruction and counts the cycles. The other is for this
//! machine: a test calls its functions. `tests/conformance.rs` gives both the same packets. They
//! must give the same commands and leave the same memory, and the result must be what `gf`, `codes`
//! and `proto` compute.
//!
//! | module | idea |
//! |---|---|
//! | [`build`] | compiles the firmware |
//! | [`planes`] | straight-line code of the firmware for products of planes of bits |
//! | [`packet`], [`state`] | the layouts of `firmware/layout.h` |
//! | [`command`] | what handlers ask of the NIC |
//! | [`engine`] | what executes handlers: a core, or the host's build of the firmware |
//! | [`arrivals`] | which packets of a message have come: each counts once |
//! | `grants` | what a handler may touch: its message's memory and place, and no other |
//! | [`hpu`] | a core with its memories, protection and command unit |
//! | [`cluster`] | several cores at once, whose accesses meet in the banks of L1 |
//! | [`nic`] | a NIC that handles packets one after the other |
//! | [`profile`] | what each handler costs |
//!
//! The network model of [`network`](crate::network) does not run the firmware. Its handlers have
//! costs: the paper's, or those that [`profile`] counts. The packet scheduler and copies between
//! memories are there, and not here.

pub mod arrivals;
pub mod build;
pub mod cluster;
pub mod command;
pub mod engine;
mod grants;
pub mod hpu;
pub mod nic;
pub mod packet;
pub mod planes;
pub mod profile;
pub mod state;
