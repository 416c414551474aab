//! Disk operations in flight: pairs each completion with its purpose, and lets syncs share.

use std::collections::VecDeque;

use slab::Slab;

use fieldstone_proto::{JournalGen, NodeError, VolumeId};

use crate::interface::{DiskError, DiskId, DiskOp, NodeAction};
use crate::request_table::EntryId;
use crate::start::StartOp;
use crate::store::SlotIndex;

/// The purpose of a disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOpKind {
    /// Reading the disk at the start.
    Start(StartOp),
    /// Payload of a shard.
    ShardData(EntryId),
    /// The header that seals a slot.
    ShardHeader(SlotIndex),
    /// The note that says which shard an open slot was taken for.
    OpenNote(SlotIndex),
    /// A part of a shard, for a reader.
    ShardRead(EntryId),
    /// The slot header, for verification.
    VerifyHeader(EntryId),
    /// A part of a shard, for verification.
    VerifyData(EntryId),
    /// Erasing a slot's header.
    Erase(SlotIndex),
    /// Giving a slot's space back.
    Discard(SlotIndex),
    /// A sync of the data file.
    SyncData,
    /// A sync of the slots file.
    SyncSlots,
    /// An append to or a read of a journal.
    JournalIo(EntryId),
    /// A sync of a journal.
    JournalSync(VolumeId, JournalGen),
    /// A step of making a journal.
    JournalCreate(EntryId, CreateStep),
    /// Removing a journal for the entry.
    JournalRemove(EntryId, JournalGen),
    /// Removing the rest of a journal that could not be made.
    JournalCleanup(VolumeId, JournalGen),
    /// A step of replacing a volume's record.
    Record(VolumeId, CreateStep),
    /// Removing a volume's record.
    RecordRemove(EntryId),
    /// Creating the file `doubt`, after a sync failed.
    CreateDoubtFile,
}

impl DiskOpKind {
    /// True for a sync that leaves unsynced data when it fails.
    pub(crate) fn is_sync(self) -> bool {
        matches!(
            self,
            Self::SyncData
                | Self::SyncSlots
                | Self::JournalSync(..)
                | Self::JournalCreate(_, CreateStep::Sync)
                | Self::Record(_, CreateStep::Sync)
        )
    }
}

/// The steps of making a record durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateStep {
    /// Creating the file.
    Create,
    /// Writing.
    Write,
    /// Syncing.
    Sync,
}

/// Operations in flight and actions for the world.
#[derive(Debug)]
pub(crate) struct DiskQueue {
    pending: Slab<(u32, DiskOpKind)>,
    sequence: u32,
    pub(crate) actions: VecDeque<NodeAction>,
}

impl DiskQueue {
    pub(crate) fn new() -> Self {
        Self { pending: Slab::new(), sequence: 0, actions: VecDeque::new() }
    }

    /// Asks the world for an operation.
    pub(crate) fn submit(&mut self, purpose: DiskOpKind, op: DiskOp) {
        self.sequence = self.sequence.wrapping_add(1);
        let key = self.pending.insert((self.sequence, purpose));
        let id = DiskId(u64::from(self.sequence) << 32 | key as u64);
        self.actions.push_back(NodeAction::Disk { id, op });
    }

    /// The purpose of a completed operation; `None` for an operation that was never submitted.
    pub(crate) fn take(&mut self, id: DiskId) -> Option<DiskOpKind> {
        let key = usize::try_from(id.0 & 0xffff_ffff).ok()?;
        let (sequence, _) = self.pending.get(key)?;
        (u64::from(*sequence) == id.0 >> 32).then(|| self.pending.remove(key).1)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

/// The answer to a request whose disk operation failed.
pub(crate) fn node_error(error: &DiskError, what: &str) -> NodeError {
    match error {
        DiskError::NoSpace => NodeError::NoSpace,
        other => NodeError::Io(format!("{what}: {other}")),
    }
}

/// Lets requests to sync one file share syncs. One sync is in flight. Later requests wait for the
/// next sync, which covers all of them. A sync that was in flight when a request arrived never
/// serves this request, because it need not cover the request's writes.
#[derive(Debug)]
pub(crate) struct SyncGroup<W> {
    running: bool,
    covered: Vec<W>,
    waiting: Vec<W>,
}

impl<W> Default for SyncGroup<W> {
    fn default() -> Self {
        Self { running: false, covered: Vec::new(), waiting: Vec::new() }
    }
}

impl<W> SyncGroup<W> {
    /// Adds a waiter. True when a sync must be submitted now.
    #[must_use]
    pub(crate) fn request(&mut self, waiter: W) -> bool {
        self.waiting.push(waiter);
        self.begin()
    }

    /// Starts the next sync if none runs and there are waiters. True when the caller must submit
    /// the sync now.
    #[must_use]
    pub(crate) fn begin(&mut self) -> bool {
        if self.running || self.waiting.is_empty() {
            return false;
        }
        self.running = true;
        std::mem::swap(&mut self.covered, &mut self.waiting);
        true
    }

    /// The sync in flight ended. Returns the waiters that it covers. Call [`Self::begin`] next.
    pub(crate) fn finish(&mut self) -> Vec<W> {
        self.running = false;
        std::mem::take(&mut self.covered)
    }

    /// Removes the waiters of the sync that has not begun.
    pub(crate) fn take_waiting(&mut self) -> Vec<W> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }
}
