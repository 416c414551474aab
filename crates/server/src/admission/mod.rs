//! Clients of a pool: programs on other machines that open volumes without the pool's folder.
//!
//! Whoever has the pool's folder has the pool's secret, and with it every volume. A *client* has a
//! secret of its own instead, in its [`Credential`]. With it, the client asks the pool's metadata
//! service ([`metadata`](crate::metadata)) where the nodes are, and for the capabilities of its
//! volumes. It then sends its requests to the nodes itself.
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
//! epoch. So an eviction also raises the epochs of the volumes that the client has open: it fences
//! each of them above the highest epoch that the client has a capability for. It does so only where
//! the client is the last writer. A volume that another writer has opened since has a higher epoch
//! already. Both happen under the pool's lock, as does each issue: no capability is issued after
//! the eviction has read what there is.
//!
//! A node that does not answer is not fenced. It accepts the client's capabilities until they
//! expire, or until the next writer of the volume reaches the node.

mod credential;
mod evict;
mod registry;

pub use credential::Credential;
pub use evict::{Evicted, Unfenced};
pub use registry::{CLIENTS_FILE, Client, Grant, Holder, Registry, change};
