//! Completing shards, and making them stable.

use std::collections::BTreeSet;

use fieldstone_proto::{NodeError, VolumeId};

use super::slot::Noted;
use super::{ChunkStore, HEADER_BYTES, SlotIndex, SlotState, SlotsWaiter};
use crate::disk::{DiskOpKind, DiskQueue};
use crate::interface::{DiskOp, FileId};
use crate::request_table::EntryId;

/// A waiter for a sync of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataWaiter {
    /// The round with this number, if it is still in progress.
    Round(u64),
    /// A rewritten shard. After the sync the node may write its header.
    Seal(SlotIndex),
}

/// A sync of both files for a set of complete shards.
#[derive(Debug)]
pub(super) struct Round {
    number: u64,
    /// The value of the store's `stable_below` after the round has succeeded.
    stable_below: u64,
    seals: Vec<Seal>,
    waiters: Vec<SyncWaiter>,
    /// Slots whose erasure failed before, and was being tried again when the round began.
    erasing: BTreeSet<SlotIndex>,
    /// The sync of the data file has succeeded.
    has_synced_data: bool,
}

/// A completed shard that is not known to be stable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seal {
    slot: SlotIndex,
    /// The header's sequence. It shows whether the slot still holds this shard.
    sequence: u64,
    /// How many shards had been completed before it.
    rank: u64,
}

/// A request to make all complete shards stable.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncWaiter {
    entry: EntryId,
    volume: VolumeId,
    /// Number of complete shards when the request arrived. It covers these and no later ones.
    rank: u64,
}

impl ChunkStore {
    /// Writes the header if a write asked to seal the shard and all its data is in the file.
    pub(super) fn try_seal(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        let state = &mut self.slots[slot.0 as usize];
        let content = state.content_mut();
        if content.is_written_to() || matches!(content.noted, Noted::Writing(_)) {
            return;
        }
        let failed = content.failed.take();
        let Some((entry, meta)) = content.seal else { return };
        if let Some(error) = failed {
            content.seal = None;
            self.done.push((entry, Err(error)));
            return;
        }
        content.meta = meta;
        content.written_is_partial = false;
        content.checksums.truncate((meta.shard_bytes / HEADER_BYTES) as usize);
        let (key, data_first) = (content.key, content.data_first);
        state.stage = SlotState::Sealing;
        state.pins += 1;
        let rewrites = self.index.get(&key).is_some_and(|copies| copies.sealed.is_some());
        if rewrites || data_first {
            self.request_data_sync(DataWaiter::Seal(slot), disk);
        } else {
            self.write_header(slot, disk);
        }
    }

    /// The write of a header ended.
    pub(crate) fn header_written(
        &mut self,
        slot: SlotIndex,
        result: Result<(), NodeError>,
        disk: &mut DiskQueue,
    ) {
        self.changed = true;
        let state = &mut self.slots[slot.0 as usize];
        state.pins -= 1;
        let content = state.content_mut();
        if content.given_up.is_some() {
            return self.advance(slot, disk);
        }
        if let Err(error) = result {
            return self.give_up(slot, &error, None, disk);
        }
        self.headers_unsure.remove(&content.sequence);
        let (entry, _) = content.seal.take().expect("only shards being sealed get a header");
        let (key, sequence) = (content.key, content.sequence);
        let copies = self.index.get_mut(&key).expect("its open form is in the index");
        copies.open = None;
        content.replaces = copies.sealed.replace(slot);
        let old = content.replaces;
        state.stage = SlotState::Sealed;
        self.unstable.push(Seal { slot, sequence, rank: self.seals });
        self.seals += 1;
        if let Some(old) = old {
            self.slots[old.0 as usize].stage = SlotState::Superseded;
            self.superseded += 1;
        }
        self.done.push((entry, Ok(())));
    }

    /// Makes all complete shards stable. Then the entry's part ends.
    pub(crate) fn sync(&mut self, entry: EntryId, volume: VolumeId, disk: &mut DiskQueue) {
        if let Some(error) = self.lost.remove(&volume) {
            self.done.push((entry, Err(error)));
            return;
        }
        let erasing = self.erased.len() + self.erase_failed.len() + self.erasing_again.len();
        let unsure = self.unstable.len() + erasing;
        if unsure == 0 && !self.open_unstable && self.round.is_none() {
            self.done.push((entry, Ok(())));
            return;
        }
        self.round_waiting.push(SyncWaiter { entry, volume, rank: self.seals });
        self.begin_round(disk);
    }

    /// A `ShardSync` of the volume waits.
    pub(super) fn sync_waits(&self, volume: VolumeId) -> bool {
        let in_round = self.round.iter().flat_map(|round| &round.waiters);
        in_round.chain(&self.round_waiting).any(|waiter| waiter.volume == volume)
    }

    /// Begins a round unless one is in progress.
    pub(super) fn begin_round(&mut self, disk: &mut DiskQueue) {
        if self.round.is_some() {
            return;
        }
        self.rounds += 1;
        self.open_unstable = false;
        self.retry_erasing(disk);
        self.round = Some(Round {
            number: self.rounds,
            stable_below: self.headers_unsure.first().copied().unwrap_or(self.next_sequence),
            seals: std::mem::take(&mut self.unstable),
            waiters: std::mem::take(&mut self.round_waiting),
            erasing: self.erasing_again.clone(),
            has_synced_data: false,
        });
        self.request_data_sync(DataWaiter::Round(self.rounds), disk);
    }

    fn request_data_sync(&mut self, waiter: DataWaiter, disk: &mut DiskQueue) {
        if self.data_sync.request(waiter) {
            disk.submit(DiskOpKind::SyncData, DiskOp::Sync { file: FileId::Data });
        }
    }

    /// A sync of the data file ended.
    pub(crate) fn data_synced(&mut self, result: &Result<(), NodeError>, disk: &mut DiskQueue) {
        let mut waiters = self.data_sync.finish();
        if let Err(error) = result {
            // Waiters for the next sync want it to cover writes that this sync may have lost.
            waiters.extend(self.data_sync.take_waiting());
            self.give_up_open(error, disk);
            self.give_up_unstable(error, disk);
        }
        for waiter in waiters {
            match waiter {
                DataWaiter::Round(number) if result.is_ok() => {
                    if let Some(round) = self.round.as_mut().filter(|round| round.number == number)
                    {
                        round.has_synced_data = true;
                        self.sync_slots_of_round(disk);
                    }
                }
                DataWaiter::Round(_) => {}
                DataWaiter::Seal(slot) => self.data_of_seal_synced(slot, disk),
            }
        }
        if self.data_sync.begin() {
            disk.submit(DiskOpKind::SyncData, DiskOp::Sync { file: FileId::Data });
        }
    }

    /// Syncs the slots for the round, once its data is stable and its erasures have been tried. So
    /// the sync covers deletions that an earlier sync did not make stable. An erasure that fails
    /// again is left out: one header that cannot be written must not fail every sync.
    pub(super) fn sync_slots_of_round(&mut self, disk: &mut DiskQueue) {
        let ready = |round: &&Round| round.has_synced_data && round.erasing.is_empty();
        if let Some(round) = self.round.as_ref().filter(ready) {
            let number = round.number;
            self.request_slots_sync(SlotsWaiter::Round(number), disk);
        }
    }

    /// An erasure ended that the round may wait for.
    pub(super) fn erasure_of_round_ended(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        if self.round.as_mut().is_some_and(|round| round.erasing.remove(&slot)) {
            self.sync_slots_of_round(disk);
        }
    }

    fn data_of_seal_synced(&mut self, slot: SlotIndex, disk: &mut DiskQueue) {
        let state = &mut self.slots[slot.0 as usize];
        if state.content().given_up.is_some() {
            state.pins -= 1;
            self.advance(slot, disk);
        } else {
            self.write_header(slot, disk);
        }
    }

    /// The round's sync of the slots file succeeded.
    pub(super) fn finish_round(&mut self, number: u64, disk: &mut DiskQueue) {
        // After the node gives a round up, another round may begin before the first one's syncs
        // end.
        let Some(round) = self.round.take_if(|round| round.number == number) else { return };
        self.raise_stable_below(round.stable_below);
        for Seal { slot, sequence, .. } in round.seals {
            let Some(content) = self.slots[slot.0 as usize].content.as_deref_mut() else {
                continue;
            };
            if content.sequence != sequence {
                continue;
            }
            content.stable = true;
            let old = content.replaces.take();
            self.release_chain(old, disk);
        }
        self.done.extend(round.waiters.into_iter().map(|waiter| (waiter.entry, Ok(()))));
        if !self.round_waiting.is_empty() {
            self.begin_round(disk);
        }
    }

    /// A sync failed: gives up every open shard that holds data.
    pub(super) fn give_up_open(&mut self, error: &NodeError, disk: &mut DiskQueue) {
        let open: Vec<SlotIndex> = self.index.values().filter_map(|copies| copies.open).collect();
        for slot in open {
            let content = self.slots[slot.0 as usize].content();
            if content.is_noted() {
                self.lost.insert(content.key.volume, error.clone());
            }
            self.give_up(slot, error, None, disk);
        }
    }

    /// A sync failed: gives up every complete shard that is not stable, and every shard whose
    /// header is being written. Fails the requests that wait for these shards.
    pub(super) fn give_up_unstable(&mut self, error: &NodeError, disk: &mut DiskQueue) {
        let mut seals = std::mem::take(&mut self.unstable);
        let mut waiters = std::mem::take(&mut self.round_waiting);
        if let Some(round) = self.round.take() {
            seals.extend(round.seals);
            waiters.extend(round.waiters);
        }
        let sealing: Vec<SlotIndex> = self
            .index
            .values()
            .filter_map(|copies| copies.open)
            .filter(|slot| self.slots[slot.0 as usize].stage == SlotState::Sealing)
            .collect();
        for slot in sealing {
            self.give_up(slot, error, None, disk);
        }
        // Newest first, so that each shard falls back to the copy before it.
        seals.sort_by_key(|seal| std::cmp::Reverse(seal.sequence));
        for Seal { slot, sequence, rank } in seals {
            let state = &mut self.slots[slot.0 as usize];
            if state.header_sequence == Some(sequence) {
                self.headers_unsure.insert(sequence);
            }
            let current = state.stage == SlotState::Sealed
                && state.content.as_deref().is_some_and(|content| content.sequence == sequence);
            if !current {
                continue;
            }
            let content = state.content_mut();
            let (key, old) = (content.key, content.replaces.take());
            if let Some(old) = old {
                self.slots[old.0 as usize].stage = SlotState::Sealed;
                self.superseded -= 1;
            }
            self.index.get_mut(&key).expect("complete shards are in the index").sealed = old;
            self.forget_if_empty(key);
            self.release(slot, None, disk);
            if !waiters.iter().any(|waiter| waiter.volume == key.volume && waiter.rank > rank) {
                self.lost.insert(key.volume, error.clone());
            }
        }
        self.done.extend(waiters.into_iter().map(|waiter| (waiter.entry, Err(error.clone()))));
    }
}
