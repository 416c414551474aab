//! The contents that a start finds in the files: the shard in each slot, and data that may not be
//! stable.

use fieldstone_proto::disk::SlotHeader;

use super::slot::{Content, SlotState};
use super::{ChunkStore, SlotIndex};
use crate::disk::DiskQueue;
use crate::interface::FileId;

/// More sequences than a node uses from one start to the next. A header that this start could not
/// read may have the highest sequence on the disk. Without this step, a shard written from now on
/// could get a lower one, and the next start would take the older copy. (If that start can read the
/// older header and none of the newer ones, it takes the older copy all the same.)
const UNREAD_SEQUENCES: u64 = 1 << 32;

impl ChunkStore {
    /// Adds a header that the start found.
    pub(crate) fn adopt(&mut self, slot: SlotIndex, header: SlotHeader) {
        self.next_sequence = self.next_sequence.max(header.sequence + 1);
        self.stable_below = self.stable_below.max(header.stable_below);
        let content = Content::from_header(header);
        let (key, rank) = (content.key, (content.epoch, content.sequence));
        self.allotments.take(key.volume);
        let state = &mut self.slots[slot.0 as usize];
        state.stage = SlotState::Sealed;
        state.header_dirty = true;
        state.content = Some(Box::new(content));
        let copies = self.index.entry(key).or_default();
        let loser = match copies.sealed {
            Some(other) => {
                let content = self.slots[other.0 as usize].content();
                if (content.epoch, content.sequence) < rank {
                    copies.sealed = Some(slot);
                    other
                } else {
                    slot
                }
            }
            None => {
                copies.sealed = Some(slot);
                return;
            }
        };
        // `finish_start` erases it once everything on the disk is known to be stable.
        self.slots[loser.0 as usize].stage = SlotState::Superseded;
    }

    /// Takes a slot whose header cannot be read out of use.
    pub(crate) fn set_bad(&mut self, slot: SlotIndex) {
        self.slots[slot.0 as usize].stage = SlotState::Bad;
    }

    /// Data of shards that the start found and that may not be stable although reads show it: file,
    /// first byte and length.
    pub(crate) fn unsynced_data(&self) -> Vec<(FileId, u64, u64)> {
        let slots = (0..).map(SlotIndex).zip(&self.slots);
        let data = slots.filter_map(|(slot, state)| {
            let len_bytes = match state.stage {
                SlotState::Open => self.slot_bytes,
                SlotState::Sealed if state.content().sequence >= self.stable_below => {
                    state.content().meta.shard_bytes
                }
                _ => return None,
            };
            Some((FileId::Data, self.data_at(slot), u64::from(len_bytes)))
        });
        data.collect()
    }

    /// The start has read all headers, and their contents are stable, except for data that stays
    /// unsynced. Sets up the free list and erases superseded shards.
    pub(crate) fn finish_start(&mut self, stays_unsynced: bool, disk: &mut DiskQueue) {
        self.has_unsynced_data = stays_unsynced;
        if self.slots.iter().any(|slot| slot.stage == SlotState::Bad) {
            self.next_sequence += UNREAD_SEQUENCES;
        }
        self.raise_stable_below(self.next_sequence);
        for at in (0..self.slots.len()).rev() {
            let slot = SlotIndex(u32::try_from(at).expect("made from a u32"));
            match self.slots[at].stage {
                SlotState::Free => self.free.push(slot),
                SlotState::Superseded => self.release(slot, None, disk),
                _ => {}
            }
        }
    }
}
