//! The start: the node reads its disk.
//!
//! The start has phases, each with a bounded number of operations in flight:
//! 1. List the files. Then read every volume's record, every journal's header and all slot headers.
//!    On a new node create `data` and then `slots` instead (so that `slots` never exists without
//!    `data`).
//! 2. If a sync failed before, rewrite data that may not be stable ([`failed_sync`]).
//! 3. Sync the files that were read, so that everything that the node shows is stable from here on
//!    (point 6 of [`crate::store`]). Remove journals whose creation was never acknowledged. The
//!    file `doubt` exists before, during and after the syncs, until all have succeeded.
//!
//! The node handles damage where it is. If it cannot trust a volume's record, it refuses every
//! request on this volume except its removal or the renewal of the record. If it cannot read a
//! journal header, it hides this journal. If a slot's header and open note fail their checksums,
//! the slot is free: a torn write leaves this state. If the disk cannot read a slot header in
//! several attempts, the slot goes out of use. A start fails only if the node cannot list, create
//! or sync its slots and data files, or if a newer release wrote the slots.

pub(crate) mod failed_sync;

use std::collections::VecDeque;

use fieldstone_proto::disk::{
    DiskFormatError, JournalHeader, OpenNote, SlotHeader, VOLUME_FILE_BYTES, VolumeRecord,
};
use fieldstone_proto::{BLOCK_BYTES, JournalGen, NodeError, VolumeId};

use crate::disk::{DiskOpKind, node_error};
use crate::handlers::completion::bytes_read;
use crate::interface::{DiskError, DiskOp, DiskOutput, FileId};
use crate::limits::{START_HEADERS_PER_READ, START_OPS_MAX, START_READS_MAX};
use crate::node::Node;
use crate::store::{HEADER_BYTES, RECORD_BYTES, SlotIndex};
use crate::volumes::{Journal, JournalStage, Volume};
use failed_sync::{DoubtFile, RewriteRange, create_doubt_file_op};

/// An operation of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartOp {
    List,
    ReadVolume(VolumeId),
    ReadJournal(VolumeId, JournalGen),
    /// Reads the headers of slots: the first slot, their number, and the number of the attempt,
    /// from 1.
    ReadHeaders(u32, u32, u8),
    CreateData,
    CreateSlots,
    /// Reads a range of unsynced data. The second field is the number of the attempt, from 1.
    ReadUnsynced(RewriteRange, u8),
    Rewrite(RewriteRange),
    CreateDoubtFile,
    Sync(FileId),
    RemoveJournal(VolumeId, JournalGen),
    RemoveDoubtFile,
}

/// The phase of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartupPhase {
    Reading,
    Rewriting,
    CreatingDoubtFile,
    Syncing,
    RemovingDoubtFile,
    Done,
}

/// The phase of the node's life.
#[derive(Debug)]
pub(crate) enum NodePhase {
    New,
    Starting(Start),
    Ready,
    Failed(String),
}

/// The start under way.
#[derive(Debug)]
pub(crate) struct Start {
    todo: VecDeque<StartOp>,
    in_flight: usize,
    phase: StartupPhase,
    /// The syncs to do after all reads.
    syncs: VecDeque<StartOp>,
    /// A sync failed, or the start could not rewrite some data. The next start has to know this.
    stays_unsynced: bool,
}

impl Start {
    pub(crate) fn new() -> Self {
        Self {
            todo: VecDeque::from([StartOp::List]),
            in_flight: 0,
            phase: StartupPhase::Reading,
            syncs: VecDeque::new(),
            stays_unsynced: false,
        }
    }
}

impl Node {
    pub(crate) fn start_list(&mut self) {
        self.pump_start();
    }

    /// Keeps the operations of the start in flight.
    fn pump_start(&mut self) {
        loop {
            let NodePhase::Starting(start) = &mut self.phase else { return };
            if start.in_flight < START_OPS_MAX
                && let Some(op) = start.todo.pop_front()
            {
                start.in_flight += 1;
                let disk_op = self.start_disk_op(op);
                self.disk.submit(DiskOpKind::Start(op), disk_op);
            } else if start.in_flight > 0 {
                return;
            } else if start.phase == StartupPhase::Done {
                let stays_unsynced = start.stays_unsynced;
                self.phase = NodePhase::Ready;
                return self.store.finish_start(stays_unsynced, &mut self.disk);
            } else {
                self.next_startup_phase();
            }
        }
    }

    /// The operations of a phase ended: begins the next phase, which may have no operations.
    fn next_startup_phase(&mut self) {
        let NodePhase::Starting(start) = &mut self.phase else { return };
        let syncs = !start.syncs.is_empty();
        match start.phase {
            StartupPhase::Reading => {
                start.phase = StartupPhase::Rewriting;
                if self.doubt_file == DoubtFile::Exists {
                    let ranges = self.unsynced_ranges();
                    let NodePhase::Starting(start) = &mut self.phase else { return };
                    start
                        .todo
                        .extend(ranges.into_iter().map(|range| StartOp::ReadUnsynced(range, 1)));
                }
            }
            StartupPhase::Rewriting => {
                start.phase = StartupPhase::CreatingDoubtFile;
                let create = syncs && self.doubt_file == DoubtFile::Absent;
                start.todo.extend(create.then_some(StartOp::CreateDoubtFile));
            }
            StartupPhase::CreatingDoubtFile => {
                start.phase = StartupPhase::Syncing;
                std::mem::swap(&mut start.todo, &mut start.syncs);
            }
            StartupPhase::Syncing => {
                start.phase = StartupPhase::RemovingDoubtFile;
                if self.doubt_file == DoubtFile::Failed && !start.stays_unsynced {
                    self.doubt_file = DoubtFile::Absent;
                }
                let remove = self.doubt_file == DoubtFile::Exists && !start.stays_unsynced;
                start.todo.extend(remove.then_some(StartOp::RemoveDoubtFile));
            }
            StartupPhase::RemovingDoubtFile | StartupPhase::Done => {
                start.phase = StartupPhase::Done;
            }
        }
    }

    fn start_disk_op(&self, op: StartOp) -> DiskOp {
        let block = BLOCK_BYTES as u32;
        match op {
            StartOp::List => DiskOp::List,
            StartOp::ReadVolume(id) => DiskOp::Read {
                file: FileId::Volume(id),
                offset_bytes: 0,
                len_bytes: VOLUME_FILE_BYTES as u32,
            },
            StartOp::ReadJournal(id, generation) => DiskOp::Read {
                file: FileId::Journal(id, generation),
                offset_bytes: 0,
                len_bytes: block,
            },
            StartOp::ReadHeaders(first, count, _) => DiskOp::Read {
                file: FileId::Slots,
                offset_bytes: u64::from(first) * u64::from(RECORD_BYTES),
                len_bytes: count * RECORD_BYTES,
            },
            StartOp::CreateData => DiskOp::Create {
                file: FileId::Data,
                len_bytes: u64::from(self.config.slots) * u64::from(self.config.slot_bytes),
                allocate: false,
            },
            StartOp::CreateSlots => DiskOp::Create {
                file: FileId::Slots,
                len_bytes: u64::from(self.config.slots) * u64::from(RECORD_BYTES),
                allocate: true,
            },
            StartOp::ReadUnsynced(RewriteRange { file, offset_bytes, len_bytes }, _) => {
                DiskOp::Read { file, offset_bytes, len_bytes }
            }
            StartOp::Rewrite(_) => unreachable!("submitted with the bytes that were read"),
            StartOp::CreateDoubtFile => create_doubt_file_op(),
            StartOp::RemoveDoubtFile => DiskOp::Remove { file: FileId::Doubt },
            StartOp::Sync(file) => DiskOp::Sync { file },
            StartOp::RemoveJournal(id, generation) => {
                DiskOp::Remove { file: FileId::Journal(id, generation) }
            }
        }
    }

    /// An operation of the start ended.
    pub(crate) fn start_op_ended(&mut self, op: StartOp, result: Result<DiskOutput, DiskError>) {
        let NodePhase::Starting(start) = &mut self.phase else { return };
        start.in_flight -= 1;
        let result = match op {
            StartOp::List => self.files_listed(result),
            StartOp::ReadVolume(id) => {
                self.volume_read(id, result);
                Ok(())
            }
            StartOp::ReadJournal(id, generation) => {
                self.journal_read_at_start(id, generation, result);
                Ok(())
            }
            StartOp::ReadHeaders(first, count, attempt) => {
                self.headers_read(first, count, attempt, result)
            }
            StartOp::CreateData => result
                .map(|_| start.todo.push_back(StartOp::CreateSlots))
                .map_err(|error| format!("creating the data file: {error}")),
            StartOp::CreateSlots => {
                result.map(|_| ()).map_err(|error| format!("creating the slots file: {error}"))
            }
            StartOp::ReadUnsynced(range, attempt) => {
                self.range_read(range, attempt, result);
                Ok(())
            }
            StartOp::Rewrite(range) => self.range_rewritten(range, result),
            StartOp::CreateDoubtFile => {
                // Without the file `doubt`, the node is as safe as after a process that died before
                // it created it. If a sync fails, the node tries again.
                self.doubt_file_created(&result);
                Ok(())
            }
            StartOp::RemoveDoubtFile => {
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot remove the file doubt");
                } else {
                    self.doubt_file = DoubtFile::Absent;
                }
                Ok(())
            }
            StartOp::Sync(file) => self.start_synced(file, result),
            StartOp::RemoveJournal(id, generation) => {
                if let Err(error) = result {
                    tracing::warn!(%id, %generation, %error, "cannot remove an unfinished journal");
                }
                Ok(())
            }
        };
        if let Err(reason) = result {
            tracing::error!(%reason, "the node cannot start");
            self.phase = NodePhase::Failed(reason);
        }
        self.pump_start();
    }

    fn files_listed(&mut self, result: Result<DiskOutput, DiskError>) -> Result<(), String> {
        let files = match result {
            Ok(DiskOutput::Files(files)) => files,
            Ok(_) => return Err("listing the files: the disk returned something else".to_owned()),
            Err(error) => return Err(format!("listing the files: {error}")),
        };
        let NodePhase::Starting(start) = &mut self.phase else { return Ok(()) };
        let has_slots = files.contains(&FileId::Slots);
        if has_slots && !files.contains(&FileId::Data) {
            return Err("the data file is missing".to_owned());
        }
        for file in files {
            match file {
                FileId::Volume(id) => start.todo.push_back(StartOp::ReadVolume(id)),
                FileId::Journal(id, generation) => {
                    start.todo.push_back(StartOp::ReadJournal(id, generation));
                }
                FileId::Doubt => self.doubt_file = DoubtFile::Exists,
                FileId::Superblock | FileId::Slots | FileId::Data => {}
            }
        }
        if !has_slots {
            start.todo.push_back(StartOp::CreateData);
            return Ok(());
        }
        let mut first = 0;
        while first < self.config.slots {
            let count = START_HEADERS_PER_READ.min(self.config.slots - first);
            start.todo.push_back(StartOp::ReadHeaders(first, count, 1));
            first += count;
        }
        start.syncs.push_back(StartOp::Sync(FileId::Data));
        start.syncs.push_back(StartOp::Sync(FileId::Slots));
        Ok(())
    }

    fn volume_read(&mut self, id: VolumeId, result: Result<DiskOutput, DiskError>) {
        let keys = self.config.keys;
        let volume = self.volumes.entry(id).or_insert_with(|| Volume::unknown(id, &keys));
        volume.has_file = true;
        let damaged = match bytes_read(result, VOLUME_FILE_BYTES as u32, "reading it") {
            Ok(file) => match VolumeRecord::decode_file(&file, id) {
                Ok(record) => {
                    volume.set_record(record, &keys);
                    if volume.claims() {
                        self.store.reserve(id, volume.record.slots_reserved);
                    }
                    None
                }
                Err(DiskFormatError::Blank { .. }) => None,
                Err(error) => {
                    volume.newer = matches!(error, DiskFormatError::FutureVersion { .. });
                    Some(error.to_string())
                }
            },
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = damaged {
            tracing::warn!(%id, %reason, "the record of a volume is damaged");
            volume.damaged = Some(format!("the record of volume {id} cannot be used: {reason}"));
        }
        if let NodePhase::Starting(start) = &mut self.phase {
            start.syncs.push_back(StartOp::Sync(FileId::Volume(id)));
        }
    }

    fn journal_read_at_start(
        &mut self,
        id: VolumeId,
        generation: JournalGen,
        result: Result<DiskOutput, DiskError>,
    ) {
        let NodePhase::Starting(start) = &mut self.phase else { return };
        let keys = self.config.keys;
        let volumes = &mut self.volumes;
        let mut keep = |journal: Journal| {
            let volume = volumes.entry(id).or_insert_with(|| Volume::unknown(id, &keys));
            volume.journals.insert(generation, journal);
        };
        let header = match bytes_read(result, BLOCK_BYTES as u32, "reading it") {
            Ok(block) => JournalHeader::decode(&block, id, generation),
            Err(reason) => {
                tracing::warn!(%id, %generation, %reason, "the header of a journal cannot be read");
                keep(Journal::unusable());
                return;
            }
        };
        match header {
            Ok(header) => {
                keep(Journal::new(header.ring_bytes, JournalStage::Ready));
                start.syncs.push_back(StartOp::Sync(FileId::Journal(id, generation)));
            }
            Err(DiskFormatError::Blank { .. }) => {
                start.syncs.push_back(StartOp::RemoveJournal(id, generation));
            }
            Err(reason @ DiskFormatError::FutureVersion { .. }) => {
                tracing::warn!(%id, %generation, %reason, "the journal is left as it is");
            }
            Err(reason) => {
                tracing::warn!(%id, %generation, %reason, "the header of a journal is damaged");
                keep(Journal::unusable());
            }
        }
    }

    fn headers_read(
        &mut self,
        first: u32,
        count: u32,
        attempt: u8,
        result: Result<DiskOutput, DiskError>,
    ) -> Result<(), String> {
        let NodePhase::Starting(start) = &mut self.phase else { return Ok(()) };
        let headers = match bytes_read(result, count * RECORD_BYTES, "reading slot headers") {
            Ok(headers) => headers,
            Err(reason) if attempt >= START_READS_MAX => {
                tracing::warn!(slot = first, %reason, "a slot is out of use");
                self.store.set_bad(SlotIndex(first));
                return Ok(());
            }
            Err(_) => {
                // Find out which slot is unreadable, and whether it stays unreadable.
                let slots = first..first + count;
                let again = |slot| StartOp::ReadHeaders(slot, 1, attempt + 1);
                start.todo.extend(slots.map(again));
                return Ok(());
            }
        };
        for (slot, record) in (first..).zip(headers.chunks(RECORD_BYTES as usize)) {
            let (header, note) = record.split_at(HEADER_BYTES as usize);
            match SlotHeader::decode(header) {
                Ok(header) => {
                    self.adopt_header(slot, header);
                    continue;
                }
                Err(DiskFormatError::Blank { .. }) => {}
                Err(error @ DiskFormatError::FutureVersion { .. }) => {
                    return Err(format!("slot {slot}: {error}"));
                }
                Err(error) => tracing::warn!(slot, %error, "a slot header is torn or damaged"),
            }
            match OpenNote::decode(note) {
                Ok(note) => self.adopt_note(slot, note),
                Err(DiskFormatError::Blank { .. }) => {}
                Err(error @ DiskFormatError::FutureVersion { .. }) => {
                    return Err(format!("slot {slot}: {error}"));
                }
                Err(error) => tracing::warn!(slot, %error, "an open note is torn or damaged"),
            }
        }
        Ok(())
    }

    fn adopt_note(&mut self, slot: u32, note: OpenNote) {
        if note.slot == slot && note.incarnation == self.config.incarnation {
            self.store.adopt_open(SlotIndex(slot), note);
        } else {
            tracing::warn!(slot, "an open note is in the wrong place or of another node");
        }
    }

    fn adopt_header(&mut self, slot: u32, header: SlotHeader) {
        let fits = header.meta.shard_bytes <= self.config.slot_bytes;
        if header.slot == slot && header.incarnation == self.config.incarnation && fits {
            self.store.adopt(SlotIndex(slot), header);
        } else {
            tracing::warn!(slot, "a slot header is in the wrong place or of another node");
        }
    }

    fn start_synced(
        &mut self,
        file: FileId,
        result: Result<DiskOutput, DiskError>,
    ) -> Result<(), String> {
        let Err(error) = result else { return Ok(()) };
        if let NodePhase::Starting(start) = &mut self.phase {
            start.stays_unsynced = true;
        }
        let error = node_error(&error, "syncing it at start");
        match file {
            FileId::Volume(id) => {
                if let Some(volume) = self.volumes.get_mut(&id) {
                    volume.damaged.get_or_insert(format!("volume {id}: {error}"));
                }
            }
            FileId::Journal(id, generation) => {
                let volume = self.volumes.get_mut(&id);
                let journal = volume.and_then(|volume| volume.journals.get_mut(&generation));
                if let Some(journal) = journal {
                    journal.broken = Some(error);
                }
            }
            FileId::Superblock | FileId::Slots | FileId::Data | FileId::Doubt => {
                return Err(match error {
                    NodeError::Io(reason) => format!("{file:?}: {reason}"),
                    other => format!("{file:?}: {other}"),
                });
            }
        }
        Ok(())
    }
}
