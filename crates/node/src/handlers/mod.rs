//! The three handlers of a request (network-accelerated DFS, section III-B).
//!
//! | handler      | when                                | what it does                               |
//! |--------------|-------------------------------------|--------------------------------------------|
//! | [`header`]   | the request comes in                | capability, epoch, bounds; opens the entry |
//! | [`payload`]  | after it, and when unparked         | checksums, slot, disk operations           |
//! | [`completion`] | an operation of it ends           | verifies, seals, replies, closes the entry |
//!
//! On the SmartNIC of the paper they run per packet; here a request comes whole, so each runs once
//! per request and disk completion. What the header handler refuses costs no disk operation and
//! leaves nothing behind.

mod bounds;
pub(crate) mod completion;
pub(crate) mod header;
pub(crate) mod payload;
