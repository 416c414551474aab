//! The timed world, in two halves: a network of hosts and SmartNICs counted in picoseconds, and the
//! handlers that a SmartNIC runs on each packet, counted in cycles.
//!
//! A SmartNIC as in the network-accelerated DFS paper (PsPIN) runs small programs, *handlers*, on
//! each packet: a header handler on the first packet of a message, a payload handler on each, a
//! completion handler after all, and a cleanup handler for messages that stay incomplete.
//!
//! | module | idea | what it knows of handlers |
//! |---|---|---|
//! | [`network`] | links, switch, hosts and NICs; the paper's protocols | how long each takes |
//! | [`firmware`] | handlers in C (`firmware/`), and a NIC around them | what each does |
//! | [`riscv`] | the cores that execute the handlers | nothing: instructions and cycles |

pub mod firmware;
pub mod network;
pub mod riscv;
