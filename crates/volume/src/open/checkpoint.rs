//! Knowledge about segments before any footer is replayed: the checkpoint, and the nodes' lists.

use fieldstone_buf::join;
use fieldstone_proto::{BLOCK_BYTES, Lsn, NodeIndex, SegmentId, SegmentKind, ShardInfo};
use smallvec::SmallVec;

use super::Failure;
use super::chain::ChainSegment;
use super::validate::{Listed, verify_copies};
use crate::core::{Ctx, VolumeCore};
use crate::map::Location;
use crate::read::read_segment;
use crate::record::{Entry, EntryKind};
use crate::root::Root;
use crate::segment::{Segment, SegmentIndex, State};

/// Reads the checkpoint that the root names, and adds its segments and its map.
pub(super) async fn load_checkpoint(
    ctx: &Ctx,
    root: &Root,
    listed: &Listed,
) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    for id in &root.checkpoint_segments {
        let shards = listed.get(id).map_or(&[][..], Vec::as_slice);
        let shard_bytes = shards.first().map_or(0, |(_, info)| info.meta.shard_bytes);
        let handle = ctx.with(|core| {
            let kind = SegmentKind::Checkpoint;
            core.insert_listed(*id, kind, (Lsn(0), Lsn(0)), shard_bytes, shards)
        });
        // The opening reads the checkpoint in full right away, so the only question is which copy
        // of a shard to read.
        let unproven = ctx.with(|core| {
            let found = core.segments.get(handle).map(|s| s.shards.clone()).unwrap_or_default();
            core.unproven(handle, shards, &found)
        });
        verify_copies(ctx, &unproven).await?;
        let blocks = ctx.with(|core| shard_bytes / BLOCK_BYTES as u32 * core.layout.k);
        let data = read_segment(ctx, handle, 0, blocks).await.map_err(|error| {
            Failure::Again(format!("the checkpoint (segment {id}) cannot be read: {error}"))
        })?;
        bytes.extend_from_slice(&join(&data));
    }
    if root.checkpoint_bytes == 0 {
        return Ok(());
    }
    let length = usize::try_from(root.checkpoint_bytes).unwrap_or(usize::MAX);
    let bytes = bytes
        .get(..length)
        .ok_or_else(|| Failure::Again("the checkpoint is shorter than the root says".into()))?;
    let checkpoint = crate::checkpoint::decode(bytes)
        .map_err(|error| Failure::Final(format!("checkpoint: {error}")))?;
    let unproven = ctx.with(|core| {
        let mut handles = Vec::with_capacity(checkpoint.segments.len());
        let mut unproven = Vec::new();
        for record in &checkpoint.segments {
            let shards = listed.get(&record.id).map_or(&[][..], Vec::as_slice);
            let lsn = (record.lsn_first, record.lsn_end);
            let kind = SegmentKind::Data;
            let handle = core.insert_listed(record.id, kind, lsn, record.shard_bytes, shards);
            unproven.extend(core.unproven(handle, shards, &record.shards));
            handles.push(handle);
        }
        for run in &checkpoint.runs {
            for i in 0..run.count {
                let location = match run.place {
                    None => Location::RESERVED,
                    Some((index, at)) => Location::at(handles[index as usize], at + i),
                };
                core.map.set(run.block + u64::from(i), location);
            }
            if let Some((index, _)) = run.place
                && let Some(segment) = core.segments.get_mut(handles[index as usize])
            {
                segment.live_blocks += run.count;
            }
        }
        unproven
    });
    verify_copies(ctx, &unproven).await?;
    Ok(())
}

impl VolumeCore {
    /// Adds a segment whose shards the nodes have listed.
    pub(super) fn insert_listed(
        &mut self,
        id: SegmentId,
        kind: SegmentKind,
        lsn: (Lsn, Lsn),
        shard_bytes: u32,
        listed: &[(NodeIndex, ShardInfo)],
    ) -> SegmentIndex {
        let mut segment = Segment {
            lsn_first: lsn.0,
            lsn_end: lsn.1,
            shard_bytes,
            ..Segment::new(id, kind, State::Durable, self.layout.width())
        };
        let fitting = listed.iter().filter(|(_, info)| segment.fits(info));
        let mut copies: Vec<(usize, NodeIndex)> =
            fitting.map(|(node, info)| (usize::from(info.shard.0), *node)).collect();
        // A node with one shard comes before a node with several, of which it can give any.
        let of = |node: NodeIndex| listed.iter().filter(|(other, _)| *other == node).count();
        copies.sort_by_key(|(_, node)| of(*node) > 1);
        segment.shards = one_per_node(segment.shards, &copies, self.code.k());
        self.segments.insert(segment)
    }

    /// Removes the segments at and after the start of the replay: the replay appends their records
    /// anew.
    pub(super) fn drop_segments_from(&mut self, chain: &[ChainSegment], start: Lsn) {
        for link in chain.iter().filter(|link| link.first >= start) {
            self.segments.remove(link.handle);
        }
    }

    pub(super) fn apply(&mut self, handle: SegmentIndex, entry: &Entry) {
        let blocks = self.geometry.size_bytes / BLOCK_BYTES as u64;
        let end = (entry.block + u64::from(entry.count)).min(blocks);
        match entry.kind {
            EntryKind::Data => {
                for (block, i) in (entry.block..end).zip(0u32..) {
                    let location = Location::at(handle, entry.segment_block + i);
                    let before = self.map.set(block, location);
                    self.forget(before);
                    if let Some(segment) = self.segments.get_mut(handle) {
                        segment.live_blocks += 1;
                    }
                }
            }
            EntryKind::Trim => self.clear_map(entry.block..end, Location::HOLE),
            EntryKind::Reserve => self.clear_map(entry.block..end, Location::RESERVED),
        }
    }
}

/// Adds copies of missing shards to the shards of a segment. A node counts for one shard: the
/// segment is to survive the loss of m nodes, and a node cannot delete one of two shards. Only if
/// fewer than k shards are there otherwise, nodes count for more.
pub(super) fn one_per_node(
    mut shards: SmallVec<[Option<NodeIndex>; 8]>,
    copies: &[(usize, NodeIndex)],
    k: usize,
) -> SmallVec<[Option<NodeIndex>; 8]> {
    for (shard, node) in copies {
        if !shards.contains(&Some(*node)) {
            shards[*shard].get_or_insert(*node);
        }
    }
    for (shard, node) in copies {
        if shards.iter().flatten().count() < k {
            shards[*shard].get_or_insert(*node);
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(copies: &[(usize, u16)], k: usize) -> Vec<Option<u16>> {
        let copies: Vec<(usize, NodeIndex)> =
            copies.iter().map(|(shard, node)| (*shard, NodeIndex(*node))).collect();
        let shards = one_per_node(SmallVec::from_elem(None, 3), &copies, k);
        shards.into_iter().map(|node| node.map(|node| node.0)).collect()
    }

    /// Seed 3873723: a node had two of three copies, one of which a power loss had brought back.
    #[test]
    fn a_node_counts_for_one_shard_of_a_segment() {
        let copies = [(0, 2), (1, 0), (2, 0)];
        assert_eq!(placed(&copies, 1), [Some(2), Some(0), None]);
        assert_eq!(placed(&[(0, 2), (1, 0), (2, 0), (2, 1)], 1), [Some(2), Some(0), Some(1)]);
        assert_eq!(placed(&[(0, 2), (0, 1), (1, 1)], 1), [Some(2), Some(1), None]);
    }

    #[test]
    fn a_node_counts_for_more_where_the_segment_is_unreadable_otherwise() {
        let copies = [(0, 2), (1, 0), (2, 0)];
        assert_eq!(placed(&copies, 3), [Some(2), Some(0), Some(0)]);
        assert_eq!(placed(&copies, 2), [Some(2), Some(0), None]);
    }
}
