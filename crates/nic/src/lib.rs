//! The timed world: hosts, SmartNICs and the network between them, counted in picoseconds.
//!
//! | module | idea |
//! |---|---|
//! | [`network`] | links, switch, hosts and NICs; the protocols of the network-accelerated DFS paper |

pub mod network;
