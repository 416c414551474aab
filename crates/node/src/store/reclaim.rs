//! Giving slots up, and making them free again.

use fieldstone_proto::{NodeError, SegmentId, VolumeId};

use super::slot::Noted;
use super::{ChunkStore, RECORD_BYTES, ShardKey, SlotChoice, SlotIndex, SlotState, SlotsWaiter};
use crate::disk::{DiskOpKind, DiskQueue};
use crate::interface::{DiskOp, FileId};
use crate::limits::RECLAIM_FRACTION;
use crate::request_table::EntryId;

impl ChunkStore {
    /// Deletes the volume's shards of a segment (of all segments for `None`). Returns the number of
    /// slots whose erasure the entry must wait for. Each erasure ends a part of the entry.
    pub(crate) fn delete(
        &mut self,
        volume: VolumeId,
        segment: Option<SegmentId>,
        entry: EntryId,
        disk: &mut DiskQueue,
    ) -> u32 {
        let mut parts = 0;
        if segment.is_none() {
            self.lost.remove(&volume);
        }
        for key in self.keys(volume, segment) {
            let Some(copies) = self.index.remove(&key) else { continue };
            let discard = segment.is_none();
            if let Some(slot) = copies.open {
                self.slots[slot.0 as usize].discard |= discard;
                self.give_up(slot, &NodeError::NotFound, Some(entry), disk);
                parts += 1;
            }
            let mut next = copies.sealed;
            while let Some(slot) = next {
                let state = &mut self.slots[slot.0 as usize];
                state.discard |= discard;
                if state.stage == SlotState::Superseded {
                    self.superseded -= 1;
                }
                next = self.slots[slot.0 as usize].content_mut().replaces.take();
                self.release(slot, Some(entry), disk);
                parts += 1;
            }
        }
        parts
    }

    /// Handles slots that are already on their way to the free list, but whose headers may still
    /// name the volume. Tries failed erasures again. Returns the number of slots whose erasure the
    /// entry must wait for. Each erasure ends a part of the entry.
    pub(crate) fn finish_leaving(
        &mut self,
        volume: VolumeId,
        entry: EntryId,
        disk: &mut DiskQueue,
    ) -> u32 {
        let mut parts = 0;
        for (index, slot) in (0..).map(SlotIndex).zip(&mut self.slots) {
            let leaves = matches!(
                slot.stage,
                SlotState::Leaving | SlotState::Erasing | SlotState::EraseFailed
            );
            if slot.left_by != Some(volume) || !leaves || slot.waiter.is_some() {
                continue;
            }
            slot.waiter = Some(entry);
            parts += 1;
            if slot.stage == SlotState::EraseFailed {
                self.leaving += 1;
                self.erase_failed.retain(|failed| *failed != index);
                self.erasing_again.insert(index);
                slot.stage = SlotState::Erasing;
                disk.submit(DiskOpKind::Erase(index), erasure(index));
            }
        }
        parts
    }

    /// A new writer has taken over. Gives up the volume's open shards, but only those without
    /// operations in flight. Keeps open shards that have a note: the new writer may need their
    /// contents.
    pub(crate) fn take_over(&mut self, volume: VolumeId, disk: &mut DiskQueue) {
        for key in self.keys(volume, None) {
            if let Some(slot) = self.index.get(&key).and_then(|copies| copies.open)
                && !self.slots[slot.0 as usize].content().is_noted()
            {
                self.give_up(slot, &NodeError::NotFound, None, disk);
            }
        }
    }

    /// Gives up a shard that is open or being sealed. The reason is `error`.
    pub(super) fn give_up(
        &mut self,
        slot: SlotIndex,
        error: &NodeError,
        waiter: Option<EntryId>,
        disk: &mut DiskQueue,
    ) {
        let content = self.slots[slot.0 as usize].content_mut();
        content.given_up = Some(error.clone());
        let key = content.key;
        if let Noted::Writing(entries) = std::mem::take(&mut content.noted) {
            self.done.extend(entries.into_iter().map(|entry| (entry, Err(error.clone()))));
            // When the write of the note ends, no entry waits for it any more.
            content.noted = Noted::Writing(Vec::new());
        }
        if let Some((entry, _)) = content.seal.take() {
            // If the entry's own write is still in flight, the entry gets the error when that write
            // ends.
            if !content.busy.iter().any(|busy| busy.entry == entry && busy.writes) {
                self.done.push((entry, Err(error.clone())));
            }
        }
        if let Some(copies) = self.index.get_mut(&key) {
            copies.open = None;
        }
        self.forget_if_empty(key);
        self.release(slot, waiter, disk);
    }

    pub(super) fn forget_if_empty(&mut self, key: ShardKey) {
        if self.index.get(&key).is_some_and(|copies| copies.open.or(copies.sealed).is_none()) {
            self.index.remove(&key);
        }
    }

    /// Releases superseded slots. Each may itself supersede another one.
    pub(super) fn release_chain(&mut self, mut next: Option<SlotIndex>, disk: &mut DiskQueue) {
        while let Some(slot) = next {
            self.superseded -= 1;
            next = self.slots[slot.0 as usize].content_mut().replaces.take();
            self.release(slot, None, disk);
        }
    }

    /// Puts a slot that the index no longer names on its way to the free list.
    pub(super) fn release(
        &mut self,
        slot: SlotIndex,
        waiter: Option<EntryId>,
        disk: &mut DiskQueue,
    ) {
        let state = &mut self.slots[slot.0 as usize];
        let key = state.content().key;
        self.allotments.give_back(key.volume);
        if state.header_dirty {
            self.departing.insert(slot, key);
        }
        state.left_by = Some(key.volume);
        state.stage = SlotState::Leaving;
        state.waiter = waiter;
        self.leaving += 1;
        self.advance(slot, disk);
    }

    /// Erases the header of a leaving slot once no operation is in flight on the slot.
    pub(super) fn advance(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        let state = &mut self.slots[slot.0 as usize];
        if state.stage != SlotState::Leaving || state.pins > 0 {
            return;
        }
        state.content = None;
        if state.header_dirty {
            self.erase(slot, disk);
        } else {
            let waiter = state.waiter.take();
            self.done.extend(waiter.map(|entry| (entry, Ok(()))));
            self.discard_or_free(slot, disk);
        }
    }

    fn erase(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        self.slots[slot.0 as usize].stage = SlotState::Erasing;
        disk.submit(DiskOpKind::Erase(slot), erasure(slot));
    }

    /// The erasure of a header ended.
    pub(crate) fn erase_ended(
        &mut self,
        slot: SlotIndex,
        result: Result<(), NodeError>,
        disk: &mut DiskQueue,
    ) {
        self.changed = true;
        let state = &mut self.slots[slot.0 as usize];
        let again = std::mem::take(&mut state.erase_again);
        if result.is_ok() && again {
            return self.erase(slot, disk);
        }
        if result.is_ok() {
            state.stage = SlotState::Erased;
            if let Some(sequence) = state.header_sequence.take() {
                self.headers_unsure.remove(&sequence);
            }
            self.erased.push(slot);
        } else {
            state.stage = SlotState::EraseFailed;
            self.leaving -= 1;
            self.erase_failed.push(slot);
        }
        let waiter = state.waiter.take();
        self.done.extend(waiter.map(|entry| (entry, result)));
        self.erasing_again.remove(&slot);
        self.erasure_of_round_ended(slot, disk);
    }

    /// A write of a shard waits until the erasure of `slot` is stable. The slot had another shard
    /// of the segment.
    ///
    /// # Errors
    /// The node could not erase the slot's header. It tries again, and a later write may succeed.
    pub(super) fn wait_for_departure(
        &mut self,
        slot: SlotIndex,
        disk: &mut DiskQueue,
    ) -> Result<SlotChoice, NodeError> {
        match self.slots[slot.0 as usize].stage {
            SlotState::EraseFailed => {
                self.retry_erasing(disk);
                let text = "erasing another shard of the segment failed";
                return Err(NodeError::Io(text.to_owned()));
            }
            SlotState::Erased if !self.slots_sync.is_running() => {
                self.request_slots_sync(SlotsWaiter::Reclaim, disk);
            }
            _ => {}
        }
        Ok(SlotChoice::Park)
    }

    /// Tries failed erasures of headers again.
    pub(super) fn retry_erasing(&mut self, disk: &mut DiskQueue) {
        for slot in std::mem::take(&mut self.erase_failed) {
            self.leaving += 1;
            self.erasing_again.insert(slot);
            self.erase(slot, disk);
        }
    }

    pub(crate) fn request_slots_sync(&mut self, waiter: SlotsWaiter, disk: &mut DiskQueue) {
        if self.slots_sync.request(waiter) {
            self.submit_slots_sync(disk);
        }
    }

    fn submit_slots_sync(&mut self, disk: &mut DiskQueue) {
        self.erased_covered.append(&mut self.erased);
        disk.submit(DiskOpKind::SyncSlots, DiskOp::Sync { file: FileId::Slots });
    }

    /// A sync of the slots file ended.
    pub(crate) fn slots_synced(&mut self, result: &Result<(), NodeError>, disk: &mut DiskQueue) {
        self.changed = true;
        let mut waiters = self.slots_sync.finish();
        match result {
            Ok(()) => {
                for slot in std::mem::take(&mut self.erased_covered) {
                    self.slots[slot.0 as usize].header_dirty = false;
                    self.discard_or_free(slot, disk);
                }
            }
            Err(error) => {
                waiters.extend(self.slots_sync.take_waiting());
                self.requeue_erasures(error);
                self.give_up_open(error, disk);
                self.give_up_unstable(error, disk);
            }
        }
        for waiter in waiters {
            match waiter {
                SlotsWaiter::Round(number) if result.is_ok() => self.finish_round(number, disk),
                SlotsWaiter::Round(_) | SlotsWaiter::Reclaim => {}
                SlotsWaiter::Entry(entry) => self.done.push((entry, result.clone())),
            }
        }
        if self.slots_sync.begin() {
            self.submit_slots_sync(disk);
        }
    }

    /// A sync failed: the node can no longer rely on an erasure that is not yet stable. The node
    /// has acknowledged the deletions, so the next sync of their volumes fails, unless one that
    /// waits now does.
    fn requeue_erasures(&mut self, error: &NodeError) {
        let mut erased = std::mem::take(&mut self.erased);
        erased.append(&mut self.erased_covered);
        for slot in erased {
            let state = &mut self.slots[slot.0 as usize];
            state.stage = SlotState::EraseFailed;
            let left_by = state.left_by;
            self.leaving -= 1;
            self.erase_failed.push(slot);
            if let Some(volume) = left_by.filter(|volume| !self.sync_waits(*volume)) {
                self.lost.insert(volume, error.clone());
            }
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.stage == SlotState::Erasing) {
            slot.erase_again = true;
        }
    }

    /// No valid header is left in the slot, stably.
    fn discard_or_free(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        self.departing.remove(slot);
        let offset_bytes = self.data_at(slot);
        let state = &mut self.slots[slot.0 as usize];
        if std::mem::take(&mut state.discard) {
            state.stage = SlotState::Discarding;
            let len_bytes = u64::from(self.slot_bytes);
            let op = DiskOp::Discard { file: FileId::Data, offset_bytes, len_bytes };
            disk.submit(DiskOpKind::Discard(slot), op);
        } else {
            self.set_free(slot);
        }
    }

    /// The file system took a slot's space back, or failed to. The slot is free in both cases.
    pub(crate) fn set_free(&mut self, slot: SlotIndex) {
        let state = &mut self.slots[slot.0 as usize];
        (state.stage, state.left_by) = (SlotState::Free, None);
        self.leaving -= 1;
        self.free.push(slot);
        self.changed = true;
    }

    /// Starts to free slots, when a request waits for a slot or many slots wait for a sync.
    pub(crate) fn reclaim(&mut self, someone_waits: bool, disk: &mut DiskQueue) {
        let wanted = someone_waits && self.free.is_empty();
        let many = self.erased.len() * RECLAIM_FRACTION >= self.slots.len();
        if !self.erased.is_empty() && (wanted || many) && !self.slots_sync.is_running() {
            self.request_slots_sync(SlotsWaiter::Reclaim, disk);
        }
        if wanted && self.leaving == 0 && self.superseded > 0 {
            self.begin_round(disk);
        }
    }
}

/// Overwrites the header of a slot.
fn erasure(slot: SlotIndex) -> DiskOp {
    DiskOp::Write {
        file: FileId::Slots,
        offset_bytes: ChunkStore::header_at(slot),
        data: vec![fieldstone_buf::zeroes(RECORD_BYTES as usize)],
    }
}
