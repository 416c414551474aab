//! The short way for plain reads and writes.
//!
//! Most requests of a client of images read or write bytes of one object, and nothing about them is
//! unusual: the present state, no snapshot to keep, no class, no watch. They are carried out here
//! without the list of changes that a transaction needs, without a name of their own, and without a
//! copy of what is read. Whatever is unusual gives [`Unusual`], and
//! [`Pool::execute`](super::Pool::execute) does it; both ways give the same answer and leave the
//! same state.

use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::Time;
use smallvec::{SmallVec, smallvec};

use super::data::{BlockSums, Part, Parts};
use super::execution::MAX_OBJECT_BYTES;
use super::sums::of_bytes;
use super::{Content, Pool};

/// The request has to go the usual way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusual;

/// An operation that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainRead {
    Read { offset: u64, len: u64 },
    SparseRead { offset: u64, len: u64 },
    Stat,
}

/// The operation of a request that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainWrite {
    Write { offset: u64 },
    WriteFull,
}

/// An object as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainName<'a> {
    pub(crate) seed: u32,
    pub(crate) namespace: &'a str,
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
}

/// The data that an operation gives: some bytes of its own, then bytes of the object.
#[derive(Clone, Debug, Default)]
pub struct PlainData {
    /// The bytes in front.
    pub prefix: SmallVec<[u8; 32]>,
    /// The object's bytes.
    pub parts: Parts,
    /// The number of the object's bytes.
    pub parts_bytes: u64,
    /// The sum of all, as a frame has it, if it is known.
    pub sum: Option<u32>,
}

impl PlainData {
    /// The length of all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prefix.len() + self.parts_bytes as usize
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answer to a plain request that has succeeded.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlainOutcome {
    /// False for a read of an object that does not exist.
    pub(crate) exists: bool,
    pub(crate) user_version: u64,
    /// The data of each operation that reads.
    pub(crate) data: SmallVec<[PlainData; 2]>,
}

fn read(content: &Content, op: PlainRead) -> PlainData {
    let data = &content.data;
    let mut result = PlainData::default();
    match op {
        PlainRead::Read { offset, len } => {
            let len = if len == 0 { u64::MAX } else { len };
            let len = len.min(data.len().saturating_sub(offset));
            data.read_parts(offset, len, |part| result.parts.push(part));
            result.parts_bytes = len;
            result.sum = data.sum(u32::MAX, offset, len);
        }
        PlainRead::SparseRead { offset, len } => {
            let extents = data.extents(offset, len);
            result.prefix.extend_from_slice(&(extents.len() as u32).to_le_bytes());
            for &(offset, len) in &extents {
                result.prefix.extend_from_slice(&offset.to_le_bytes());
                result.prefix.extend_from_slice(&len.to_le_bytes());
                data.read_parts(offset, len, |part| result.parts.push(part));
                result.parts_bytes += len;
            }
            result.prefix.extend_from_slice(&(result.parts_bytes as u32).to_le_bytes());
            if let &[(offset, len)] = extents.as_slice() {
                result.sum = data.sum(of_bytes(&result.prefix), offset, len);
            }
        }
        PlainRead::Stat => {
            result.prefix.extend_from_slice(&data.len().to_le_bytes());
            result.prefix.extend_from_slice(&content.modified.seconds.to_le_bytes());
            result.prefix.extend_from_slice(&content.modified.nanos.to_le_bytes());
        }
    }
    result
}

impl Pool {
    fn find(&self, object: &PlainName<'_>) -> Result<Option<usize>, Unusual> {
        let index = self.index.as_ref().ok_or(Unusual)?;
        let is_it = |&&slot: &&usize| {
            let (namespace, key, name) = &self.slots[slot].key;
            **name == *object.name && **namespace == *object.namespace && **key == *object.key
        };
        let found = index.with_seed(object.seed).iter().find(is_it).copied();
        if found.is_none() {
            // A wrong seed finds no object although there may be one.
            let PlainName { seed, namespace, key, name } = object;
            if index.seed(namespace.as_bytes(), key.as_bytes(), name.as_bytes()) != *seed {
                return Err(Unusual);
            }
        }
        Ok(found)
    }

    /// Reads the present state of an object.
    pub(crate) fn plain_read(
        &self,
        object: &PlainName<'_>,
        ops: &[PlainRead],
    ) -> Result<PlainOutcome, Unusual> {
        if self.info.is_erasure_coded {
            return Err(Unusual);
        }
        let Some(slot) = self.find(object)? else { return Ok(PlainOutcome::default()) };
        let Some(content) = self.slots[slot].object.present() else { return Err(Unusual) };
        let data = ops.iter().map(|&op| read(content, op)).collect();
        Ok(PlainOutcome { exists: true, user_version: content.user_version, data })
    }

    /// Writes, for a client that knows these snapshots. `sums` are those of the bytes.
    pub(crate) fn plain_write(
        &mut self,
        object: &PlainName<'_>,
        (seq, newest_snap): (SnapId, Option<SnapId>),
        op: PlainWrite,
        (bytes, sums): (&[u8], &BlockSums),
        now: Time,
    ) -> Result<PlainOutcome, Unusual> {
        let offset = match op {
            PlainWrite::Write { offset } => offset,
            PlainWrite::WriteFull => 0,
        };
        let end = offset.checked_add(bytes.len() as u64).ok_or(Unusual)?;
        if self.info.is_erasure_coded || self.info.is_full || end > MAX_OBJECT_BYTES {
            return Err(Unusual);
        }
        let slot = match self.find(object)? {
            Some(slot) => {
                let found = &self.slots[slot].object;
                let makes_clone = newest_snap.is_some_and(|newest| newest > found.snaps.seq);
                if found.is_whiteout || makes_clone || !found.snaps.clones.is_empty() {
                    return Err(Unusual);
                }
                slot
            }
            None => {
                let PlainName { namespace, key, name, .. } = *object;
                self.slot(&(namespace.into(), key.into(), name.into()))
            }
        };
        self.newest_version += 1;
        let object = &mut self.slots[slot].object;
        object.snaps.seq = object.snaps.seq.max(seq);
        let head = &mut object.head;
        if op == PlainWrite::WriteFull {
            head.data.truncate(0);
        }
        if sums.blocks.is_empty() || !offset.is_multiple_of(super::data::BLOCK_BYTES as u64) {
            head.data.write(offset, bytes);
        } else {
            head.data.write_blocks(offset, bytes, &sums.blocks);
        }
        head.modified = now;
        head.user_version = self.newest_version;
        Ok(PlainOutcome {
            exists: true,
            user_version: self.newest_version,
            data: smallvec![PlainData::default()],
        })
    }
}

/// Each part as bytes that share the object's memory.
impl PlainData {
    /// The object's bytes, part by part.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Part::as_ref)
    }
}
