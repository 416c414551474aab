//! The three handlers of a request (network-accelerated DFS, section III-B).
//!
//! | handler        | when                          | what it does                               |
//! |----------------|-------------------------------|--------------------------------------------|
//! | [`header`]     | the request arrives           | capability, bounds, epoch; opens the entry |
//! | [`payload`]    | after that, and when unparked | checksums, slot, disk operations           |
//! | [`completion`] | a disk operation ends         | verifies, seals, replies, closes the entry |
//!
//! On the SmartNIC of the paper the handlers run per packet. Here most requests arrive whole, so
//! each handler runs once per request or disk completion. A long write with a route may arrive in
//! fragments, and the node passes on each fragment (`arrivals`). A request that the header handler
//! refuses costs no disk operation and leaves nothing behind.

mod bounds;
pub(crate) mod completion;
pub(crate) mod header;
pub(crate) mod payload;

pub(crate) use bounds::payload_len;
pub(crate) use payload::first_mismatch;
