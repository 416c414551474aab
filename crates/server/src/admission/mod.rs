//! Clients of a pool: programs on other machines that open volumes without the pool's folder.
//!
//! A program that can read the pool's folder has the pool's secret, and can open every volume. A
//! *client* has a secret of its own instead, in its [`Credential`]. The client shows the pool's
//! metadata service ([`metadata`](crate::metadata)) that it has this secret, and asks the service
//! for the nodes' addresses and for capabilities. The client then sends its requests to the nodes
//! itself.
//!
//! ```text
//! pool admit:  DIR/clients.json <- name, secret, volumes         -> the client's credential
//! serving:     DIR/clients.json <- epoch and expiry of what the service issues
//! pool evict:  DIR/clients.json -> the client's name goes, and all it may have open is fenced
//! ```
//!
//! The file `clients.json` is the only state ([`Registry`]). The service reads it before it answers
//! a request. So a client that is evicted gets nothing more, and a service that starts anew knows
//! which capabilities may be in use.
//!
//! # Eviction
//!
//! A capability that was issued stays valid until it expires, or until the volume has a higher
//! epoch. So an eviction has two steps. It first removes the client under the pool's lock. The
//! service holds the same lock while it issues. So it issues nothing to the client after the
//! eviction has read what the client has. The eviction then fences each volume for which the client
//! has a valid capability, above the highest epoch of these capabilities. It leaves a node alone
//! that has such an epoch already, because another writer has opened the volume there.
//!
//! A node that does not answer is not fenced. It accepts the client's capabilities until they
//! expire, or until the next writer of the volume reaches the node.

mod credential;
mod evict;
mod registry;

pub use credential::Credential;
pub use evict::{Evicted, Unfenced};
pub use registry::{CLIENTS_FILE, Client, Grant, Holder, Registry, change};
