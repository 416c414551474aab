//! The short way of a request through an OSD: read in place, carried out at once, answered without
//! a message in between. See [`objects`](crate::objects) for what such a request may do.
//!
//! The owner of a connection offers each request here first. If it is refused, nothing has happened
//! yet, and [`WireCluster::receive`] takes the request. Only a request that knows the newest map,
//! is sent for the first time, and comes while nothing is blocked, shut out or broken on purpose,
//! is taken.

use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{PgId, PoolId};
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::message::osd::flag;
use smallvec::SmallVec;

use super::{SessionId, WireCluster};
use crate::objects::{BlockSums, PlainData, PlainName, PlainRead, PlainWrite, Unusual};

/// Writes of the short way that are kept for repeated requests, as
/// [`MAX_ANSWERS`](super::MAX_ANSWERS).
const MAX_WRITES: usize = super::MAX_ANSWERS;
/// The version of answers, and what their readers must know, as in
/// [`OsdOpReply`](fieldstone_rados::message::osd::OsdOpReply).
const VERSION: u16 = 8;
const COMPAT: u16 = 2;
/// Bytes of an operation in a request and in an answer.
const OP_BYTES: usize = 38;

/// Flags that change what a request means.
const UNUSUAL_FLAGS: u32 = flag::PGOP
    | flag::BALANCE_READS
    | flag::LOCALIZE_READS
    | flag::ORDERSNAP
    | flag::RETRY
    | flag::REDIRECTED;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    Read(SmallVec<[PlainRead; 2]>),
    /// With the index of the writing operation.
    Write(PlainWrite),
}

/// A request that may go the short way, read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainRequest<'a> {
    pg: PgId,
    pool: PoolId,
    map_epoch: u32,
    flags: u32,
    client: u64,
    tid: u64,
    object: PlainName<'a>,
    /// Operations of the request.
    ops: usize,
    work: Work,
    seq: SnapId,
    newest_snap: Option<SnapId>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct PlainAnswer {
    map_epoch: u32,
    result: i32,
    user_version: u64,
    ops: usize,
    /// The data of the operations.
    pub data: SmallVec<[PlainData; 2]>,
}

/// A write that was carried out, for a client that sends it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoneWrite {
    pub(super) client: u64,
    pub(super) tid: u64,
    pub(super) map_epoch: u32,
    pub(super) user_version: u64,
}

/// Bytes that are read one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    /// A section that a reader of version `known` understands: its version and its fields.
    fn section(&mut self, known: u8) -> Option<(u8, Fields<'a>)> {
        let (version, compat) = (self.u8()?, self.u8()?);
        let len = self.u32()? as usize;
        let fields = Fields(self.bytes(len)?);
        (compat <= known).then_some((version, fields))
    }
}

fn pg(from: &mut Fields<'_>) -> Option<PgId> {
    if from.u8()? != 1 {
        return None;
    }
    let pool = PoolId(from.u64()?.cast_signed());
    let seed = from.u32()?;
    from.u32()?;
    Some(PgId { pool, seed })
}

/// Reads the operations: all of them read, or one writes, maybe behind a hint.
fn work(from: &mut Fields<'_>, count: usize, data_bytes: usize) -> Option<Work> {
    let mut reads = SmallVec::new();
    let mut write = None;
    for index in 0..count {
        let mut op = Fields(from.bytes(OP_BYTES)?);
        let (code, _flags) = (op.u16()?, op.u32()?);
        let (offset, len) = (op.u64()?, op.u64()?);
        op.bytes(12)?;
        let payload = op.u32()? as usize;
        let is_last = index + 1 == count;
        match code {
            0x1201 if payload == 0 => reads.push(PlainRead::Read { offset, len }),
            0x1205 if payload == 0 => reads.push(PlainRead::SparseRead { offset, len }),
            0x1202 if payload == 0 => reads.push(PlainRead::Stat),
            0x2223 if payload == 0 && index == 0 && !is_last => {}
            0x2201 if is_last && payload == data_bytes => {
                write = Some(PlainWrite::Write { offset });
            }
            0x2202 if is_last && payload == data_bytes => write = Some(PlainWrite::WriteFull),
            _ => return None,
        }
    }
    match (write, reads.is_empty()) {
        (Some(write), true) => Some(Work::Write(write)),
        (None, false) if reads.len() == count && data_bytes == 0 => Some(Work::Read(reads)),
        _ => None,
    }
}

impl<'a> PlainRequest<'a> {
    /// Reads a request: version and number of the message, its front, and the length of its data.
    /// `None` if there is anything unusual about it, or anything wrong.
    #[must_use]
    pub fn read(version: u16, tid: u64, front: &'a [u8], data_bytes: usize) -> Option<Self> {
        if !(8..=9).contains(&version) {
            return None;
        }
        let mut front = Fields(front);
        let (_, mut target) = front.section(1)?;
        let (pg, shard) = (pg(&mut target)?, target.u8()?);
        let (seed, map_epoch, flags) = (front.u32()?, front.u32()?, front.u32()?);
        let (_, mut name) = front.section(2)?;
        name.u8()?;
        let client = name.u64()?;
        front.bytes(24)?;
        if version >= 9 {
            front.section(1)?;
        }
        front.u32()?;
        front.u64()?;
        let (locator_version, mut locator) = front.section(6)?;
        let pool = PoolId(locator.u64()?.cast_signed());
        locator.u32()?;
        let (key, namespace) = (locator.text()?, locator.text()?);
        let name = front.text()?;
        let count = usize::from(front.u16()?);
        let work = work(&mut front, count, data_bytes)?;
        let snapshot = SnapId(front.u64()?);
        let seq = SnapId(front.u64()?);
        let newest_snap = snaps(&mut front, seq)?;
        let attempt = front.u32()?;
        front.u64()?;
        let is_usual = shard.cast_signed() == -1
            && locator_version >= 5
            && attempt == 0
            && snapshot == SnapId::HEAD
            && flags & UNUSUAL_FLAGS == 0;
        let object = PlainName { seed, namespace, key, name };
        is_usual.then_some(Self {
            pg,
            pool,
            map_epoch,
            flags,
            client,
            tid,
            object,
            ops: count,
            work,
            seq,
            newest_snap,
        })
    }
}

/// Reads the snapshots of a context, and gives the newest. They have to be in order.
fn snaps(from: &mut Fields<'_>, seq: SnapId) -> Option<Option<SnapId>> {
    let count = from.u32()?;
    let (mut newest, mut last) = (None, None);
    for _ in 0..count {
        let snap = SnapId(from.u64()?);
        if last.is_some_and(|last| snap >= last) || snap > seq {
            return None;
        }
        newest = newest.or(Some(snap));
        last = Some(snap);
    }
    Some(newest)
}

impl WireCluster {
    /// Carries out a request on the short way. `None` if it has to go the usual one; then nothing
    /// has happened. `sums` are those of `data`.
    pub fn plain(
        &mut self,
        id: SessionId,
        osd: u32,
        request: &PlainRequest<'_>,
        data: (&[u8], &BlockSums),
        now: Nanos,
    ) -> Option<PlainAnswer> {
        let pg = request.pg;
        let is_open = self.blocked.is_empty() && self.store.is_plain();
        if !is_open || request.map_epoch != self.newest_epoch || pg.pool != request.pool {
            return None;
        }
        let places = self.maps.places.get(&pg.pool)?;
        if places.primary(pg.seed) != Some(OsdId(osd))
            || places.pool.fold(request.object.seed) != pg.seed
        {
            return None;
        }
        self.now = self.now.max(now);
        let time = self.store.time_of_day(self.now);
        let pool = self.store.pool_mut(request.pool)?;
        let outcome = match &request.work {
            Work::Read(ops) => pool.plain_read(&request.object, ops),
            &Work::Write(op) => {
                let snaps = (request.seq, request.newest_snap);
                pool.plain_write(&request.object, snaps, op, data, time)
            }
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(Unusual) => return None,
        };
        let answer = PlainAnswer {
            map_epoch: self.newest_epoch,
            result: if outcome.exists { 0 } else { -Errno::ENOENT.0 },
            user_version: outcome.user_version,
            ops: request.ops,
            data: outcome.data,
        };
        if matches!(request.work, Work::Write(_)) {
            self.note_write(id, request, &answer);
        }
        Some(answer)
    }

    fn note_write(&mut self, id: SessionId, request: &PlainRequest<'_>, answer: &PlainAnswer) {
        let client = match request.client {
            0 => self.client_of(id).unwrap_or(0),
            client => client,
        };
        if self.done_writes.len() >= MAX_WRITES {
            self.done_writes.pop_front();
        }
        let PlainAnswer { map_epoch, user_version, .. } = *answer;
        let done = DoneWrite { client, tid: request.tid, map_epoch, user_version };
        self.done_writes.push_back(done);
    }
}

impl PlainAnswer {
    /// The version of the message.
    #[must_use]
    pub fn version(&self) -> u16 {
        VERSION
    }

    /// What a reader of the message must know.
    #[must_use]
    pub fn compat_version(&self) -> u16 {
        COMPAT
    }

    /// Appends the front of the answer, which is an `MOSDOpReply` of version 8.
    pub fn encode_front(&self, request: &PlainRequest<'_>, into: &mut Vec<u8>) {
        let name = request.object.name.as_bytes();
        into.extend_from_slice(&(name.len() as u32).to_le_bytes());
        into.extend_from_slice(name);
        into.push(1);
        into.extend_from_slice(&request.pg.pool.0.to_le_bytes());
        into.extend_from_slice(&request.pg.seed.to_le_bytes());
        into.extend_from_slice(&(-1_i32).to_le_bytes());
        let flags = u64::from(request.flags | flag::ACK | flag::ONDISK);
        into.extend_from_slice(&flags.to_le_bytes());
        into.extend_from_slice(&self.result.to_le_bytes());
        into.extend_from_slice(&self.map_epoch.to_le_bytes());
        into.extend_from_slice(&self.user_version.to_le_bytes());
        into.extend_from_slice(&self.map_epoch.to_le_bytes());
        into.extend_from_slice(&(self.ops as u32).to_le_bytes());
        for op in 0..self.ops {
            let mut bytes = [0; OP_BYTES];
            let len = self.data.get(op).map_or(0, PlainData::len) as u32;
            bytes[OP_BYTES - 4..].copy_from_slice(&len.to_le_bytes());
            into.extend_from_slice(&bytes);
        }
        // The attempt, and the result of each operation.
        into.resize(into.len() + 4 + 4 * self.ops, 0);
        into.extend_from_slice(&self.map_epoch.to_le_bytes());
        into.extend_from_slice(&self.user_version.to_le_bytes());
        into.extend_from_slice(&self.user_version.to_le_bytes());
        // No redirection, and a trace.
        into.extend_from_slice(&[0; 1 + 24]);
    }
}
