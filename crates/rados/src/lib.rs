//! A native client of Ceph clusters, as state machines without I/O.
//!
//! Nothing here opens a socket, reads a clock or starts a thread. A caller hands in bytes and the
//! time, and gets bytes to send. So one client runs on the reactor of a store, in the thread of a
//! command, and in tests with a cluster in memory.
//!
//! ```text
//! cluster    calls and their answers, as futures: the interface for images and commands
//! client     puts the parts below together: one client of one cluster
//!   objecter   requests on objects: to which OSD, and again until they are answered
//!   monitors   the session with a monitor: maps, commands, snapshot numbers
//!   auth       cephx: keys, tickets, their renewal
//!   msgr       one connection: messenger 2.1, in the mode crc or secure
//! message    the messages, each with its encoding
//! op         operations on an object, and their results
//! encoding   integers, texts, lists, sections: bounds are checked here
//! settings   ceph.conf, keyrings and variables, as texts that the caller has read
//! errno      error numbers of OSDs and monitors
//! ```
//!
//! Arrows point down this list: a part uses parts below it only. The maps of OSDs are those of the
//! crate `crush`.
//!
//! **What a peer may do.** Each length that a peer sends is compared with the bytes that are there
//! before anything is allocated ([`encoding`]). A peer that breaks the protocol loses its
//! connection, and the requests go to it or to another one again.
//!
//! **Versions.** The client speaks to Ceph 14 and later, and was tested with Ceph 16. The module
//! [`message::features`] says which encodings it announces.

pub mod auth;
pub mod client;
pub mod cluster;
pub mod encoding;
pub mod errno;
pub mod fuzz;
pub mod message;
pub mod monitors;
pub mod msgr;
pub mod objecter;
pub mod op;
pub mod settings;

/// The time, as the world of a client gives it.
pub use fieldstone_block::Nanos;
