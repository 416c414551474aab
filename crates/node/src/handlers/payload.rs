//! The payload handler: turns an admitted request into disk operations.
//!
//! The node never copies payload bytes: the gather list of the request is the gather list of the
//! write. With `verify_payload`, the node checks each block against the checksum in the request, so
//! it notices damage on the way before it stores the block. Without it, the node trusts the
//! checksums, and a read of the shard notices the damage. A write in fragments is checked fragment
//! by fragment (`arrivals`).

use bytes::Bytes;

use fieldstone_proto::disk::JournalHeader;
use fieldstone_proto::{BLOCK_BYTES, JournalGen, Lsn, NodeError, ReplyBody, RequestBody};

use super::bounds::payload_len;
use crate::disk::DiskOpKind;
use crate::interface::{DiskOp, FileId};
use crate::node::Node;
use crate::request_table::{EntryId, ParkKey, Task};
use crate::store::{Blocks, ChunkStore, ShardKey, SlotChoice};
use crate::volumes::{JournalStage, check_range};

impl Node {
    /// Starts an admitted request.
    pub(crate) fn start_entry(&mut self, entry: EntryId) {
        let task = std::mem::replace(&mut self.table[entry].task, Task::ShardSync);
        let started = match task {
            Task::Parked(parked) => {
                let (body, payload) = *parked;
                if self.must_queue(entry, &body) {
                    self.park(entry, body, payload);
                    return;
                }
                self.start_body(entry, body, payload)
            }
            ordered => {
                self.queue_ordered(entry, ordered);
                return;
            }
        };
        if let Err(error) = started {
            self.close(entry, Err(error));
        }
    }

    fn start_body(
        &mut self,
        entry: EntryId,
        body: RequestBody,
        payload: Vec<Bytes>,
    ) -> Result<(), NodeError> {
        match body {
            RequestBody::JournalCreate { generation, ring_bytes } => {
                self.journal_create(entry, generation, ring_bytes)
            }
            RequestBody::JournalAppend { generation, lsn } => {
                self.journal_append(entry, generation, lsn, payload)
            }
            RequestBody::JournalSync { generation } => self.journal_sync(entry, generation),
            RequestBody::JournalRead { generation, offset_bytes, len_bytes } => {
                self.journal_read(entry, generation, offset_bytes, len_bytes)
            }
            RequestBody::JournalDelete { first, below } => {
                self.table[entry].task = Task::JournalDelete;
                let parts = self.journal_remove(entry, first..below, &[JournalStage::Ready]);
                self.wait_for_parts(entry, parts);
                Ok(())
            }
            RequestBody::ShardWrite { .. } => self.shard_write(entry, body, payload),
            RequestBody::ShardRead { .. } => self.shard_read(entry, body),
            RequestBody::ShardVerify { segment, shard } => {
                let key = ShardKey { volume: self.table[entry].volume, segment, shard };
                let slot = self.store.begin_verify(key)?;
                self.table[entry].task = Task::ShardVerify { slot, offset_bytes: 0 };
                self.disk.submit(DiskOpKind::VerifyHeader(entry), ChunkStore::read_header_op(slot));
                Ok(())
            }
            RequestBody::ShardSync => {
                self.table[entry].outstanding = 1;
                let volume = self.table[entry].volume;
                self.store.sync(entry, volume, &mut self.disk);
                Ok(())
            }
            RequestBody::ShardDelete { segments } => {
                self.table[entry].task = Task::ShardDelete;
                let volume = self.table[entry].volume;
                let parts = segments
                    .iter()
                    .map(|&id| self.store.delete(volume, Some(id), entry, &mut self.disk))
                    .sum();
                self.wait_for_parts(entry, parts);
                Ok(())
            }
            _ => Err(NodeError::Invalid("this operation has no payload stage".to_owned())),
        }
    }

    /// A request goes after the parked requests on the same shard or journal.
    fn must_queue(&self, entry: EntryId, body: &RequestBody) -> bool {
        if self.parked.is_empty() {
            return false;
        }
        let volume = self.table[entry].volume;
        let Some(target) = ParkKey::of(body) else { return false };
        self.parked.iter().any(|&other| {
            let same = |parked: &RequestBody| ParkKey::of(parked) == Some(target);
            self.table[other].volume == volume
                && matches!(&self.table[other].task, Task::Parked(parked) if same(&parked.0))
        })
    }

    fn park(&mut self, entry: EntryId, body: RequestBody, payload: Vec<Bytes>) {
        self.table[entry].task = Task::Parked(Box::new((body, payload)));
        self.parked.push_back(entry);
    }

    /// Closes the entry at once when it has no parts to wait for.
    fn wait_for_parts(&mut self, entry: EntryId, parts: u32) {
        self.table[entry].outstanding = parts;
        if parts == 0 {
            self.close(entry, Ok(ReplyBody::Done));
        }
    }

    fn shard_write(
        &mut self,
        entry: EntryId,
        body: RequestBody,
        payload: Vec<Bytes>,
    ) -> Result<(), NodeError> {
        let RequestBody::ShardWrite {
            segment,
            shard,
            offset_bytes,
            ref checksums,
            seal,
            data_first,
        } = body
        else {
            unreachable!("matched by the caller")
        };
        let written_bytes = u32::try_from(payload_len(&payload)).expect("bounded by the slot");
        if self.config.verify_payload
            && !self.table[entry].verified
            && let Some(block) = first_mismatch(&payload, checksums)
        {
            self.counters.corrupt_blocks += 1;
            let offset_bytes = offset_bytes + block * BLOCK_BYTES as u32;
            return Err(NodeError::Corrupt { offset_bytes });
        }
        let key = ShardKey { volume: self.table[entry].volume, segment, shard };
        let blocks = Blocks::new(offset_bytes, written_bytes);
        let epoch = self.table[entry].epoch;
        let slot = match self.store.place(key, epoch, blocks, seal.as_ref(), &mut self.disk)? {
            SlotChoice::Slot(slot) => slot,
            SlotChoice::Park => {
                self.park(entry, body, payload);
                return Ok(());
            }
        };
        let RequestBody::ShardWrite { checksums, .. } = body else { unreachable!("matched above") };
        let offset_bytes =
            self.store.begin_write(slot, entry, blocks, checksums, (seal, data_first));
        let noting = seal.is_none() && self.store.note_open(slot, entry, &mut self.disk);
        let descriptor = &mut self.table[entry];
        descriptor.task = Task::ShardWrite { slot, written_bytes };
        descriptor.outstanding = 1 + u32::from(noting);
        let op = DiskOp::Write { file: FileId::Data, offset_bytes, data: payload };
        self.disk.submit(DiskOpKind::ShardData(entry), op);
        Ok(())
    }

    fn shard_read(&mut self, entry: EntryId, body: RequestBody) -> Result<(), NodeError> {
        let RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes } = body else {
            unreachable!("matched by the caller")
        };
        let key = ShardKey { volume: self.table[entry].volume, segment, shard };
        let blocks = Blocks::new(offset_bytes, len_bytes);
        let Some(slot) = self.store.begin_read(key, entry, blocks)? else {
            self.park(entry, body, Vec::new());
            return Ok(());
        };
        self.table[entry].task = Task::ShardRead { slot, offset_bytes, len_bytes };
        let op = self.store.read_op(slot, offset_bytes, len_bytes);
        self.disk.submit(DiskOpKind::ShardRead(entry), op);
        Ok(())
    }

    fn journal_append(
        &mut self,
        entry: EntryId,
        generation: JournalGen,
        lsn: Lsn,
        payload: Vec<Bytes>,
    ) -> Result<(), NodeError> {
        let len_bytes = payload_len(&payload);
        let id = self.table[entry].volume;
        let journal = self.journal(id, generation)?;
        if let Some(error) = &journal.broken {
            return Err(error.clone());
        }
        let offset_bytes = lsn.0 % journal.ring_bytes;
        check_range(journal.ring_bytes, offset_bytes, len_bytes as u64)?;
        if journal.is_past(lsn.0) {
            let text = "a later append has bytes in this place of the ring";
            return Err(NodeError::Invalid(text.to_owned()));
        }
        let range = offset_bytes..offset_bytes + len_bytes as u64;
        if journal.is_written_to(&range) {
            self.park(entry, RequestBody::JournalAppend { generation, lsn }, payload);
            return Ok(());
        }
        journal.in_flight += 1;
        journal.appends.push((entry, range));
        journal.end = journal.end.max(lsn.0.saturating_add(len_bytes as u64));
        let appended_bytes = u32::try_from(len_bytes).expect("bounded by PAYLOAD_BYTES_MAX");
        self.table[entry].task = Task::JournalIo { generation, appended_bytes };
        let op = DiskOp::Write {
            file: FileId::Journal(id, generation),
            offset_bytes: JournalHeader::RING_AT_BYTES + offset_bytes,
            data: payload,
        };
        self.disk.submit(DiskOpKind::JournalIo(entry), op);
        Ok(())
    }

    fn journal_read(
        &mut self,
        entry: EntryId,
        generation: JournalGen,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<(), NodeError> {
        let id = self.table[entry].volume;
        let journal = self.journal(id, generation)?;
        check_range(journal.ring_bytes, offset_bytes, u64::from(len_bytes))?;
        journal.in_flight += 1;
        self.table[entry].task = Task::JournalIo { generation, appended_bytes: 0 };
        let op = DiskOp::Read {
            file: FileId::Journal(id, generation),
            offset_bytes: JournalHeader::RING_AT_BYTES + offset_bytes,
            len_bytes,
        };
        self.disk.submit(DiskOpKind::JournalIo(entry), op);
        Ok(())
    }
}

/// The first block of a gather list that does not match its checksum.
pub(crate) fn first_mismatch(payload: &[Bytes], checksums: &[u32]) -> Option<u32> {
    let mut expected = checksums.iter().enumerate();
    let mut partial: Vec<u8> = Vec::new();
    for part in payload {
        let mut rest: &[u8] = part;
        while !rest.is_empty() {
            // A block that spans parts of the list is put together. A whole block is used in place.
            let missing = BLOCK_BYTES - partial.len();
            let (piece, tail) = rest.split_at(missing.min(rest.len()));
            rest = tail;
            let crc = if piece.len() == BLOCK_BYTES {
                fieldstone_proto::crc32c(piece)
            } else {
                partial.extend_from_slice(piece);
                if partial.len() < BLOCK_BYTES {
                    continue;
                }
                let crc = fieldstone_proto::crc32c(&partial);
                partial.clear();
                crc
            };
            let (block, &wanted) = expected.next()?;
            if crc != wanted {
                return u32::try_from(block).ok();
            }
        }
    }
    None
}
