//! Changes of pools, and statistics.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;

use super::{Fsid, PaxosHeader, front, fsid};
use crate::cluster::SnapId;
use crate::encoding::{DecodeError, Decoder, Encoder};
use crate::message::{Message, MessageKind};

/// A change of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PoolOpKind {
    /// A new number for a snapshot of objects. The answer's data has it as u64.
    CreateSnap = 0x21,
    /// OSDs may remove what only this snapshot keeps.
    RemoveSnap = 0x22,
}

/// A change of a pool (`MPoolOp` v4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOp {
    /// Names the request.
    pub tid: u64,
    /// The epoch of the map of OSDs that the monitor must have.
    pub osdmap_epoch: u64,
    /// The cluster.
    pub fsid: Fsid,
    /// The pool.
    pub pool: PoolId,
    /// The change.
    pub kind: PoolOpKind,
    /// The snapshot to remove; 0 otherwise.
    pub snap: SnapId,
}

/// The answer to a change of a pool (`MPoolOpReply` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOpReply {
    /// Names the request.
    pub tid: u64,
    /// The cluster.
    pub fsid: Fsid,
    /// The result; negative is an error number.
    pub result: i32,
    /// The epoch of the map of OSDs that has the change.
    pub osdmap_epoch: u32,
    /// What the change gives; empty if nothing.
    pub data: Bytes,
}

impl PoolOp {
    /// The message. The number of a pool is cut to 32 bits, as in Ceph.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(64);
        PaxosHeader { version: self.osdmap_epoch }.encode(&mut front);
        front.bytes(&self.fsid).u32(self.pool.0 as u32).u32(self.kind as u32);
        // Behind: an owner (unused), the snapshot, a name, a byte of an old version, a rule.
        front.u64(0).u64(self.snap.0).string("").u8(0).u16(0);
        let message = Message::new(MessageKind::PoolOp, 4, 2, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, not as it should be, or a change that this crate does not know.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::PoolOp)?;
        let osdmap_epoch = PaxosHeader::decode(&mut front)?.version;
        let fsid = fsid(&mut front)?;
        let pool = PoolId(front.u32("a pool")?.into());
        let offset = front.offset();
        let kind = match front.u32("the change of a pool")? {
            0x21 => PoolOpKind::CreateSnap,
            0x22 => PoolOpKind::RemoveSnap,
            other => return Err(Decoder::refused(offset, other.into(), "the change of a pool")),
        };
        front.u64("an owner")?;
        let snap = SnapId(front.u64("a snapshot")?);
        front.string("a name")?;
        Ok(Self { tid: message.tid, osdmap_epoch, fsid, pool, kind, snap })
    }
}

impl PoolOpReply {
    /// The answer's data of a new snapshot.
    #[must_use]
    pub fn data_of_snap(snap: SnapId) -> Bytes {
        Bytes::copy_from_slice(&snap.0.to_le_bytes())
    }

    /// The new snapshot, if the answer gives one.
    #[must_use]
    pub fn snap(&self) -> Option<SnapId> {
        Decoder::new(self.data.clone()).u64("a snapshot").ok().map(SnapId)
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(64);
        PaxosHeader { version: self.osdmap_epoch.into() }.encode(&mut front);
        front.bytes(&self.fsid).i32(self.result).u32(self.osdmap_epoch);
        front.bool(!self.data.is_empty());
        if !self.data.is_empty() {
            front.blob(&self.data);
        }
        let message = Message::new(MessageKind::PoolOpReply, 1, 0, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::PoolOpReply)?;
        PaxosHeader::decode(&mut front)?;
        let fsid = fsid(&mut front)?;
        let result = front.i32("the result of a change of a pool")?;
        let osdmap_epoch = front.u32("an epoch")?;
        let data = if front.bool("a marker of data")? { front.blob("data")? } else { Bytes::new() };
        Ok(Self { tid: message.tid, fsid, result, osdmap_epoch, data })
    }
}

/// A question for space used (`MStatfs` v2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Names the request.
    pub tid: u64,
    /// The cluster. A monitor does not answer a question for another one.
    pub fsid: Fsid,
    /// Only this pool.
    pub pool: Option<PoolId>,
}

/// The answer to a question for space used (`MStatfsReply` v1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFsReply {
    /// Names the request.
    pub tid: u64,
    /// The cluster.
    pub fsid: Fsid,
    /// The version of the statistics.
    pub version: u64,
    /// Space in KiB: of the devices, or what the pool can hold.
    pub total_kib: u64,
    /// Space used in KiB.
    pub used_kib: u64,
    /// Space available in KiB.
    pub available_kib: u64,
    /// Objects.
    pub objects: u64,
}

impl StatFs {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(48);
        PaxosHeader { version: 0 }.encode(&mut front);
        front.bytes(&self.fsid).bool(self.pool.is_some());
        if let Some(pool) = self.pool {
            front.i64(pool.0);
        }
        let message = Message::new(MessageKind::StatFs, 2, 1, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::StatFs)?;
        PaxosHeader::decode(&mut front)?;
        let fsid = fsid(&mut front)?;
        let has_pool = message.version >= 2 && front.bool("a marker of a pool")?;
        let pool = if has_pool { Some(PoolId(front.i64("a pool")?)) } else { None };
        Ok(Self { tid: message.tid, fsid, pool })
    }
}

impl StatFsReply {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::with_capacity(56);
        front.bytes(&self.fsid).u64(self.version);
        front.u64(self.total_kib).u64(self.used_kib).u64(self.available_kib).u64(self.objects);
        let message = Message::new(MessageKind::StatFsReply, 1, 0, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::StatFsReply)?;
        Ok(Self {
            tid: message.tid,
            fsid: fsid(&mut front)?,
            version: front.u64("a version")?,
            total_kib: front.u64("a size")?,
            used_kib: front.u64("a size")?,
            available_kib: front.u64("a size")?,
            objects: front.u64("a number of objects")?,
        })
    }
}

/// A question for statistics of pools (`MGetPoolStats` v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPoolStats {
    /// Names the request.
    pub tid: u64,
    /// The cluster.
    pub fsid: Fsid,
    /// Names of pools.
    pub pools: Vec<String>,
}

/// Statistics of one pool: the part of `pool_stat_t` v7 that a block store uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of the objects, without copies.
    pub bytes: u64,
    /// Objects, without copies.
    pub objects: u64,
    /// Of these, kept for snapshots.
    pub clones: u64,
    /// Copies of objects, or shards.
    pub copies: u64,
}

/// The answer to a question for statistics of pools (`MGetPoolStatsReply` v2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPoolStatsReply {
    /// Names the request.
    pub tid: u64,
    /// The cluster.
    pub fsid: Fsid,
    /// Statistics by pool. A pool that does not exist is left out.
    pub pools: BTreeMap<String, PoolStats>,
}

/// The length of `object_stat_sum_t` v20 in numbers of 64 bits.
const SUM_FIELDS: usize = 38;

impl PoolStats {
    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let pool = from.section(7, "statistics of a pool")?.at_least(5, "statistics of a pool")?;
        let mut pool = pool.fields;
        let mut objects = pool.section(2, "statistics of objects")?.fields;
        let mut sum = objects.section(20, "a sum of statistics")?.fields;
        Ok(Self {
            bytes: sum.u64("bytes of objects")?,
            objects: sum.u64("a number of objects")?,
            clones: sum.u64("a number of clones")?,
            copies: sum.u64("a number of copies")?,
        })
    }

    /// Writes version 5, whose other fields are zero.
    fn encode(&self, into: &mut Encoder) {
        into.section(5, 5, |pool| {
            pool.section(2, 2, |objects| {
                objects.section(20, 14, |sum| {
                    sum.u64(self.bytes).u64(self.objects).u64(self.clones).u64(self.copies);
                    for _ in 4..SUM_FIELDS {
                        sum.u64(0);
                    }
                });
                objects.u32(0);
            });
            pool.i64(0).i64(0);
        });
    }
}

impl GetPoolStats {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        PaxosHeader { version: 0 }.encode(&mut front);
        front.bytes(&self.fsid).list(self.pools.iter(), |front, pool| {
            front.string(pool);
        });
        let message = Message::new(MessageKind::GetPoolStats, 1, 0, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::GetPoolStats)?;
        PaxosHeader::decode(&mut front)?;
        let fsid = fsid(&mut front)?;
        let pools = front.list(4, "pools", |front| front.string("the name of a pool"))?;
        Ok(Self { tid: message.tid, fsid, pools })
    }
}

impl GetPoolStatsReply {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut front = Encoder::new();
        PaxosHeader { version: 0 }.encode(&mut front);
        front.bytes(&self.fsid).list(self.pools.iter(), |front, (name, stats)| {
            front.string(name);
            stats.encode(front);
        });
        front.bool(true);
        let message = Message::new(MessageKind::GetPoolStatsReply, 2, 1, front.finish());
        Message { tid: self.tid, ..message }
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let mut front = front(message, MessageKind::GetPoolStatsReply)?;
        PaxosHeader::decode(&mut front)?;
        let fsid = fsid(&mut front)?;
        let pools = front.list(10, "pools", |front| {
            Ok((front.string("the name of a pool")?, PoolStats::decode(front)?))
        })?;
        Ok(Self { tid: message.tid, fsid, pools: pools.into_iter().collect() })
    }
}
