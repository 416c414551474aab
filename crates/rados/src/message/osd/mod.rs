//! Messages between client and OSD.
//!
//! | Message | Direction | Versions |
//! |---|---|---|
//! | [`OsdOp`], a request | to the OSD | written as 8, or as 9 to a reader with `SERVER_SQUID` |
//! | [`OsdOpReply`], its answer | to the client | 8; 7 and newer are read |
//! | [`OsdBackoff`], hold requests back | both | 1 |
//! | [`WatchNotify`], an event of a watch | to the client | 3; 1 and newer are read |
//! | [`OsdMaps`], maps | to the client | 4; 1 and newer are read |
//!
//! **Data.** The data of a request's operations are the data of the message, one behind the other
//! and not copied. Each operation has its length in the front. A reply is cut in the same way:
//! [`OpResult::data`](crate::op::OpResult) shares the memory of the message.
//!
//! **Hostile bytes** give a [`DecodeError`](crate::encoding::DecodeError). A newer version of a
//! message has more fields at its end, and they are passed over. Names of objects may be any bytes
//! in Ceph, but are texts here: in messages from an OSD, bytes that are no UTF-8 are replaced.

mod events;
pub mod flag;
mod locator;
mod position;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::{PgId, PoolId};

use crate::cluster::{ObjectName, SnapContext, SnapId};
use crate::encoding::Time;
use crate::op::{ObjectOps, Reply};

/// A placement group at one OSD: with the number of the shard in an erasure-coded pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardedPg {
    /// The group, folded.
    pub pg: PgId,
    /// The shard; -1 in a replicated pool.
    pub shard: i8,
}

/// A request on an object (`MOSDOp`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdOp {
    /// The group at the OSD.
    pub target: ShardedPg,
    /// The object.
    pub object: ObjectName,
    /// The hash of its name or key, not folded.
    pub hash: u32,
    /// The epoch of the map that gave the target.
    pub map_epoch: u32,
    /// Flags of the request, with Ceph's bits.
    pub flags: u32,
    /// The state that reads see.
    pub snapshot: SnapId,
    /// The snapshots that writes keep.
    pub snap_context: SnapContext,
    /// The time of the change, for writes.
    pub modified: Time,
    /// The global id of the client. With the number of the request it names the request for ever,
    /// so that a repeated one is executed once. If it is 0, the OSD takes the name of the session.
    pub client: u64,
    /// Number of the request: the `tid` of the message.
    pub tid: u64,
    /// How often the request was sent before. Above 0, [`flag::RETRY`] is set by itself.
    pub attempt: i32,
    /// The features of the client's connection. [`OsdOp::encode`] writes those that it is given.
    pub features: u64,
    /// The operations.
    pub ops: ObjectOps,
}

/// The answer to a request (`MOSDOpReply`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdOpReply {
    /// The group.
    pub pg: PgId,
    /// The object's name.
    pub object: Bytes,
    /// The flags of the request, with [`flag::ACK`] and [`flag::ONDISK`] of the reply.
    pub flags: u32,
    /// The epoch of the OSD's map.
    pub map_epoch: u32,
    /// Which attempt is answered; -1 if the OSD does not say.
    pub attempt: i32,
    /// The result and the data.
    pub reply: Reply,
    /// Where to ask instead.
    pub redirect: Option<Redirect>,
}

/// Where a request has to go instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The pool.
    pub pool: PoolId,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The locator key.
    pub key: Arc<str>,
    /// The object; empty to keep the name.
    pub object: Arc<str>,
}

/// A place in the order of a pool's objects (`hobject_t`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectPosition {
    /// Behind all objects.
    pub is_max: bool,
    /// The pool.
    pub pool: PoolId,
    /// The hash of the name or key.
    pub hash: u32,
    /// The namespace.
    pub namespace: String,
    /// The locator key; empty if it is the name (the order knows both forms as one object).
    pub key: String,
    /// The name.
    pub name: String,
    /// The snapshot.
    pub snapshot: SnapId,
}

/// Step of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffStep {
    /// The OSD asks to hold requests back.
    Block = 1,
    /// The client has stopped.
    AckBlock = 2,
    /// The client may go on.
    Unblock = 3,
}

/// An OSD asks a client to hold requests back, or to go on (`MOSDBackoff`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdBackoff {
    /// The group at the OSD.
    pub target: ShardedPg,
    /// The epoch of the map.
    pub map_epoch: u32,
    /// The step.
    pub step: BackoffStep,
    /// Names the backoff.
    pub id: u64,
    /// The first object.
    pub begin: ObjectPosition,
    /// The first object behind; equal to `begin` for one object.
    pub end: ObjectPosition,
}

/// What a notification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyKind {
    /// A client notified the watchers.
    Notify = 1,
    /// All watchers have answered, or the time is over.
    Complete = 2,
    /// The watch is broken.
    Disconnect = 3,
}

/// A notification (`MWatchNotify`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchNotify {
    /// The kind.
    pub kind: NotifyKind,
    /// The cookie of the watch, or of the notifier.
    pub cookie: u64,
    /// The version of the object.
    pub version: u64,
    /// Names the notification.
    pub notify_id: u64,
    /// The notifier's bytes, or the answers of all watchers.
    pub payload: Bytes,
    /// For [`NotifyKind::Complete`]: 0, or a negative error number (-110: some did not answer).
    pub result: i32,
    /// The global id of the notifier.
    pub from: u64,
}

/// OSDMaps (`MOSDMap`): each epoch with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsdMaps {
    /// The cluster.
    pub fsid: [u8; 16],
    /// Changes against the epoch before.
    pub incremental: Vec<(u32, Bytes)>,
    /// Whole maps.
    pub full: Vec<(u32, Bytes)>,
    /// The oldest epoch that the sender has.
    pub oldest: u32,
    /// The newest epoch that the sender has.
    pub newest: u32,
}
