//! Acknowledged open shards: writing their notes, and finding them again at a start.

use fieldstone_proto::NodeError;
use fieldstone_proto::disk::OpenNote;

use super::slot::{Content, Noted};
use super::{ChunkStore, SlotIndex, SlotState};
use crate::disk::{DiskOpKind, DiskQueue};
use crate::interface::{DiskOp, FileId};
use crate::request_table::EntryId;

impl ChunkStore {
    /// A write of a piece of a shard to `slot` begins. True if the entry must also wait for the
    /// slot's note. The end of the note's write then ends a part of the entry.
    pub(crate) fn note_open(
        &mut self,
        slot: SlotIndex,
        entry: EntryId,
        disk: &mut DiskQueue,
    ) -> bool {
        let state = &mut self.slots[slot.0 as usize];
        let content = state.content.as_deref_mut().expect("being written to");
        match &mut content.noted {
            Noted::Yes => return false,
            Noted::Writing(entries) => {
                entries.push(entry);
                return true;
            }
            Noted::No => content.noted = Noted::Writing(vec![entry]),
        }
        content.sequence = self.next_sequence;
        self.next_sequence += 1;
        content.stable_below = self.stable_below;
        state.header_dirty = true;
        state.pins += 1;
        let block = state.content().note(slot, self.incarnation).encode();
        let op = DiskOp::Write {
            file: FileId::Slots,
            offset_bytes: Self::note_at(slot),
            data: vec![block],
        };
        disk.submit(DiskOpKind::OpenNote(slot), op);
        true
    }

    /// The write of a note ended.
    pub(crate) fn note_written(
        &mut self,
        slot: SlotIndex,
        result: &Result<(), NodeError>,
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
            return self.give_up(slot, error, None, disk);
        }
        if let Noted::Writing(entries) = std::mem::replace(&mut content.noted, Noted::Yes) {
            self.done.extend(entries.into_iter().map(|entry| (entry, Ok(()))));
        }
        self.open_unstable = true;
        self.try_seal(slot, disk);
    }

    /// Adds a note that the start found in a slot without a header.
    pub(crate) fn adopt_open(&mut self, slot: SlotIndex, note: OpenNote) {
        self.next_sequence = self.next_sequence.max(note.sequence + 1);
        self.stable_below = self.stable_below.max(note.stable_below);
        let content = Content::from_note(note);
        let (key, rank) = (content.key, (content.epoch, content.sequence));
        self.allotments.take(key.volume);
        let state = &mut self.slots[slot.0 as usize];
        state.header_dirty = true;
        state.content = Some(Box::new(content));
        state.stage = SlotState::Open;
        let Some(other) = self.index.entry(key).or_default().open.replace(slot) else { return };
        // The slot of an older note was about to become free. `finish_start` continues this.
        let before = self.slots[other.0 as usize].content();
        let loser = if (before.epoch, before.sequence) < rank {
            other
        } else {
            self.index.entry(key).or_default().open = Some(other);
            slot
        };
        self.slots[loser.0 as usize].stage = SlotState::Superseded;
    }

    fn note_at(slot: SlotIndex) -> u64 {
        Self::header_at(slot) + u64::from(super::HEADER_BYTES)
    }
}
