//! Fence, root, reservation, renewal and removal: the ordered requests of a volume.
//!
//! To replace the record, the node writes its next version to the other slot of the volume's file
//! ([`fieldstone_proto::disk::VolumeRecord`]), syncs, and only then uses it in memory. If that
//! fails, the old record stays in force and the next attempt writes to the same slot.
//!
//! A removal erases the slot headers, syncs them, removes the journals, and at last removes the
//! record. A crash on the way leaves a known volume, which a client can remove again. It never
//! leaves shards of a volume without a record.

use bytes::Bytes;

use fieldstone_proto::disk::{VOLUME_FILE_BYTES, VolumeRecord};
use fieldstone_proto::{NodeError, ReplyBody, VolumeId, VolumeState};

use super::{Barrier, JournalStage, OrderedQueueState, Volume};
use crate::disk::{CreateStep, DiskOpKind, node_error};
use crate::interface::{DiskError, DiskOp, DiskOutput, FileId};
use crate::node::Node;
use crate::request_table::{EntryId, RemoveStep, Task};
use crate::store::SlotsWaiter;

impl Node {
    /// Queues an ordered request.
    pub(crate) fn queue_ordered(&mut self, entry: EntryId, task: Task) {
        let id = self.table[entry].volume;
        self.table[entry].task = task;
        let keys = &self.config.keys;
        let volume = self.volumes.entry(id).or_insert_with(|| Volume::unknown(id, keys));
        volume.ordered.push_back(entry);
        self.run_ordered_queue(id);
    }

    /// Runs the volume's ordered requests as far as possible.
    pub(crate) fn run_ordered_queue(&mut self, id: VolumeId) {
        loop {
            let Some(volume) = self.volumes.get_mut(&id) else { return };
            let Some(&entry) = volume.ordered.front() else {
                if volume.is_forgettable() && !volume.has_file {
                    self.volumes.remove(&id);
                }
                return;
            };
            match volume.queue_state {
                OrderedQueueState::Running => return,
                OrderedQueueState::Idle => match self.admit_ordered(id, entry) {
                    Ok(true) => {}
                    Ok(false) => self.finish_ordered(id, Ok(ReplyBody::Done)),
                    Err(error) => self.finish_ordered(id, Err(error)),
                },
                OrderedQueueState::Draining if volume.active > 0 => return,
                OrderedQueueState::Draining => {
                    volume.queue_state = OrderedQueueState::Running;
                    self.start_ordered(id, entry);
                    return;
                }
            }
        }
    }

    /// Checks the first request of the queue against the present volume. False when the volume
    /// already has the requested state.
    fn admit_ordered(&mut self, id: VolumeId, entry: EntryId) -> Result<bool, NodeError> {
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        let (peer, epoch) = (self.table[entry].peer, self.table[entry].epoch);
        let current = volume.record.epoch;
        let mends = matches!(self.table[entry].task, Task::Remove(_) | Task::RenewRecord);
        let refused = !mends || volume.newer;
        if let Some(reason) = volume.damaged.as_ref().filter(|_| refused) {
            return Err(NodeError::Io(reason.clone()));
        }
        match &self.table[entry].task {
            Task::Fence { takeover } => {
                // This check comes first, so that a writer can ask whether the volume is in use,
                // with an epoch that changes nothing.
                if volume.holder.is_some_and(|holder| holder != peer) && !takeover {
                    return Err(NodeError::InUse { current });
                }
                let current = match volume.known {
                    true => current,
                    false => current.max(self.removed.last_epoch(id)),
                };
                if epoch <= current {
                    let comes_back = epoch == current && volume.known && *takeover;
                    if comes_back && !self.table[entry].peer_lost {
                        volume.check_connection(peer)?;
                        volume.used_by(peer);
                        volume.check_connection(peer)?;
                    }
                    return Err(NodeError::Fenced { sent: epoch, current });
                }
                volume.barrier = Some(Barrier::Fence(epoch));
            }
            Task::PutRoot { version, root } => {
                check_epoch(volume, epoch)?;
                let stored = &volume.record;
                if *version == stored.root_version && *root == stored.root {
                    return Ok(false);
                }
                if *version <= stored.root_version {
                    return Err(NodeError::Invalid(format!(
                        "root version {version} is not above the stored {}",
                        stored.root_version
                    )));
                }
                // This needs no draining: other requests neither see nor change the root.
                volume.queue_state = OrderedQueueState::Running;
                self.start_ordered(id, entry);
                return Ok(true);
            }
            Task::Reserve { slots, spare } => {
                check_epoch(volume, epoch)?;
                let (slots, spare) = (*slots, *spare);
                let granted = self.store.ask(id, slots, spare);
                if self.table[entry].peer_lost {
                    self.store.clear_requests(id);
                }
                granted?;
                if slots == volume.record.slots_reserved {
                    self.store.reserve(id, slots);
                    return Ok(false);
                }
                if slots > volume.record.slots_reserved {
                    // Reserves from here on, so that two volumes do not get the same slots.
                    self.store.reserve(id, slots);
                }
                volume.queue_state = OrderedQueueState::Running;
                self.start_ordered(id, entry);
                return Ok(true);
            }
            Task::RenewRecord => {
                if volume.damaged.is_none() {
                    return Err(NodeError::Invalid("the volume's record is not damaged".into()));
                }
                // A record that the node read but could not make stable still has a valid epoch.
                if epoch < current {
                    return Err(NodeError::Fenced { sent: epoch, current });
                }
                volume.barrier = Some(Barrier::Fence(epoch));
            }
            Task::Remove(_) => {
                if volume.damaged.is_none() {
                    check_epoch(volume, epoch)?;
                }
                volume.barrier = Some(Barrier::Removal);
            }
            _ => unreachable!("only these tasks are ordered"),
        }
        volume.queue_state = OrderedQueueState::Draining;
        Ok(true)
    }

    fn start_ordered(&mut self, id: VolumeId, entry: EntryId) {
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        let mut record = volume.record.clone();
        record.sequence += 1;
        match &self.table[entry].task {
            Task::Fence { .. } => {
                record.epoch = self.table[entry].epoch;
                if !volume.claims() {
                    // Other volumes may have these slots since the volume's writer is gone.
                    record.slots_reserved = 0;
                }
            }
            Task::PutRoot { version, root } => {
                record.root_version = *version;
                record.root = root.clone();
            }
            Task::Reserve { slots, .. } => record.slots_reserved = *slots,
            Task::RenewRecord => {
                let epoch = self.table[entry].epoch;
                record = VolumeRecord { epoch, ..Volume::unknown(id, &self.config.keys).record };
                record.sequence = 1;
            }
            _ => return self.remove_step(id, entry),
        }
        self.write_record(record);
    }

    fn write_record(&mut self, record: VolumeRecord) {
        let id = record.volume;
        let file = FileId::Volume(id);
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        let (step, op) = if volume.has_file {
            // Either half of the file may be damaged, so this replaces both.
            let (offset_bytes, data) = match volume.damaged {
                Some(_) => (0, record.encode_file()),
                None => (record.offset_bytes(), record.encode()),
            };
            (CreateStep::Write, DiskOp::Write { file, offset_bytes, data: vec![data] })
        } else {
            let len_bytes = VOLUME_FILE_BYTES as u64;
            (CreateStep::Create, DiskOp::Create { file, len_bytes, allocate: true })
        };
        volume.writing = Some(record);
        self.disk.submit(DiskOpKind::Record(id, step), op);
    }

    /// A step of replacing the record ended.
    pub(crate) fn record_step(
        &mut self,
        id: VolumeId,
        step: CreateStep,
        result: Result<DiskOutput, DiskError>,
    ) {
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        let record = volume.writing.take().expect("a record is being written");
        if let Err(error) = result {
            // The node does not grant a reservation that did not become stable.
            let slots = if volume.claims() { volume.record.slots_reserved } else { 0 };
            self.store.reserve(id, slots);
            return self
                .finish_ordered_and_continue(id, Err(node_error(&error, "storing the record")));
        }
        match step {
            CreateStep::Create => {
                volume.has_file = true;
                self.write_record(record);
            }
            CreateStep::Write => {
                volume.writing = Some(record);
                let op = DiskOp::Sync { file: FileId::Volume(id) };
                self.disk.submit(DiskOpKind::Record(id, CreateStep::Sync), op);
            }
            CreateStep::Sync => self.record_stored(id, record),
        }
    }

    fn record_stored(&mut self, id: VolumeId, record: VolumeRecord) {
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        // A damaged record does not tell the old epoch.
        let epoch_before =
            if volume.damaged.is_some() { record.epoch } else { volume.record.epoch };
        volume.set_record(record, &self.config.keys);
        volume.damaged = None;
        let entry = *volume.ordered.front().expect("the request that stores it");
        let request = &self.table[entry];
        let fences = matches!(request.task, Task::Fence { .. } | Task::RenewRecord);
        if fences {
            volume.holder = (!request.peer_lost).then_some(request.peer);
            // The epochs of earlier writers keep them out from now on.
            volume.superseded.clear();
            self.store.clear_requests(id);
        }
        let slots = if volume.claims() { volume.record.slots_reserved } else { 0 };
        self.store.reserve(id, slots);
        if !fences {
            return self.finish_ordered_and_continue(id, Ok(ReplyBody::Done));
        }
        let (record, journals) = (volume.record.clone(), volume.journal_infos());
        self.store.take_over(id, &mut self.disk);
        self.end_void_arrivals(id);
        let state = VolumeState {
            epoch_before,
            root_version: record.root_version,
            root: record.root,
            journals,
            stat: self.stat(),
        };
        self.finish_ordered_and_continue(id, Ok(ReplyBody::VolumeState(state)));
    }

    /// Ends the first request of the queue.
    fn finish_ordered(&mut self, id: VolumeId, result: Result<ReplyBody, NodeError>) {
        let volume = self.volumes.get_mut(&id).expect("it has requests");
        volume.queue_state = OrderedQueueState::Idle;
        volume.barrier = None;
        let entry = volume.ordered.pop_front().expect("an ordered request is in progress");
        self.close(entry, result);
    }

    fn finish_ordered_and_continue(&mut self, id: VolumeId, result: Result<ReplyBody, NodeError>) {
        self.finish_ordered(id, result);
        self.run_ordered_queue(id);
    }

    /// Enters the next step of a removal. Skips steps without work.
    fn remove_step(&mut self, id: VolumeId, entry: EntryId) {
        loop {
            let Task::Remove(step) = self.table[entry].task else {
                unreachable!("the other tasks write a record")
            };
            let next = match step {
                RemoveStep::Queued => RemoveStep::Shards,
                RemoveStep::Shards => RemoveStep::Sync,
                RemoveStep::Sync => RemoveStep::Journals,
                RemoveStep::Journals | RemoveStep::Record => RemoveStep::Record,
            };
            if step == RemoveStep::Sync {
                // Another sync may have failed meanwhile, so that erasures may not be stable.
                let parts = self.store.finish_leaving(id, entry, &mut self.disk);
                if parts > 0 {
                    self.table[entry].task = Task::Remove(RemoveStep::Shards);
                    self.table[entry].outstanding = parts;
                    return;
                }
            }
            self.table[entry].task = Task::Remove(next);
            let parts = match next {
                RemoveStep::Shards => {
                    let leaving = self.store.finish_leaving(id, entry, &mut self.disk);
                    leaving + self.store.delete(id, None, entry, &mut self.disk)
                }
                RemoveStep::Sync => {
                    self.store.request_slots_sync(SlotsWaiter::Entry(entry), &mut self.disk);
                    1
                }
                RemoveStep::Journals => {
                    use JournalStage::{Ready, Removing, Unusable};
                    self.journal_remove(entry, .., &[Ready, Unusable, Removing(None)])
                }
                RemoveStep::Queued | RemoveStep::Record => {
                    let op = DiskOp::Remove { file: FileId::Volume(id) };
                    self.disk.submit(DiskOpKind::RecordRemove(entry), op);
                    1
                }
            };
            self.table[entry].outstanding = parts;
            if parts > 0 {
                return;
            }
        }
    }

    /// A step of a removal ended.
    pub(crate) fn remove_step_ended(&mut self, entry: EntryId) {
        let id = self.table[entry].volume;
        match self.table[entry].error.take() {
            Some(error) => self.finish_ordered_and_continue(id, Err(error)),
            None => self.remove_step(id, entry),
        }
    }

    /// The node removed the volume's record, or failed to.
    pub(crate) fn record_removed(&mut self, entry: EntryId, result: Result<DiskOutput, DiskError>) {
        let id = self.table[entry].volume;
        let result = match result {
            Ok(_) | Err(DiskError::NotFound) => {
                let keys = &self.config.keys;
                let volume = self.volumes.get_mut(&id).expect("it has requests");
                self.store.reserve(id, 0);
                self.store.clear_requests(id);
                self.removed.note(id, volume.record.epoch.max(self.table[entry].epoch));
                // Later requests in the queue find an unknown volume.
                let ordered = std::mem::take(&mut volume.ordered);
                *volume = Volume { ordered, ..Volume::unknown(id, keys) };
                self.end_void_arrivals(id);
                Ok(ReplyBody::Done)
            }
            Err(error) => Err(node_error(&error, "removing the volume's record")),
        };
        self.finish_ordered_and_continue(id, result);
    }

    /// A journal is gone. Perhaps no data about the volume is left.
    pub(crate) fn journals_removed(&mut self, id: VolumeId) {
        self.run_ordered_queue(id);
    }
}

/// Requires that the volume is at the request's epoch.
pub(crate) fn check_epoch(volume: &Volume, sent: fieldstone_proto::Epoch) -> Result<(), NodeError> {
    if let Some(reason) = &volume.damaged {
        return Err(NodeError::Io(reason.clone()));
    }
    if !volume.known {
        return Err(NodeError::NotFound);
    }
    let current = match volume.barrier {
        Some(Barrier::Removal) => return Err(NodeError::NotFound),
        Some(Barrier::Fence(epoch)) if sent < epoch => epoch,
        _ => volume.record.epoch,
    };
    match sent.cmp(&current) {
        std::cmp::Ordering::Less => Err(NodeError::Fenced { sent, current }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(NodeError::Invalid(format!(
            "epoch {sent} is above the volume's {current}: fence first"
        ))),
    }
}

/// Joins several pieces of bytes into one.
pub(crate) fn join(payload: &[Bytes]) -> Bytes {
    match payload {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => Bytes::from(many.concat()),
    }
}
