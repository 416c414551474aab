//! Appending: packs waiting changes into records, puts their blocks into the open segment, and
//! sends the records.

use bytes::Bytes;
use fieldstone_proto::{BLOCK_BYTES, SegmentKind, crc32c_blocks};
use smallvec::SmallVec;

use super::admission::{Admission, UserSpace};
use super::pending::Origin;
use super::{BATCHES_MAX, Batch, KeptRecord, Line, Mutation};
use crate::core::VolumeCore;
use crate::footer::footer_blocks;
use crate::map::Location;
use crate::record::{Entry, EntryKind, HEADER_BYTES, Header, RECORD_ENTRIES_MAX};
use crate::relay::Append;
use crate::rows::RecordForm;
use crate::segment::{Contents, Segment, SegmentIndex, State};
use crate::status::VolumePhase;

struct RecordBuilder {
    handle: SegmentIndex,
    entries: Vec<Entry>,
    payload: Vec<Bytes>,
    blocks: u32,
    room: u32,
    /// The record goes as rows, if its blocks turn out to be whole rows.
    detached: bool,
    parts: Vec<usize>,
}

impl VolumeCore {
    /// Appends waiting changes, as far as bounds allow. Returns whether it appended any.
    pub fn pump_log(&mut self) -> bool {
        let mut any = false;
        loop {
            let over = self.life.is_over() || *self.life.phase() == VolumePhase::Inspected;
            if over || self.log.nodes.is_empty() {
                break;
            }
            if self.log.journal_move.has_to_move() {
                self.start_mover();
                break;
            }
            if self.log.batches.len() >= BATCHES_MAX {
                break;
            }
            if !self.log.waits() {
                self.log.hopeless_since = None;
                self.log.reserving_blocks = 0;
                if self.log.internal.is_empty() {
                    self.log.no_room_since = None;
                    break;
                }
            }
            if !self.ring_has_room() {
                // With so few nodes no segment can be stored, so the ring stays full. The mover
                // waits for nodes, and answers users.
                if self.life.serves() && !self.writable() {
                    self.log.journal_move.request();
                    continue;
                }
                self.hold_all();
                break;
            }
            if !self.append_one() {
                break;
            }
            any = true;
        }
        self.relieve_ring();
        any
    }

    /// The ring has room for the next record. A record that does not fit before the ring's end
    /// starts at the ring's beginning. In an opening a record is no larger than the changes in it,
    /// because a ring has room for all records that a ring held.
    pub fn ring_has_room(&self) -> bool {
        let most = self.log.record_blocks();
        let opening = self.life.is_opening();
        let blocks = if opening { self.log.replay_blocks(most) } else { most };
        let record = HEADER_BYTES as u64 + u64::from(blocks) * BLOCK_BYTES as u64;
        let turn_left = self.log.ring_bytes - self.log.next.0 % self.log.ring_bytes;
        let skipped = if record > turn_left { turn_left } else { 0 };
        self.log.used_bytes() + skipped + record <= self.log.ring_bytes
    }

    /// Keeps the ring from filling up. Closes the open segment when that segment alone fills half
    /// of the ring. Makes closed segments durable, so that their records can go.
    fn relieve_ring(&mut self) {
        if self.log.used_bytes() * 2 <= self.log.ring_bytes || self.life.is_opening() {
            return;
        }
        if let Some(open) = self.log.open {
            let first = self.segments.get(open).map_or(self.log.next, |s| s.lsn_first);
            // Below half, records of closed segments fill the ring. These records go when their
            // segments are durable. Closing the open segment too would spend a slot on every node
            // for the few records in it, and this would happen again with each further record.
            if (self.log.next.0 - first.0) * 2 > self.log.ring_bytes {
                self.close_open_segment();
            }
        }
        self.start_sync();
    }

    /// Starts to make sealed segments durable, if no task does this already.
    pub fn start_sync(&mut self) {
        if self.log.segment_sync.begin() {
            self.spawn_with(crate::sync::sync_segments_task);
        }
    }

    fn open_segment(&mut self) -> SegmentIndex {
        if let Some(open) = self.log.open {
            return open;
        }
        let id = self.segments.next_id(self.writer.epoch());
        // An opening does not store the segments that it replays.
        let draw = if self.life.is_opening() { None } else { self.take_draw(id) };
        let serves = !self.life.is_opening();
        let handle = self.segments.insert(Segment {
            begun_at: serves.then_some(self.now),
            lsn_first: self.log.next,
            lsn_end: self.log.next,
            contents: Some(Contents::new(draw)),
            ..Segment::new(id, SegmentKind::Data, State::Open, self.shape.layout().width())
        });
        self.log.open = Some(handle);
        handle
    }

    /// Ends the open segment, if any, and starts sealing it.
    pub fn close_open_segment(&mut self) {
        let Some(handle) = self.log.open.take() else { return };
        let layout = *self.shape.layout();
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        if contents.entries.is_empty() {
            // The segment has nothing to store. Sealing it would waste slots, again and again while
            // the ring is full and users wait for space.
            self.segments.remove(handle);
            return;
        }
        let of_trims = contents.blocks() == 0;
        let blocks = contents.blocks() + footer_blocks(contents.entries.len());
        segment.shard_bytes = layout.shard_blocks_for(blocks) * BLOCK_BYTES as u32;
        if of_trims && !self.life.is_opening() && self.starved() {
            self.segments.shelve(handle);
            return self.start_gc();
        }
        self.segments.set_state(handle, State::Closed);
        self.gc.since_checkpoint.segments += 1;
        // The journal has the blocks that an opening replays. They are stored when the volume
        // serves.
        if !self.life.is_opening() {
            self.spawn_with(move |ctx| crate::seal::seal(ctx, handle));
        }
    }

    /// Ends the open segment because the volume is about to write a checkpoint, and the checkpoint
    /// records the effect of trims.
    pub fn close_for_checkpoint(&mut self) {
        match self.log.open {
            Some(open) if self.log_is_of_trims() => {
                self.log.open = None;
                self.segments.shelve(open);
            }
            _ => self.close_open_segment(),
        }
    }

    /// Blocks that the open segment can still take together with `entries` more entries.
    pub fn segment_room(&self, handle: SegmentIndex, entries: usize) -> u32 {
        let segment = self.segments.get(handle).expect("the open segment exists");
        let contents = segment.contents.as_ref().expect("an open segment is in memory");
        let footer = footer_blocks(contents.entries.len() + entries);
        self.shape.layout().segment_blocks().saturating_sub(contents.blocks() + footer)
    }

    /// Builds and sends one record. The record holds the volume's own changes if there are any,
    /// else the changes of users in their order of arrival. Trims take no room (see `space`), so
    /// only they go on when other changes wait for room. Returns false if the record took no
    /// change.
    fn append_one(&mut self) -> bool {
        let internal = !self.log.internal.is_empty();
        let mut held = false;
        if !self.room_for_blocks() && self.log.next_line(held) != Some(Line::Trims) {
            let line = if internal { Line::Internal } else { Line::Users };
            self.hold_line(line);
            held = true;
        }
        if self.log.next_line(held).is_none() {
            return false;
        }
        let handle = self.open_segment();
        let queued = match internal || held {
            true => 0,
            false => self.log.large_queued(2 * self.log.record_blocks()),
        };
        let room = self.segment_room(handle, RECORD_ENTRIES_MAX);
        let (room, detached) = match self.record_form(handle, queued, room) {
            RecordForm::Whole(room) => (room, false),
            RecordForm::Detached(room) => (room, true),
            RecordForm::Hold => return false,
            RecordForm::Close => {
                self.close_open_segment();
                return true;
            }
        };
        let mut record = RecordBuilder {
            handle,
            entries: Vec::new(),
            payload: Vec::new(),
            blocks: 0,
            room,
            detached,
            parts: Vec::new(),
        };
        self.fill_record(&mut record, internal, held);
        if record.entries.is_empty() {
            let full = self.segment_room(handle, RECORD_ENTRIES_MAX) == 0;
            if full {
                self.close_open_segment();
            }
            return full;
        }
        let of_blocks = record.blocks > 0;
        self.send_record(record);
        match of_blocks {
            true => self.log.held_since = None,
            // The trimmed blocks may be the last live blocks of a segment.
            false => self.consider_gc(),
        }
        match internal {
            true if of_blocks => self.log.moved_at = self.now,
            false if of_blocks => self.log.no_room_since = None,
            _ => {}
        }
        true
    }

    /// Fills a record with waiting changes: the volume's own changes, or those of users. With
    /// `held`, changes that take room wait.
    fn fill_record(&mut self, record: &mut RecordBuilder, internal: bool, mut held: bool) {
        // Computed once per record: the few blocks of a record fit into the reserve's remainder.
        let mut space = UserSpace {
            blocks: self.space_for_user(),
            starved: self.starved(),
            borrowed: self.space_is_borrowed(),
            refused: false,
        };
        while record.room > 0 && record.entries.len() < RECORD_ENTRIES_MAX {
            let Some(line) = self.log.next_line(held) else { break };
            let blocks = line != Line::Trims;
            if blocks && internal != (line == Line::Internal) {
                break;
            }
            if blocks && !self.room_for_blocks() {
                held = true;
                continue;
            }
            let Some(mut mutation) = self.log.line(line).pop_front() else { break };
            let room = self.segment_room(record.handle, RECORD_ENTRIES_MAX);
            if room == 0 {
                self.log.line(line).push_front(mutation);
                break;
            }
            let admission = match line {
                Line::Users => self.admit(&mutation, &mut space),
                Line::Internal | Line::Trims => Admission::Take,
            };
            match admission {
                Admission::Refuse(error) => {
                    self.refuse(&mutation, error);
                    continue;
                }
                Admission::Wait => {
                    self.log.line(line).push_front(mutation);
                    held = true;
                    continue;
                }
                Admission::Take => {}
            }
            self.take_part(record, &mut mutation, room);
            if mutation.count > 0 {
                self.log.line(line).push_front(mutation);
            } else {
                self.part_done(mutation.pending);
            }
        }
        if space.refused {
            self.make_room();
        }
    }

    /// Moves as much of `mutation` into the record as the record has room for.
    fn take_part(&mut self, record: &mut RecordBuilder, mutation: &mut Mutation, room: u32) {
        let first_entry = record.entries.len();
        match mutation.kind {
            EntryKind::Data => {
                let count = mutation.count.min(record.room).min(room);
                let bytes = count as usize * BLOCK_BYTES;
                let data = mutation.data.slice(..bytes);
                match mutation.from {
                    None => self.take_blocks(record, mutation.block, count, data, None),
                    Some(from) => self.take_moved(record, mutation.block, count, &data, from),
                }
                if matches!(self.log.pending[mutation.pending].origin, Origin::User(_)) {
                    self.counters.user_written_bytes += bytes as u64;
                }
                mutation.data = mutation.data.slice(bytes..);
                mutation.from = mutation.from.map(|from| from.plus(count));
                mutation.block += u64::from(count);
                mutation.count -= count;
            }
            EntryKind::Trim | EntryKind::Reserve => {
                let range = mutation.block..mutation.block + u64::from(mutation.count);
                let to = match mutation.kind {
                    EntryKind::Reserve => Location::RESERVED,
                    _ => Location::HOLE,
                };
                self.clear_map(range, to);
                record.entries.push(Entry {
                    kind: mutation.kind,
                    block: mutation.block,
                    count: mutation.count,
                    segment_block: 0,
                });
                self.note_entry(record.handle, *record.entries.last().expect("just pushed"));
                mutation.count = 0;
            }
        }
        if record.entries.len() > first_entry {
            let pending = &mut self.log.pending[mutation.pending];
            pending.parts += 1;
            record.parts.push(mutation.pending);
        }
    }

    /// Takes blocks that collection moves. Blocks that users overwrote meanwhile stay behind.
    fn take_moved(
        &mut self,
        record: &mut RecordBuilder,
        block: u64,
        count: u32,
        data: &Bytes,
        from: Location,
    ) {
        let mut at = 0;
        while at < count {
            let still = |i: u32| self.map.has(block + u64::from(i), from.plus(i));
            if !still(at) {
                at += 1;
                continue;
            }
            let mut run = 1;
            while at + run < count && still(at + run) {
                run += 1;
            }
            let slice = data.slice(at as usize * BLOCK_BYTES..(at + run) as usize * BLOCK_BYTES);
            if record.entries.len() >= RECORD_ENTRIES_MAX {
                // This cannot happen with one entry per two blocks. If someone changes the bounds,
                // this check leaves blocks behind and does not overflow the header.
                return;
            }
            self.counters.moved_bytes += u64::from(run) * BLOCK_BYTES as u64;
            self.take_blocks(record, block + u64::from(at), run, slice, Some(from.plus(at)));
            at += run;
        }
    }

    /// Takes blocks into the record. Without `from` they are a user's, and the head of the map gets
    /// them. With `from`, collection moves them from there, for all roots of the map.
    fn take_blocks(
        &mut self,
        record: &mut RecordBuilder,
        block: u64,
        count: u32,
        data: Bytes,
        from: Option<Location>,
    ) {
        let segment = self.segments.get_mut(record.handle).expect("the open segment exists");
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        let segment_block = contents.blocks();
        contents.push(data.clone());
        segment.live_blocks += count;
        for i in 0..count {
            let location = Location::at(record.handle, segment_block + i);
            let at = block + u64::from(i);
            let before = match from.map(|from| from.plus(i)) {
                None => self.map.set(at, location),
                Some(from) => {
                    self.map.relocate(at, from, location);
                    from
                }
            };
            self.forget(before);
        }
        let entry = Entry { kind: EntryKind::Data, block, count, segment_block };
        record.entries.push(entry);
        record.payload.push(data);
        record.blocks += count;
        record.room -= count;
        self.note_entry(record.handle, entry);
    }

    /// Adds an entry to the segment's future footer. Joins it with the entry before if both form
    /// one run.
    fn note_entry(&mut self, handle: SegmentIndex, entry: Entry) {
        let segment = self.segments.get_mut(handle).expect("the open segment exists");
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        if let Some(last) = contents.entries.last_mut()
            && last.kind == EntryKind::Data
            && entry.kind == EntryKind::Data
            && last.block + u64::from(last.count) == entry.block
            && last.segment_block + last.count == entry.segment_block
        {
            last.count += entry.count;
            return;
        }
        contents.entries.push(entry);
    }

    /// A block of the device no longer lies at `location`.
    pub fn forget(&mut self, location: Location) {
        if let Some((handle, _)) = location.stored()
            && let Some(segment) = self.segments.get_mut(handle)
        {
            segment.live_blocks -= 1;
            self.gc.since_checkpoint.segments_died += u64::from(segment.live_blocks == 0);
        }
    }

    /// Clears a range of the map.
    pub fn clear_map(&mut self, range: std::ops::Range<u64>, to: Location) {
        self.gc.note_change();
        let (segments, died) = (&mut self.segments, &mut self.gc.since_checkpoint.segments_died);
        let mut frees = false;
        self.map.clear(range, to, |gone| {
            if let Some((handle, _)) = gone.stored()
                && let Some(segment) = segments.get_mut(handle)
            {
                segment.live_blocks -= 1;
                *died += u64::from(segment.live_blocks == 0);
                frees = true;
            }
        });
        if frees {
            // Collection can make space now, so the time that users wait begins anew.
            self.log.starved_since = None;
        }
    }

    fn send_record(&mut self, record: RecordBuilder) {
        let bytes = (HEADER_BYTES + record.blocks as usize * BLOCK_BYTES) as u64;
        let ring = self.log.ring_bytes;
        let previous_end = self.log.next;
        let turn_left = ring - previous_end.0 % ring;
        let lsn = if bytes > turn_left { previous_end.plus(turn_left) } else { previous_end };
        let checksums: Vec<u32> =
            record.payload.iter().flat_map(|data| crc32c_blocks(data)).collect();
        let segment = self.segments.get_mut(record.handle).expect("the open segment exists");
        segment.lsn_end = lsn.plus(bytes);
        let contents = segment.contents.as_mut().expect("an open segment is in memory");
        contents.checksums.extend_from_slice(&checksums);
        let segment_block = contents.blocks() - record.blocks;
        // Space may have run out in the middle of a row.
        let row = self.shape.layout().row_blocks();
        let detached = record.detached && record.blocks > 0 && record.blocks.is_multiple_of(row);
        let header = Header {
            volume: self.config.volume,
            epoch: self.writer.epoch(),
            generation: self.log.generation,
            lsn,
            previous_end,
            trimmed: self.log.trimmed,
            segment: segment.id,
            segment_block,
            detached,
            entries: record.entries,
            checksums,
        };
        self.log.next = header.end();
        self.log.batches_made += 1;
        let sequence = self.log.batches_made;
        if detached {
            self.segments.set_detached(record.handle, true);
        }
        let rows = match detached {
            true => self.send_rows(record.handle, segment_block, &header.checksums, sequence),
            false => 0,
        };
        self.log.batches.push_back(Batch {
            sequence,
            end: header.end(),
            waiting: SmallVec::from_slice(&self.log.nodes),
            rows,
            blocks: record.blocks,
            parts: record.parts,
        });
        let mut payload = Vec::with_capacity(1 + record.payload.len());
        payload.push(header.encode());
        if !detached {
            payload.extend(record.payload.iter().cloned());
        }
        self.log.records.push_back(KeptRecord { header, payload: record.payload });
        let append = Append { generation: self.log.generation, batch: sequence, lsn };
        self.send_append(append, payload);
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{Lsn, NodeIndex, RequestBody};

    use super::*;
    use crate::script::{JOURNAL, Script, Sent};

    /// The positions of the records among the requests to a node, and their lengths.
    fn records(sent: &[Sent], node: NodeIndex) -> Vec<(Lsn, u64)> {
        let of_node = sent.iter().filter(|sent| sent.node == node);
        let record = |sent: &Sent| match sent.request.body {
            RequestBody::JournalAppend { lsn, .. } => {
                let payload = &sent.request.payload;
                Some((lsn, payload.iter().map(|part| part.len() as u64).sum()))
            }
            _ => None,
        };
        of_node.filter_map(record).collect()
    }

    /// Recovery replays a prefix of the log: an acknowledged record after a hole would be lost.
    #[test]
    fn a_write_is_acknowledged_when_all_nodes_have_its_record_and_those_before_it() {
        let mut script = Script::serving(8);
        script.write(1, 1);
        let first = script.sent();
        script.write(2, 1);
        let second = script.sent();
        for sent in [&first, &second] {
            assert_eq!(sent.iter().map(|sent| sent.node).collect::<Vec<_>>(), JOURNAL);
        }
        second.iter().for_each(|sent| script.done(sent));
        first[1..].iter().for_each(|sent| script.done(sent));
        script.sent();
        assert!(script.completions.is_empty(), "one node may lack the first record");
        script.done(&first[0]);
        script.sent();
        let ids: Vec<u64> = script.completions.iter().map(|done| done.id.0).collect();
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn changes_that_wait_for_records_in_flight_share_the_next_one() {
        let mut script = Script::serving(8);
        let mut sent = Vec::new();
        for block in 0..BATCHES_MAX as u64 + 8 {
            script.write(block, 1);
            sent.extend(script.sent());
        }
        assert_eq!(records(&sent, JOURNAL[0]).len(), BATCHES_MAX);
        for node in JOURNAL {
            let first = sent.iter().find(|sent| sent.node == node).expect("each node got it");
            script.done(first);
        }
        let next = records(&script.sent(), JOURNAL[0]);
        assert_eq!(next.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [9 * 4096]);
    }

    /// The volume writes three times what the ring holds, and its nodes do all that it asks for.
    #[test]
    fn records_follow_each_other_and_never_run_over_the_end_of_the_ring() {
        let mut script = Script::serving(8);
        let ring = script.core(|core| core.log.ring_bytes);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for write in 0..1_000 {
            script.write(2 * (write % 100), 2);
            for _ in 0..50 {
                script.do_jobs();
                let sent = script.sent();
                found.extend(records(&sent, JOURNAL[0]));
                sent.iter().for_each(|sent| script.done(sent));
                script.wait_ms(1);
                if sent.is_empty() && script.jobs.is_empty() {
                    break;
                }
            }
            bytes = found.iter().map(|(_, bytes)| *bytes).sum();
            if bytes > 3 * ring {
                break;
            }
        }
        assert!(bytes > 3 * ring, "{bytes}");
        let mut skips = 0;
        for pair in found.windows(2) {
            let ((lsn, bytes), (next, next_bytes)) = (pair[0], pair[1]);
            let end = lsn.0 + bytes;
            assert!(next.0 % ring + next_bytes <= ring, "{next:?} runs over the end");
            if next.0 != end {
                assert_eq!(next.0, end.next_multiple_of(ring), "the next turn");
                assert!(end % ring + next_bytes > ring, "it had room before the end");
                skips += 1;
            }
        }
        assert!(skips > 0, "the last record of a turn fits only by chance");
    }
}
