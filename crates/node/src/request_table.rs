//! The request table: one entry per request that the node is working on.
//!
//! Network-accelerated DFS, section III-B2: a write needs state on the node for as long as it
//! lasts, an entry of the request table with what its header carried and later stages need. The
//! table is bounded; a request that finds it full is denied and the client retries later
//! ([`NodeError::Busy`]).
//!
//! Invariants:
//! - an entry is opened by the header handler and closed by the completion handler, once;
//! - it stays open while disk operations of it are in flight, even when its peer is gone, so an
//!   [`EntryId`] held by an operation is never another request's.

use bytes::Bytes;
use slab::Slab;

use fieldstone_proto::{
    Epoch, JournalGen, NodeError, RequestBody, SegmentId, ShardIndex, Tag, VolumeId,
};

use crate::limits::{REQUESTS_FOR_READS_MAX, REQUESTS_MAX};
use crate::seam::PeerId;
use crate::store::SlotIndex;

/// Names an entry while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId(u32);

/// One request under way: the write descriptor of the paper.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Whom to answer.
    pub(crate) peer: PeerId,
    /// The peer is gone: finish, but do not answer.
    pub(crate) peer_lost: bool,
    /// The request's tag.
    pub(crate) tag: Tag,
    /// The volume it acts on.
    pub(crate) volume: VolumeId,
    /// The writer's epoch.
    pub(crate) epoch: Epoch,
    /// Fencing and removing the volume wait for this entry to close.
    pub(crate) counted: bool,
    /// What it waits for: disk operations, or slots that are being freed for it.
    pub(crate) outstanding: u32,
    /// The first thing that went wrong.
    pub(crate) error: Option<NodeError>,
    /// What is being done.
    pub(crate) task: Task,
}

/// What an entry is doing, with what its completion needs to know.
#[derive(Debug)]
pub(crate) enum Task {
    /// Admitted, or waiting for a slot or for an operation on the same blocks to end; runs again
    /// when anything changed in the store.
    Parked(Box<(RequestBody, Vec<Bytes>)>),
    /// See [`RequestBody::Fence`].
    Fence { takeover: bool },
    /// See [`RequestBody::PutRoot`].
    PutRoot { version: u64, root: Bytes },
    /// See [`RequestBody::Reserve`].
    Reserve { slots: u32, spare: u32 },
    /// See [`RequestBody::RenewRecord`].
    RenewRecord,
    /// See [`RequestBody::RemoveVolume`].
    Remove(RemoveStep),
    /// See [`RequestBody::JournalCreate`].
    JournalCreate { generation: JournalGen, ring_bytes: u64 },
    /// An append, with its length, or a read of a journal.
    JournalIo { generation: JournalGen, appended_bytes: u32 },
    /// See [`RequestBody::JournalSync`].
    JournalSync,
    /// See [`RequestBody::JournalDelete`].
    JournalDelete,
    /// See [`RequestBody::ShardWrite`].
    ShardWrite { slot: SlotIndex, written_bytes: u32 },
    /// See [`RequestBody::ShardSync`].
    ShardSync,
    /// See [`RequestBody::ShardRead`].
    ShardRead { slot: SlotIndex, offset_bytes: u32, len_bytes: u32 },
    /// See [`RequestBody::ShardVerify`].
    ShardVerify { slot: SlotIndex, offset_bytes: u32 },
    /// See [`RequestBody::ShardDelete`].
    ShardDelete,
}

/// How far the removal of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoveStep {
    /// Waiting for its turn.
    Queued,
    /// Erasing the slot headers.
    Shards,
    /// Making the erasure stable.
    Sync,
    /// Removing the journals.
    Journals,
    /// Removing the volume's record.
    Record,
}

/// The table.
#[derive(Debug)]
pub(crate) struct RequestTable {
    entries: Slab<Entry>,
}

impl RequestTable {
    pub(crate) fn new() -> Self {
        Self { entries: Slab::with_capacity(REQUESTS_MAX / 16) }
    }

    /// Opens an entry, or says that the node is busy.
    pub(crate) fn open(&mut self, entry: Entry) -> Result<EntryId, NodeError> {
        if self.entries.len() >= REQUESTS_MAX {
            return Err(NodeError::Busy);
        }
        let key = self.entries.insert(entry);
        Ok(EntryId(u32::try_from(key).expect("keys are below REQUESTS_MAX")))
    }

    /// The table takes no more requests of this kind.
    pub(crate) fn is_full_for(&self, body: &RequestBody) -> bool {
        let reads = matches!(body, RequestBody::ShardRead { .. } | RequestBody::ShardVerify { .. });
        let limit = if reads { REQUESTS_FOR_READS_MAX } else { REQUESTS_MAX };
        self.entries.len() >= limit
    }

    /// A shard of the volume is being written for another peer.
    pub(crate) fn writes_for_others(&self, volume: VolumeId, peer: PeerId) -> bool {
        let writes = |entry: &Entry| match &entry.task {
            Task::Parked(request) => matches!(request.0, RequestBody::ShardWrite { .. }),
            task => matches!(task, Task::ShardWrite { .. }),
        };
        let others = |entry: &Entry| entry.volume == volume && entry.peer != peer;
        self.entries.iter().any(|(_, entry)| others(entry) && writes(entry))
    }

    /// Takes an entry out.
    pub(crate) fn close(&mut self, id: EntryId) -> Entry {
        self.entries.remove(id.0 as usize)
    }

    /// Notes that a peer needs no answers any more.
    pub(crate) fn lose_peer(&mut self, peer: PeerId) {
        for (_, entry) in &mut self.entries {
            entry.peer_lost |= entry.peer == peer;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl std::ops::Index<EntryId> for RequestTable {
    type Output = Entry;
    fn index(&self, id: EntryId) -> &Entry {
        &self.entries[id.0 as usize]
    }
}

impl std::ops::IndexMut<EntryId> for RequestTable {
    fn index_mut(&mut self, id: EntryId) -> &mut Entry {
        &mut self.entries[id.0 as usize]
    }
}

/// What a request that may be parked is about; such requests on one target stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Shard(SegmentId, ShardIndex),
    Journal(JournalGen),
}

impl Target {
    pub(crate) fn of(body: &RequestBody) -> Option<Self> {
        match body {
            RequestBody::ShardWrite { segment, shard, .. }
            | RequestBody::ShardRead { segment, shard, .. } => Some(Self::Shard(*segment, *shard)),
            RequestBody::JournalAppend { generation, .. } => Some(Self::Journal(*generation)),
            _ => None,
        }
    }
}
