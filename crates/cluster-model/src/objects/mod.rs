//! The objects of a pool, in memory, with self-managed snapshots as an OSD keeps them.
//!
//! **State of an object.** The *head* is what clients write. Each *clone* is the head as it was for
//! one or more snapshots. The set of clones ([`SnapSet`]) also has `seq`: the newest snapshot that
//! the object has heard of.
//!
//! ```text
//!   snapshots   4     7  9          12
//!   clones      [4]   [9 = 9,7]           head
//!                     seq = 9; a write with context (12: 12 9 7 4) first makes the clone [12 = 12]
//! ```
//!
//! **A write** carries the snapshots that exist. If the newest is newer than `seq` and the object
//! exists, the head is cloned, for all snapshots newer than `seq`; the clone's number is the
//! context's `seq`. Then `seq` becomes the context's. **A read** at snapshot *s* takes the head if
//! *s* is newer than `seq`, else the first clone whose number is not below *s*, if *s* is among
//! the snapshots of that clone; else the object did not exist then. **A delete** of an object that
//! has clones, or gets one now, leaves a head that counts as absent (a *whiteout*), because the
//! clones need a place. **Removal of a snapshot** takes it from its clone, and the clone goes with
//! its last snapshot.
//!
//! **Overlap.** Each clone knows which bytes it shares with the next newer clone, or with the head:
//! all of them at first, less with each write. Lists of snapshots show it, and tools that export
//! differences between snapshots rely on it.
//!
//! **A request is a transaction.** Execution does not touch the object: it reads the state from
//! before the request, and collects changes. So a later operation of a request does not see what an
//! earlier one wrote, except for the object's existence and size — the same holds for a real OSD,
//! and for the methods of classes. If all operations succeed the changes are made, else none.
//!
//! Sources: Ceph's `PrimaryLogPG` (`find_object_context`, `make_writeable`, `_rollback_to`,
//! `trim_object`), as behaviour.

mod data;
mod execution;
#[cfg(test)]
mod hostile;
mod index;
mod intervals;
mod object;
mod plain;
mod pool;
mod reads;
mod request;
mod sums;
#[cfg(test)]
mod tests;
mod writes;

pub use data::{BlockSums, Data, Part, Parts};
pub(crate) use execution::may_write;
pub use execution::{Caller, Effect, Execution, Outcome, Request};
pub use intervals::Intervals;
pub use object::{Clone, Content, Object, SnapSet};
pub use plain::PlainData;
pub(crate) use plain::{PlainName, PlainRead, PlainWrite, Unusual};
pub(crate) use pool::key_of;
pub use pool::{ObjectKey, Pool};
pub(crate) use reads::client_name;
pub(crate) use request::called;
