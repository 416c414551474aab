//! The request table: one entry per request under way.
//!
//! Network-accelerated DFS, section III-B2: a write needs state on the node while it lasts. This
//! state is an entry of the request table. It holds the header's fields that later stages need. The
//! table is bounded. The node denies a request that finds the table full, and the client retries
//! later ([`NodeError::Busy`]).
//!
//! Invariants:
//! - The header handler opens an entry, and the completion handler closes it, once.
//! - An entry stays open while its disk operations are in flight, even when its peer is gone. So an
//!   [`EntryId`] in an operation never names another request.

use bytes::Bytes;
use slab::Slab;

use fieldstone_proto::{
    Epoch, JournalGen, NodeError, RequestBody, SegmentId, ShardIndex, Tag, VolumeId,
};

use crate::interface::PeerId;
use crate::limits::{REQUESTS_FOR_READS_MAX, REQUESTS_MAX};
use crate::relays::EntryRelay;
use crate::store::SlotIndex;

/// Names an entry while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId(u32);

/// One request under way: the write descriptor of the paper.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The peer that gets the answer.
    pub(crate) peer: PeerId,
    /// The peer is gone: finish the request, but do not answer.
    pub(crate) peer_lost: bool,
    /// The request's tag.
    pub(crate) tag: Tag,
    /// The request's volume.
    pub(crate) volume: VolumeId,
    /// The writer's epoch.
    pub(crate) epoch: Epoch,
    /// Fences and removals of the volume wait until this entry closes.
    pub(crate) counted: bool,
    /// The node has compared the payload with the writer's checksums.
    pub(crate) verified: bool,
    /// What the entry waits for: disk operations, or slots that are being freed for it.
    pub(crate) outstanding: u32,
    /// The first error.
    pub(crate) error: Option<NodeError>,
    /// The entry's work.
    pub(crate) task: Task,
    /// For a request with a route: the nodes that it waits for, and their outcomes.
    pub(crate) relay: Option<Box<EntryRelay>>,
}

/// The work of an entry, with the data that its completion needs.
#[derive(Debug)]
pub(crate) enum Task {
    /// The request is admitted, or waits for a slot or for the end of an operation on the same
    /// blocks. It runs again after any change in the store.
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
    /// Fragments of the payload are missing (`arrivals`).
    Arriving,
    /// A contribution to a parity shard. It waits for the other contributions.
    Gathering,
    /// The node's own part has ended. The entry waits for other nodes.
    Relayed,
}

/// The progress of a volume's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoveStep {
    /// Waiting in the queue.
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
    entries_max: usize,
}

impl RequestTable {
    pub(crate) fn new() -> Self {
        Self { entries: Slab::with_capacity(REQUESTS_MAX / 16), entries_max: REQUESTS_MAX }
    }

    /// From now on the table has room for so many entries.
    pub(crate) fn limit(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
    }

    /// Opens an entry, or returns that the node is busy.
    pub(crate) fn open(&mut self, entry: Entry) -> Result<EntryId, NodeError> {
        if self.entries.len() >= self.entries_max {
            return Err(NodeError::Busy);
        }
        let key = self.entries.insert(entry);
        Ok(EntryId(u32::try_from(key).expect("a table has few entries")))
    }

    /// The table accepts no more requests of this kind.
    pub(crate) fn is_full_for(&self, body: &RequestBody) -> bool {
        let reads = matches!(body, RequestBody::ShardRead { .. } | RequestBody::ShardVerify { .. });
        let left = if reads { REQUESTS_MAX - REQUESTS_FOR_READS_MAX } else { 0 };
        let left = left * self.entries_max / REQUESTS_MAX;
        self.entries.len() >= self.entries_max - left
    }

    /// A write of a shard of the volume is under way for another peer.
    pub(crate) fn writes_for_others(&self, volume: VolumeId, peer: PeerId) -> bool {
        let writes = |entry: &Entry| match &entry.task {
            Task::Parked(request) => matches!(request.0, RequestBody::ShardWrite { .. }),
            task => matches!(task, Task::ShardWrite { .. }),
        };
        let others = |entry: &Entry| entry.volume == volume && entry.peer != peer;
        self.entries.iter().any(|(_, entry)| others(entry) && writes(entry))
    }

    /// Removes an entry.
    pub(crate) fn close(&mut self, id: EntryId) -> Entry {
        self.entries.remove(id.0 as usize)
    }

    /// Notes that a peer is gone and needs no answers.
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

/// The target of a request that may be parked. Such requests on one target stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParkKey {
    Shard(SegmentId, ShardIndex),
    Journal(JournalGen),
}

impl ParkKey {
    pub(crate) fn of(body: &RequestBody) -> Option<Self> {
        match body {
            RequestBody::ShardWrite { segment, shard, .. }
            | RequestBody::ShardRead { segment, shard, .. } => Some(Self::Shard(*segment, *shard)),
            RequestBody::JournalAppend { generation, .. } => Some(Self::Journal(*generation)),
            _ => None,
        }
    }
}
