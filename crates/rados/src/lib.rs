//! A native client of a Ceph cluster, as state machines without I/O.

pub mod auth;
pub mod client;
pub mod cluster;
pub mod encoding;
pub mod errno;
pub mod message;
pub mod monitors;
pub mod msgr;
pub mod objecter;
pub mod op;
pub mod settings;

/// The time, as the world of a client gives it.
pub use fieldstone_block::Nanos;
