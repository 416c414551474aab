//! The table of segments: where their shards lie, how many of their blocks are live, and which
//! blocks are in memory.
//!
//! A segment is open (it takes blocks from the log), then closed (the volume makes and sends its
//! shards), then sealed (its shards are written), then durable (its shards are stable, so the
//! journal may forget its records). Until a segment is sealed, the volume reads its blocks from
//! memory. A segment is dead when no block of the map lies in it. Its shards are deleted once a
//! checkpoint no longer needs them.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::{BLOCK_BYTES, Epoch, Lsn, NodeIndex, SegmentId, SegmentKind, ShardInfo};
use smallvec::SmallVec;

use crate::place::PrecomputedDraw;
use crate::record::Entry;
use crate::rows::Rows;

/// The index of a segment in the table. The map refers to segments by it. The table reuses the
/// index after the segment's deletion.
pub type SegmentIndex = u32;

const COUNTER_BITS: u32 = 40;

/// The name of a writer's `counter`-th segment. The epoch is part of the name, so two writers never
/// make the same name, even where a node that missed the second writer still has shards of the
/// first.
#[must_use]
fn segment_id(epoch: Epoch, counter: u64) -> SegmentId {
    SegmentId(epoch.0 << COUNTER_BITS | counter)
}

/// The epoch of the writer that made the segment.
#[must_use]
pub fn epoch_of(id: SegmentId) -> Epoch {
    Epoch(id.0 >> COUNTER_BITS)
}

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Taking blocks.
    Open,
    /// Complete in memory; its shards are being written.
    Closed,
    /// Its shards are written.
    Sealed,
    /// Its shards are stable.
    Durable,
}

/// Blocks of an unsealed segment, in memory.
#[derive(Default)]
pub struct Contents {
    /// Data by the segment block where it begins, ascending, without gaps.
    chunks: Vec<(u32, Bytes)>,
    blocks: u32,
    /// Checksums of the blocks.
    pub checksums: Vec<u32>,
    /// The changes of the records, in order.
    pub entries: Vec<Entry>,
    /// The nodes for the shards, drawn before the segment began.
    pub draw: Option<PrecomputedDraw>,
}

impl Contents {
    /// The contents of a segment that begins.
    #[must_use]
    pub fn new(draw: Option<PrecomputedDraw>) -> Self {
        Self { draw, ..Self::default() }
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Appends whole blocks.
    pub fn push(&mut self, data: Bytes) {
        debug_assert!(data.len().is_multiple_of(BLOCK_BYTES));
        let count = u32::try_from(data.len() / BLOCK_BYTES).expect("a segment is small");
        self.chunks.push((self.blocks, data));
        self.blocks += count;
    }

    /// The data of blocks `first .. first + count`, as slices of what was pushed.
    pub fn read(&self, first: u32, count: u32, mut take: impl FnMut(Bytes)) {
        let mut at = first;
        let end = first + count;
        let mut index = self.chunks.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        while at < end {
            let Some((start, data)) = self.chunks.get(index) else { return };
            let chunk_end = start + u32::try_from(data.len() / BLOCK_BYTES).expect("small");
            let stop = end.min(chunk_end);
            let from = (at - start) as usize * BLOCK_BYTES;
            let to = (stop - start) as usize * BLOCK_BYTES;
            take(data.slice(from..to));
            at = stop;
            index += 1;
        }
    }
}

/// One segment.
pub struct Segment {
    /// Its name.
    pub id: SegmentId,
    /// What the segment holds.
    pub kind: SegmentKind,
    /// Where it is in its life; [`SegmentTable::set_state`] changes it.
    pub state: State,
    /// Where its part of the log begins.
    pub lsn_first: Lsn,
    /// Where its part of the log ends; grows while the segment is open.
    pub lsn_end: Lsn,
    /// Length of each shard in bytes; zero until the segment is closed.
    pub shard_bytes: u32,
    /// The node of each shard; `None` where it is missing.
    pub shards: SmallVec<[Option<NodeIndex>; 8]>,
    /// When the writer that serves now opened the segment. `None` for a segment that an opening
    /// has found or replayed.
    pub begun_at: Option<Nanos>,
    /// Sealing has sent shards, and waits for the answers. It notes the shards when all nodes have
    /// answered, so some nodes may hold shards that the table does not show yet.
    pub sending: bool,
    /// Blocks of the map that lie in the segment.
    pub live_blocks: u32,
    /// The segment's blocks, until it is durable.
    pub contents: Option<Contents>,
    /// Where the volume wrote rows of the segment before sealing, if it wrote any.
    pub rows: Option<Rows>,
    /// The journal has records of the segment without their blocks;
    /// [`SegmentTable::set_detached`] changes this.
    pub detached: bool,
    /// The segment has only trims and is not to be stored: the next checkpoint records their
    /// effect. [`SegmentTable::shelve`] changes this.
    pub shelved: bool,
    /// Nodes that joined with rows or a shard of the segment that an opening might have needed.
    /// When the segment is durable, or sealed with its records whole in the journal, the volume
    /// tells those nodes that hold none of its shards to delete theirs.
    pub left_on: SmallVec<[NodeIndex; 1]>,
}

impl Segment {
    /// A segment of `width` shards. It has no blocks, no length and no place in the log, and all
    /// its shards are missing.
    #[must_use]
    pub fn new(id: SegmentId, kind: SegmentKind, state: State, width: usize) -> Self {
        Self {
            id,
            kind,
            state,
            lsn_first: Lsn(0),
            lsn_end: Lsn(0),
            shard_bytes: 0,
            shards: SmallVec::from_elem(None, width),
            begun_at: None,
            sending: false,
            live_blocks: 0,
            contents: None,
            rows: None,
            detached: false,
            shelved: false,
            left_on: SmallVec::new(),
        }
    }

    /// Number of the segment's blocks in memory.
    #[must_use]
    pub fn contents_blocks(&self) -> u32 {
        self.contents.as_ref().map_or(0, Contents::blocks)
    }

    /// Shards that are missing.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.shards.iter().filter(|node| node.is_none()).count()
    }

    /// The segment has this shard, and no node has it.
    #[must_use]
    pub fn is_missing(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(Option::is_none)
    }

    /// The node has a valid shard of the segment.
    #[must_use]
    pub fn has_shard_on(&self, node: NodeIndex) -> bool {
        self.shards.contains(&Some(node))
    }

    /// The node keeps what it has of the segment until a rebuild has ended.
    pub fn leave_on(&mut self, node: NodeIndex) {
        if !self.left_on.contains(&node) {
            self.left_on.push(node);
        }
    }

    /// A shard in a node's listing can be one of the segment's shards.
    #[must_use]
    pub fn fits(&self, info: &ShardInfo) -> bool {
        usize::from(info.shard.0) < self.shards.len()
            && info.meta.shard_bytes == self.shard_bytes
            && info.meta.kind == self.kind
    }

    fn row_backed(&self) -> bool {
        self.detached && matches!(self.state, State::Closed | State::Sealed)
    }

    /// The segment's shards are still to be written.
    fn unsealed(&self) -> bool {
        self.state < State::Sealed && !self.shelved
    }

    /// Nothing but rows and shards may have the segment's blocks: the journal lacks them, and the
    /// shards may not be stable. An opening may need everything that a node has of the segment.
    #[must_use]
    pub fn needs_rows(&self) -> bool {
        self.detached && self.state < State::Durable
    }

    /// The segment's shards are written, and some are missing.
    #[must_use]
    pub fn degraded(&self) -> bool {
        self.state >= State::Sealed && self.missing() > 0
    }
}

/// All segments of a volume.
#[derive(Default)]
pub struct SegmentTable {
    slots: Vec<Option<Segment>>,
    free: Vec<SegmentIndex>,
    by_id: BTreeMap<SegmentId, SegmentIndex>,
    checkpoints: Vec<SegmentIndex>,
    /// Shards of checkpoints on each node; empty when it has to be counted anew. The log asks for
    /// it with every record.
    checkpoint_shards: OnceCell<Vec<u64>>,
    unsealed: usize,
    shelved: usize,
    row_backed: usize,
    /// Names that the writer has made so far.
    named: u64,
}

impl SegmentTable {
    /// A name for a new segment of the writer with this epoch.
    pub fn next_id(&mut self, epoch: Epoch) -> SegmentId {
        self.named += 1;
        segment_id(epoch, self.named)
    }

    /// The name that [`Self::next_id`] will give next.
    #[must_use]
    pub fn upcoming_id(&self, epoch: Epoch) -> SegmentId {
        segment_id(epoch, self.named + 1)
    }

    /// Adds a segment.
    pub fn insert(&mut self, segment: Segment) -> SegmentIndex {
        let id = segment.id;
        self.unsealed += usize::from(segment.unsealed());
        self.shelved += usize::from(segment.shelved);
        self.row_backed += usize::from(segment.row_backed());
        let is_checkpoint = segment.kind == SegmentKind::Checkpoint;
        let handle = match self.free.pop() {
            Some(handle) => {
                self.slots[handle as usize] = Some(segment);
                handle
            }
            None => {
                self.slots.push(Some(segment));
                SegmentIndex::try_from(self.slots.len() - 1).expect("fewer than 2^32 segments")
            }
        };
        self.by_id.insert(id, handle);
        if is_checkpoint {
            self.checkpoints.push(handle);
            self.checkpoint_shards.take();
        }
        handle
    }

    /// Removes a segment. No reference to its handle may remain.
    pub fn remove(&mut self, handle: SegmentIndex) -> Option<Segment> {
        let segment = self.slots.get_mut(handle as usize)?.take()?;
        self.by_id.remove(&segment.id);
        if segment.kind == SegmentKind::Checkpoint {
            self.checkpoints.retain(|checkpoint| *checkpoint != handle);
            self.checkpoint_shards.take();
        }
        self.unsealed -= usize::from(segment.unsealed());
        self.shelved -= usize::from(segment.shelved);
        self.row_backed -= usize::from(segment.row_backed());
        self.free.push(handle);
        Some(segment)
    }

    /// The segment with this handle.
    #[must_use]
    pub fn get(&self, handle: SegmentIndex) -> Option<&Segment> {
        self.slots.get(handle as usize)?.as_ref()
    }

    /// The segment with this handle, to change.
    pub fn get_mut(&mut self, handle: SegmentIndex) -> Option<&mut Segment> {
        let segment = self.slots.get_mut(handle as usize)?.as_mut()?;
        if segment.kind == SegmentKind::Checkpoint {
            self.checkpoint_shards.take();
        }
        Some(segment)
    }

    /// Moves a segment to the next state of its life.
    pub fn set_state(&mut self, handle: SegmentIndex, state: State) {
        let Some(segment) = self.slots.get_mut(handle as usize).and_then(Option::as_mut) else {
            return;
        };
        self.row_backed -= usize::from(segment.row_backed());
        self.unsealed -= usize::from(segment.unsealed());
        segment.state = state;
        self.row_backed += usize::from(segment.row_backed());
        self.unsealed += usize::from(segment.unsealed());
    }

    /// Closes a segment that is not to be stored.
    pub fn shelve(&mut self, handle: SegmentIndex) {
        self.set_state(handle, State::Closed);
        let Some(segment) = self.slots.get_mut(handle as usize).and_then(Option::as_mut) else {
            return;
        };
        self.unsealed -= usize::from(segment.unsealed());
        segment.shelved = true;
        self.shelved += 1;
    }

    /// Some segments wait for the next checkpoint, which lets the volume forget them.
    #[must_use]
    pub fn any_shelved(&self) -> bool {
        self.shelved > 0
    }

    /// Notes whether the journal has records of a segment without their blocks.
    pub fn set_detached(&mut self, handle: SegmentIndex, detached: bool) {
        let Some(segment) = self.slots.get_mut(handle as usize).and_then(Option::as_mut) else {
            return;
        };
        self.row_backed -= usize::from(segment.row_backed());
        segment.detached = detached;
        self.row_backed += usize::from(segment.row_backed());
    }

    /// Number of complete segments that are not stable yet and whose blocks only their own shards
    /// hold.
    #[must_use]
    pub fn row_backed(&self) -> u64 {
        self.row_backed as u64
    }

    /// Number of segments whose shards are not written yet.
    #[must_use]
    pub fn unsealed(&self) -> u64 {
        self.unsealed as u64
    }

    /// The handle of the segment with this name.
    #[must_use]
    pub fn find(&self, id: SegmentId) -> Option<SegmentIndex> {
        self.by_id.get(&id).copied()
    }

    /// The segment with this name.
    #[must_use]
    pub fn named(&self, id: SegmentId) -> Option<&Segment> {
        self.get(self.find(id)?)
    }

    /// The segment with this name, to change.
    pub fn named_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.get_mut(self.find(id)?)
    }

    /// The names of the segments with these handles; `None` if one of them is gone.
    #[must_use]
    pub fn names(&self, handles: &[SegmentIndex]) -> Option<Vec<SegmentId>> {
        handles.iter().map(|handle| Some(self.get(*handle)?.id)).collect()
    }

    /// See [`Segment::needs_rows`].
    #[must_use]
    pub fn needs_rows(&self, id: SegmentId) -> bool {
        self.named(id).is_some_and(Segment::needs_rows)
    }

    /// All segments, oldest name first.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        self.by_id.values().filter_map(|handle| Some((*handle, self.get(*handle)?)))
    }

    /// The segments whose shards are not written yet, newest name first. They have the newest
    /// names, so this looks at few others.
    pub fn unsealed_segments(&self) -> impl Iterator<Item = (SegmentIndex, &Segment)> {
        let newest = self.by_id.values().rev();
        let segments = newest.filter_map(|handle| Some((*handle, self.get(*handle)?)));
        segments.filter(|(_, segment)| segment.unsealed()).take(self.unsealed)
    }

    /// The handles of all segments, oldest name first.
    #[must_use]
    pub fn handles(&self) -> Vec<SegmentIndex> {
        self.by_id.values().copied().collect()
    }

    /// The handles of the segments of checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> &[SegmentIndex] {
        &self.checkpoints
    }

    /// Shards of checkpoints on a node.
    #[must_use]
    pub fn checkpoint_shards_on(&self, node: NodeIndex) -> u64 {
        let held = self.checkpoint_shards.get_or_init(|| {
            let mut held = Vec::new();
            let segments = self.checkpoints.iter().filter_map(|handle| self.get(*handle));
            for node in segments.flat_map(|segment| segment.shards.iter().flatten()) {
                let node = usize::from(node.0);
                held.resize(held.len().max(node + 1), 0);
                held[node] += 1;
            }
            held
        });
        held.get(usize::from(node.0)).copied().unwrap_or(0)
    }

    /// Number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_of_checkpoints_are_counted_after_each_change() {
        let mut segments = SegmentTable::default();
        let mut add = |id, kind| {
            let segment = Segment::new(SegmentId(id), kind, State::Closed, 2);
            segments.insert(segment)
        };
        let checkpoint = add(1, SegmentKind::Checkpoint);
        let data = add(2, SegmentKind::Data);
        let held =
            |segments: &SegmentTable| [0, 7].map(|n| segments.checkpoint_shards_on(NodeIndex(n)));
        assert_eq!(held(&segments), [0, 0]);
        segments.get_mut(checkpoint).expect("it was added").shards[0] = Some(NodeIndex(7));
        segments.get_mut(data).expect("it was added").shards[0] = Some(NodeIndex(7));
        assert_eq!(held(&segments), [0, 1], "shards of data do not count");
        segments.named_mut(SegmentId(1)).expect("it was added").shards[1] = Some(NodeIndex(0));
        assert_eq!(held(&segments), [1, 1]);
        let second = Segment::new(SegmentId(3), SegmentKind::Checkpoint, State::Closed, 2);
        let second = Segment { shards: [Some(NodeIndex(7)), None].into_iter().collect(), ..second };
        let second = segments.insert(second);
        assert_eq!(held(&segments), [1, 2]);
        segments.remove(second);
        assert_eq!(held(&segments), [1, 1]);
    }
}
