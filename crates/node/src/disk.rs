//! Disk operations in flight: pairs each completion with its purpose, and lets syncs share.

use std::collections::VecDeque;

use bytes::Bytes;
use slab::Slab;

use fieldstone_proto::{JournalGen, NodeError, VolumeId};

use crate::handlers::payload_len;
use crate::interface::{DiskError, DiskId, DiskOp, FileId, NodeAction};
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
///
/// A long write to a shard goes to the disk in *pieces*, and one piece of all such writes is in
/// flight at a time. So an append to a journal, for which a user waits, finds at most one piece
/// before it in the disk's queue, however many shards the node is writing.
#[derive(Debug)]
pub(crate) struct DiskQueue {
    pending: Slab<(u32, DiskOpKind)>,
    sequence: u32,
    piece_bytes: usize,
    /// Long writes to shards, the oldest first. The first one has a piece in flight.
    long: VecDeque<LongWrite>,
    pub(crate) actions: VecDeque<NodeAction>,
}

/// The rest of a long write. All its pieces have the same number.
#[derive(Debug)]
struct LongWrite {
    id: DiskId,
    file: FileId,
    offset_bytes: u64,
    data: VecDeque<Bytes>,
}

impl LongWrite {
    /// Takes the next piece, of at most `piece_bytes`.
    fn take_piece(&mut self, piece_bytes: usize) -> DiskOp {
        let offset_bytes = self.offset_bytes;
        let (mut data, mut room) = (Vec::new(), piece_bytes);
        while room > 0
            && let Some(mut part) = self.data.pop_front()
        {
            if part.len() > room {
                self.data.push_front(part.split_off(room));
            }
            room -= part.len();
            data.push(part);
        }
        self.offset_bytes += (piece_bytes - room) as u64;
        DiskOp::Write { file: self.file, offset_bytes, data }
    }
}

impl DiskQueue {
    pub(crate) fn new(piece_bytes: usize) -> Self {
        Self {
            pending: Slab::new(),
            sequence: 0,
            piece_bytes,
            long: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Asks the world for an operation.
    pub(crate) fn submit(&mut self, purpose: DiskOpKind, op: DiskOp) {
        self.sequence = self.sequence.wrapping_add(1);
        let key = self.pending.insert((self.sequence, purpose));
        let id = DiskId(u64::from(self.sequence) << 32 | key as u64);
        let of_shard = matches!(purpose, DiskOpKind::ShardData(_));
        match op {
            DiskOp::Write { file, offset_bytes, data }
                if of_shard && payload_len(&data) > self.piece_bytes =>
            {
                self.long.push_back(LongWrite { id, file, offset_bytes, data: data.into() });
                if self.long.len() == 1 {
                    self.submit_piece();
                }
            }
            op => self.actions.push_back(NodeAction::Disk { id, op }),
        }
    }

    /// Submits the next piece of the oldest long write, if there is one.
    fn submit_piece(&mut self) {
        if let Some(write) = self.long.front_mut() {
            let op = write.take_piece(self.piece_bytes);
            self.actions.push_back(NodeAction::Disk { id: write.id, op });
        }
    }

    /// An operation ended, or a piece of one. A long write ends with its last piece, or with the
    /// first one that fails.
    pub(crate) fn complete(&mut self, id: DiskId, has_failed: bool) -> Ended {
        let Some(key) = self.key_of(id) else { return Ended::Unknown };
        if let Some(write) = self.long.front().filter(|write| write.id == id) {
            let has_more = !write.data.is_empty() && !has_failed;
            if !has_more {
                self.long.pop_front();
            }
            self.submit_piece();
            if has_more {
                return Ended::Piece;
            }
        }
        Ended::Operation(self.pending.remove(key).1)
    }

    fn key_of(&self, id: DiskId) -> Option<usize> {
        let key = usize::try_from(id.0 & 0xffff_ffff).ok()?;
        let (sequence, _) = self.pending.get(key)?;
        (u64::from(*sequence) == id.0 >> 32).then_some(key)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

/// The part of an operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The whole operation, for this purpose.
    Operation(DiskOpKind),
    /// A piece of a long write that has more.
    Piece,
    /// The operation was never submitted.
    Unknown,
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
