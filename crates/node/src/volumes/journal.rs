//! Journals: rings to which a volume's writer appends, and from which it recovers.
//!
//! The node checks bounds and epochs, and stores bytes. Only the volume knows their meaning. Of two
//! appends to the same bytes the later one stays: it waits until the other ends. A journal file is
//! a header block and the ring ([`fieldstone_proto::disk::JournalHeader`]). The node answers a
//! creation when the header is stable. A removal waits for operations in flight.
//!
//! The node refuses an append whose place in the ring has bytes of a later turn. A writer never
//! sends such an append. But a peer that has recorded the writer's requests may send them again,
//! and a route takes an append to all nodes of the journal.
//!
//! A journal whose sync failed accepts no more writes: the system may have dropped acknowledged
//! appends, and a later sync would succeed without them. All further appends and syncs of this
//! generation fail. The writer starts a new generation.

use std::ops::{Range, RangeBounds};

use fieldstone_proto::disk::JournalHeader;
use fieldstone_proto::{BLOCK_BYTES, JournalGen, NodeError, ReplyBody, VolumeId};

use crate::disk::{CreateStep, DiskOpKind, SyncGroup, node_error};
use crate::interface::{DiskError, DiskOp, DiskOutput, FileId};
use crate::limits::{JOURNALS_MAX, RINGS_KEPT_MAX};
use crate::node::Node;
use crate::request_table::{EntryId, Task};

/// A stage in the life of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalStage {
    /// The node is making the journal.
    Creating,
    /// The journal is in use.
    Ready,
    /// The start could not read the journal's header, or found it damaged. Or the node could
    /// neither make the journal nor remove the rest of it. Only the removal of the volume removes
    /// the journal: a disk that cannot be read can hardly be changed, and a failed change would
    /// keep the node from joining.
    Unusable,
    /// The node is removing the journal, for the entry or because it could not make the journal.
    Removing(Option<EntryId>),
}

/// A journal.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) ring_bytes: u64,
    pub(crate) stage: JournalStage,
    /// Operations in flight on the journal's file, except those that make or remove it.
    pub(crate) in_flight: u32,
    /// The appends in flight, with the range of the ring that each writes.
    pub(crate) appends: Vec<(EntryId, Range<u64>)>,
    /// The furthest end of an append since the node started, as a log position.
    pub(crate) end: u64,
    pub(crate) sync: SyncGroup<EntryId>,
    /// Why the node can no longer write the journal.
    pub(crate) broken: Option<NodeError>,
}

impl Journal {
    /// A journal that can only be removed.
    pub(crate) fn unusable() -> Self {
        Self::new(0, JournalStage::Unusable)
    }

    pub(crate) fn new(ring_bytes: u64, stage: JournalStage) -> Self {
        Self {
            ring_bytes,
            stage,
            in_flight: 0,
            appends: Vec::new(),
            end: 0,
            sync: SyncGroup::default(),
            broken: None,
        }
    }

    /// True when a later append has bytes in the place of one that begins at this log position.
    pub(crate) fn is_past(&self, position: u64) -> bool {
        position.saturating_add(self.ring_bytes) < self.end
    }

    /// True when an append in flight overlaps the range.
    pub(crate) fn is_written_to(&self, range: &Range<u64>) -> bool {
        self.appends.iter().any(|(_, other)| other.start < range.end && range.start < other.end)
    }
}

impl Node {
    /// The journal, if it is usable.
    pub(crate) fn journal(
        &mut self,
        volume: VolumeId,
        generation: JournalGen,
    ) -> Result<&mut Journal, NodeError> {
        self.volumes
            .get_mut(&volume)
            .and_then(|volume| volume.journals.get_mut(&generation))
            .filter(|journal| journal.stage == JournalStage::Ready)
            .ok_or(NodeError::NotFound)
    }

    pub(crate) fn journal_create(
        &mut self,
        entry: EntryId,
        generation: JournalGen,
        ring_bytes: u64,
    ) -> Result<(), NodeError> {
        let id = self.table[entry].volume;
        let volume = self.volumes.get_mut(&id).ok_or(NodeError::NotFound)?;
        match volume.journals.get(&generation) {
            Some(journal) if journal.stage != JournalStage::Ready => return Err(NodeError::Busy),
            // A writer repeats its request after it lost its connection.
            Some(journal) if journal.ring_bytes == ring_bytes => {
                self.close(entry, Ok(ReplyBody::Done));
                return Ok(());
            }
            Some(journal) => {
                return Err(NodeError::Invalid(format!(
                    "journal {generation} exists with a ring of {} bytes",
                    journal.ring_bytes
                )));
            }
            None => {}
        }
        if volume.journals.len() >= JOURNALS_MAX {
            return Err(NodeError::Invalid(format!("more than {JOURNALS_MAX} journals")));
        }
        volume.journals.insert(generation, Journal::new(ring_bytes, JournalStage::Creating));
        self.table[entry].task = Task::JournalCreate { generation, ring_bytes };
        self.disk.submit(
            DiskOpKind::JournalCreate(entry, CreateStep::Create),
            DiskOp::Create {
                file: FileId::Journal(id, generation),
                len_bytes: JournalHeader::RING_AT_BYTES + ring_bytes,
                allocate: true,
            },
        );
        Ok(())
    }

    pub(crate) fn journal_create_step(
        &mut self,
        entry: EntryId,
        step: CreateStep,
        result: Result<DiskOutput, DiskError>,
    ) {
        let id = self.table[entry].volume;
        let Task::JournalCreate { generation, ring_bytes } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let file = FileId::Journal(id, generation);
        let journal = self
            .volumes
            .get_mut(&id)
            .and_then(|volume| volume.journals.get_mut(&generation))
            .expect("a journal being made stays until it is made or given up");
        if let Err(error) = result {
            *journal = Journal::new(0, JournalStage::Removing(None));
            self.disk.submit(DiskOpKind::JournalCleanup(id, generation), DiskOp::Remove { file });
            return self.close(entry, Err(node_error(&error, "creating a journal")));
        }
        match step {
            CreateStep::Create => {
                let header = JournalHeader { volume: id, generation, ring_bytes };
                let data = vec![header.encode()];
                let op = DiskOp::Write { file, offset_bytes: 0, data };
                self.disk.submit(DiskOpKind::JournalCreate(entry, CreateStep::Write), op);
            }
            CreateStep::Write => {
                let purpose = DiskOpKind::JournalCreate(entry, CreateStep::Sync);
                self.disk.submit(purpose, DiskOp::Sync { file });
            }
            CreateStep::Sync => {
                journal.stage = JournalStage::Ready;
                self.close(entry, Ok(ReplyBody::Done));
            }
        }
    }

    /// The node removed the rest of a journal that it could not make, or failed to remove it.
    pub(crate) fn journal_cleaned_up(
        &mut self,
        id: VolumeId,
        generation: JournalGen,
        result: Result<DiskOutput, DiskError>,
    ) {
        let volume = self.volumes.get_mut(&id).expect("a volume stays as long as its journals");
        let journal = volume.journals.get_mut(&generation);
        let journal = journal.expect("a journal stays until its file is gone");
        if let JournalStage::Removing(Some(entry)) = journal.stage {
            return self.journal_removed(entry, generation, result);
        }
        match result {
            Ok(_) | Err(DiskError::NotFound) => drop(volume.journals.remove(&generation)),
            Err(_) => *journal = Journal::unusable(),
        }
        self.journals_removed(id);
    }

    pub(crate) fn journal_sync(
        &mut self,
        entry: EntryId,
        generation: JournalGen,
    ) -> Result<(), NodeError> {
        let id = self.table[entry].volume;
        let journal = self.journal(id, generation)?;
        if let Some(error) = &journal.broken {
            return Err(error.clone());
        }
        let submit = journal.sync.request(entry);
        self.table[entry].task = Task::JournalSync;
        if submit {
            let op = DiskOp::Sync { file: FileId::Journal(id, generation) };
            self.disk.submit(DiskOpKind::JournalSync(id, generation), op);
        }
        Ok(())
    }

    pub(crate) fn journal_synced(
        &mut self,
        id: VolumeId,
        generation: JournalGen,
        result: Result<DiskOutput, DiskError>,
    ) {
        let journal = self
            .volumes
            .get_mut(&id)
            .and_then(|volume| volume.journals.get_mut(&generation))
            .expect("a journal stays while a sync of it is in flight");
        let mut waiters = journal.sync.finish();
        let answer = match result {
            Ok(_) => Ok(ReplyBody::Done),
            Err(error) => {
                waiters.extend(journal.sync.take_waiting());
                let error = node_error(&error, "syncing a journal");
                journal.broken = Some(error.clone());
                Err(error)
            }
        };
        if journal.sync.begin() {
            let op = DiskOp::Sync { file: FileId::Journal(id, generation) };
            self.disk.submit(DiskOpKind::JournalSync(id, generation), op);
        }
        for entry in waiters {
            self.close(entry, answer.clone());
        }
        self.journal_pump_removal(id, generation);
    }

    /// Starts to remove the volume's journals of these generations that are in one of the `stages`.
    /// Returns their number. The entry also waits for the end of a removal that no request waits
    /// for.
    pub(crate) fn journal_remove(
        &mut self,
        entry: EntryId,
        generations: impl RangeBounds<JournalGen>,
        stages: &[JournalStage],
    ) -> u32 {
        let id = self.table[entry].volume;
        let Some(volume) = self.volumes.get_mut(&id) else { return 0 };
        let mut chosen = Vec::new();
        for (&generation, journal) in &mut volume.journals {
            if generations.contains(&generation) && stages.contains(&journal.stage) {
                let before = journal.stage;
                journal.stage = JournalStage::Removing(Some(entry));
                chosen.push((generation, before));
            }
        }
        for &(generation, before) in &chosen {
            if before != JournalStage::Removing(None) {
                self.journal_pump_removal(id, generation);
            }
        }
        u32::try_from(chosen.len()).expect("at most JOURNALS_MAX")
    }

    /// Removes the file of a journal on its way out, once no operation is in flight on it.
    pub(crate) fn journal_pump_removal(&mut self, id: VolumeId, generation: JournalGen) {
        let journal = self.volumes.get(&id).and_then(|volume| volume.journals.get(&generation));
        let Some(journal) = journal else { return };
        let JournalStage::Removing(Some(entry)) = journal.stage else { return };
        if journal.in_flight == 0 && !journal.sync.is_running() {
            let op = DiskOp::Remove { file: FileId::Journal(id, generation) };
            self.disk.submit(DiskOpKind::JournalRemove(entry, generation), op);
        }
    }

    pub(crate) fn journal_removed(
        &mut self,
        entry: EntryId,
        generation: JournalGen,
        result: Result<DiskOutput, DiskError>,
    ) {
        let id = self.table[entry].volume;
        let volume = self.volumes.get_mut(&id).expect("requests on it are in the table");
        let result = match result {
            Ok(_) | Err(DiskError::NotFound) => {
                volume.journals.remove(&generation);
                Ok(())
            }
            Err(error) => {
                if let Some(journal) = volume.journals.get_mut(&generation) {
                    journal.stage = match journal.ring_bytes {
                        0 => JournalStage::Unusable,
                        _ => JournalStage::Ready,
                    };
                }
                Err(node_error(&error, "removing a journal"))
            }
        };
        self.end_part(entry, result);
    }
}

impl Node {
    /// Bytes of the disk that no slot may take. A volume that moves its journal, or opens, makes a
    /// new ring while the old one still exists. A few volumes can do so at the same time, and
    /// others after them. The node does not know the size of future rings, so it assumes the size
    /// of the largest ring that it has.
    pub(crate) fn rings_wanted_bytes(&self) -> u64 {
        let rings = self.volumes.values().flat_map(|volume| volume.journals.values());
        let largest = rings.map(|journal| journal.ring_bytes).max();
        let file_bytes = largest.map_or(0, |ring| JournalHeader::RING_AT_BYTES + ring);
        file_bytes.saturating_mul(self.volumes.len().min(RINGS_KEPT_MAX) as u64)
    }
}

/// Checks a range of a ring.
pub(crate) fn check_range(
    ring_bytes: u64,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<(), NodeError> {
    let aligned = (offset_bytes | len_bytes).is_multiple_of(BLOCK_BYTES as u64);
    if !aligned || offset_bytes.checked_add(len_bytes).is_none_or(|end| end > ring_bytes) {
        return Err(NodeError::Invalid(format!(
            "{len_bytes} bytes at {offset_bytes} do not fit a ring of {ring_bytes} bytes"
        )));
    }
    Ok(())
}
