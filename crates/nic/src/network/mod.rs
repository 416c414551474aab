//! The network of the timed world: clients and storage nodes at picosecond resolution, after the
//! network-accelerated DFS paper's simulation (section III-D).
//!
//! The model has four layers.
//!
//! 1. [`schedule`]: events in order of time, and of scheduling where times are equal. A run is a
//!    function of its inputs.
//! 2. [`channel`], [`fair`], [`fabric`]: links with credits, and a switch. No packet is lost. A
//!    receiver that is slow stops its senders.
//! 3. [`host`], [`spin`]: cores, PCIe, a plain RDMA NIC, and PsPIN.
//! 4. [`protocols`]: what clients and nodes do, as state machines over [`fabric::Notice`].
//!    [`world`] runs one of them, and [`load`] measures it.
//!
//! Everything that the paper prints, or that its figures need and it does not print, is a constant
//! in [`constants`], with its source; [`handlers`] has the costs of handlers.
//! `docs/network-model.md` says where the model lands beside each statement of the paper.
//!
//! Invariants, which the tests check: packets received are packets sent; at rest all credits are
//! back, and no NIC has a packet, a task or a message; a link is never busy for longer than its
//! bytes take; a payload handler never begins before the header handler of its message is reported,
//! and a completion handler never before all payload handlers are.

pub mod channel;
pub mod constants;
pub mod fabric;
pub mod fair;
pub mod handlers;
pub mod host;
pub mod load;
pub mod packet;
pub mod protocols;
pub mod schedule;
pub mod spin;
pub mod time;
pub mod world;

#[cfg(test)]
mod hybrid_tests;
#[cfg(test)]
mod tests;
