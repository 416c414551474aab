//! The completion handler: the steps after a disk operation, up to the reply.
//!
//! Every read of a shard passes through this handler. It gives out no data that does not match the
//! checksums of the writer that made the data.

use bytes::Bytes;

use fieldstone_proto::{BLOCK_BYTES, NodeError, Reply, ReplyBody, VolumeId, crc32c};

use crate::disk::{DiskOpKind, node_error};
use crate::interface::{DiskError, DiskOutput, NodeAction};
use crate::limits::VERIFY_CHUNK_BYTES;
use crate::node::Node;
use crate::request_table::{EntryId, Task};
use crate::store::{Blocks, HEADER_BYTES};

type DiskResult = Result<DiskOutput, DiskError>;

impl Node {
    /// A disk operation ended.
    pub(crate) fn complete_disk(&mut self, purpose: DiskOpKind, result: DiskResult) {
        if purpose.is_sync() && result.is_err() {
            self.create_doubt_file();
        }
        match purpose {
            DiskOpKind::Start(op) => self.start_op_ended(op, result),
            DiskOpKind::ShardData(entry) => self.shard_data_ended(entry, result),
            DiskOpKind::ShardHeader(slot) => {
                let result = done(result, "writing a slot header");
                self.store.header_written(slot, result, &mut self.disk);
            }
            DiskOpKind::OpenNote(slot) => {
                let result = done(result, "noting an open shard");
                self.store.note_written(slot, &result, &mut self.disk);
            }
            DiskOpKind::ShardRead(entry) => self.shard_read_ended(entry, result),
            DiskOpKind::VerifyHeader(entry) => self.verify_header_ended(entry, result),
            DiskOpKind::VerifyData(entry) => self.verify_data_ended(entry, result),
            DiskOpKind::Erase(slot) => {
                let result = done(result, "erasing a slot header");
                self.store.erase_ended(slot, result, &mut self.disk);
            }
            DiskOpKind::Discard(slot) => self.store.set_free(slot),
            DiskOpKind::SyncData => {
                self.store.data_synced(&done(result, "syncing the data file"), &mut self.disk);
            }
            DiskOpKind::SyncSlots => {
                self.store.slots_synced(&done(result, "syncing the slots file"), &mut self.disk);
            }
            DiskOpKind::JournalIo(entry) => self.journal_io_ended(entry, result),
            DiskOpKind::JournalSync(volume, generation) => {
                self.journal_synced(volume, generation, result);
            }
            DiskOpKind::JournalCreate(entry, step) => self.journal_create_step(entry, step, result),
            DiskOpKind::JournalRemove(entry, generation) => {
                self.journal_removed(entry, generation, result);
            }
            DiskOpKind::JournalCleanup(volume, generation) => {
                self.journal_cleaned_up(volume, generation, result);
            }
            DiskOpKind::Record(volume, step) => self.record_step(volume, step, result),
            DiskOpKind::RecordRemove(entry) => self.record_removed(entry, result),
            DiskOpKind::CreateDoubtFile => self.doubt_file_created(&result),
        }
    }

    /// A part of an entry ended. The entry ends with its last part, with its first error.
    pub(crate) fn end_part(&mut self, entry: EntryId, result: Result<(), NodeError>) {
        let descriptor = &mut self.table[entry];
        descriptor.outstanding -= 1;
        if let Err(error) = result {
            descriptor.error.get_or_insert(error);
        }
        if descriptor.outstanding > 0 {
            return;
        }
        if matches!(descriptor.task, Task::Remove(_)) {
            return self.remove_step_ended(entry);
        }
        if let Task::ShardWrite { written_bytes, .. } = descriptor.task {
            self.counters.written_bytes += u64::from(written_bytes);
        }
        let result = match descriptor.error.take() {
            Some(error) => Err(error),
            None => Ok(ReplyBody::Done),
        };
        self.close(entry, result);
    }

    /// The node's own part of an entry has ended with this result. Closes the entry, unless it
    /// waits for other nodes. Contributions to the same sum end with it.
    pub(crate) fn close(&mut self, entry: EntryId, result: Result<ReplyBody, NodeError>) {
        for other in self.end_gathered(entry) {
            self.close(other, result.clone());
        }
        if !self.end_own_part(entry, &result) {
            self.finish(entry, result);
        }
    }

    /// Closes an entry with its result. An entry with a route has its own result.
    pub(crate) fn finish(&mut self, entry: EntryId, result: Result<ReplyBody, NodeError>) {
        let entry = self.table.close(entry);
        if !entry.peer_lost {
            let slots_free = self.slots_for(entry.volume);
            let result = match entry.relay {
                Some(relay) => Ok(relay.into_answer()),
                None => result,
            };
            let reply = Reply { tag: entry.tag, result, slots_free };
            self.disk.actions.push_back(NodeAction::Reply { peer: entry.peer, reply });
        }
        self.release(entry.volume, entry.counted);
    }

    /// A request on the volume no longer keeps fences and removals waiting, if it did.
    pub(crate) fn release(&mut self, id: VolumeId, counted: bool) {
        if counted && let Some(volume) = self.volumes.get_mut(&id) {
            volume.active -= 1;
            if volume.active == 0 && !volume.ordered.is_empty() {
                self.run_ordered_queue(id);
            }
        }
    }

    fn shard_data_ended(&mut self, entry: EntryId, result: DiskResult) {
        let Task::ShardWrite { slot, .. } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        self.store.end_write(slot, entry, done(result, "writing a shard"), &mut self.disk);
    }

    fn shard_read_ended(&mut self, entry: EntryId, result: DiskResult) {
        let Task::ShardRead { slot, offset_bytes, len_bytes } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let result = bytes_read(result, len_bytes, "reading a shard").and_then(|data| {
            let checksums = self.store.checksums(slot, Blocks::new(offset_bytes, len_bytes))?;
            match mismatches(&data, checksums) {
                (0, _) => {
                    self.counters.read_bytes += u64::from(len_bytes);
                    Ok(ReplyBody::Data(data))
                }
                (bad, first) => {
                    self.counters.corrupt_blocks += bad;
                    Err(NodeError::Corrupt { offset_bytes: offset_bytes + first })
                }
            }
        });
        self.store.end_read(slot, entry, &mut self.disk);
        self.close(entry, result);
    }

    fn verify_header_ended(&mut self, entry: EntryId, result: DiskResult) {
        let Task::ShardVerify { slot, .. } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let block = match bytes_read(result, HEADER_BYTES, "reading a slot header") {
            Ok(block) => block,
            Err(error) => return self.end_verify(entry, Err(error)),
        };
        if !self.store.header_matches(slot, &block) {
            // The next start would lose the shard. Rewriting the shard repairs this.
            self.counters.corrupt_blocks += 1;
            return self.end_verify(entry, Err(NodeError::Corrupt { offset_bytes: 0 }));
        }
        self.verify_next(entry);
    }

    fn verify_next(&mut self, entry: EntryId) {
        let Task::ShardVerify { slot, offset_bytes } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let len_bytes = VERIFY_CHUNK_BYTES.min(self.store.shard_bytes(slot) - offset_bytes);
        let op = self.store.read_op(slot, offset_bytes, len_bytes);
        self.disk.submit(DiskOpKind::VerifyData(entry), op);
    }

    fn verify_data_ended(&mut self, entry: EntryId, result: DiskResult) {
        let Task::ShardVerify { slot, offset_bytes } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let shard_bytes = self.store.shard_bytes(slot);
        let len_bytes = VERIFY_CHUNK_BYTES.min(shard_bytes - offset_bytes);
        let data = match bytes_read(result, len_bytes, "reading a shard") {
            Ok(data) => data,
            Err(error) => return self.end_verify(entry, Err(error)),
        };
        self.counters.read_bytes += u64::from(len_bytes);
        let checksums = match self.store.checksums(slot, Blocks::new(offset_bytes, len_bytes)) {
            Ok(checksums) => checksums,
            Err(error) => return self.end_verify(entry, Err(error)),
        };
        let (bad, first) = mismatches(&data, checksums);
        if bad > 0 {
            self.counters.corrupt_blocks += bad;
            let offset_bytes = offset_bytes + first;
            return self.end_verify(entry, Err(NodeError::Corrupt { offset_bytes }));
        }
        let offset_bytes = offset_bytes + len_bytes;
        if offset_bytes == shard_bytes {
            return self.end_verify(entry, Ok(ReplyBody::Done));
        }
        self.table[entry].task = Task::ShardVerify { slot, offset_bytes };
        self.verify_next(entry);
    }

    fn end_verify(&mut self, entry: EntryId, result: Result<ReplyBody, NodeError>) {
        if let Task::ShardVerify { slot, .. } = self.table[entry].task {
            self.store.end_read(slot, entry, &mut self.disk);
        }
        self.close(entry, result);
    }

    fn journal_io_ended(&mut self, entry: EntryId, result: DiskResult) {
        let Task::JournalIo { generation, appended_bytes } = self.table[entry].task else {
            unreachable!("the purpose is only used for this task")
        };
        let volume = self.table[entry].volume;
        if let Some(journal) =
            self.volumes.get_mut(&volume).and_then(|volume| volume.journals.get_mut(&generation))
        {
            journal.in_flight -= 1;
            if let Some(at) = journal.appends.iter().position(|(other, _)| *other == entry) {
                journal.appends.swap_remove(at);
                self.store.changed |= !self.parked.is_empty();
            }
        }
        let result = match result {
            Ok(DiskOutput::Data(data)) => Ok(ReplyBody::Data(data)),
            Ok(_) => {
                self.counters.written_bytes += u64::from(appended_bytes);
                Ok(ReplyBody::Done)
            }
            Err(error) => Err(node_error(&error, "using a journal")),
        };
        self.close(entry, result);
        self.journal_pump_removal(volume, generation);
    }
}

/// Keeps only success or failure of a result.
fn done(result: DiskResult, what: &str) -> Result<(), NodeError> {
    result.map(|_| ()).map_err(|error| node_error(&error, what))
}

/// The bytes of a read. A read of a different length is an error.
pub(crate) fn bytes_read(
    result: DiskResult,
    len_bytes: u32,
    what: &str,
) -> Result<Bytes, NodeError> {
    match result {
        Ok(DiskOutput::Data(data)) if data.len() == len_bytes as usize => Ok(data),
        Ok(_) => Err(NodeError::Io(format!("{what}: the disk returned something else"))),
        Err(error) => Err(node_error(&error, what)),
    }
}

/// The number of blocks that do not match, and the offset of the first one.
fn mismatches(data: &[u8], checksums: &[u32]) -> (u64, u32) {
    let mut bad = 0;
    let mut first = 0;
    for (at, (block, &wanted)) in data.chunks(BLOCK_BYTES).zip(checksums).enumerate() {
        if crc32c(block) != wanted {
            if bad == 0 {
                first = u32::try_from(at * BLOCK_BYTES).expect("within a slot");
            }
            bad += 1;
        }
    }
    (bad, first)
}
